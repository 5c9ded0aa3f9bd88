"""Processes that work for this one, each with a pipe to it; whatever becomes of this process, none is left running."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch


class Ended(NamedTuple):
    """The last that is heard of a worker."""

    exitcode: int


class Parent:
    """In a worker: what it tells the process that started it, and whether it should stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._stop = connection, False

    def send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:  # nobody is left to work for
            self._stop = True

    def should_stop(self) -> bool:
        """True once the parent asked for it, or has ended, or this process was sent SIGTERM."""
        self._stop = self._stop or self._connection.poll()  # the only thing a parent sends; an end of it is readable too
        return self._stop

    def ask(self, *signal: Any) -> None:
        self._stop = True


class Workers:
    """Workers by name: `with Workers() as workers`, start them, and hear their messages; at its end all are ended."""

    def __init__(self) -> None:
        self._running: dict[Connection, tuple[str, Any]] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for _, process in self._running.values():
            process.kill()  # a checkpoint is whole or is not there
            process.join()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(parent, *arguments)` in a new process, with one thread."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_begin, args=(there, function, arguments), daemon=True)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # handed down: Ctrl-C is for this process
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        there.close()
        self._running[here] = name, process

    def messages(self, timeout: float | None = None) -> Iterator[tuple[str, Any]]:
        """What is there to hear, by worker, after waiting for it; `Ended` is the last of each."""
        for connection in wait(list(self._running), timeout):
            assert isinstance(connection, Connection)
            name, process = self._running[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError):
                del self._running[connection]
                process.join()
                message = Ended(process.exitcode)
            yield name, message

    def stop(self) -> None:
        """Ask all to stop: each does when it next looks."""
        for connection in self._running:
            with suppress(OSError):  # it has ended
                connection.send(None)


def _begin(connection: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # a core each: more would wait for one another
    parent = Parent(connection)
    signal.signal(signal.SIGTERM, parent.ask)
    function(parent, *arguments)
