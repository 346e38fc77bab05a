"""The ways to a SQLite store: how an intent gets from its coroutine to a connection and back.

A file has a thread that writes and one that reads. Memory has one connection, so one thread does both. Inline there are
no threads: an intent runs at once in the calling coroutine, which makes a simulation repeatable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Protocol, TypeVar

from evertick.errors import StoreUnavailable
from evertick.store.base import NO_TICKS, Beat, Ticks
from evertick.store.sqlite.connection import SameFile, StoreTime, connect, data_version, translated
from evertick.store.sqlite.duties import resign
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.nodes import beat, die
from evertick.store.sqlite.writer import Intent, Worker, commit_group, read_each, write_now

__all__ = ["FileBeatLine", "FileLine", "InlineLine", "Line", "MemoryLine", "SharedBeatLine"]

T = TypeVar("T")

# How often a file is looked at for the commits of others.
_LOOK_SECONDS = 0.25
# A beat that cannot get through must fail while there is still time for others.
_WAITS_PER_LEASE = 4


class Line(Protocol):
    async def write(self, intent: Intent[T]) -> T: ...

    async def read(self, intent: Intent[T]) -> T: ...

    async def changed(self, timeout: float) -> bool: ...

    async def close(self) -> None: ...


class FileLine:
    """A writer thread, a reader thread, and a connection that only looks whether others have committed."""

    def __init__(self, db: sqlite3.Connection, where: Location, time: StoreTime) -> None:
        self._where = where
        self._writer = Worker("evertick-sqlite-writer", where, time, commit_group)
        self._reader = Worker("evertick-sqlite-reader", where, time, read_each)
        self._file = SameFile(where)
        self._looking = _read_only(where)
        self._seen = data_version(self._looking)
        self._seen_by_writer = data_version(db)
        # Writes of our own, then and now: while they are equal, a change must be somebody else's.
        self._writes = self._seen_writes = 0
        self._writer.start(db)
        self._reader.start(_read_only(where))

    async def write(self, intent: Intent[T]) -> T:
        self._file.check()
        # Counted before and after: it commits somewhere in between.
        self._writes += 1
        try:
            return await self._writer.call(intent)
        finally:
            self._writes += 1

    async def read(self, intent: Intent[T]) -> T:
        self._file.check()
        return await self._reader.call(intent)

    async def changed(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while not await self._look():
            left = end - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(_LOOK_SECONDS, left))
        return True

    async def _look(self) -> bool:
        with translated(self._where):
            version = data_version(self._looking)
        if version == self._seen:
            return False
        is_maybe_ours = self._writes != self._seen_writes
        self._seen, self._seen_writes = version, self._writes
        return not is_maybe_ours or await self._is_somebody_elses()

    async def _is_somebody_elses(self) -> bool:
        # To the writer's connection its own commits are no change.
        try:
            version = await self._writer.call(lambda db, _now: data_version(db))
        except StoreUnavailable:
            # Somebody holds the lock, so somebody writes.
            return True
        is_new, self._seen_by_writer = version != self._seen_by_writer, version
        return is_new

    async def close(self) -> None:
        # The writer last: the last connection to close folds the WAL into the file, and must be able to write.
        await self._reader.close()
        self._looking.close()
        await self._writer.close()


class MemoryLine:
    """One thread and one connection: nobody else can see the database."""

    def __init__(self, db: sqlite3.Connection, where: Location, time: StoreTime) -> None:
        self._worker = Worker("evertick-sqlite-memory", where, time, commit_group)
        self._worker.start(db)

    async def write(self, intent: Intent[T]) -> T:
        return await self._worker.call(intent)

    async def read(self, intent: Intent[T]) -> T:
        return await self._worker.call(intent)

    async def changed(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    async def close(self) -> None:
        await self._worker.close()


class Inline:
    """A connection that several inline stores share; the last one to leave closes it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.users = 0


class InlineLine:
    """No thread at all."""

    def __init__(self, shared: Inline, where: Location, time: StoreTime) -> None:
        self.shared = shared
        self._where = where
        self._time = time
        shared.users += 1

    async def write(self, intent: Intent[T]) -> T:
        return write_now(self.shared.db, self._time, self._where, intent)

    async def read(self, intent: Intent[T]) -> T:
        with translated(self._where):
            return intent(self.shared.db, self._time.now())

    async def changed(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    async def close(self) -> None:
        self.shared.users -= 1
        if self.shared.users == 0:
            self.shared.db.close()


class FileBeatLine:
    """The heartbeat's own connection, used in the thread of its caller: no queue and no other write can hold it up."""

    def __init__(self, where: Location, time: StoreTime) -> None:
        self._where = where
        self._time = time
        self._wait_ms = where.busy_timeout_ms
        self._file = SameFile(where)
        with translated(where):
            self._db = connect(where)

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        self._file.check()
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


class SharedBeatLine:
    """Where there is one connection only, a beat goes the way of every write."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        return await self._line.write(lambda db, now: beat(db, now, node, lease, ticks))

    async def die(self, node: str) -> None:
        await self._line.write(lambda db, now: die(db, now, node, "node.died"))

    async def resign(self, node: str) -> None:
        await self._line.write(lambda db, now: resign(db, now, node))

    async def close(self) -> None:
        return None


def _read_only(where: Location) -> sqlite3.Connection:
    db = connect(where)
    db.execute("PRAGMA query_only = ON")
    return db
