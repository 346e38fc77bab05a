"""Intents inside transactions of users, and transactions for jobs that end their runs.

A user's connection is left as it was: an error of ours is rolled back to a savepoint. It must lead to the database and
schema of the store, because only then one commit covers both. The commit wakes other nodes. asyncpg is used directly,
psycopg through an adapter; wrappers (pools, SQLAlchemy, Django) are removed layer by layer, and none is imported. A
synchronous connection is used in the caller's thread; its coroutines end without an event loop.

A job's transaction locks no row of the ledger before its end, so a cancel or a recovery of the run does not wait for
the job; its commit is then refused. A timer closes its connection in time, even while the job uses it. A synchronous
job gets a psycopg connection in its own thread, because asyncpg needs an event loop. At the time limit the server is
asked to end that session, because no other thread may use a connection that is in use.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

import asyncpg

from evertick.clock import Clock
from evertick.errors import InvalidInput, Refused, StoreError, StoreUnavailable, TransactionTimeout
from evertick.model import Message, NewMessage, NewRun, Outcome, Run
from evertick.store.base import FinishAnswer
from evertick.store.postgres.connection import (
    BEGIN,
    REACHABLE,
    Connection,
    QueryConnection,
    Statements,
    connect,
    disconnect,
    sqlstate_of,
    translated,
)
from evertick.store.postgres.endings import finish_in
from evertick.store.postgres.location import Location
from evertick.store.postgres.outbox import send
from evertick.store.postgres.run_ids import is_run_id
from evertick.store.postgres.runs import enqueue_in
from evertick.store.postgres.wakeup import Notifier
from evertick.store.rows import Row
from evertick.store.wrappers import begin_as_library, closed_connection, layers_of
from evertick.text.redact import shown_value

__all__ = ["AsyncpgTransaction", "Identity", "PsycopgTransaction", "UserTransaction", "identity_of", "load_psycopg"]

# --- connections of users ---------------------------------------------------------------------------------------------


# libpq's transaction status: no transaction is open.
_IDLE = 0


class _Psycopg:
    """Common to both kinds of psycopg connection."""

    is_async: bool

    def __init__(self, connection: Any, psycopg: ModuleType) -> None:
        self._connection = connection
        self._psycopg = psycopg

    def is_closed(self) -> bool:
        return bool(self._connection.closed)

    def is_in_transaction(self) -> bool:
        """Also true if the first statement begins one, which is psycopg's default."""
        return not self._connection.autocommit or int(self._connection.info.transaction_status) != _IDLE


class SyncPsycopg(_Psycopg):
    is_async = False

    async def fetch(self, query: str, *values: object) -> list[Row]:
        with self._cursor() as cursor:
            cursor.execute(query, values or None)
            rows: list[Row] = cursor.fetchall()
            return rows

    async def fetchrow(self, query: str, *values: object) -> Row | None:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

    async def execute(self, query: str, *values: object) -> str:
        with self._cursor() as cursor:
            cursor.execute(query, values or None)
            return str(cursor.statusmessage)

    def _cursor(self) -> Any:
        # A raw cursor takes $1 for parameters, as our statements have them.
        return self._psycopg.RawCursor(self._connection, row_factory=self._psycopg.rows.dict_row)


class AsyncPsycopg(_Psycopg):
    is_async = True

    async def fetch(self, query: str, *values: object) -> list[Row]:
        async with self._cursor() as cursor:
            await cursor.execute(query, values or None)
            rows: list[Row] = await cursor.fetchall()
            return rows

    async def fetchrow(self, query: str, *values: object) -> Row | None:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

    async def execute(self, query: str, *values: object) -> str:
        async with self._cursor() as cursor:
            await cursor.execute(query, values or None)
            return str(cursor.statusmessage)

    def _cursor(self) -> Any:
        return self._psycopg.AsyncRawCursor(self._connection, row_factory=self._psycopg.rows.dict_row)


UserConnection = Connection | SyncPsycopg | AsyncPsycopg


