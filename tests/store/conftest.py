"""How the conformance suite gets its stores: SQLite in both of its forms, PostgreSQL on a real server."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from evertick.store.base import Store
from evertick.store.postgres import session
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.testing.conformance import Stores, Users, UserTransaction
from servers.postgres import shared_postgres, system_binaries
from servers.schemas import Schemas

# The helpers beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from postgres_stores import PostgresStores, PostgresUsers, SpareConnections


class SqliteStores(Stores):
    """Stores whose time comes from one settable clock."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self._opened: list[SqliteStore] = []

    async def open(self) -> Store:
        store = self._make()
        await store.open(migrate="auto")
        self._opened.append(store)
        return store

    async def pass_time(self, us: int) -> None:
        self.clock.move(us)

    async def close(self) -> None:
        # The first one may own what the others share.
        for store in reversed(self._opened):
            await store.close()

    def _make(self) -> SqliteStore:
        raise NotImplementedError


class InlineStores(SqliteStores):
    """In memory, every statement on the caller's own thread, as in a simulation."""

    def _make(self) -> SqliteStore:
        if self._opened:
            return SqliteStore.sharing(self._opened[0])
        return SqliteStore("sqlite://", clock=self.clock, is_inline=True)


class FileStores(SqliteStores):
    """A file, a writer thread per store object: several of them are like several processes on one machine."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _make(self) -> SqliteStore:
        return SqliteStore(f"sqlite:///{self._path}", clock=self.clock)


@pytest.fixture(scope="session")
def system_dsn(shared_folder: Path) -> Iterator[str]:
    """A server of the system's PostgreSQL, another major version than that of the other tests."""
    with shared_postgres(shared_folder / "system-postgres", binaries=system_binaries()) as dsn:
        yield dsn


@pytest.fixture
async def inline_stores() -> AsyncIterator[InlineStores]:
    stores = InlineStores()
    yield stores
    await stores.close()


@pytest.fixture
async def file_stores(tmp_path: Path) -> AsyncIterator[FileStores]:
    stores = FileStores(tmp_path / "evertick.db")
    yield stores
    await stores.close()


@pytest.fixture
async def postgres_stores(postgres_dsn: str, schemas: Schemas) -> AsyncIterator[PostgresStores]:
    """In a schema whose tables are there; the next test gets it if this one has left them as they were."""
    schema = schemas.take()
    stores = PostgresStores(postgres_dsn, schema=schema)
    yield stores
    await stores.close()
    schemas.give_back(schema)


@pytest.fixture
async def unmigrated_stores(postgres_dsn: str) -> AsyncIterator[PostgresStores]:
    stores = PostgresStores(postgres_dsn)
    yield stores
    await stores.close()


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joins opens connections and makes plans on them. A test needs few of either, and makes them at their
    first use. test_postgres_warm.py tests the joining."""
    monkeypatch.setattr(session, "_WARM_MOST", 0)


@pytest.fixture
async def kept_postgres_stores(
    postgres_dsn: str, few_connections: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStores]:
    spare = SpareConnections()
    spare.patch(monkeypatch)
    stores = PostgresStores(postgres_dsn, spare=spare)
    yield stores
    await stores.close()
    await spare.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of classes with `is_on_one_loop` share the event loop of the session, and so can their connections."""
    for item in items:
        if getattr(getattr(item, "cls", None), "is_on_one_loop", False):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spare_connections() -> AsyncIterator[SpareConnections]:
    spare = SpareConnections()
    yield spare
    await spare.close()


@pytest_asyncio.fixture(loop_scope="session")
async def one_loop_stores(
    postgres_dsn: str, few_connections: None, spare_connections: SpareConnections, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStores]:
    """Stores on connections that outlive the test, for classes with `is_on_one_loop`."""
    spare_connections.patch(monkeypatch)
    stores = PostgresStores(postgres_dsn, spare=spare_connections)
    yield stores
    await stores.close()


@pytest.fixture
async def postgres_users(postgres_dsn: str) -> AsyncIterator[PostgresUsers]:
    users = PostgresUsers(postgres_dsn)
    yield users
    await users.close()


class PlainTransaction(UserTransaction):
    """On a connection of the standard library, as a user opens it."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.connection.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class FileUsers(Users):
    """Programs that share the file with the store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: list[PlainTransaction] = []

    async def begin(self) -> UserTransaction:
        return self._begin("evertick.db")

    async def begin_elsewhere(self) -> UserTransaction:
        return self._begin("other.db")

    def _begin(self, name: str) -> UserTransaction:
        self._begun.append(PlainTransaction(self._folder / name))
        return self._begun[-1]

    def close(self) -> None:
        for each in self._begun:
            each.connection.close()


@pytest.fixture
def file_users(tmp_path: Path) -> Iterator[FileUsers]:
    users = FileUsers(tmp_path)
    yield users
    users.close()
