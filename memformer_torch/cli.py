"""The command `memformer`: the only place that puts the parts together."""

import sys
from typing import Any

from jsonargparse import auto_cli

from memformer_torch import demo
from memformer_torch.bench.gradients import gradients
from memformer_torch.bench.sizes import models
from memformer_torch.bench.step import step

COMMANDS: Any = {
    "models": models,
    "demo": {"_help": "Short runs that show what the model does.", "retention": demo.retention},
    "bench": {"_help": "What things cost, measured side by side.", "step": step, "gradients": gradients},
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; an error that a user can mend is one line and exit code 2."""
    try:
        auto_cli(COMMANDS, args=arguments, as_positional=False, allow_abbrev=False)
    except (ValueError, OSError, ImportError) as error:
        print(f"memformer: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print("memformer: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