def connection_of(given: object) -> UserConnection:
    """The connection inside its wrappers, for our statements."""
    for found in layers_of(given):
        # In the loop, because Django imports its driver with the first connection.
        psycopg = sys.modules.get("psycopg")
        if isinstance(found, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            connection: Connection = found
            return connection
        if psycopg is not None and isinstance(found, psycopg.Connection):
            return SyncPsycopg(found, psycopg)
        if psycopg is not None and isinstance(found, psycopg.AsyncConnection):
            return AsyncPsycopg(found, psycopg)
        if type(found).__module__.startswith("psycopg2"):
            raise InvalidInput(
                "connection: Evertick cannot use a connection of psycopg2",
                setting="connection",
                fix="install psycopg 3 with `pip install 'psycopg[binary]'`: Django uses it automatically, SQLAlchemy "
                "by postgresql+psycopg:// in its URL",
            )
    raise InvalidInput(
        f"connection: {shown_value(given)} is no open connection to PostgreSQL that Evertick can use",
        setting="connection",
        fix="pass one of asyncpg or psycopg 3, Django's, a Connection or Session of SQLAlchemy on one of them, or an "
        "AsyncConnection (of an AsyncSession: `await session.connection()`)",
    )


# --- transactions of users --------------------------------------------------------------------------------------------


T = TypeVar("T")
# The id of the store, and its database in the server: a copy of the store has the same id.
Identity = tuple[str, int]

_READ_COMMITTED = "read committed"
# SQLSTATEs of a table and of a schema that do not exist.
_NO_TABLES = ("42P01", "3F000")
# A transaction in which a statement has failed; and one that conflicted with another.
_FAILED = "25P02"
_CONFLICT = "40"
# The server ends a transaction only if the program cannot, for example because it is frozen.
_WATCH_MARGIN_SECONDS = 2.0
# The server counts milliseconds in 31 bits.
_SERVER_MOST_SECONDS = 2_000_000.0


async def identity_of(db: Statements) -> Identity:
    return _identity(await db.only_row("within.store"))


def _identity(row: Row) -> Identity:
    return row["store_id"], row["database"]


# --- the user's own transaction ----------------------------------------------------------------------------------


class UserTransaction:
    """The transaction that is open on a connection of the user."""

    def __init__(
        self,
        given: object,
        where: Location,
        identity: Identity,
        sql: Mapping[str, str],
        clock: Clock,
        notifier: Notifier,
    ) -> None:
        self._given = given
        self._connection = connection_of(given)
        self._where = where
        self._identity = identity
        self._sql = sql
        self._clock = clock
        self._notifier = notifier
        # Set by the check of the store, before anything is written.
        self._isolation = _READ_COMMITTED

    @property
    def is_async(self) -> bool:
        return getattr(self._connection, "is_async", True)

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        return await self._perform(lambda db: enqueue_in(db, app, runs))

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        return await self._perform(lambda db: send(db, app, messages))

    async def finish(self, app: str, node: str, outcome: Outcome) -> FinishAnswer:
        answers, _ = await self._perform(lambda db: self._finish(db, app, node, outcome))
        return answers[0]

    async def _finish(self, db: Statements, app: str, node: str, outcome: Outcome) -> tuple[list[FinishAnswer], bool]:
        if self._isolation != _READ_COMMITTED and is_run_id(outcome.id):
            await self._refuse_with_waiters(db, outcome.id)
        return await finish_in(db, app, node, [outcome])

    async def _refuse_with_waiters(self, db: Statements, run: str) -> None:
        """A transaction with a snapshot of its beginning does not see runs that have become blocked since."""
        locks = await db.only_row("run.to_lock", [run])
        if locks["has_limited"] or locks["schedules"]:
            raise Refused(
                f"run {run} cannot be finished in a transaction that is {self._isolation}: others wait for its end, "
                "and those that came after the transaction began are not visible in it",
                fix="begin it as read committed, or let the job return instead of finishing the run itself",
            )

    async def _perform(self, act: Callable[[Statements], Awaitable[T]]) -> T:
        await self._check_transaction()
        try:
            with translated(self._where):
                return await self._in_savepoint(act)
        except StoreUnavailable as error:
            cause = error.__cause__
            if cause is None or not sqlstate_of(cause).startswith(_CONFLICT):
                raise
            # Only the user can repeat the whole transaction, and expects the errors of the driver.
            raise cause from None

    async def _check_transaction(self) -> None:
        if self._connection.is_closed():
            raise closed_connection()
        await begin_as_library(self._given, is_begun=self._connection.is_in_transaction())
        if not self._connection.is_in_transaction():
            raise Refused(
                "no transaction is open on this connection, and it begins none by itself (autocommit)",
                fix="begin one first (asyncpg and psycopg: `connection.transaction()`, Django: `transaction.atomic()`, "
                'SQLAlchemy: without isolation_level="AUTOCOMMIT"), and commit it together with your own changes',
            )

    async def _in_savepoint(self, act: Callable[[Statements], Awaitable[T]]) -> T:
        try:
            await self._connection.execute("SAVEPOINT evertick_within")
        except Exception as error:
            if sqlstate_of(error) != _FAILED:
                raise
            raise Refused(
                "the transaction on this connection has failed before, and accepts no more statements",
                fix="roll it back, and begin another one",
            ) from error
        try:
            db = Statements(self._connection, self._sql, self._clock)
            await self._check_store(db)
            answer = await act(db)
            await self._notifier.notify_in(self._connection, db.woken)
        except Exception:
            if not self._connection.is_closed():
                await self._connection.execute("ROLLBACK TO evertick_within; RELEASE evertick_within")
            raise
        await self._connection.execute("RELEASE evertick_within")
        return answer

    async def _check_store(self, db: Statements) -> None:
        try:
            found = await db.only_row("within.store")
        except Exception as error:
            if sqlstate_of(error) not in _NO_TABLES:
                raise
            raise Refused(
                "this connection leads to a database without tables of Evertick", fix=self._advice()
            ) from error
        if _identity(found) != self._identity:
            raise Refused("this connection leads to another store", fix=self._advice())
        self._isolation = found["isolation"]

    def _advice(self) -> str:
        return f"connect to the {self._where.description}, where the ledger is, so that one commit covers both"


# --- a transaction for a job -------------------------------------------------------------------------------------


class AsyncpgTransaction:
    """A connection for one job, in a transaction with a time limit."""

    def __init__(
        self, where: Location, sql: Mapping[str, str], clock: Clock, notifier: Notifier, *, seconds: float
    ) -> None:
        self._where = where
        self._sql = sql
        self._clock = clock
        self._notifier = notifier
        self._seconds = seconds
        self._connection: Connection | None = None
        self._transaction = ""
        self._watch: asyncio.TimerHandle | None = None
        self._has_timed_out = False

    async def begin(self, app: str, node: str, run: str, fence: int) -> Connection | None:
        with translated(self._where):
            async with asyncio.timeout(self._where.timeout):
                connection = await connect(self._where, has_own_plans=False)
                try:
                    held = await self._hold(connection, app, node, run, fence)
                except BaseException:
                    connection.terminate()
                    raise
        if not held:
            await disconnect(connection)
            return None
        self._connection = connection
        self._watch = asyncio.get_running_loop().call_later(self._seconds, self._time_out)
        return connection

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        return await asyncio.shield(self._commit(app, node, outcome))

    async def rollback(self) -> None:
        if self._connection is not None:
            self._take_connection().terminate()
        if self._has_timed_out:
            raise _timeout_error(self._seconds)

    async def _hold(self, connection: Connection, app: str, node: str, run: str, fence: int) -> bool:
        await connection.execute(BEGIN)
        db = Statements(connection, self._sql, self._clock)
        # Assigns the transaction id, by which the end of the transaction is recognised.
        self._transaction = (await db.only_row("within.begin", server_limit(self._seconds)))["name"]
        return is_run_id(run) and await db.row("within.held", app, node, run, fence) is not None

    async def _commit(self, app: str, node: str, outcome: Outcome) -> bool:
        connection = self._take_connection()
        try:
            if self._has_timed_out:
                raise _timeout_error(self._seconds)
            with translated(self._where):
                async with asyncio.timeout(self._where.timeout):
                    db = Statements(connection, self._sql, self._clock)
                    finish = finish_and_commit(connection, db, self._notifier, self._transaction, app, node, outcome)
                    return await finish
        finally:
            if connection.is_closed() or connection.is_in_transaction():
                connection.terminate()
            else:
                await disconnect(connection)

    def _take_connection(self) -> Connection:
        """Take the connection from the job. Closing it rolls back."""
        assert self._connection is not None
        assert self._watch is not None
        self._watch.cancel()
        connection, self._connection = self._connection, None
        return connection

    def _time_out(self) -> None:
        self._has_timed_out = True
        if self._connection is not None:
            with suppress(StoreError):
                self._connection.terminate()


def server_limit(seconds: float) -> str:
    """The server's timeout for the statements of a job, in milliseconds. Our timer comes first, with a clearer
    error."""
    return str(round(min(seconds + _WATCH_MARGIN_SECONDS, _SERVER_MOST_SECONDS) * 1000))


def _timeout_error(seconds: float) -> TransactionTimeout:
    return TransactionTimeout(
        f"the transaction was open for more than {seconds:g} s, a third of the lease, and was rolled back",
        fix="do the long part before the block, or raise lease=",
    )


async def finish_and_commit(
    connection: QueryConnection, db: Statements, notifier: Notifier, name: str, app: str, node: str, outcome: Outcome
) -> bool:
    """Finish the run and commit the job's transaction, if it is still this one. False: the claim is lost; no commit."""
    named = await db.rows("within.transaction") if connection.is_in_transaction() else []
    if [row["name"] for row in named] != [name]:
        raise Refused(
            f"the job has ended the transaction of run {outcome.id} itself, so its rows and the end of the run were "
            "not one commit",
            fix="leave COMMIT and ROLLBACK to `ctx.transaction()`",
        )
    # The job may have written the outcome itself, with a result.
    answers, _ = await finish_in(db, app, node, [outcome])
    if answers == ["lost"]:
        return False
    await notifier.notify_in(connection, db.woken)
    await connection.execute("COMMIT")
    return True


# --- a transaction for a plain job ------------------------------------------------------------------------------------


def load_psycopg(description: str) -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise Refused(
            f"the ledger is in the {description}, and a synchronous job needs psycopg for a transaction there",
            fix="install it with `pip install 'psycopg[binary]'`, or make the job a coroutine",
        ) from error
    return psycopg


class PsycopgTransaction:
    """A connection for one synchronous job, in a transaction with a time limit."""

    def __init__(
        self,
        where: Location,
        sql: Mapping[str, str],
        clock: Clock,
        notifier: Notifier,
        *,
        seconds: float,
        psycopg: ModuleType,
    ) -> None:
        self._where = where
        self._sql = sql
        self._clock = clock
        self._notifier = notifier
        self._seconds = seconds
        self._psycopg = psycopg
        self._connection: Any = None
        self._transaction = ""
        self._watch: threading.Timer | None = None
        # For the timer and the end of the block: the first one decides.
        self._ending = threading.Lock()
        self._has_timed_out = False

    async def begin(self, app: str, node: str, run: str, fence: int) -> Any:
        with self._translated():
            connection = self._connect()
            try:
                db = Statements(SyncPsycopg(connection, self._psycopg), self._sql, self._clock)
                # Assigns the transaction id, by which the end of the transaction is recognised.
                begun = await db.only_row("within.begin", server_limit(self._seconds))
                self._transaction = begun["name"]
                held = await db.row("within.held", app, node, run, fence) if is_run_id(run) else None
            except BaseException:
                connection.close()
                raise
        if held is None:
            connection.close()
            return None
        self._connection = connection
        self._watch = threading.Timer(self._seconds, self._time_out, [begun["backend"]])
        self._watch.daemon = True
        self._watch.start()
        return connection

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        connection = self._take_connection()
        try:
            if self._has_timed_out:
                raise _timeout_error(self._seconds)
            with self._translated():
                sync = SyncPsycopg(connection, self._psycopg)
                db = Statements(sync, self._sql, self._clock)
                return await finish_and_commit(sync, db, self._notifier, self._transaction, app, node, outcome)
        finally:
            connection.close()

    async def rollback(self) -> None:
        if self._connection is not None:
            self._take_connection().close()
        if self._has_timed_out:
            raise _timeout_error(self._seconds)

    def _connect(self) -> Any:
        # A prepared statement stays in its server session, and a pooler may assign another session.
        unprepared = {"prepare_threshold": None} if self._where.is_pooled else {}
        connection = self._psycopg.connect(**self._address(), **unprepared)
        connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _address(self) -> dict[str, Any]:
        where = self._where
        milliseconds = round(where.timeout * 1000)
        given = {
            "host": ",".join(host for host, _ in where.hosts),
            "port": ",".join(str(port) for _, port in where.hosts),
            "user": where.user,
            "password": where.password,
            "dbname": where.database,
            "sslmode": where.sslmode or ("verify-full" if where.ca is not None else None),
            "sslrootcert": where.ca,
            "sslcert": where.cert,
            "sslkey": where.key,
            "target_session_attrs": "read-write" if len(where.hosts) > 1 else None,
            "connect_timeout": max(1, round(where.connect_timeout)),
            "application_name": "evertick",
            "options": None if where.is_pooled else f"-c statement_timeout={milliseconds}",
        }
        return {name: value for name, value in given.items() if value}

    def _take_connection(self) -> Any:
        """Take the connection from the job. Closing it rolls back."""
        assert self._watch is not None
        self._watch.cancel()
        with self._ending:
            connection, self._connection = self._connection, None
        return connection

    def _time_out(self, backend: int) -> None:
        with self._ending:
            if self._connection is None:
                return
            self._has_timed_out = True
            with suppress(self._psycopg.Error), self._connect() as connection:
                statement = self._sql["within.terminate"]
                self._psycopg.RawCursor(connection).execute(statement, [backend, self._transaction])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated(self._where):
            try:
                yield
            except self._psycopg.OperationalError as error:
                if error.sqlstate is not None:
                    raise
                message = str(error).partition("\n")[0]
                raise StoreUnavailable(
                    f"the {self._where.description} cannot be reached ({message})", fix=REACHABLE
                ) from error
