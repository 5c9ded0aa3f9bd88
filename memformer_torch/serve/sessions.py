"""Named sessions: all of them in the store, those used last in memory too.

A session changes in one step, when what became of it is on the disk. A request that fails, or that nobody waits for any more,
leaves it as it was.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from memformer_torch.serve.engine import Engine
from memformer_torch.serve.limits import Limits, Refusal
from memformer_torch.serve.store import Facts, NoRoomError, Store
from memformer_torch.session import Session

Result = TypeVar("Result")


class Sessions:
    def __init__(self, store: Store, engine: Engine, fingerprint: str, limits: Limits) -> None:
        self.store, self.engine, self.fingerprint, self.limits = store, engine, fingerprint, limits
        self.live: OrderedDict[str, Session] = OrderedDict()
        """In the order of their last use."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._disk = ThreadPoolExecutor(1, "store")

    async def create(self, name: str | None, scratch: bool) -> Facts:
        name = name or f"session-{secrets.token_hex(4)}"
        async with self._lock(name):
            if await self._exists(name):
                raise Refusal(409, f"there is a session {name} already: choose another name, or delete it")
            model, tokenizer = self.engine.model, self.engine.tokenizer
            session = await self._with_model(lambda: Session(model, tokenizer))
            return await self._commit(name, session, (), scratch)

    async def facts(self, name: str) -> Facts:
        return await self._on_disk(name, lambda: self.store.facts(name))

    async def list(self) -> tuple[Facts, ...]:
        return await self._on_disk("", lambda: tuple(self.store.sessions()))

    async def file(self, name: str) -> bytes:
        """As `Session.load` reads it."""
        return await self._on_disk(name, lambda: self.store.state(name))

    async def history(self, name: str, first: int, limit: int) -> tuple[tuple[int, int] | None, Any]:
        """Which segments there are records of, and some of them, from the first on."""

        def read() -> tuple[tuple[int, int] | None, Any]:
            self.store.facts(name)
            return self.store.span(name), self.store.records(name, first, limit)

        return await self._on_disk(name, read)

    async def delete(self, name: str) -> None:
        async with self._lock(name):
            await self._on_disk(name, lambda: self.store.delete(name))
            self.live.pop(name, None)

    async def fork(self, name: str, new: str | None, scratch: bool, replace: bool) -> Facts:
        new = new or f"session-{secrets.token_hex(4)}"
        if new == name:
            raise Refusal(409, f"{name} cannot be forked to itself: choose another name")
        async with AsyncExitStack() as locks:
            for each in sorted((name, new)):  # in one order, so that no two forks wait for one another
                await locks.enter_async_context(self._lock(each))
            await self._on_disk(name, lambda: self.store.facts(name))
            if not replace and await self._exists(new):
                raise Refusal(409, f"there is a session {new} already: choose another name, or say that it be replaced")
            facts = await self._on_disk(name, lambda: self.store.copy(name, new, scratch))
            self.live.pop(new, None)
            return facts

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Session]:
        """A session that nobody else changes meanwhile; it is not to be changed itself, see `commit`."""
        async with self._lock(name):
            if name not in self.live:
                facts, content = await self._on_disk(name, lambda: (self.store.facts(name), self.store.state(name)))
                if facts.model != self.fingerprint:
                    raise Refusal(409, f"{name} was made by other weights or another precision: it cannot go on with these")
                model, tokenizer = self.engine.model, self.engine.tokenizer
                try:
                    session = await self._with_model(
                        lambda: Session.from_bytes(content, self.fingerprint, name, model, tokenizer)
                    )
                except ValueError as error:
                    raise Refusal(409, str(error)) from error
                self._keep(name, session)
            self.live.move_to_end(name)
            yield self.live[name]

    async def commit(self, name: str, session: Session, records: Iterable[dict[str, Any]]) -> Facts:
        """Put a session in the place of the one that is held, on the disk first."""
        return await self._commit(name, session, records, False)

    def close(self) -> None:
        self._disk.shutdown()
        self.store.close()

    async def _commit(self, name: str, session: Session, records: Iterable[dict[str, Any]], scratch: bool) -> Facts:
        most = self.limits.max_history

        def write() -> Facts:
            content = session.to_bytes(self.fingerprint)
            return self.store.commit(name, self.fingerprint, session.position, content, records, scratch, most)

        facts = await self._on_disk(name, write)
        self._keep(name, session)
        return facts

    def _keep(self, name: str, session: Session) -> None:
        self.live[name] = session
        self.live.move_to_end(name)
        while len(self.live) > self.limits.max_live:
            self.live.popitem(last=False)  # it is on the disk, as it is

    async def _exists(self, name: str) -> bool:
        try:
            await self._on_disk(name, lambda: self.store.facts(name))
        except Refusal:
            return False
        return True

    async def _on_disk(self, name: str, work: Callable[[], Result]) -> Result:
        """Have the store's only thread do something."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, work)
        except KeyError:
            raise Refusal(404, f"there is no session {name}") from None
        except NoRoomError as error:
            raise Refusal(507, str(error)) from error

    async def _with_model(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self.engine.call(work))

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            await asyncio.wait_for(lock.acquire(), self.limits.max_wait)
        except asyncio.TimeoutError:
            raise Refusal(503, f"{name} was in use for {self.limits.max_wait:g} seconds", retry_after=5) from None
        try:
            yield
        finally:
            lock.release()
