"""A clock that was far ahead is put right: nodes that died before that are declared dead, and no others."""

from __future__ import annotations

from postgres_stores import PostgresStores

from evertick.store.base import NodeJoin, Store
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.when.moment import HOUR, SECOND

LEASE = 15 * SECOND


def joining(node: str) -> NodeJoin:
    return NodeJoin(
        id=node, name=node, app="shop", version="1", lease=LEASE, queues=("default",), tasks={}, declares={}
    )


async def check_that_the_dead_alone_is_judged(store: Store) -> None:
    """Of two nodes that were last heard before the clock was put back, one is heard again."""
    line = await store.heartbeat_session()
    beat = await line.beat("alive", LEASE, {})
    assert (beat.is_alive, beat.has_charges) == (True, True)
    assert await store.judge() == ["dead"]
    assert await store.judge() == []
    await line.close()


async def test_on_sqlite() -> None:
    clock = SettableClock()
    store = SqliteStore("sqlite://", clock=clock, is_inline=True)
    await store.open(migrate="auto")
    right = clock.now_us()
    clock.jump_to(right + HOUR)
    for node in ("dead", "alive"):
        await store.join(joining(node))
    clock.jump_to(right)
    await check_that_the_dead_alone_is_judged(store)
    await store.close()


async def test_on_postgresql(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await postgres_stores.pass_time(HOUR)
    for node in ("dead", "alive"):
        await store.join(joining(node))
    await postgres_stores.pass_time(-HOUR)
    await check_that_the_dead_alone_is_judged(store)
