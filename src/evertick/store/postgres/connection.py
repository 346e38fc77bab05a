"""Connections to PostgreSQL, the statements, and the translation of errors.

In `queries.sql` the schema is called `evertick`; this file replaces it by its quoted name. Nothing relies on the search
path or on earlier use of a connection, which is unknown behind a pooler; there settings last for one transaction only.
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
    "PLANNER_SETTINGS",
    "REACHABLE",
    "Connection",
    "OutOfOrder",
    "QueryConnection",
    "Statements",
    "add_news",
    "columns_of",
    "connect",
    "disconnect",
    "in_schema",
    "is_unique_violation",
    "is_unwritable",
    "omit_default",
    "once_if_equal",
    "quoted",
    "refused",
    "sqlstate_of",
    "statements_for",
    "timeouts_of",
    "translated",
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
            # Without parameters, in one message. Transactions begin and end this way.
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
    """A connection that executes our statements: of asyncpg, or of a user's driver."""

    async def fetch(self, query: str, *values: object) -> list[Row]: ...

    async def fetchrow(self, query: str, *values: object) -> Row | None: ...

    async def execute(self, query: str, *values: object) -> str: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...


class Connection(QueryConnection, Protocol):
    """The part of an asyncpg connection that the store uses; asyncpg has no types."""

    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, str], None]) -> None: ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None: ...

    def get_server_version(self) -> tuple[int, ...]: ...

    def get_settings(self) -> Any: ...

    async def close(self, *, timeout: float) -> None: ...

    def terminate(self) -> None: ...


OLDEST = 14
_STATEMENTS_CACHED = 300
# A server that does not answer must not delay the end of a program.
CLOSE_SECONDS = 2.0

# Live tables are almost empty one minute and full the next, so the planner's statistics are often wrong, and a hash of
# a table that it takes for empty scans a million rows. Every statement here can use an index, and with these settings
# it does. No JIT: the cost that the planner adds to a disabled plan would trigger a compilation.
PLANNER_SETTINGS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

# Overrides the default of the server, database and role. With a stronger isolation, a statement that waited for a lock
# does not see what its holder has committed, and would count twice.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ_COMMITTED = {"default_transaction_isolation": "read committed"}

# A connection that we have closed must not wait for a lock, or hold one. Not supported by servers on Windows.
_CHECK_CONNECTION = {"client_connection_check_interval": "500"}

# Another transaction came first; the whole transaction is repeated.
CONFLICTS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class OutOfOrder(asyncpg.SerializationError):  # type: ignore[misc]
    """A lock is needed that comes before the held ones: repeat the transaction, and take that lock first."""


# Opening a store creates its tables only where there are none; its version shows that there were.
_RESTORE = "restore the database from a backup; a new start creates the schema, empty, only if all of it was removed"
_RIGHTS = "see 'Roles and rights' in the guide to PostgreSQL"
REACHABLE = "check that the server runs, and the network on the way to it"
# Problem and fix by the beginning of the SQLSTATE; the longest match is used.
_PROBLEMS = {
    "08": ("cannot be reached", REACHABLE),
    "25006": ("is read-only", "connect to the primary server"),
    "25P03": ("ended a transaction that was idle for too long", None),
    "28": ("does not let this user in", "check user, password and the server's pg_hba.conf"),
    "3D000": ("does not exist", "create the database, or correct the URL"),
    "40": ("is so busy that a transaction failed at every repetition", None),
    "42501": ("does not give {user} the rights it needs", _RIGHTS),
    "42P01": ("lacks a table of Evertick", _RESTORE),
    "3F000": ("lacks the schema of Evertick", _RESTORE),
    "53100": ("cannot grow: its disk is full", "free some space"),
    "53200": ("is out of memory", None),
    "53300": ("has no connection left", "raise its max_connections, or lower pool_size in the URL"),
    "53": ("is out of a resource", None),
    "54000": ("has reached one of its limits", None),
    "55P03": ("is locked by another transaction for too long", "look for a program that holds one open"),
    "57014": (
        "took too long over a statement",
        "look for a program that holds a transaction open, or raise timeout",
    ),
    "57": ("is shutting down or starting up", None),
    "58": ("could not read or write its files", "check its disk and its log"),
    "XX": ("has an internal error", "look into its log"),
}
# Limits of connections other than the server's: PostgreSQL's words, and problem and fix.
_CONNECTION_LIMITS = {
    "for role": (
        "lets {user} have no more connections",
        "raise the limit with ALTER ROLE … CONNECTION LIMIT, or lower pool_size in the URL",
    ),
    "for database": (
        "takes no more connections",
        "raise the limit with ALTER DATABASE … CONNECTION LIMIT, or lower pool_size in the URL",
    ),
}
# OpenSSL's codes for a certificate of another name or address.
_OTHER_NAME = (62, 64)
# asyncpg's text if the server does not support TLS; there is no type for it.
_NO_TLS = "rejected SSL upgrade"
# asyncpg's text for a connection that was closed during a statement.
_DURING_STATEMENT = "cannot switch to state"
# PgBouncer's answer to startup settings, in all of its modes.
_NO_SETTINGS = "unsupported startup parameter"
# These do not pass by themselves, so the start is refused.
_REFUSALS = ("28", "3D000", "42501")
_UNIQUE_VIOLATION = "23505"
# Errors of values: out of range, no UTF-8, not null.
_UNWRITABLE = ("22", "23", "54000", "42804")


