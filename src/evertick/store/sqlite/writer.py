"""The threads that talk to SQLite, and group commit.

A `Worker` is a thread with a connection and a queue of calls. The writer takes all calls that wait, at most
`GROUP_MOST`, does each in a savepoint of one transaction, and answers after the COMMIT: fifty callers pay for one sync
of the disk. A call that raises is rolled back alone; a COMMIT that fails fails all of its group. The reader has its own
connection, so that looking never waits for writing.

Callers are coroutines of any event loop. One that was cancelled, or whose loop has closed, is nobody to answer; it must
never stop the thread.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from evertick.errors import StoreUnavailable
from evertick.store.sqlite.connection import StoreTime, transaction, translated
from evertick.store.sqlite.guard import SameFiles
from evertick.store.sqlite.location import Location

__all__ = ["GROUP_MOST", "Call", "Intent", "Worker", "commit_group", "read_each", "write_now"]

T = TypeVar("T")
# What an intent is to a thread: a function of the connection and the store's now.
Intent = Callable[[sqlite3.Connection, int], T]

# Bounds how long one transaction keeps other processes from writing.
GROUP_MOST = 200


class Call:
    """An intent on its way, and whom to answer."""

    __slots__ = ("answer", "error", "future", "intent", "is_end", "loop")

    def __init__(self, intent: Intent[Any], *, is_end: bool) -> None:
        self.intent = intent
        # Writes how something has ended that has begun already.
        self.is_end = is_end
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        """Read from another thread, so it may be late; an outcome is unknown to a cancelled caller anyway."""
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
        # A daemon: a process that ends without closing its store must not hang. What was answered is on disk.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._db: sqlite3.Connection | None = None
        # Guards the end: after it nothing is queued that nobody would answer.
        self._lock = threading.Lock()
        self._is_closing = False
        # Groups, counted by the thread itself; it commits somewhere in between.
        self.begun = self.ended = 0

    def start(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._thread.start()

    async def call(self, intent: Intent[T], *, is_end: bool = False) -> T:
        call = Call(intent, is_end=is_end)
        with self._lock:
            if self._is_closing:
                raise StoreUnavailable(f"the {self._where.description} is closed; open it before using it")
            self._queue.put(call)
        answer: T = await call.future
        return answer

    async def close(self) -> None:
        """End after what is queued."""
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
            self._files.keep_what_we_hold(self._db)
        self._db.close()

    def _perform_safely(self, db: sqlite3.Connection, calls: list[Call]) -> None:
        try:
            if allowed := self._allowed(db, calls):
                self._perform(db, self._time, self._where, allowed)
        except BaseException as error:
            # Whatever it was, somebody waits for an answer and others will come.
            _fail(calls, error)

    def _allowed(self, db: sqlite3.Connection, calls: list[Call]) -> list[Call]:
        """All of them, as long as the files are those that were opened; the others are answered with what is wrong."""
        loss = None if self._files is None else self._files.loss()
        if self._files is None or loss is None:
            return calls
        self._files.keep_what_we_hold(db)
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
    """One transaction for all, a savepoint for each; one that comes alone needs none."""
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
            # A full disk or an I/O error may make SQLite give up the whole transaction, and with it the whole group.
            raise
        call.error = error
        db.execute("ROLLBACK TO intent")
    db.execute("RELEASE intent")


def read_each(db: sqlite3.Connection, time: StoreTime, where: Location, calls: list[Call]) -> None:
    """Each in a read transaction of its own: one snapshot for all of its statements."""
    for call in calls:
        try:
            with translated(where), transaction(db, "DEFERRED"):
                call.answer = call.intent(db, time.now())
        except Exception as error:
            call.error = error


def write_now(db: sqlite3.Connection, time: StoreTime, where: Location, intent: Intent[T]) -> T:
    """An intent in a transaction of its own, in the calling thread."""
    with translated(where), transaction(db):
        return intent(db, time.now())


def _fail(calls: Sequence[Call], error: BaseException) -> None:
    for call in calls:
        # One that failed by itself keeps its own reason.
        call.error = call.error or error


def _answer(calls: Sequence[Call]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, settled in by_loop.items():
        try:
            # One wake-up per loop, however many wait there.
            loop.call_soon_threadsafe(_settle_all, settled)
        except RuntimeError:
            # The loop has closed, and its callers with it.
            continue


def _settle_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call.settle()
