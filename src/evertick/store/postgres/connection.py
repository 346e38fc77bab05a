"""Connections to PostgreSQL, the statements that go over them, and what goes wrong, in Evertick's words.

The statements live in `queries.sql`, where each says what it is for. There the schema is called `evertick`; its real
name is put in here, quoted. Nothing relies on the search path or on what a connection was before, which behind a pooler
is unknown: there the settings below hold for one transaction at a time.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncpg

from evertick.clock import Clock
from evertick.errors import StoreError, StoreRefused, StoreUnavailable
from evertick.store.base import News
from evertick.store.postgres.location import Location
from evertick.store.rows import Row
from evertick.store.sql_files import load_statements

if TYPE_CHECKING:
    from evertick.store.postgres.wakeup import Notifier

__all__ = [
    "BEGIN",
    "CLOSE_SECONDS",
    "CONFLICTS",
    "OLDEST",
    "PLAIN_PLANS",
    "Connection",
    "OutOfOrder",
    "QueryConnection",
    "Statements",
    "add_news",
    "columns_of",
    "connect",
    "disconnect",
    "in_schema",
    "is_taken",
    "is_unwritable",
    "limits_of",
    "once_if_alike",
    "quoted",
    "refused",
    "sqlstate_of",
    "statements_for",
    "translated",
    "unless_all",
]

_SCHEMA = re.compile(r"\bevertick\.")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def in_schema(text: str, schema: str) -> str:
    name = f"{quoted(schema)}."
    return _SCHEMA.sub(lambda _: name, text)


@lru_cache(maxsize=16)
def statements_for(schema: str) -> dict[str, str]:
    statements = load_statements(Path(__file__).with_name("queries.sql"))
    return {name: in_schema(text, schema) for name, text in statements.items()}


# --- behind PgBouncer -------------------------------------------------------------------------------------------------


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types of its own
    async def fetch(self, query: str, *values: object, **options: Any) -> Any:
        async with self._in_transaction():
            return await super().fetch(query, *values, **options)

    async def fetchrow(self, query: str, *values: object, **options: Any) -> Any:
        async with self._in_transaction():
            return await super().fetchrow(query, *values, **options)

    async def execute(self, query: str, *values: object, **options: Any) -> Any:
        if not values:
            # Sent as it is, in one message; also how transactions begin and end.
            return await super().execute(query, **options)
        async with self._in_transaction():
            return await super().execute(query, *values, **options)

    def _in_transaction(self) -> AbstractAsyncContextManager[Any]:
        if self.is_in_transaction():
            return nullcontext()
        begun: AbstractAsyncContextManager[Any] = self.transaction(isolation="read_committed")
        return begun


# --- connections ------------------------------------------------------------------------------------------------------


class QueryConnection(Protocol):
    """A connection that takes our statements: of asyncpg, or of a user's own driver."""

    async def fetch(self, query: str, *values: object) -> list[Row]: ...

    async def fetchrow(self, query: str, *values: object) -> Row | None: ...

    async def execute(self, query: str, *values: object) -> str: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...


class Connection(QueryConnection, Protocol):
    """A connection of asyncpg, which has no types of its own, as the store uses it."""

    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, str], None]) -> None: ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None: ...

    def get_server_version(self) -> tuple[int, ...]: ...

    def get_settings(self) -> Any: ...

    async def close(self, *, timeout: float) -> None: ...

    def terminate(self) -> None: ...


OLDEST = 14
_STATEMENTS_CACHED = 300
# A server that does not answer must not hold up the end of a program.
CLOSE_SECONDS = 2.0

# Live tables are nearly empty one minute and full the next, so what the planner believes about them is often wrong, and
# a hash of a table that it takes for empty is a scan of a million rows. Every statement here can be searched by an
# index, and with these settings it is. No JIT: the price that planners put on a forbidden way makes it compile.
PLAIN_PLANS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

