"""One thread owns the model, and goes on with everybody's documents at once: one token for all, then the next.

A job joins at the next token and leaves when it is done. What it is given to read is read a segment at a time, between tokens,
so that a long text keeps nobody waiting. Each job draws its own random numbers: its text is the one that it would get alone.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from memformer_torch.data.tokenizer import Tokenizer
from memformer_torch.lanes import Lanes
from memformer_torch.nn.past import take_rows
from memformer_torch.sampling import Sampling
from memformer_torch.serve.jobs import Event, Job, Reason, no_ids
from memformer_torch.serve.limits import Limits, Refusal
from memformer_torch.serve.seats import Seats
from memformer_torch.serve.slots import describe, num_slots

READ_TOGETHER = 8
"""Documents of which a segment is read between two tokens: few, so that those who write do not wait long."""

logger = logging.getLogger(__name__)


class Engine:
    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        limits: Limits = Limits(),  # noqa: B008  frozen
        post: Callable[[Callable[[], None]], Any] = lambda call: call(),
    ) -> None:
        """Events are told through `post`, which is given something to call in the thread that wants to hear them."""
        self.model, self.tokenizer, self.limits, self.post = model, tokenizer, limits, post
        self.tokens_read = self.tokens_written = self.steps = 0
        self.busy_seconds = 0.0
        self._inbox: queue.SimpleQueue[Job | tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._readers: Seats[Job] = Seats()
        self._writers: Seats[Job] = Seats()
        self._admitted: set[Job] = set()
        """Let in, and not ended: at a seat, or on the way to one."""
        self._news: list[tuple[Job, Event | None]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._give(job)

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Have something done with the model between two tokens."""
        future: Future[Any] = Future()
        self._give((function, future))
        return future

    def _give(self, work: Any) -> None:
        if self._closing:  # the thread may have ended, and would never come to it
            raise Refusal(503, "the server is ending", retry_after=5)
        self._inbox.put(work)

    def stop_all(self) -> None:
        """End all jobs where they are, and take no more; safe in a signal handler."""
        self._closing = True

    def close(self) -> None:
        """Stop all, and wait for it."""
        self.stop_all()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        return len(self._waiting) + self._inbox.qsize()

    @property
    def running(self) -> int:
        return len(self._readers) + len(self._writers)

    def _run(self) -> None:
        while self._receive():
            begin = time.perf_counter()
            try:
                self._let_go()
                self._admit()
                self._read()
                self._write()
            except Exception as error:  # of no single job: all fail, the server does not
                logger.exception("a step failed")
                self._fail_all(error)
            self._tell()
            self.busy_seconds += time.perf_counter() - begin

    def _receive(self) -> bool:
        """Take in what has come, and wait for it if there is nothing else to do; False at the end."""
        while True:
            idle = not (self._waiting or self.running)
            if self._inbox.empty() and not idle:
                return True
            if self._inbox.empty() and self._closing:
                return False
            given = self._inbox.get()
            if isinstance(given, Job):
                self._waiting.append(given)
            elif given is not None:
                function, future = given
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)

    def _let_go(self) -> None:
        """Jobs that were told to end, or have waited too long, do."""
        for job in list(self._waiting):
            late = time.monotonic() - job.since > self.limits.max_wait
            if job.leaves or self._closing or late:
                self._waiting.remove(job)
                error = Refusal(503, f"waited {self.limits.max_wait:g} seconds for others to be done", retry_after=5)
                self._end(job, "stopped", job.lanes, error if late and not job.leaves else None)
        for seats in (self._readers, self._writers):
            leaving = [(seat, job) for seat, job in seats if job.leaves or self._closing]
            for seat, job in leaving:
                self._end(job, "stopped", seats.document(seat) if job.keep and not job.cancelled else None)
            seats.leave([seat for seat, _ in leaving])

    def _admit(self) -> None:
        """Let in who waits, as far as there is room."""
        readers: list[tuple[Job, Lanes]] = []
        while self._waiting and self.running + len(readers) < self.limits.max_batch:
            job = self._waiting[0]
            if len(job.ids) and len(self._readers) + len(readers) >= READ_TOGETHER:
                break
            self._admitted.add(self._waiting.popleft())
            try:
                lanes = Lanes(self.model, 1) if job.lanes is None else job.lanes
                given = torch.cat([job.ids, job.tail])
                lanes.check([given])
                lanes.check_room([len(given) + (job.generation.max_tokens if job.generation else 0)])
            except Exception as error:
                self._end(job, error=error)
                continue
            if len(job.ids):
                readers.append((job, lanes))
            else:
                self._begin(job, lanes)
        if readers:
            self._readers.enter(readers)
        for job, _ in readers:
            if job.lanes is not None:
                job.lanes.forget_cache()  # which it got to be copied

    def _read(self) -> None:
        """The next segment, or what is left of it, of each document that is read."""
        seats = self._readers
        if not seats:
            return
        lanes = seats.lanes
        pieces = [
            no_ids() if job is None else job.ids[job.read : job.read + lanes.length - has]
            for job, has in zip(seats.guests, lanes.count, strict=True)
        ]
        scores = lanes.read(pieces)
        self.tokens_read += sum(map(len, pieces))
        records, done = self._watch(seats), []
        for seat, job in seats:
            job.read += len(pieces[seat])
            job.score += scores[seat]
            self._news.append((job, Event(read=job.read, slots=records.get(seat))))
            if job.read == len(job.ids):
                done.append((seat, job, seats.document(seat)))
        seats.leave([seat for seat, _, _ in done])
        for _, job, document in done:
            self._begin(job, document)

    def _begin(self, job: Job, lanes: Lanes) -> None:
        """All is read: write, if that is asked for."""
        if job.generation is not None and job.generation.max_tokens:
            try:
                job.begin(self.tokenizer, lanes)
            except Exception as error:  # an id before it that the tokenizer does not know
                self._end(job, error=error)
                return
            self._writers.enter([(job, lanes)])
            if lanes is job.lanes:
                lanes.forget_cache()
            return
        if len(job.tail):
            job.tail_score = lanes.take([0]).read([job.tail])[0]
        self._end(job, "read" if job.generation is None else "length", lanes)

    def _write(self) -> None:
        """A token more of each document that is continued."""
        seats = self._writers
        if not seats:
            return
        chosen = self._choose(seats)
        seats.lanes.append(chosen, seats.taken)
        self.steps += 1
        self.tokens_written += len(seats)
        tokens, records, done = chosen.tolist(), self._watch(seats), []
        for seat, job in seats:
            try:
                self._news.append((job, job.spell(tokens[seat], records.get(seat))))
            except Exception as error:  # an id that the tokenizer does not know
                self._end(job, error=error)
            if job.reason is not None:
                done.append(seat)
                if job.error is None:
                    self._end(job, job.reason, seats.document(seat) if job.keep else None)
        seats.leave(done)

    def _choose(self, seats: Seats[Job]) -> Tensor:
        """The next id of each seat, (B,), by each job's own sampling and random numbers."""
        lanes, logits = seats.lanes, seats.lanes.next_logits()
        uniform = torch.tensor([0.0 if job is None else job.draw() for job in seats.guests], dtype=torch.float64)
        alike: dict[Sampling, list[int]] = {}
        for seat, job in seats:
            alike.setdefault(job.asked.sampling, []).append(seat)
        recent = lanes.recent() if any(one.repetition_penalty != 1 for one in alike) else lanes.window.source
        if len(alike) == 1:
            return next(iter(alike)).choose(logits, recent, uniform)
        chosen = torch.zeros(len(lanes), dtype=torch.int64, device=logits.device)
        for sampling, some in alike.items():
            chosen[some] = sampling.choose(logits[some], recent[some], uniform[some])
        return chosen

    def _watch(self, seats: Seats[Job]) -> dict[int, dict[str, Any]]:
        """The record of the write, for each seat that is watched and has just read a segment to its end."""
        lanes = seats.lanes
        ended = [seat for seat, job in seats if job.watch and lanes.count[seat] == 0 and lanes.position[seat]]
        if not ended or not num_slots(self.model):
            return {}
        index = torch.tensor(ended, device=lanes.window.source.device)
        try:
            records = describe(self.model, self.tokenizer, lanes.window.source[index], take_rows(lanes.state, index))
        except (ValueError, RuntimeError) as error:  # the text can be read without being watched
            logger.warning("the slots are not shown: %s", error)
            return {}
        for seat, record in zip(ended, records, strict=True):
            record["segment"] = lanes.position[seat] // lanes.length - 1
        return dict(zip(ended, records, strict=True))

    def _end(self, job: Job, reason: Reason = "failed", result: Lanes | None = None, error: Exception | None = None) -> None:
        job.reason = "cancelled" if job.cancelled else "failed" if error else reason
        job.result, job.error = result, error
        self._admitted.discard(job)
        self._news.append((job, None))

    def _fail_all(self, error: Exception) -> None:
        for job in list(self._admitted):
            self._end(job, error=error)
        self._readers, self._writers = Seats(), Seats()

    def _tell(self) -> None:
        """All that happened, in one go: to wake another thread takes longer than to hand something over."""
        news, self._news = self._news, []
        if news:
            self.post(lambda: _hand_over(news))


def _hand_over(news: list[tuple[Job, Event | None]]) -> None:
    for job, event in news:
        job.on_event(event)
