"""A node that has joined is ready: its first run waits neither for connections nor for plans."""

from __future__ import annotations

import asyncio

import pytest
from postgres_stores import PostgresStores

from evertick.errors import StoreUnavailable
from evertick.store.base import NodeJoin, RunFilter
from evertick.store.postgres import PostgresStore
from evertick.store.postgres import store as store_module
from evertick.store.postgres.connection import Connection, Statements, connect
from evertick.store.postgres.location import Location
from evertick.testing.conformance.bench import APP, MINUTE, SECOND, TASK, TERMS

_WARM = 4
_HOT = ("claim", "insert_one", "finish.alike")
_PLANNED = "SELECT statement FROM pg_prepared_statements WHERE generic_plans > 0"


def a_node(*, lease: int = MINUTE) -> NodeJoin:
    return NodeJoin(
        id="one", name="one@here", app=APP, version="1", lease=lease, queues=("default",), tasks=TERMS, declares={}
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Location]:
    """A place for each connection that a store has opened."""
    places: list[Location] = []

    async def counting(where: Location) -> Connection:
        places.append(where)
        return await connect(where)

    monkeypatch.setattr(store_module, "connect", counting)
    return places


async def planned_on_each(store: PostgresStore) -> list[set[str]]:
    """Of connections that are used at the same time, the statements that have a plan."""
    line = store.session()
    found = await asyncio.gather(*(line.ask(lambda db: db.select(_PLANNED)) for _ in range(_WARM)))
    return [{row["statement"] for row in rows} for rows in found]


async def test_a_joined_node_opens_no_connection_and_makes_no_plan_for_its_first_runs(
    postgres_stores: PostgresStores, opened: list[Location]
) -> None:
    store = await postgres_stores.open()
    assert isinstance(store, PostgresStore)
    await store.join(a_node())
    count = len(opened)
    await asyncio.gather(*(store.claim(APP, "one", ["default"], TERMS, 1) for _ in range(_WARM)))
    assert len(opened) == count
    hot = {store.session()._sql[name] for name in _HOT}
    assert all(hot <= planned for planned in await planned_on_each(store))


async def test_nothing_of_it_is_in_the_ledger(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await store.join(a_node())
    assert await store.runs(APP, RunFilter()) == []
    assert (await store.claim(APP, "one", ["default"], {**TERMS, "": TERMS[TASK]}, 10)).runs == []


async def test_a_node_with_a_single_connection_joins_by_it(
    postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await postgres_stores.open()
    places: list[Location] = []

    async def once(where: Location) -> Connection:
        places.append(where)
        if len(places) > 1:
            raise StoreUnavailable("the server has no connection left")
        return await connect(where)

    monkeypatch.setattr(store_module, "connect", once)
    await store.join(a_node())
    assert [node.id for node in await store.nodes(APP)] == ["one"]
    assert len(places) == _WARM


async def test_a_failed_warm_up_keeps_no_node_from_joining(
    postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(db: Statements, app: str) -> None:
        await db.select("SELECT 1 / 0")

    monkeypatch.setattr(store_module.run_intents, "rehearse", fail)
    store = await postgres_stores.open()
    await store.join(a_node())
    assert [node.id for node in await store.nodes(APP)] == ["one"]


async def test_a_slow_warm_up_keeps_no_node_from_joining(
    postgres_stores: PostgresStores,
) -> None:
    store = await postgres_stores.open()
    other = await postgres_stores.connect()
    try:
        async with other.transaction():
            await other.execute(f"LOCK TABLE {postgres_stores.schema}.history IN ACCESS EXCLUSIVE MODE")
            # It would wait for as long as the store waits for any answer, which is thirty seconds.
            async with asyncio.timeout(15):
                await store.join(a_node(lease=3 * SECOND))
            assert [node.id for node in await store.nodes(APP)] == ["one"]
    finally:
        await other.close()
