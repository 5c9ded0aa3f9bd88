"""`memformer chat`: a document that a user and a model write in turn."""

import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memformer_torch.commands import signals
from memformer_torch.runs import nearest
from memformer_torch.session import Session
from memformer_torch.talk.opening import check_place, load_session, open_session, sampling_options, write


def chat(
    run: Path,
    session: Path | None = None,
    max_tokens: int = 256,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    checkpoint: str = "best",
    device: str = "auto",
) -> None:
    """Write a document with a trained model, line by line in turn; its memory holds what was said, however long this goes on.

    Each line of standard input is read, and answered by a line. Ctrl-C ends an answer, and at the prompt the chat.

    /save FILE keeps the session in a file, /load FILE goes on from one.

    /fork NAME keeps a copy of the session, /switch NAME goes back to it.

    /state tells how much was read, and how many bytes hold it; /help lists all these, /quit leaves.

    Args:
        run: Folder of the run.
        session: Saved session to go on from.
        max_tokens: Most tokens of an answer.
        temperature: Below 1 likely tokens become likelier; 0 always takes the likeliest.
        top_k: Only the k likeliest tokens.
        top_p: Only the likeliest tokens that together have this probability.
        min_p: Only tokens with at least this share of the likeliest one's probability.
        repetition_penalty: Above 1, tokens of the last one to two segments become less likely.
        seed: Of the random numbers: the same seed and lines give the same answers.
        checkpoint: "best" (lowest validation loss) or "last".
        device: "auto" (an accelerator if there is one), "cpu", "cuda", ...
    """
    if max_tokens < 1:
        raise ValueError(f"--max_tokens is {max_tokens}, but must be at least 1")
    options = sampling_options(temperature, top_k, top_p, min_p, repetition_penalty) | {"max_tokens": max_tokens}
    talk = Chat(open_session(run, session, checkpoint, device), options, seed)
    with suppress(ImportError):
        import readline  # noqa: F401  input() then has history, and lines of any length
    prompt = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    while not talk.ended:
        try:
            line = input(prompt)
        except (EOFError, KeyboardInterrupt) as end:
            if prompt:
                print()
            raise SystemExit(0 if isinstance(end, EOFError) else 130) from None
        try:
            talk.take(line)
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            print(f"memformer: {error}", file=sys.stderr, flush=True)


class Chat:
    """A session that is spoken to in lines; an error leaves it as it was."""

    COMMANDS: Mapping[str, str] = {
        "save": "FILE",
        "load": "FILE",
        "fork": "NAME",
        "switch": "NAME",
        "state": "",
        "help": "",
        "quit": "",
    }

    def __init__(self, session: Session, options: Mapping[str, Any], seed: int | None) -> None:
        self.session, self.options, self.seed, self.ended = session, options, seed, False
        self.forks: dict[str, Session] = {}

    def take(self, line: str) -> None:
        """Obey a command, or answer."""
        if not line.startswith("/"):
            self.answer(line)
            return
        name, _, value = line[1:].strip().partition(" ")
        if name not in self.COMMANDS:
            raise ValueError(f"there is no command /{name}{nearest(name, self.COMMANDS)}: /help lists them")
        wanted = self.COMMANDS[name]
        if bool(value) != bool(wanted):
            raise ValueError(f"/{name} takes {'a ' + wanted if wanted else 'nothing'}: write /{name} {wanted}".rstrip())
        if wanted:
            getattr(self, name)(value.strip())
        else:
            getattr(self, name)()

    def answer(self, line: str) -> None:
        """Read a line, and write the next."""
        with signals() as asked:
            self.session.feed(line + "\n")
            end = ""
            try:
                for piece in self.session.generate(**self.options, seed=self.seed):
                    text, end, _ = piece.partition("\n")
                    write(text)
                    if end or asked:
                        break
                if not end:
                    self.session.feed("\n")  # it was cut short: what comes next is a line of its own nevertheless
            finally:
                write("\n")
        if signal.SIGTERM in asked:
            raise SystemExit(128 + signal.SIGTERM)
        if self.seed is not None:
            self.seed += 1

    def save(self, path: str) -> None:
        check_place(Path(path))
        self.session.save(path)

    def load(self, path: str) -> None:
        self.session = load_session(Path(path), self.session.model, self.session.tokenizer)

    def fork(self, name: str) -> None:
        self.forks[name] = self.session.fork()

    def switch(self, name: str) -> None:
        if name not in self.forks:
            known = f"there are {', '.join(self.forks)}" if self.forks else "make one by /fork NAME"
            raise ValueError(f"there is no fork {name!r}{nearest(name, self.forks)}: {known}")
        self.session = self.forks[name].fork()

    def state(self) -> None:
        size = "growing with what is read" if self.session.grows else "whatever is read"
        write(f"{self.session.position:,} tokens read, held in {self.session.state_bytes:,} bytes, {size}\n")

    def help(self) -> None:
        write("  ".join(f"/{name} {value}".rstrip() for name, value in self.COMMANDS.items()) + "\n")

    def quit(self) -> None:
        self.ended = True