# Whatever the server, the database or the role has as its default: in a stronger isolation a statement that has waited
# for a lock does not see what its holder has committed, and counts anew what was counted already.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ_COMMITTED = {"default_transaction_isolation": "read committed"}

# A connection that we have given up must not go on waiting for a lock, or hold one. A server on Windows cannot do that.
_NOTICES_OUR_END = {"client_connection_check_interval": "500"}

# Another transaction went first: the whole of this one is tried again.
CONFLICTS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class OutOfOrder(asyncpg.SerializationError):  # type: ignore[misc]
    """A lock is needed that comes before those that are held: begin again, and take it first."""


# A store that is opened makes its tables only where there are none: its version says that they are there.
_RESTORE = "restore the database from a backup; only if all of the schema was removed does a new start make it, empty"
# By the beginning of the SQLSTATE; the longest that fits is taken.
_TROUBLES = {
    "08": "cannot be reached; check that the server runs, and the network on the way to it",
    "25006": "is read-only; connect to the primary server",
    "25P03": "ended a transaction that had stood still for too long",
    "28": "does not let this user in; check user, password and the server's pg_hba.conf",
    "3D000": "does not exist; create the database, or correct the URL",
    "40": "is so busy that a transaction never got through, however often it was tried again",
    "42501": "does not give {user} the rights it needs; see 'Roles and rights' in the guide to PostgreSQL",
    "42P01": "lacks a table of Evertick; {restore}",
    "3F000": "lacks the schema of Evertick; {restore}",
    "53100": "cannot grow: its disk is full; free some space",
    "53200": "could not do it for want of memory",
    "53300": "has no connection left; raise its max_connections, or lower pool_size in the URL",
    "53": "could not do it for want of something",
    "54000": "was asked for more than it can do at once",
    "55P03": "is locked by another transaction for too long; look for a program that holds one open",
    "57014": "took too long over a statement; look for a program that holds a transaction open, or raise timeout",
    "57": "is shutting down or starting up",
    "58": "could not read or write its files; check its disk and its log",
    "XX": "has an error of its own; look into its log",
}
# Bounds of connections other than the server's: how PostgreSQL says it, and what to do.
_BOUNDED = {
    "for role": "lets {user} have no more connections; raise its bound with ALTER ROLE … CONNECTION LIMIT, or lower "
    "pool_size in the URL",
    "for database": "takes no more connections; raise its bound with ALTER DATABASE … CONNECTION LIMIT, or lower "
    "pool_size in the URL",
}
# How OpenSSL says that the name, or the address, is not that of the certificate.
_OTHER_NAME = (62, 64)
# How asyncpg says that the server does without TLS; it has no type for that.
_NO_TLS = "rejected SSL upgrade"
# How asyncpg says that a connection was closed under a statement; the numbers of its states help no reader.
_IN_THE_MIDDLE = "cannot switch to state"
# How PgBouncer answers the settings that a connection begins with, in any of its modes.
_NO_SETTINGS = "unsupported startup parameter"
# At the start these cannot pass by themselves.
_REFUSALS = ("28", "3D000", "42501")
# Errors of the data itself: out of range, no UTF-8, not null.
_TAKEN = "23505"
_UNWRITABLE = ("22", "23", "54000", "42804")


def limits_of(seconds: float) -> dict[str, str]:
    """Limits of the server itself: for a statement without a waiting client, for a transaction that stands still."""
    milliseconds = str(round(seconds * 1000))
    return {"statement_timeout": milliseconds, "idle_in_transaction_session_timeout": milliseconds}


async def connect(where: Location, *, has_own_plans: bool = True) -> Connection:
    """A connection as the store wants it; without plans of its own it is for the statements of users."""
    # A pooler refuses settings that it does not know, and knows few.
    if where.is_pooled:
        return await _connect(where, {})
    limits = limits_of(where.timeout)
    settings = {**_READ_COMMITTED, **limits, **(PLAIN_PLANS if has_own_plans else {})}
    try:
        return await _connect(where, settings | _NOTICES_OUR_END)
    except asyncpg.InvalidParameterValueError:
        return await _connect(where, settings)


