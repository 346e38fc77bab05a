"""The ledger inside other transactions: the user's own, and those that a job gets for its own rows.

The user's connection stays the user's: an error of ours is rolled back to a savepoint and leaves the transaction as it
was. It must lead to the very database and schema of the store: only then is a commit one commit. Others are woken by
it. asyncpg is used as it is, psycopg through an adapter; wrappers (pools, SQLAlchemy, Django) are taken off layer by
layer, and nothing is imported for it. A plain connection is used in the caller's thread: its coroutines come to their
end without an event loop.

A job's transaction locks nothing of the ledger before its end: a cancel or a takeover of the run does not wait for the
job, and the job's commit is refused then. A watch ends its connection in time, whatever the job is doing. A plain job
gets a connection of psycopg in its own thread, for asyncpg lives on event loops only; when its time is over the server
is asked to end the session: no other thread may touch a connection that is in use.
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


# States of a transaction in libpq: none is open.
_IDLE = 0


class _Psycopg:
    """Common to both kinds of psycopg."""

    is_async: bool

    def __init__(self, connection: Any, psycopg: ModuleType) -> None:
        self._connection = connection
        self._psycopg = psycopg

    def is_closed(self) -> bool:
        return bool(self._connection.closed)

    def is_in_transaction(self) -> bool:
        """Also when the first statement begins one, as it does unless the user has turned that off."""
        return not self._connection.autocommit or int(self._connection.info.transaction_status) != _IDLE


class PlainPsycopg(_Psycopg):
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
        # With $1 for parameters, as all of our statements have it.
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


UserConnection = Connection | PlainPsycopg | AsyncPsycopg


def connection_of(given: object) -> UserConnection:
    """The connection inside of its wrappers, for our statements."""
    for found in layers_of(given):
        # Anew for each: Django loads its driver with the first connection.
        psycopg = sys.modules.get("psycopg")
        if isinstance(found, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            connection: Connection = found
            return connection
        if psycopg is not None and isinstance(found, psycopg.Connection):
            return PlainPsycopg(found, psycopg)
        if psycopg is not None and isinstance(found, psycopg.AsyncConnection):
            return AsyncPsycopg(found, psycopg)
        if type(found).__module__.startswith("psycopg2"):
            raise InvalidInput(
                "connection: this is one of psycopg2, which Evertick cannot use; install psycopg 3 with `pip install "
                "'psycopg[binary]'`: Django takes it by itself, SQLAlchemy by postgresql+psycopg:// in its URL"
            )
    raise InvalidInput(
        f"connection: {shown_value(given)} is no open connection to PostgreSQL that Evertick can use; pass one of "
        "asyncpg or psycopg 3, Django's, a Connection or Session of SQLAlchemy on one of them, or an AsyncConnection "
        "(of an AsyncSession: `await session.connection()`)"
    )


# --- transactions of users --------------------------------------------------------------------------------------------


T = TypeVar("T")
# Which store it is, and in which database of its server: a copy has the same id.
Identity = tuple[str, int]

_READ_COMMITTED = "read committed"
# SQLSTATEs of a table and of a schema that do not exist.
_NO_TABLES = ("42P01", "3F000")
# Of a transaction in which a statement has failed, and of one that lost against another.
_FAILED = "25P02"
_CONFLICT = "40"
# The server comes in only where the program cannot: where it stands still.
_WATCH_MARGIN_SECONDS = 2.0
# It counts milliseconds in 31 bits.
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
        # As the server says when the store is checked, before anything is written.
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
            await self._refuse_what_frees(db, outcome.id)
        return await finish_in(db, app, node, [outcome])

    async def _refuse_what_frees(self, db: Statements, run: str) -> None:
        """A transaction that sees the ledger as it was at its beginning cannot let through who waits since then."""
        concerned = await db.only_row("run.to_lock", [run])
        if concerned["has_limited"] or concerned["schedules"]:
            raise Refused(
                f"run {run} cannot be finished in a transaction that is {self._isolation}: others wait for its end, "
                "and those that have come since the transaction began cannot be seen there; begin it as read "
                "committed, or let the job return instead of finishing by itself"
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
            # Only the user can try the whole transaction again, and knows the errors of its own driver.
            raise cause from None

    async def _check_transaction(self) -> None:
        if self._connection.is_closed():
            raise closed_connection()
        await begin_as_library(self._given, is_begun=self._connection.is_in_transaction())
        if not self._connection.is_in_transaction():
            raise Refused(
                "no transaction is open on this connection, and it begins none by itself (autocommit); begin one first "
                "(asyncpg and psycopg: `connection.transaction()`, Django: `transaction.atomic()`, SQLAlchemy: without "
                'isolation_level="AUTOCOMMIT"), and commit it together with your own changes'
            )

    async def _in_savepoint(self, act: Callable[[Statements], Awaitable[T]]) -> T:
        try:
            await self._connection.execute("SAVEPOINT evertick_within")
        except Exception as error:
            if sqlstate_of(error) != _FAILED:
                raise
            raise Refused(
                "the transaction on this connection has failed before, and takes no more statements; roll it back, and "
                "begin another one"
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
                f"this connection leads to a database without tables of Evertick; {self._advice()}"
            ) from error
        if _identity(found) != self._identity:
            raise Refused(f"this connection leads to another store; {self._advice()}")
        self._isolation = found["isolation"]

    def _advice(self) -> str:
        return f"the ledger is in the {self._where.description}: connect to that, so that one commit is enough for both"


# --- a transaction for a job -------------------------------------------------------------------------------------


class AsyncpgTransaction:
    """A connection for one job, in a transaction that is bounded in time."""

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
        self._is_out_of_time = False

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
        self._watch = asyncio.get_running_loop().call_later(self._seconds, self._time_is_over)
        return connection

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        return await asyncio.shield(self._commit(app, node, outcome))

    async def rollback(self) -> None:
        if self._connection is not None:
            self._take_back().terminate()
        if self._is_out_of_time:
            raise out_of_time(self._seconds)

    async def _hold(self, connection: Connection, app: str, node: str, run: str, fence: int) -> bool:
        await connection.execute(BEGIN)
        db = Statements(connection, self._sql, self._clock)
        # It gets a name by that, by which its end is recognised.
        self._transaction = (await db.only_row("within.begin", server_limit(self._seconds)))["name"]
        return is_run_id(run) and await db.row("within.held", app, node, run, fence) is not None

    async def _commit(self, app: str, node: str, outcome: Outcome) -> bool:
        connection = self._take_back()
        try:
            if self._is_out_of_time:
                raise out_of_time(self._seconds)
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

    def _take_back(self) -> Connection:
        """The connection from the job's hands into ours. Ending it rolls back what is not committed."""
        assert self._connection is not None
        assert self._watch is not None
        self._watch.cancel()
        connection, self._connection = self._connection, None
        return connection

    def _time_is_over(self) -> None:
        self._is_out_of_time = True
        if self._connection is not None:
            with suppress(StoreError):
                self._connection.terminate()


