"""PostgreSQL stores for the tests: a schema for each test, whose time can be advanced."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from evertick.clock import Clock, system_clock
from evertick.store.base import Store
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import Connection, connect, disconnect, quoted
from evertick.store.postgres.location import Location
from evertick.testing.conformance import Stores, Users, UserTransaction

__all__ = ["PostgresStores", "PostgresUsers", "SpareConnections", "in_schema_of"]

# The store's time, some way ahead: by as much as stands in a table of the test.
_TOLD_TIME = """
    CREATE TABLE {schema}.told_time (us bigint NOT NULL);
    INSERT INTO {schema}.told_time VALUES (0);
    CREATE OR REPLACE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
        $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + us FROM {schema}.told_time $$
"""


def in_schema_of(dsn: str, schema: str, **parameters: str) -> str:
    """The URL of a store in a schema of the server."""
    more = "".join(f"&{name}={value}" for name, value in parameters.items())
    return f"{dsn}{'&' if '?' in dsn else '?'}schema={schema}{more}"


# Emptied schemas of each server, to be used again: making one takes longer than most tests.
_EMPTY: dict[str, list[str]] = {}
# The statements that empty each of them.
_EMPTYING: dict[str, str] = {}
# Schemas whose time can be set.
_TOLD: set[str] = set()
# All tables that hold what a test may have written.
_WRITTEN = """
    SELECT relname FROM pg_class
    WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
        AND relname NOT IN ('meta', 'migrations', 'told_time')
"""


class SpareConnections:
    """Connections that the stores of a test no longer need, for the next store: a new connection costs more than
    all that most tests do on it. Those of other event loops than the test's end with their loops."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        monkeypatch.setattr("evertick.store.postgres.store.connect", self._connect)
        monkeypatch.setattr("evertick.store.postgres.store.disconnect", self._keep)
        monkeypatch.setattr("evertick.store.postgres.session.disconnect", self._keep)

    def take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def close(self) -> None:
        while (connection := self.take()) is not None:
            await disconnect(connection)

    async def _connect(self, where: Location) -> Connection:
        return (self.take() if self._is_here() else None) or await connect(where)

    async def _keep(self, connection: Connection) -> None:
        if self._is_here() and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            await disconnect(connection)

    def _is_here(self) -> bool:
        return asyncio.get_running_loop() is self._loop


class PostgresStores(Stores):
    """Stores in one schema, which goes with the test; or, for those that share their connections (`spare`), is emptied
    for the next one, which must then leave the tables themselves as they are."""

    def __init__(
        self, dsn: str, clock: Clock = system_clock, *, spare: SpareConnections | None = None, **parameters: str
    ) -> None:
        self.dsn = dsn
        empty = _EMPTY.setdefault(dsn, [])
        self._spare = spare
        self._is_kept = spare is not None
        self.schema = empty.pop() if self._is_kept and empty else f"test_{system_clock.new_token()[:12]}"
        self.url = in_schema_of(dsn, self.schema, **parameters)
        self._clock = clock
        self._opened: list[PostgresStore] = []
        self._aside: Connection | None = None

    async def open(self) -> Store:
        store = PostgresStore(self.url, clock=self._clock)
        await store.open(migrate="auto")
        self._opened.append(store)
        return store

    async def pass_time(self, us: int) -> None:
        connection = await self._beside()
        if self.schema not in _TOLD:
            await connection.execute(_TOLD_TIME.format(schema=quoted(self.schema)))
            _TOLD.add(self.schema)
        await connection.execute(f"UPDATE {quoted(self.schema)}.told_time SET us = us + $1", us)

    async def connect(self) -> asyncpg.Connection:
        """A connection of the test's own."""
        return await asyncpg.connect(self.dsn)

    def let_go(self) -> None:
        """The test changes more than rows: its schema is not for others."""
        self._is_kept = False

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        # The stores need theirs no more.
        if self._aside is None and self._spare is not None:
            self._aside = self._spare.take()
        connection = await self._beside()
        try:
            if self._is_kept and self._opened:
                await self._empty(connection)
            else:
                await connection.execute(f"DROP SCHEMA IF EXISTS {quoted(self.schema)} CASCADE")
        finally:
            await disconnect(connection)
            if self._spare is not None:
                await self._spare.close()

    async def _beside(self) -> Connection:
        """One connection for all that is done beside the stores: a new one costs more than what it is used for."""
        if self._aside is None or self._aside.is_closed():
            self._aside = await self.connect()
        return self._aside

    async def _empty(self, connection: Connection) -> None:
        schema = quoted(self.schema)
        if self.schema not in _EMPTYING:
            tables = [row["relname"] for row in await connection.fetch(_WRITTEN, schema)]
            _EMPTYING[self.schema] = ";".join(f"DELETE FROM {schema}.{quoted(table)}" for table in tables)
        await connection.execute(_EMPTYING[self.schema])
        if self.schema in _TOLD:
            await connection.execute(f"UPDATE {schema}.told_time SET us = 0")
        _EMPTY[self.dsn].append(self.schema)


class OpenTransaction(UserTransaction):
    """On a connection of asyncpg, as a user opens it."""

    def __init__(self, connection: asyncpg.Connection, transaction: asyncpg.transaction.Transaction) -> None:
        self.connection = connection
        self._transaction = transaction

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class PostgresUsers(Users):
    """Programs that share the database with the store."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connections: list[asyncpg.Connection] = []

    async def begin(self) -> UserTransaction:
        return await self._begin()

    async def begin_elsewhere(self) -> UserTransaction:
        return await self._begin(database="template1")

    async def _begin(self, **where: str) -> UserTransaction:
        connection = await asyncpg.connect(self._dsn, **where)
        self._connections.append(connection)
        transaction = connection.transaction()
        await transaction.start()
        return OpenTransaction(connection, transaction)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
