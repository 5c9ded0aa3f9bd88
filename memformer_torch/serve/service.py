"""What can be asked of a model: to complete a prompt, to read on in a session, to go on with it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from memformer_torch.serve import document
from memformer_torch.serve.engine import Engine
from memformer_torch.serve.jobs import Event, Generation, Job
from memformer_torch.serve.limits import Limits, Refusal
from memformer_torch.serve.sessions import Sessions

LONG = 5_000
"""Characters from which on a text is encoded in a thread of its own."""


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    reason: str
    read: int
    written: int
    log_probability: float | None = None
    """Of what was read, in nats."""
    session: dict[str, Any] | None = None
    """The session as it is now on the disk."""


class Operation:
    """A request's work, which goes on by itself: what happens can be awaited, and it can be stopped or given up."""

    def __init__(self, most_records: int) -> None:
        self.records: deque[dict[str, Any]] = deque(maxlen=most_records)
        self.total = 0
        """Tokens to be read."""
        self._news: asyncio.Queue[Event | Outcome | Exception] = asyncio.Queue()
        self._job: Job | None = None
        self._ended = asyncio.Event()
        self._given_up = self._stopped = False

    async def run(self, engine: Engine, job: Job) -> Job:
        """Have the engine do a job to its end; a Refusal if that is not a good one."""
        self.total, job.on_event, self._job = len(job.ids), self._on_event, job
        job.cancelled, job.stopped = self._given_up, self._stopped
        engine.submit(job)
        await self._ended.wait()
        if job.error is not None:
            raise job.error
        if job.cancelled:
            raise Refusal(499, "nobody waits for this any more")
        return job

    def stop(self) -> None:
        """End it where it is: what was read and written so far counts."""
        self._stopped = True
        if self._job is not None:
            self._job.stopped = True

    def give_up(self) -> None:
        """End it as if it had never been; too late once it has ended."""
        if not self._given_up:
            self._given_up = True
            if self._job is not None:
                self._job.cancelled = True
            self._news.put_nowait(Refusal(499, "nobody waits for this any more"))

    def settle(self, last: Outcome | Exception) -> None:
        self._news.put_nowait(last)

    async def news(self) -> AsyncIterator[list[Event | Outcome | Exception]]:
        """All that has happened since the last time; the last thing is an outcome or an exception."""
        while True:
            found = [await self._news.get()]
            while not self._news.empty():
                found.append(self._news.get_nowait())
            yield found
            if not isinstance(found[-1], Event):
                return

    def _on_event(self, event: Event | None) -> None:
        if event is None:
            self._ended.set()
            return
        if event.slots is not None:
            self.records.append(event.slots)
        self._news.put_nowait(event)


@dataclass
class Service:
    engine: Engine
    sessions: Sessions
    limits: Limits
    in_flight: int = 0
    _by_name: dict[str, Operation] = field(default_factory=dict)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def complete(self, prompt: Any, generation: Generation) -> Operation:
        """Continue a text or ids, as a document of its own."""

        async def work(operation: Operation) -> Outcome:
            ids = await self._encode(prompt)
            job = await operation.run(self.engine, Job(ids=ids, generation=generation))
            return Outcome(str(job.reason), job.read, job.written, job.score)

        return self._start(work)

    def feed(self, name: str, given: Any) -> Operation:
        """Read on in a session."""

        async def work(operation: Operation) -> Outcome:
            async with self.sessions.hold(name) as session:
                ids, tail, tail_text = await _apart(document.reading, session, given)
                self._check_input(len(ids) + len(tail))
                job = Job(lanes=document.lanes(session), ids=ids, tail=tail, keep=True, watch=True)
                await self._run(operation, name, job)
                return await self._save(operation, name, session, job, tail_text)

        return self._start(work)

    def generate(self, name: str, generation: Generation) -> Operation:
        """Go on with a session."""

        async def work(operation: Operation) -> Outcome:
            async with self.sessions.hold(name) as session:
                ids, lanes = document.rest(session), document.lanes(session)
                job = Job(lanes=lanes, ids=ids, generation=generation, keep=True, watch=True)
                await self._run(operation, name, job)
                return await self._save(operation, name, session, job)

        return self._start(work)

    def stop(self, name: str) -> bool:
        """End what is being done with a session where it is."""
        operation = self._by_name.get(name)
        if operation is not None:
            operation.stop()
        return operation is not None

    async def finish(self) -> None:
        """Wait for all that has begun."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Callable[[Operation], Awaitable[Outcome]]) -> Operation:
        """Begin at once, apart from the request, which may be broken off while something is being written to the disk."""
        if self.in_flight >= self.limits.max_batch + self.limits.max_waiting:
            raise Refusal(429, f"{self.in_flight} requests are being served or wait: try again later", retry_after=2)
        operation = Operation(self.limits.max_history)
        self.in_flight += 1

        async def run() -> None:
            try:
                operation.settle(await work(operation))
            except ValueError as error:  # what was given cannot be read
                operation.settle(Refusal(400, str(error)))
            except Exception as error:
                operation.settle(error)
            finally:
                self.in_flight -= 1

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return operation

    async def _run(self, operation: Operation, name: str, job: Job) -> None:
        self._by_name[name] = operation
        try:
            await operation.run(self.engine, job)
        finally:
            del self._by_name[name]

    async def _save(self, operation: Operation, name: str, session: Any, job: Job, tail_text: str = "") -> Outcome:
        begun = job.read or job.written
        if job.reason == "stopped" and (not begun or document.still_waits(session, job)):  # the session is as it was
            return Outcome("stopped", 0, 0, 0.0, (await self.sessions.facts(name))._asdict())
        new = document.after(session, job, tail_text)
        facts = await self.sessions.commit(name, new, list(operation.records))
        score = document.log_probability(session, job)
        return Outcome(str(job.reason), job.read, job.written, score, facts._asdict())

    async def _encode(self, prompt: Any) -> torch.Tensor:
        tokenizer = self.engine.tokenizer
        if not isinstance(prompt, str):
            self._check_input(len(prompt))
            return torch.tensor(prompt, dtype=torch.int64)
        if tokenizer is None:
            raise Refusal(400, "this model knows no text: give the prompt as a list of ids")
        try:
            ids = await _apart(tokenizer.encode, prompt)
        except UnicodeEncodeError as error:
            raise Refusal(400, f"the prompt cannot be encoded: {error}") from error
        self._check_input(len(ids))
        return torch.as_tensor(ids.astype("int64"))

    def _check_input(self, number: int) -> None:
        if number > self.limits.max_input:
            raise Refusal(413, f"{number:,} tokens were given, but one request may give {self.limits.max_input:,}")


async def _apart(work: Callable[..., Any], *given: Any) -> Any:
    """Do something with a text, the last thing given, and keep nobody waiting where it is a long one."""
    return await asyncio.to_thread(work, *given) if len(given[-1]) > LONG else work(*given)
