"""The ways to a SQLite store: how an intent gets from its coroutine to a connection and back.

A file has a thread that writes and one that reads. Memory has one connection, so one thread does both. Inline there are
no threads: an intent runs at once in the calling coroutine, which makes a simulation repeatable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Protocol, TypeVar

from evertick.errors import StoreRefused
from evertick.store.base import NO_TICKS, Beat, News, Ticks
from evertick.store.sqlite.connection import (
    StoreTime,
    connect,
    connect_to_read,
    data_version,
    translated,
    why_read_only,
)
from evertick.store.sqlite.duties import resign
from evertick.store.sqlite.foreign_commits import ForeignCommits
from evertick.store.sqlite.guard import LockWatch, SameFiles
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.nodes import beat, die
from evertick.store.sqlite.writer import Intent, Worker, commit_group, read_each, write_now

__all__ = [
    "FileHeartbeatSession",
    "FileSession",
    "InlineSession",
    "MemorySession",
    "SharedHeartbeatSession",
    "StoreSession",
]

T = TypeVar("T")

# A beat that cannot get through must fail while there is still time for others.
_WAITS_PER_LEASE = 4


class StoreSession(Protocol):
    async def write(self, intent: Intent[T], *, is_end: bool = False) -> T:
        """`is_end`: it writes how something has ended that has begun already."""
        ...

    async def read(self, intent: Intent[T]) -> T: ...

    async def changed(self, app: str, timeout: float) -> News | None: ...

    async def close(self) -> None: ...


class FileSession:
    """A writer thread, a reader thread, and a look-out for what others commit."""

    def __init__(self, db: sqlite3.Connection, where: Location, time: StoreTime) -> None:
        self._where = where
        self.files = SameFiles(where, is_wal=db.execute("PRAGMA journal_mode").fetchone()[0] == "wal")
        self._writer = Worker("evertick-sqlite-writer", where, time, commit_group, self.files)
        self._reader = Worker("evertick-sqlite-reader", where, time, read_each, self.files)
        self._others = ForeignCommits(where, self._writer, data_version(db))
        self._writer.start(db)
        self._reader.start(connect_to_read(where))

    async def write(self, intent: Intent[T], *, is_end: bool = False) -> T:
        if self._where.is_read_only:
            raise StoreRefused(f"the {self._where.description} cannot be written: {why_read_only(self._where)}")
        return await self._writer.call(intent, is_end=is_end)

    async def read(self, intent: Intent[T]) -> T:
        return await self._reader.call(intent)

    async def changed(self, app: str, timeout: float) -> News | None:
        return await self._others.changed(app, timeout)

    async def close(self) -> None:
        loss = self.files.loss()
        if loss is None or loss.may_fold:
            # The writer last: the last connection to close folds the WAL into the file, and must be able to write.
            await self._reader.close()
            self._others.close()
            await self._writer.close()
        else:
            # Another program has a log of its own by now, which ours must not overwrite: one that only reads last.
            await self._writer.close()
            await self._reader.close()
            self._others.close()


class MemorySession:
    """One thread and one connection: nobody else can see the database."""

    def __init__(self, db: sqlite3.Connection, where: Location, time: StoreTime) -> None:
        self._worker = Worker("evertick-sqlite-memory", where, time, commit_group)
        self._worker.start(db)

    async def write(self, intent: Intent[T], *, is_end: bool = False) -> T:
        return await self._worker.call(intent)

    async def read(self, intent: Intent[T]) -> T:
        return await self._worker.call(intent)

    async def changed(self, app: str, timeout: float) -> News | None:
        await asyncio.sleep(timeout)
        return None

    async def close(self) -> None:
        await self._worker.close()


class Inline:
    """A connection that several inline stores share; the last one to leave closes it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.users = 0


class InlineSession:
    """No thread at all."""

    def __init__(self, shared: Inline, where: Location, time: StoreTime) -> None:
        self.shared = shared
        self._where = where
        self._time = time
        shared.users += 1

    async def write(self, intent: Intent[T], *, is_end: bool = False) -> T:
        return write_now(self.shared.db, self._time, self._where, intent)

    async def read(self, intent: Intent[T]) -> T:
        with translated(self._where):
            return intent(self.shared.db, self._time.now())

    async def changed(self, app: str, timeout: float) -> News | None:
        await asyncio.sleep(timeout)
        return None

    async def close(self) -> None:
        self.shared.users -= 1
        if self.shared.users == 0:
            self.shared.db.close()


class FileHeartbeatSession:
    """The heartbeat's own connection, used in the thread of its caller: no queue and no other write can hold it up."""

    def __init__(self, where: Location, time: StoreTime, files: SameFiles) -> None:
        self._where = where
        self._time = time
        self._wait_ms = where.busy_timeout_ms
        self._files = files
        # Before it connects: a new connection would make a new log where the one in use was deleted.
        files.check()
        with translated(where):
            self._db = connect(where)
        self._locks = LockWatch(where)

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        # While we end what has begun, others with the same log must not think that we are dead.
        if (loss := self._files.loss()) is not None and not loss.may_end:
            raise loss.error
        self._locks.check()
        self._wait_at_most(lease // 1000 // _WAITS_PER_LEASE)
        return write_now(self._db, self._time, self._where, lambda db, now: beat(db, now, node, lease, ticks))

    async def die(self, node: str) -> None:
        write_now(self._db, self._time, self._where, lambda db, now: die(db, now, node, "node.died"))

    async def resign(self, node: str) -> None:
        write_now(self._db, self._time, self._where, lambda db, now: resign(db, now, node))

    async def close(self) -> None:
        self._db.close()

    def _wait_at_most(self, milliseconds: int) -> None:
        wait_ms = min(self._where.busy_timeout_ms, milliseconds)
        if wait_ms != self._wait_ms:
            self._db.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchall()
            self._wait_ms = wait_ms


class SharedHeartbeatSession:
    """Where there is one connection only, a beat goes the way of every write."""

    def __init__(self, line: StoreSession) -> None:
        self._line = line

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        return await self._line.write(lambda db, now: beat(db, now, node, lease, ticks))

    async def die(self, node: str) -> None:
        await self._line.write(lambda db, now: die(db, now, node, "node.died"))

    async def resign(self, node: str) -> None:
        await self._line.write(lambda db, now: resign(db, now, node))

    async def close(self) -> None:
        return None