async def _connect(where: Location, settings: Mapping[str, str]) -> Connection:
    hosts, ports = [host for host, _ in where.hosts], [port for _, port in where.hosts]
    connection: Connection = await asyncpg.connect(
        host=hosts or None,
        port=ports or None,
        user=where.user,
        password=where.password,
        database=where.database,
        ssl=where.tls(),
        timeout=where.connect_timeout,
        target_session_attrs="read-write" if len(hosts) > 1 else "any",
        statement_cache_size=0 if where.is_pooled else _STATEMENTS_CACHED,
        max_cached_statement_lifetime=0,
        connection_class=PooledConnection if where.is_pooled else asyncpg.Connection,
        server_settings={"application_name": "evertick", **settings},
    )
    return connection


async def disconnect(connection: Connection) -> None:
    """Say goodbye to the server, but do not wait for it for long."""
    with suppress(Exception):
        await connection.close(timeout=CLOSE_SECONDS)


class translated:  # noqa: N801 - it is used as a verb, and a generator would cost every statement more
    """Troubles of server and network become StoreUnavailable, with the fix. Mistakes in our SQL stay what they are."""

    __slots__ = ("_where",)

    def __init__(self, where: Location) -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        trouble = _trouble(error, self._where) if isinstance(error, Exception) else None
        if trouble is not None:
            raise StoreUnavailable(f"the {self._where.description} {trouble}") from error


def refused(error: StoreUnavailable) -> StoreError:
    """At the start a place that cannot work is refused; what may pass by itself is only unavailable."""
    cause = error.__cause__
    is_certificate = isinstance(cause, ssl.SSLCertVerificationError)
    if is_certificate or _is_without_tls(cause) or _is_of_pooler(cause) or sqlstate_of(cause).startswith(_REFUSALS):
        return StoreRefused(str(error))
    return error


def is_unwritable(error: Exception) -> bool:
    """Whether it was about the values of a row, not about the state of the store."""
    state = sqlstate_of(error)
    return state.startswith(_UNWRITABLE) if state else isinstance(error, (ValueError, OverflowError, TypeError))


def is_taken(error: Exception) -> bool:
    """Whether another transaction has written what may be there once only."""
    return sqlstate_of(error) == _TAKEN


def _trouble(error: Exception, where: Location) -> str | None:
    state = sqlstate_of(error)
    if _is_of_pooler(error):
        return f"is behind a pooler, which takes no settings; add pooler=transaction to the URL ({_first_line(error)})"
    if state:
        fits = [name for name in _TROUBLES if state.startswith(name)]
        if not fits:
            return None
        user = "this user" if where.user is None else f"the user {where.user}"
        bounded = [words for who, words in _BOUNDED.items() if state == "53300" and who in _first_line(error)]
        trouble = bounded[0] if bounded else _TROUBLES[max(fits, key=len)]
        return f"{trouble.format(user=user, restore=_RESTORE)} ({_first_line(error)})"
    match error:
        case ConnectionError() if _is_without_tls(error):
            return (
                "does not speak TLS, which the URL asks for; turn it on at the server (ssl = on), or write "
                "sslmode=prefer to do without where there is none"
            )
        case ssl.SSLCertVerificationError(verify_code=code) if code in _OTHER_NAME:
            return (
                "shows a certificate for another host name; connect by the name that is in it, or add "
                f"sslmode=verify-ca to the URL ({error.verify_message})"
            )
        case ssl.SSLCertVerificationError():
            return f"shows a certificate that is not to be trusted; check ca in the URL ({error.verify_message})"
        case TimeoutError():
            return "does not answer in time; check that the server runs, and the network on the way to it"
        case ValueError():
            # A value that fits no column is an InterfaceError of asyncpg, too.
            return None
        case asyncpg.InterfaceError() | asyncpg.InternalClientError() if _IN_THE_MIDDLE in str(error):
            return f"{_TROUBLES['08']} (a connection broke off in the middle of a statement)"
        case OSError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return f"{_TROUBLES['08']} ({error})"
        case _:
            return None


