"""Intents inside transactions of users, and transactions for jobs that end their runs.

A user's connection is left as it was: its row and text factories are restored, and an error of ours is rolled back to a
savepoint. Its `main` database must be the file of the store, because only then one commit covers both. Other processes
notice that commit like any other, by the `data_version` of the file.

The transaction of a job holds SQLite's write lock, so no node can send a heartbeat while it is open. A timer rolls it
back in time, even while the job uses it. After that the connection refuses every statement, because outside a
transaction each would be committed by itself. The job cannot end the transaction; leaving the block does.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Self, TypeVar

from evertick.errors import InvalidInput, Refused, TransactionTimeout
from evertick.model import Message, NewMessage, NewRun, Outcome, Run
from evertick.store.base import FinishAnswer
from evertick.store.sqlite.connection import (
    SQL,
    StoreTime,
    by_number,
    connect,
    each_by_number,
    numbered,
    savepoint,
    translated,
)
from evertick.store.sqlite.endings import finish, held_runs
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.outbox import send
from evertick.store.sqlite.runs import enqueue
from evertick.store.wrappers import begin_as_library, layers_of
from evertick.text.redact import shown_value

__all__ = ["FileTransaction", "UserTransaction", "refuse_memory"]

# --- transactions of users --------------------------------------------------------------------------------------------


T = TypeVar("T")

# Private names of an aiosqlite connection, which has no public ones for them.
_AIO_CONNECTION, _AIO_EXECUTE = "_conn", "_execute"
# The value of `Connection.autocommit` if Python begins transactions itself, as always before 3.12.
_LEGACY = -1


def refuse_memory(where: Location) -> None:
    if where.path is None:
        raise Refused(
            f"the ledger is {where.description}, which no other connection can reach",
            fix="use a file, as in sqlite:///jobs.db, for transactions that it shares with other tables (in the "
            "testing kit the ledger is always in memory: test such code with a file in a temporary directory)",
        )


class UserTransaction:
    """The transaction that is open on a user's connection, or that our first statement begins on it."""

    def __init__(self, given: object, where: Location, store_id: str, time: StoreTime) -> None:
        self._given = given
        self._db, self._aio = _connection_of(given)
        self._where = where
        self._store_id = store_id
        self._time = time

    @property
    def is_async(self) -> bool:
        return self._aio is not None

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        return await self._perform(lambda db: enqueue(db, self._time.now(), app, runs))

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        return await self._perform(lambda db: send(db, self._time.now(), app, messages))

    async def finish(self, app: str, node: str, outcome: Outcome) -> FinishAnswer:
        finished = await self._perform(lambda db: finish(db, self._time.now(), app, node, [outcome]))
        return finished.answers[0]

    async def _perform(self, act: Callable[[sqlite3.Connection], T]) -> T:
        await begin_as_library(self._given, is_begun=self._db.in_transaction)
        if self._aio is None:
            return self._perform_here(act)
        # In its own thread, in the order of the user's other statements.
        answer: T = await getattr(self._aio, _AIO_EXECUTE)(functools.partial(self._perform_here, act))
        return answer

    def _perform_here(self, act: Callable[[sqlite3.Connection], T]) -> T:
        with translated(self._where), our_factories(self._db), _in_transaction(self._db), savepoint(self._db):
            _check_store(self._db, self._where, self._store_id)
            return act(numbered(self._db))


def _connection_of(given: object) -> tuple[sqlite3.Connection, Any | None]:
    """SQLite's connection, and the async connection around it if there is one; found through wrappers."""
    for found in layers_of(given):
        if isinstance(found, sqlite3.Connection):
            return found, None
        inner = getattr(found, _AIO_CONNECTION, None)
        if isinstance(inner, sqlite3.Connection) and callable(getattr(found, _AIO_EXECUTE, None)):
            return inner, found
    raise InvalidInput(
        f"connection: {shown_value(given)} is no open connection to SQLite",
        setting="connection",
        fix="pass one of sqlite3 or aiosqlite, Django's, a Connection or Session of SQLAlchemy, or an AsyncConnection "
        "(of an AsyncSession: `await session.connection()`)",
    )


@contextmanager
def our_factories(db: sqlite3.Connection) -> Iterator[None]:
    """Row and text factories as our statements need them; restored afterwards."""
    row_factory, text_factory = db.row_factory, db.text_factory
    db.row_factory, db.text_factory = sqlite3.Row, str
    try:
        yield
    finally:
        db.row_factory, db.text_factory = row_factory, text_factory


