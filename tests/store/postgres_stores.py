"""How the tests get PostgreSQL stores: a schema for each test, whose time can be moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from evertick.clock import Clock, system_clock
from evertick.store.base import Store
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import Connection, connect, disconnect, quoted
from evertick.store.postgres.location import Location, location_of
from evertick.testing.conformance import Bench, Stores, Users, UserTransaction

__all__ = ["OnOneLoop", "PostgresStores", "PostgresUsers", "SpareConnections", "in_schema_of"]

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
# Schemas whose time can be moved.
_TOLD: set[str] = set()
# All tables that hold what a test may have written.
_WRITTEN = """
    SELECT relname FROM pg_class
    WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
        AND relname NOT IN ('meta', 'migrations', 'told_time')
"""


class SpareConnections:
    """Connections that stores have closed, for the next store on the same event loop. A new connection and its plans
    cost more than the statements of most tests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Location, list[Connection]] = {}
        self._places: dict[Connection, Location] = {}

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stores take their connections from here, and return them."""
        monkeypatch.setattr("evertick.store.postgres.store.connect", self.connect)
        monkeypatch.setattr("evertick.store.postgres.store.disconnect", self.keep)
        monkeypatch.setattr("evertick.store.postgres.session.disconnect", self.keep)

    async def keep(self, connection: Connection) -> None:
        place = self._places.pop(connection, None)
        if place is None or not self._is_here() or connection.is_in_transaction():
            await disconnect(connection)
        else:
            self._idle.setdefault(place, []).append(connection)

    async def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                await disconnect(connection)
        self._idle.clear()

    async def connect(self, where: Location) -> Connection:
        if not self._is_here():
            return await connect(where)
        # Every statement names its schema, so that a connection suits all of them.
        place = msgspec.structs.replace(where, schema="")
        idle = self._idle.get(place, [])
        while idle:
            connection = idle.pop()
            if not connection.is_closed():
                break
        else:
            connection = await connect(where)
        self._places[connection] = place
        return connection

    def _is_here(self) -> bool:
        return asyncio.get_running_loop() is self._loop


class PostgresStores(Stores):
    """Stores in one schema, which is dropped with the test. For those that share their connections (`spare`) it is
    emptied for the next test, which must leave the tables themselves as they are; a `schema` that is given stays."""

    def __init__(
        self,
        dsn: str,
        clock: Clock = system_clock,
        *,
        spare: SpareConnections | None = None,
        schema: str | None = None,
        **parameters: str,
    ) -> None:
        self.dsn = dsn
        empty = _EMPTY.setdefault(dsn, [])
        self._spare = spare
        self._is_kept = spare is not None
        self._is_given = schema is not None
        self.schema = schema or (empty.pop() if self._is_kept and empty else f"test_{system_clock.new_token()[:12]}")
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

    def forget_attempt(self) -> None:
        """The test changes more than rows: its schema is not for others."""
        self._is_kept = False

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        if self._is_given and self._aside is None:
            return
        connection = await self._beside()
        try:
            if self._is_kept and self._opened:
                await self._empty(connection)
            elif not self._is_given:
                await connection.execute(f"DROP SCHEMA IF EXISTS {quoted(self.schema)} CASCADE")
        finally:
            await self._spare.keep(connection) if self._spare is not None else await disconnect(connection)

    async def _beside(self) -> Connection:
        """One connection for all that is done beside the stores: a new one costs more than what it is used for."""
        if self._aside is None or self._aside.is_closed():
            self._aside = await self._spare.connect(location_of(self.url)) if self._spare else await self.connect()
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


class OnOneLoop:
    """The fixtures of a conformance class on PostgreSQL: all of its tests run on one event loop."""

    is_on_one_loop = True

    @pytest.fixture
    def stores(self, one_loop_stores: PostgresStores) -> PostgresStores:
        return one_loop_stores

    @pytest_asyncio.fixture(loop_scope="session")
    async def bench(self, stores: PostgresStores) -> AsyncIterator[Bench]:
        bench = Bench(stores, await stores.open())
        yield bench
        await bench.check()

    @pytest_asyncio.fixture(loop_scope="session")
    async def users(self, postgres_dsn: str) -> AsyncIterator[PostgresUsers]:
        users = PostgresUsers(postgres_dsn)
        yield users
        await users.close()