def timeouts_of(seconds: float) -> dict[str, str]:
    """Timeouts of the server, for statements without a waiting client, and for idle transactions."""
    milliseconds = str(round(seconds * 1000))
    return {"statement_timeout": milliseconds, "idle_in_transaction_session_timeout": milliseconds}


async def connect(where: Location, *, has_own_plans: bool = True) -> Connection:
    """A connection with the settings of the store. Without `has_own_plans`: for the statements of users."""
    # A pooler refuses settings that it does not know.
    if where.is_pooled:
        return await _connect(where, {})
    limits = timeouts_of(where.timeout)
    settings = {**_READ_COMMITTED, **limits, **(PLANNER_SETTINGS if has_own_plans else {})}
    try:
        return await _connect(where, settings | _CHECK_CONNECTION)
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
    """Close the connection, without waiting long for the server."""
    with suppress(Exception):
        await connection.close(timeout=CLOSE_SECONDS)


class translated:  # noqa: N801 - it is used as a verb, and a generator would cost every statement more
    """Raise errors of server and network as StoreUnavailable, with the fix. Errors of our SQL stay as they are."""

    __slots__ = ("_where",)

    def __init__(self, where: Location) -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        found = _problem_of(error, self._where) if isinstance(error, Exception) else None
        if found is not None:
            problem, fix = found
            raise StoreUnavailable(f"the {self._where.description} {problem}", fix=fix) from error


def refused(error: StoreUnavailable) -> StoreError:
    """At the start: an unusable database is refused; a condition that may pass is reported as unavailable."""
    cause = error.__cause__
    is_certificate = isinstance(cause, ssl.SSLCertVerificationError)
    if is_certificate or _is_without_tls(cause) or _is_of_pooler(cause) or sqlstate_of(cause).startswith(_REFUSALS):
        return StoreRefused(error.problem, fix=error.fix)
    return error


def is_unwritable(error: Exception) -> bool:
    """Whether the error is about values of a row, not about the state of the store."""
    state = sqlstate_of(error)
    return state.startswith(_UNWRITABLE) if state else isinstance(error, (ValueError, OverflowError, TypeError))


def is_unique_violation(error: Exception) -> bool:
    """Whether another transaction has inserted the same unique value."""
    return sqlstate_of(error) == _UNIQUE_VIOLATION