@contextmanager
def _in_transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The open transaction, or one that begins as Python would begin it before an INSERT."""
    if db.in_transaction:
        yield
        return
    if getattr(db, "autocommit", _LEGACY) != _LEGACY or db.isolation_level is None:
        raise Refused(
            "no transaction is open on this connection, and it begins none by itself (autocommit)",
            fix='begin a transaction first, with connection.execute("BEGIN IMMEDIATE"), and commit it together with '
            "your own changes",
        )
    db.execute(f"BEGIN {db.isolation_level}")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check_store(db: sqlite3.Connection, where: Location, store_id: str) -> None:
    """Whether it is this store: a copy of the file has the same id, and a file in its place has the same path."""
    try:
        db.execute(SQL["within.lock"])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        raise Refused(
            f"this connection leads to {_file_of(db)}, without tables of Evertick", fix=_advice(where)
        ) from error
    found = db.execute(SQL["within.store_id"]).fetchone()["store_id"]
    if found != store_id or not _is_same_file(_file_of(db), where.path):
        raise Refused(f"this connection leads to {_file_of(db)}, which is another store", fix=_advice(where))


def _is_same_file(one: str, other: str | None) -> bool:
    try:
        return other is not None and os.path.samefile(one, other)
    except OSError:
        return False


def _file_of(db: sqlite3.Connection) -> str:
    [main] = [row["file"] for row in db.execute("PRAGMA database_list") if row["name"] == "main"]
    return str(main) or "a database in memory"


def _advice(where: Location) -> str:
    return f"connect to {where.path}, where the ledger is, so that one commit covers both"


# --- transactions for jobs --------------------------------------------------------------------------------------------


# Steps of SQLite's virtual machine between two checks of the time limit: about a millisecond.
_STEPS_PER_CHECK = 10_000


class FileTransaction:
    """A connection to the store's file for one job, in a transaction with a time limit."""

    def __init__(self, where: Location, time: StoreTime, *, seconds: float, is_plain: bool) -> None:
        self._where = where
        self._time = time
        self._is_plain = is_plain
        self._time_limit = _TimeLimit(seconds)
        self._db: JobConnection | None = None
        self._watch = threading.Timer(seconds, self._time_out)
        self._watch.daemon = True

    async def begin(self, app: str, node: str, run: str, fence: int) -> sqlite3.Connection | None:
        begin = functools.partial(self._begin, app, node, run, fence)
        if self._is_plain:
            return begin()
        beginning = asyncio.get_running_loop().run_in_executor(None, begin)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The block is not entered, so nothing would roll back and release the lock.
            beginning.add_done_callback(lambda _: self._roll_back())
            raise

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        return await self._run_to_end(functools.partial(self._commit, app, node, outcome))

    async def rollback(self) -> None:
        await self._run_to_end(self._roll_back)

    async def _run_to_end(self, act: Callable[[], T]) -> T:
        """Outside the event loop, and to its end even if the caller is cancelled meanwhile."""
        if self._is_plain:
            return act()
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, act))

    def _begin(self, app: str, node: str, run: str, fence: int) -> sqlite3.Connection | None:
        with translated(self._where):
            db = connect(self._where, factory=JobConnection)
            assert isinstance(db, JobConnection)
            try:
                db.execute("BEGIN IMMEDIATE")
                held, _ = held_runs(db, app, node, {run: fence})
            except BaseException:
                db.close()
                raise
        if not held:
            db.close()
            return None
        db.give_to_job(self._time_limit)
        self._db = db
        self._watch.start()
        return db

    def _commit(self, app: str, node: str, outcome: Outcome) -> bool:
        db = self._take_connection()
        with closing(db), translated(self._where), our_factories(db):
            db.check_open(self._time_limit)
            # "already": the job has written the outcome itself, with a result.
            if finish(db, self._time.now(), app, node, [outcome]).answers == ["lost"]:
                return False
            db.execute("COMMIT")
            return True

    def _roll_back(self) -> None:
        """Close the connection, which rolls back."""
        if self._db is not None:
            self._take_connection().close()

    def _take_connection(self) -> JobConnection:
        assert self._db is not None
        self._watch.cancel()
        self._db.take_from_job()
        return self._db

    def _time_out(self) -> None:
        assert self._db is not None
        self._db.roll_back_now()


