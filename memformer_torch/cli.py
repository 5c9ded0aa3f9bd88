"""The command `memformer`: the only place that puts the parts together."""

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, auto_cli, set_parsing_settings

from memformer_torch import commands
from memformer_torch.bench.ceiling import ceiling
from memformer_torch.bench.endless import endless
from memformer_torch.bench.every import every
from memformer_torch.bench.generate import generate as bench_generate
from memformer_torch.bench.gradients import gradients
from memformer_torch.bench.inference import inference
from memformer_torch.bench.length import length
from memformer_torch.bench.loop import loop
from memformer_torch.bench.memory import memory
from memformer_torch.bench.peers import peers
from memformer_torch.bench.sizes import models
from memformer_torch.bench.step import step
from memformer_torch.demo.digits import digits
from memformer_torch.demo.retention import retention
from memformer_torch.reproduce.command import reproduce
from memformer_torch.reproduce.readme import results
from memformer_torch.runs import nearest
from memformer_torch.serve.explore import explore
from memformer_torch.talk.chat import chat
from memformer_torch.talk.generate import generate
from memformer_torch.talk.inspect import inspect as inspect_run
from memformer_torch.talk.read import read

COMMANDS: Any = {
    "train": commands.train,
    "evaluate": commands.evaluate,
    "data": commands.data,
    "generate": generate,
    "chat": chat,
    "read": read,
    "explore": explore,
    "inspect": inspect_run,
    "models": models,
    "reproduce": reproduce,
    "results": results,
    "demo": {"_help": "Short runs that show what the model does.", "digits": digits, "retention": retention},
    "bench": {
        "_help": "What things cost, measured side by side.",
        "step": step,
        "gradients": gradients,
        "loop": loop,
        "length": length,
        "memory": memory,
        "inference": inference,
        "generate": bench_generate,
        "endless": endless,
        "ceiling": ceiling,
        "peers": peers,
        "all": every,
    },
}


class Formatter(DefaultHelpFormatter):
    """Leaves paragraphs apart."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(Formatter, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


class Parser(ArgumentParser):
    """Says in one line what is wrong; of an option that is not known, on the command line or in a file, which is like it."""

    def add_function_arguments(self, function: Any, *others: Any, **options: Any) -> Any:
        # help is all that a docstring says before its Args, where jsonargparse takes the first line
        self.description, self.formatter_class = inspect.cleandoc(function.__doc__).partition("\n\nArgs:")[0], Formatter
        return super().add_function_arguments(function, *others, **options)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        if names == ("files",):  # as many as are given, where jsonargparse would want them as one list in JSON
            options = {"help": options["help"], "type": Path, "nargs": "+"}
        if options.get("type") is bool and options["default"] is False and "." not in names[0]:  # not fields of configs
            options = {"help": options["help"], "action": "store_true"}
        return super().add_argument(*names, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        parser = getattr(ex, "subcommand_parser", None) or self
        unknown = re.search(r"unrecognized arguments: --([^\s=]+)|does not accept option '(.+)'", message)
        if unknown:
            option, known = unknown[1] or unknown[2], list(parser.get_defaults().keys())
            hint = nearest(option, known) or nearest(option.partition(".")[0], known)
            message = f"there is no option {option!r}{hint}: see {parser.prog.replace(' [options]', '')} --help"
        elif fields := re.search(r'key "(data|model)":.*\bdict\b.*Given value: (\S+)', message, re.DOTALL):
            message = f"--{fields[1]} {fields[2]}: its settings are given one by one, as --{fields[1]}.name {fields[2]}"
        self.exit(2, f"memformer: {' '.join(message.split())}\n")


def main(arguments: list[str] | None = None) -> None:
    """Run one command; an error that a user can mend is one line and exit code 2."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # what stands under a config's fields is their help
    try:
        auto_cli(COMMANDS, args=arguments, allow_abbrev=False, parser_class=Parser, prog="memformer")
    except BrokenPipeError:  # who read the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except (ValueError, OSError, ImportError) as error:
        print(f"memformer: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print("memformer: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