def _problem_of(error: Exception, where: Location) -> tuple[str, str | None] | None:
    state = sqlstate_of(error)
    if _is_of_pooler(error):
        detail = _first_line(error)
        return f"is behind a pooler, which takes no settings ({detail})", "add pooler=transaction to the URL"
    if state:
        matching = [name for name in _PROBLEMS if state.startswith(name)]
        if not matching:
            return None
        user = "this user" if where.user is None else f"the user {where.user}"
        limited = [found for who, found in _CONNECTION_LIMITS.items() if state == "53300" and who in _first_line(error)]
        problem, fix = limited[0] if limited else _PROBLEMS[max(matching, key=len)]
        return f"{problem.format(user=user)} ({_first_line(error)})", fix
    match error:
        case ConnectionError() if _is_without_tls(error):
            return (
                "does not speak TLS, which the URL asks for",
                "turn it on at the server (ssl = on), or write sslmode=prefer to use TLS only if the server has it",
            )
        case ssl.SSLCertVerificationError(verify_code=code) if code in _OTHER_NAME:
            return (
                f"shows a certificate for another host name ({error.verify_message})",
                "connect by the name that is in it, or add sslmode=verify-ca to the URL",
            )
        case ssl.SSLCertVerificationError():
            return f"shows a certificate that cannot be trusted ({error.verify_message})", "check ca in the URL"
        case TimeoutError():
            return "does not answer in time", REACHABLE
        case ValueError():
            # A value that no column can store is an InterfaceError of asyncpg too.
            return None
        case asyncpg.InterfaceError() | asyncpg.InternalClientError() if _DURING_STATEMENT in str(error):
            return "cannot be reached (a connection was lost during a statement)", REACHABLE
        case OSError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return f"cannot be reached ({error})", REACHABLE
        case _:
            return None


def _is_of_pooler(error: BaseException | None) -> bool:
    return sqlstate_of(error) == "08P01" and _NO_SETTINGS in str(error)


def _is_without_tls(error: BaseException | None) -> bool:
    return isinstance(error, ConnectionError) and _NO_TLS in str(error)


def sqlstate_of(error: BaseException | None) -> str:
    """The SQLSTATE of a server's error, of any driver; "" for other errors."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- statements on a connection ---------------------------------------------------------------------------------------


T = TypeVar("T")


def add_news(known: dict[str, News], app: str, news: News) -> None:
    """ "anything" includes "runs"."""
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
        # For estimates only. The store's clock decides what is due.
        self.clock = clock
        # For a statement that is a transaction by itself, which can send its notification with its commit.
        self.notifier = notifier
        # Apps whose nodes are woken after the commit, and the kind of news.
        self.woken: dict[str, News] = {}
        # Whether the app has a feed, if a statement has returned that. None: publish, and let the server decide.
        self.has_feed: bool | None = None
        # Whether the transaction holds the limits gate.
        self.is_in_gate = False
        # Whether runs that another session inserts at the same time are left out. Otherwise they raise an error, which
        # is cheaper for a transaction that can be repeated.
        self.is_careful = True
        # Whether the store began the transaction, and not a user.
        self.is_ours = False

    def wake(self, app: str, news: News = "anything") -> None:
        """Something of this app has become due, or a cancel was requested."""
        add_news(self.woken, app, news)

    async def rows(self, name: str, *values: object) -> list[Row]:
        return await self._connection.fetch(self._sql[name], *values)

    async def row(self, name: str, *values: object) -> Row | None:
        return await self._connection.fetchrow(self._sql[name], *values)

    async def only_row(self, name: str, *values: object) -> Row:
        """For a statement that always returns a row."""
        row = await self._connection.fetchrow(self._sql[name], *values)
        assert row is not None, f"{name} returned no row"
        return row

    async def count(self, name: str, *values: object) -> int:
        """The number of rows that a statement has written."""
        status = await self._connection.execute(self._sql[name], *values)
        return int(status.rpartition(" ")[2])

    async def select(self, text: str, *values: object) -> list[Row]:
        """Execute a statement that was built from the parts of a named one."""
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
    """Rows as statements take them: one array per column.

    A column with only None is sent as an empty array, which `unnest` fills with NULL: asyncpg checks every element of
    an array before it sends it, and most columns of most runs are empty.
    """
    return [[] if all(value is None for value in column) else list(column) for column in zip(*rows, strict=True)]


def omit_default(usual: Any, values: list[T]) -> list[T]:
    """An empty array if all values are the default: `unnest` gives NULL, and the statement has the default."""
    return [] if values.count(usual) == len(values) else values


def once_if_equal(values: list[T]) -> list[T]:
    """One value if all are equal: where `unnest` gives NULL, the statement takes the first. Not for empty columns."""
    return values[:1] if values.count(values[0]) == len(values) else values
