"""The command `memformer`: the only place that puts the parts together."""

import sys
from typing import Any

from jsonargparse import auto_cli

from memformer_torch import commands, demo
from memformer_torch.bench.gradients import gradients
from memformer_torch.bench.sizes import models
from memformer_torch.bench.step import step

COMMANDS: Any = {
    "train": commands.train,
    "evaluate": commands.evaluate,
    "data": commands.data,
    "models": models,
    "demo": {"_help": "Short runs that show what the model does.", "retention": demo.retention, "digits": demo.digits},
    "bench": {"_help": "What things cost, measured side by side.", "step": step, "gradients": gradients},
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; an error that a user can mend is one line and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    arguments = ["--json=true" if argument == "--json" else argument for argument in arguments]  # a switch, as people write it
    try:
        auto_cli(COMMANDS, args=arguments, allow_abbrev=False)
    except (ValueError, OSError, ImportError) as error:
        print(f"memformer: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print("memformer: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
