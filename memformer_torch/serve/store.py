"""Sessions in one SQLite file: what `commit` has returned from survives a crash of the process and of the machine."""

import contextlib
import hashlib
import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

VERSION = 1
SCHEMA = """
CREATE TABLE sessions (
    name TEXT PRIMARY KEY, model TEXT NOT NULL, position INTEGER NOT NULL, scratch INTEGER NOT NULL,
    created REAL NOT NULL, updated REAL NOT NULL, digest TEXT NOT NULL, state BLOB NOT NULL
);
CREATE TABLE slots (
    name TEXT NOT NULL REFERENCES sessions (name) ON DELETE CASCADE, segment INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (name, segment)
) WITHOUT ROWID;
"""
COLUMNS = "name, model, position, scratch, created, updated, digest, length(state)"
PAGE_BYTES = 4096
NO_ROOM = ("database or disk is full", "disk I/O error")
"""How SQLite says it; numbers for it come with Python 3.11."""


class Facts(NamedTuple):
    """What is known of a stored session."""

    name: str
    model: str
    """Fingerprint of the model that can go on with it."""
    position: int
    """Tokens read."""
    scratch: bool
    """Not named by anybody: removed when it has not been used for long."""
    created: float
    updated: float
    digest: str
    """SHA-256 of the state, as it is stored."""
    size: int
    """Bytes of the state."""


class NoRoomError(OSError):
    """There is no room for more."""


class Store:
    def __init__(self, path: Path | str, max_bytes: int | None = None) -> None:
        """Opens or makes the file; a ValueError if it is something else, or in use by another server."""
        self.path = Path(path)
        try:
            self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1)
            self._prepare(max_bytes)
        except sqlite3.Error as error:
            reason = "another server uses it" if "locked" in str(error) else str(error)
            raise ValueError(f"{self.path} cannot hold sessions ({reason}): choose another file by --data") from error

    def _prepare(self, max_bytes: int | None) -> None:
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")  # live sessions are in one server's memory: two would overwrite one another
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA wal_autocheckpoint = 256")
        if max_bytes is not None:
            run(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_BYTES)}")
        run("BEGIN EXCLUSIVE")
        (version,), (tables,) = run("PRAGMA user_version").fetchone(), run("SELECT count(*) FROM sqlite_master").fetchone()
        if version != VERSION and (version or tables):
            run("ROLLBACK")
            raise ValueError(f"{self.path} is not a file of sessions of this version: choose another file by --data")
        if not tables:
            for statement in SCHEMA.split(";"):
                run(statement)
            run(f"PRAGMA user_version = {VERSION}")
        run("COMMIT")

    def commit(
        self,
        name: str,
        model: str,
        position: int,
        state: bytes,
        records: Iterable[dict[str, Any]] = (),
        scratch: bool = False,
        most_records: int = 1000,
    ) -> Facts:
        """Write a session, new or changed, and what happened to its slots since the last time; then it is on the disk."""
        now, digest = time.time(), hashlib.sha256(state).hexdigest()
        packed = [(name, record["segment"], zlib.compress(json.dumps(record).encode())) for record in records]
        with self._transaction() as run:
            run(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET model = excluded.model, "
                "position = excluded.position, updated = excluded.updated, digest = excluded.digest, state = excluded.state",
                (name, model, position, scratch, now, now, digest, state),
            )
            for row in packed:
                run("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", row)
            if packed:
                run("DELETE FROM slots WHERE name = ? AND segment <= ?", (name, packed[-1][1] - most_records))
        return self.facts(name)

    def copy(self, name: str, new: str, scratch: bool = False) -> Facts:
        """Another session that stands where this one does, in place of what has its name; KeyError if there is none."""
        now = time.time()
        with self._transaction() as run:
            run("DELETE FROM sessions WHERE name = ?", (new,))
            done = run(
                "INSERT INTO sessions SELECT ?, model, position, ?, ?, ?, digest, state FROM sessions WHERE name = ?",
                (new, scratch, now, now, name),
            )
            if not done.rowcount:
                raise KeyError(name)
            run("INSERT INTO slots SELECT ?, segment, record FROM slots WHERE name = ?", (new, name))
        return self.facts(new)

    def delete(self, name: str) -> None:
        """KeyError if there is none."""
        with self._transaction() as run:
            if not run("DELETE FROM sessions WHERE name = ?", (name,)).rowcount:
                raise KeyError(name)

    def forget_scratch(self, older_than: float) -> int:
        """Remove sessions that nobody named and that were not used for so many seconds."""
        with self._transaction() as run:
            return run("DELETE FROM sessions WHERE scratch AND updated < ?", (time.time() - older_than,)).rowcount

    def facts(self, name: str) -> Facts:
        """KeyError if there is none."""
        row = self._database.execute(f"SELECT {COLUMNS} FROM sessions WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise KeyError(name)
        return _facts(row)

    def sessions(self) -> list[Facts]:
        """All sessions, the one used last first."""
        return [_facts(row) for row in self._database.execute(f"SELECT {COLUMNS} FROM sessions ORDER BY updated DESC, name")]

    def state(self, name: str) -> bytes:
        row = self._database.execute("SELECT state FROM sessions WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise KeyError(name)
        return row[0]

    def span(self, name: str) -> tuple[int, int] | None:
        """The first and last segment whose record there is."""
        first, last = self._database.execute("SELECT min(segment), max(segment) FROM slots WHERE name = ?", (name,)).fetchone()
        return None if first is None else (first, last)

    def records(self, name: str, first: int, limit: int) -> list[dict[str, Any]]:
        """What happened to the slots, from a segment on."""
        rows = self._database.execute(
            "SELECT record FROM slots WHERE name = ? AND segment >= ? ORDER BY segment LIMIT ?", (name, first, limit)
        )
        return [json.loads(zlib.decompress(record)) for (record,) in rows]

    def __len__(self) -> int:
        return self._database.execute("SELECT count(*) FROM sessions").fetchone()[0]

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """All of it or nothing; `NoRoomError` if there is no room for it."""
        run = self._database.execute
        try:
            run("BEGIN IMMEDIATE")
            yield run
            run("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                run("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and str(error) in NO_ROOM:
                raise NoRoomError(f"the disk is full, or {self.path.name} as large as it may be: nothing was saved") from error
            raise


def _facts(row: tuple[Any, ...]) -> Facts:
    return Facts._make([*row[:3], bool(row[3]), *row[4:]])
