"""Sessions of a SQLite store: how an intent gets from its coroutine to a connection and back.

A file has a writer thread and a reader thread. In memory there is one connection, so one thread does both. An inline
session has no thread: an intent runs at once in the calling coroutine, which makes a simulation repeatable.

A `Worker` is a thread with a connection and a queue of calls. The writer takes all waiting calls, at most `GROUP_MOST`,
performs each in a savepoint of one transaction, and answers after the COMMIT, so that fifty callers share one sync of
the disk. A call that raises is rolled back alone; a failed COMMIT fails its whole group. The reader has its own
connection, so that reads never wait for writes.

Callers are coroutines of any event loop. A cancelled caller, or one whose loop has closed, gets no answer and must not
stop the thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from evertick.clock import Clock, system_clock
from evertick.errors import StoreRefused, StoreReplaced, StoreUnavailable
from evertick.store.base import NO_TICKS, Beat, News, Ticks
from evertick.store.sqlite.connection import (
    StoreTime,
    connect,
    connect_to_read,
    data_version,
    transaction,
    translated,
    why_read_only,
)
from evertick.store.sqlite.file_system import LockWatch, file_size
from evertick.store.sqlite.foreign_commits import ForeignCommits
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.nodes import beat, die, resign

__all__ = [
    "GROUP_MOST",
    "FileHeartbeatSession",
    "FileSession",
    "InlineSession",
    "MemorySession",
    "SharedHeartbeatSession",
    "StoreSession",
    "Worker",
]

log = logging.getLogger("evertick.store")

T = TypeVar("T")
# An intent as a function of the connection and the store's now.
Intent = Callable[[sqlite3.Connection, int], T]

# Bounds how long one transaction blocks writes of other processes.
GROUP_MOST = 200


# Interval of the checks of the -wal and -shm. The file itself is checked for each group, because a commit could be
# lost.
_CHECK_SECONDS = 0.1
_Identity = tuple[int, int]
_NO_FILE: _Identity = (0, 0)


class Loss(msgspec.Struct, frozen=True):
    """The error after the files of the ledger were deleted or replaced while open."""

    error: StoreUnavailable
    # No other process can have committed since: the deleted log may be folded into the file.
    may_fold: bool = False
    # No other process can open the file before this one has closed it: outcomes of begun work may still be written.
    may_end: bool = False


class SameFiles:
    """The files of a ledger as they were when it was opened. Created while a connection has them open."""

    def __init__(self, where: Location, *, is_wal: bool, clock: Clock = system_clock) -> None:
        self._where = where
        self._clock = clock
        self._real = None if where.path is None else os.path.realpath(where.path)
        self._opened = _identity(where.path)
        names = [f"{self._real}-wal", f"{self._real}-shm"] if is_wal and not where.is_read_only else []
        # A file that is missing already differs from any file found later.
        self._log_files = {name: _identity(name) or _NO_FILE for name in names}
        self._next_check = 0.0
        self._log_loss: Loss | None = None
        self._lock = threading.Lock()
        self._is_rescued = self._is_failure_logged = False

    def check(self) -> None:
        """Raise if the files are not those that were opened."""
        if (loss := self.loss()) is not None:
            raise loss.error

    def check_log(self) -> None:
        """Raise if the log was deleted or replaced; for callers that check the file itself by other means."""
        if (loss := self.loss()) is not None and isinstance(loss.error, StoreReplaced):
            raise loss.error

    def loss(self) -> Loss | None:
        if self._where.path is None:
            return None
        found = _identity(self._where.path)
        if found != self._opened:
            what = "was removed" if found is None else "was replaced by another file"
            return Loss(
                StoreUnavailable(
                    f"the {self._where.description} {what} while it was in use, and nothing more can be stored",
                    fix="put the file back and restart",
                )
            )
        now = self._clock.elapsed()
        if now >= self._next_check:
            self._next_check, self._log_loss = now + _CHECK_SECONDS, self._check_log_files()
        return self._log_loss

    def _check_log_files(self) -> Loss | None:
        found = {name: _identity(name) for name in self._log_files}
        if found == self._log_files:
            return None
        changed = [name for name, identity in found.items() if identity != self._log_files[name]]
        replaced = [name for name in changed if found[name] is not None]
        what = f"{' and '.join(changed)} {'was' if len(changed) == 1 else 'were'}"
        begin = f"{what} {'replaced' if replaced else 'deleted'} while the {self._where.description} was in use"
        never = "Never delete or move them while a program has the file open"
        if not replaced:
            fix = f"restart this process, which keeps all that was committed. {never}"
            return Loss(StoreReplaced(begin, fix=fix), may_fold=True, may_end=True)
        # A program that only reads leaves an empty log. One that has our log, but not its -shm, may write to it.
        wal = f"{self._real}-wal"
        if wal in changed and not file_size(wal):
            return Loss(StoreReplaced(f"{begin}, by a program that only reads", fix=f"restart. {never}"), may_fold=True)
        fix = f"stop all programs that use the file, compare it with {self.rescue_path}, and restart. {never}"
        return Loss(StoreReplaced(f"{begin}, and another program writes there now", fix=fix))

    # --- committed rows that only this process can reach

    @property
    def rescue_path(self) -> str:
        """Where this process copies its ledger if another program has a second one under the same name."""
        return f"{self._real}.rescued-{os.getpid()}"

    def save_deleted_log(self, db: sqlite3.Connection) -> None:
        """Write the rows of a deleted log to the file, or to a copy if the file has another log by now."""
        loss = self.loss()
        if loss is None or not isinstance(loss.error, StoreReplaced) or db.in_transaction:
            return
        try:
            if db.execute("PRAGMA query_only").fetchone()[0]:
                return
            if loss.may_fold:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            else:
                self._rescue(db)
        except sqlite3.Error as error:
            if not self._is_failure_logged:
                self._is_failure_logged = True
                log.error("%s: the rows of its deleted log could not be saved: %s", self._where.description, error)

    def _rescue(self, db: sqlite3.Connection) -> None:
        with self._lock:
            if self._is_rescued:
                return
            self._is_rescued = True
        db.execute("VACUUM INTO ?", (self.rescue_path,))
        log.error("%s: the ledger of this process was saved as %s", self._where.description, self.rescue_path)


def _identity(path: str | None) -> _Identity | None:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# --- threads ----------------------------------------------------------------------------------------------------------


class Call:
    """An intent in the queue, and the caller to answer."""

    __slots__ = ("answer", "error", "future", "intent", "is_end", "loop")

    def __init__(self, intent: Intent[Any], *, is_end: bool) -> None:
        self.intent = intent
        # It writes the outcome of work that has begun.
        self.is_end = is_end
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        """Read from another thread, so it may be late. A cancelled caller does not know the outcome anyway."""
        return self.future.cancelled()

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.answer)
        else:
            self.future.set_exception(self.error)


Perform = Callable[[sqlite3.Connection, StoreTime, Location, list[Call]], None]


class Worker:
    """A thread that opens a connection, performs calls on it, and closes it."""

    def __init__(
        self, name: str, where: Location, time: StoreTime, perform: Perform, files: SameFiles | None = None
    ) -> None:
        self._where = where
        self._files = files
        self._time = time
        self._perform = perform
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        # A daemon thread, so that a process that does not close its store can exit. Answered writes are on disk.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._db: sqlite3.Connection | None = None
        # Guards the end: later calls would never be answered.
        self._lock = threading.Lock()
        self._is_closing = False
        # Groups begun and ended, counted by the thread; the commit is in between.
        self.begun = self.ended = 0

    def start(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._thread.start()

    async def call(self, intent: Intent[T], *, is_end: bool = False) -> T:
        call = Call(intent, is_end=is_end)
        with self._lock:
            if self._is_closing:
                raise StoreUnavailable(f"the {self._where.description} is closed", fix="open it before using it")
            self._queue.put(call)
        answer: T = await call.future
        return answer

    async def close(self) -> None:
        """End after the queued calls."""
        with self._lock:
            self._is_closing = True
            self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _main(self) -> None:
        assert self._db is not None
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            calls = [call for call in group if not call.is_abandoned]
            if calls:
                self.begun += 1
                self._perform_safely(self._db, calls)
                self.ended += 1
                _answer(calls)
        if self._files is not None:
            self._files.save_deleted_log(self._db)
        self._db.close()

    def _perform_safely(self, db: sqlite3.Connection, calls: list[Call]) -> None:
        try:
            if allowed := self._allowed(db, calls):
                self._perform(db, self._time, self._where, allowed)
        except BaseException as error:
            # Any error: these callers wait for an answer, and others will call.
            _fail(calls, error)

    def _allowed(self, db: sqlite3.Connection, calls: list[Call]) -> list[Call]:
        """All calls while the files are unchanged. Otherwise those that may still be written; the others fail."""
        loss = None if self._files is None else self._files.loss()
        if self._files is None or loss is None:
            return calls
        self._files.save_deleted_log(db)
        allowed = [call for call in calls if call.is_end and loss.may_end]
        _fail([call for call in calls if call not in allowed], loss.error)
        return allowed

    def _next_group(self) -> tuple[list[Call], bool]:
        first = self._queue.get()
        if first is None:
            return [], False
        group = [first]
        while len(group) < GROUP_MOST:
            try:
                call = self._queue.get_nowait()
            except queue.Empty:
                break
            if call is None:
                return group, False
            group.append(call)
        return group, True


def commit_group(db: sqlite3.Connection, time: StoreTime, where: Location, calls: list[Call]) -> None:
    """One transaction for all calls, with a savepoint for each; a single call needs none."""
    if len(calls) == 1:
        _commit_one(db, time, where, calls[0])
        return
    try:
        with translated(where), transaction(db):
            for call in calls:
                _perform_one(db, time, where, call)
    except StoreUnavailable as error:
        _fail(calls, error)


def _commit_one(db: sqlite3.Connection, time: StoreTime, where: Location, call: Call) -> None:
    try:
        call.answer = write_now(db, time, where, call.intent)
    except Exception as error:
        call.error = error


def _perform_one(db: sqlite3.Connection, time: StoreTime, where: Location, call: Call) -> None:
    db.execute("SAVEPOINT intent")
    try:
        with translated(where):
            call.answer = call.intent(db, time.now())
    except Exception as error:
        if not db.in_transaction:
            # After a full disk or an I/O error SQLite may have rolled back the whole transaction, and so the group.
            raise
        call.error = error
        db.execute("ROLLBACK TO intent")
    db.execute("RELEASE intent")


def read_each(db: sqlite3.Connection, time: StoreTime, where: Location, calls: list[Call]) -> None:
    """Each call in its own read transaction: one snapshot for all of its statements."""
    for call in calls:
        try:
            with translated(where), transaction(db, "DEFERRED"):
                call.answer = call.intent(db, time.now())
        except Exception as error:
            call.error = error


def write_now(db: sqlite3.Connection, time: StoreTime, where: Location, intent: Intent[T]) -> T:
    """An intent in its own transaction, in the calling thread."""
    with translated(where), transaction(db):
        return intent(db, time.now())


def _fail(calls: Sequence[Call], error: BaseException) -> None:
    for call in calls:
        # A call that failed by itself keeps its own error.
        call.error = call.error or error


def _answer(calls: Sequence[Call]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, settled in by_loop.items():
        try:
            # One wake-up per loop.
            loop.call_soon_threadsafe(_settle_all, settled)
        except RuntimeError:
            # The loop is closed, and its callers are gone.
            continue


def _settle_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call.settle()


# --- sessions ---------------------------------------------------------------------------------------------------------


# A heartbeat that gets no lock must fail while there is time for others.
_WAITS_PER_LEASE = 4


class StoreSession(Protocol):
    async def write(self, intent: Intent[T], *, is_end: bool = False) -> T:
        """`is_end`: it writes the outcome of work that has begun."""
        ...

    async def read(self, intent: Intent[T]) -> T: ...

    async def changed(self, app: str, timeout: float) -> News | None: ...

    async def close(self) -> None: ...


class FileSession:
    """A writer thread, a reader thread, and the watch for foreign commits."""

    def __init__(self, db: sqlite3.Connection, where: Location, time: StoreTime) -> None:
        self._where = where
        self._is_read_only = where.is_read_only
        self.files = SameFiles(where, is_wal=db.execute("PRAGMA journal_mode").fetchone()[0] == "wal")
        self._writer = Worker("evertick-sqlite-writer", where, time, commit_group, self.files)
        self._reader = Worker("evertick-sqlite-reader", where, time, read_each, self.files)
        self._foreign_commits = ForeignCommits(where, self._writer, data_version(db))
        self._writer.start(db)
        self._reader.start(connect_to_read(where))

    async def write(self, intent: Intent[T], *, is_end: bool = False) -> T:
        if self._is_read_only:
            raise StoreRefused(f"the {self._where.description} cannot be written: {why_read_only(self._where)}")
        return await self._writer.call(intent, is_end=is_end)

    async def read(self, intent: Intent[T]) -> T:
        return await self._reader.call(intent)

    async def changed(self, app: str, timeout: float) -> News | None:
        return await self._foreign_commits.changed(app, timeout)

    async def close(self) -> None:
        loss = self.files.loss()
        if loss is None or loss.may_fold:
            # The writer last: the last connection folds the WAL into the file, and must be able to write.
            await self._reader.close()
            self._foreign_commits.close()
            await self._writer.close()
        else:
            # Another program has its own log, which ours must not overwrite, so the last connection is the reader's.
            await self._writer.close()
            await self._reader.close()
            self._foreign_commits.close()


class MemorySession:
    """One thread and one connection, because no other connection can see the database."""

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
    """A connection that several inline stores share. The last one closes it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.users = 0


class InlineSession:
    """A session without a thread."""

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
    """The heartbeat's own connection, used in the caller's thread: no queue and no other write delays it."""

    def __init__(self, where: Location, time: StoreTime, files: SameFiles) -> None:
        self._where = where
        self._time = time
        self._wait_ms = where.busy_timeout_ms
        self._files = files
        # Before it connects: a new connection would create a new log in place of a deleted one.
        files.check()
        with translated(where):
            self._db = connect(where)
        self._locks = LockWatch(where)

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        # While outcomes are still written, other processes with the same log must see this node alive.
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
    """With a single connection, a heartbeat is a write like any other."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        return await self._session.write(lambda db, now: beat(db, now, node, lease, ticks))

    async def die(self, node: str) -> None:
        await self._session.write(lambda db, now: die(db, now, node, "node.died"))

    async def resign(self, node: str) -> None:
        await self._session.write(lambda db, now: resign(db, now, node))

    async def close(self) -> None:
        return None