class _TimeLimit:
    """The time limit of a job's connection, and the lock for its statements. One statement at a time: otherwise one
    thread would wait for the other's statement while it holds the interpreter lock, and the other, in a callback of
    SQLite, for that lock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.lock = threading.RLock()
        self.is_over = False
        # The statement that wanted to end the transaction; SQLite itself only says "not authorized".
        self.refused: str | None = None

    def timeout(self) -> TransactionTimeout:
        return TransactionTimeout(
            f"the transaction was open for more than {self._seconds:g} s, a third of the lease, and was rolled back, "
            "because it blocks all writes, even heartbeats",
            fix="do the long part before the block, or raise lease=",
        )


class JobConnection(sqlite3.Connection):
    """The connection of a job, until its time limit. Only Evertick ends its transaction."""

    # None before the job has the connection.
    _time_limit: _TimeLimit | None = None
    # The thread that ends the transaction, once the job's block is left.
    _taken_by: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around every step of a statement: allowed to the job within its time limit, and to us at any time."""
        limit = self._time_limit
        if limit is None or self._taken_by == threading.get_ident():
            yield
            return
        with limit.lock:
            if self._taken_by is not None:
                raise Refused(
                    "the block of this transaction was left",
                    fix="move this statement into the block to make it part of it",
                )
            self.check_open(limit)
            try:
                yield
            except sqlite3.OperationalError as error:
                if limit.is_over:
                    raise limit.timeout() from error
                raise
            except sqlite3.DatabaseError as error:
                if limit.refused is not None:
                    raise self._refusal(limit.refused) from error
                raise
            finally:
                limit.refused = None

    def check_open(self, limit: _TimeLimit) -> None:
        if limit.is_over:
            raise limit.timeout()
        # After some errors, such as a full disk, SQLite rolls back everything; later statements would be committed.
        if not self.in_transaction:
            raise Refused(
                "SQLite has rolled back the transaction because of an error in it", fix="let that error pass through"
            )

    def give_to_job(self, limit: _TimeLimit) -> None:
        self.row_factory = None
        self.set_authorizer(functools.partial(_deny_end, limit))
        # Interrupts a statement that runs at the time limit. interrupt() would also stop the ROLLBACK that follows.
        self.set_progress_handler(lambda: limit.is_over, _STEPS_PER_CHECK)
        self._time_limit = limit

    def take_from_job(self) -> None:
        assert self._time_limit is not None
        with self._time_limit.lock:
            self._taken_by = threading.get_ident()
            self.set_authorizer(None)
            self.set_progress_handler(None, 0)

    def roll_back_now(self) -> None:
        """Roll back between two statements of the job, which cannot execute any more."""
        limit = self._time_limit
        assert limit is not None
        limit.is_over = True
        with limit.lock:
            # The block may have been left while we waited, and an interrupted write rolls back by itself.
            if self._taken_by is None and self.in_transaction:
                self.set_authorizer(None)
                sqlite3.Cursor(self).execute("ROLLBACK")

    def cursor(self, factory: Any = None) -> JobCursor:  # type: ignore[override]
        if factory is not None:
            raise Refused(
                f"cursors of {factory!r} would escape the time limit of the transaction", fix="use conn.cursor()"
            )
        return super().cursor(JobCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> JobCursor:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> JobCursor:
        return self.cursor().executemany(sql, parameters)

    def commit(self) -> None:
        raise self._refusal("commit()")

    def rollback(self) -> None:
        raise self._refusal("rollback()")

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        raise self._refusal("executescript()")

    def __enter__(self) -> Self:
        raise self._refusal("`with conn:`")

    def _refusal(self, what: str) -> Refused:
        if what == "BEGIN":
            return Refused("the block is a transaction already", fix="use SAVEPOINT inside the block instead of BEGIN")
        return Refused(
            f"{what} would end the transaction without finishing the run",
            fix="leave the block to commit, raise to roll back",
        )


class JobCursor(sqlite3.Cursor):
    """A cursor whose statements take their turn, step by step."""

    connection: JobConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        with self.connection.turn():
            return super().execute(sql, by_number(sql, parameters))

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        with self.connection.turn():
            return super().executemany(sql, each_by_number(sql, seq_of_parameters))

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        return self.connection.executescript(sql_script)

    def fetchone(self) -> Any:
        with self.connection.turn():
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with self.connection.turn():
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with self.connection.turn():
            return super().fetchall()

    def __next__(self) -> Any:
        with self.connection.turn():
            return super().__next__()


def _deny_end(limit: _TimeLimit, action: int, what: str | None, *_: object) -> int:
    """Deny a COMMIT in a statement of the job, which would commit its rows and leave the run unfinished."""
    if action != sqlite3.SQLITE_TRANSACTION:
        return sqlite3.SQLITE_OK
    limit.refused = what
    return sqlite3.SQLITE_DENY