def server_limit(seconds: float) -> str:
    """After how many milliseconds the server itself ends what a job does. The watch comes first, with its words."""
    return str(round(min(seconds + _WATCH_MARGIN_SECONDS, _SERVER_MOST_SECONDS) * 1000))


def out_of_time(seconds: float) -> TransactionTimeout:
    return TransactionTimeout(
        f"the transaction was open for more than {seconds:g} s, a third of the lease, and was rolled back. Do the long "
        "part before the block, or raise lease="
    )


async def finish_and_commit(
    connection: QueryConnection, db: Statements, notifier: Notifier, name: str, app: str, node: str, outcome: Outcome
) -> bool:
    """The end of a job's transaction, which has this name still. False: the claim is lost, and nothing committed."""
    named = await db.rows("within.transaction") if connection.is_in_transaction() else []
    if [row["name"] for row in named] != [name]:
        raise Refused(
            f"the job has ended the transaction of run {outcome.id} by itself, so its own rows and the end of the run "
            "were not one commit; leave COMMIT and ROLLBACK to `ctx.transaction()`"
        )
    # The job may have written it itself, with a result.
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
            f"the ledger is in the {description}, and a plain job needs psycopg for a transaction there; install it "
            "with `pip install 'psycopg[binary]'`, or make the job a coroutine"
        ) from error
    return psycopg


class PsycopgTransaction:
    """A connection for one job, in a transaction that is bounded in time."""

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
        # Between the watch and the end of the block: the first decides.
        self._ending = threading.Lock()
        self._is_out_of_time = False

    async def begin(self, app: str, node: str, run: str, fence: int) -> Any:
        with self._translated():
            connection = self._connect()
            try:
                db = Statements(PlainPsycopg(connection, self._psycopg), self._sql, self._clock)
                # It gets a name by that, by which its end is recognised.
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
        self._watch = threading.Timer(self._seconds, self._time_is_over, [begun["backend"]])
        self._watch.daemon = True
        self._watch.start()
        return connection

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        connection = self._take_back()
        try:
            if self._is_out_of_time:
                raise out_of_time(self._seconds)
            with self._translated():
                plain = PlainPsycopg(connection, self._psycopg)
                db = Statements(plain, self._sql, self._clock)
                return await finish_and_commit(plain, db, self._notifier, self._transaction, app, node, outcome)
        finally:
            connection.close()

    async def rollback(self) -> None:
        if self._connection is not None:
            self._take_back().close()
        if self._is_out_of_time:
            raise out_of_time(self._seconds)

    def _connect(self) -> Any:
        # A prepared statement stays on its server session, where the pooler may give us another one.
        never = {"prepare_threshold": None} if self._where.is_pooled else {}
        connection = self._psycopg.connect(**self._address(), **never)
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

    def _take_back(self) -> Any:
        """The connection from the job's hands into ours. Closing it rolls back what is not committed."""
        assert self._watch is not None
        self._watch.cancel()
        with self._ending:
            connection, self._connection = self._connection, None
        return connection

    def _time_is_over(self, backend: int) -> None:
        with self._ending:
            if self._connection is None:
                return
            self._is_out_of_time = True
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
                raise StoreUnavailable(f"the {self._where.description} cannot be reached ({message})") from error