def _is_of_pooler(error: BaseException | None) -> bool:
    return sqlstate_of(error) == "08P01" and _NO_SETTINGS in str(error)


def _is_without_tls(error: BaseException | None) -> bool:
    return isinstance(error, ConnectionError) and _NO_TLS in str(error)


def sqlstate_of(error: BaseException | None) -> str:
    """The code of an error that the server has answered, by whichever driver; "" of any other."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- statements on a connection ---------------------------------------------------------------------------------------


T = TypeVar("T")


def add_news(known: dict[str, News], app: str, news: News) -> None:
    """News of anything includes runs."""
    if known.get(app) != "anything":
        known[app] = news


class Statements:
    """A connection, and the statements of the store by name."""

    __slots__ = ("_connection", "_sql", "clock", "has_feed", "is_careful", "is_in_gate", "is_ours", "notifier", "woken")

    def __init__(
        self, connection: QueryConnection, sql: Mapping[str, str], clock: Clock, notifier: Notifier | None = None
    ) -> None:
        self._connection = connection
        self._sql = sql
        # Only to guess where something may be; what is due is the store's to say.
        self.clock = clock
        # Of a statement that is a transaction by itself, and so may say with its commit what it has to say.
        self.notifier = notifier
        # Apps whose nodes are woken after the commit, and by what.
        self.woken: dict[str, News] = {}
        # Whether the app has a feed, where a statement has told; None: ask the server, by telling it.
        self.has_feed: bool | None = None
        # Whether the transaction holds the gate of the limits.
        self.is_in_gate = False
        # Whether runs that others are inserting at this very moment are left out; else that is an error, which is
        # cheaper for those who can begin again.
        self.is_careful = True
        # Whether the transaction is one that we began, and end as soon as we can; not a user's.
        self.is_ours = False

    def wake(self, app: str, news: News = "anything") -> None:
        """Something of this app has become due, or a cancel was asked for."""
        add_news(self.woken, app, news)

    async def rows(self, name: str, *values: object) -> list[Row]:
        return await self._connection.fetch(self._sql[name], *values)

    async def row(self, name: str, *values: object) -> Row | None:
        return await self._connection.fetchrow(self._sql[name], *values)

    async def only_row(self, name: str, *values: object) -> Row:
        """Of a statement that always answers one."""
        row = await self._connection.fetchrow(self._sql[name], *values)
        assert row is not None, f"{name} answered nothing"
        return row

    async def count(self, name: str, *values: object) -> int:
        """How many rows a statement has written."""
        status = await self._connection.execute(self._sql[name], *values)
        return int(status.rpartition(" ")[2])

    async def select(self, text: str, *values: object) -> list[Row]:
        """A statement that was put together from the parts of a named one."""
        return await self._connection.fetch(text, *values)

    def text(self, name: str) -> str:
        return self._sql[name]

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        was_in_gate = self.is_in_gate
        await self._connection.execute("SAVEPOINT part")
        try:
            yield
        except Exception:
            await self._connection.execute("ROLLBACK TO part; RELEASE part")
            self.is_in_gate = was_in_gate
            raise
        await self._connection.execute("RELEASE part")


def columns_of(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as statements take them: an array for each column.

    A column of nothing but None is sent as an empty array, which `unnest` fills up with NULL: asyncpg looks at every
    element of an array before it sends it, and most columns of most runs are empty.
    """
    return [[] if all(value is None for value in column) else list(column) for column in zip(*rows, strict=True)]


def unless_all(usual: Any, values: list[T]) -> list[T]:
    """Values that are as usual for all are not sent: `unnest` gives NULL, for which the statement has the usual one."""
    return [] if values.count(usual) == len(values) else values


def once_if_alike(values: list[T]) -> list[T]:
    """Of columns that are never empty. Where `unnest` gives NULL the statement takes the first."""
    return values[:1] if values.count(values[0]) == len(values) else values
