"""Two sessions at one duty: the second waits, and then sees the result of the first."""

from __future__ import annotations

import pytest
from postgres_stores import PostgresStores
from test_postgres_races import Race

from evertick.store.base import NodeJoin
from evertick.store.postgres import PostgresStore, nodes
from evertick.store.postgres.connection import Statements
from evertick.testing.conformance.bench import APP, DAY, HOUR, TERMS


@pytest.fixture
async def race(kept_postgres_stores: PostgresStores) -> Race:
    first, second = await kept_postgres_stores.open(), await kept_postgres_stores.open()
    assert isinstance(first, PostgresStore)
    return Race(kept_postgres_stores, first, second)


async def join_and_take(db: Statements) -> None:
    """A node that no other session has seen yet takes a duty."""
    join = NodeJoin(id="new", name="new", app=APP, version="1", lease=HOUR, queues=(), tasks=TERMS, declares={})
    await nodes.join(db, join)
    await nodes.hold_duties(db, APP, "new", ["tidy"])


async def test_a_duty_is_not_taken_from_a_node_that_joined_while_the_taker_waited(race: Race) -> None:
    before, other = await race.bench.node(), await race.bench.node()
    await race.bench.store.hold_duties(APP, before, ["tidy"])
    await race.bench.store.leave(before)
    async with race.held(join_and_take):
        second = await race.waits(race.second.hold_duties(APP, other, ["tidy"]))
    [duty] = (await second).duties
    assert (duty.node, duty.term) == ("new", 2)


async def test_of_two_nodes_that_take_a_new_duty_one_gets_it(race: Race) -> None:
    other = await race.bench.node()
    async with race.held(join_and_take):
        second = await race.waits(race.second.hold_duties(APP, other, ["tidy"]))
    [duty] = (await second).duties
    assert (duty.node, duty.term) == ("new", 1)


async def test_a_duty_that_is_just_being_taken_is_not_pruned(race: Race) -> None:
    before, taker = await race.bench.node(), await race.bench.node(lease=100 * DAY)
    await race.bench.store.hold_duties(APP, before, ["tidy"])
    await race.bench.store.resign_duties(APP, before, {"tidy": 1})
    await race.bench.pass_time(2 * DAY)
    now = await race.bench.now()
    async with race.held(lambda db: nodes.hold_duties(db, APP, taker, ["tidy"])):
        second = await race.waits(race.second.prune(APP, before=now - DAY, keep_per_schedule=1000, limit=100))
    await second
    [duty] = await race.bench.store.duties(APP)
    assert (duty.node, duty.term) == (taker, 2)


async def test_a_duty_that_is_just_being_pruned_is_taken_under_a_new_term(race: Race) -> None:
    before, taker = await race.bench.node(), await race.bench.node(lease=100 * DAY)
    await race.bench.store.hold_duties(APP, before, ["tidy"])
    await race.bench.store.resign_duties(APP, before, {"tidy": 1})
    await race.bench.pass_time(2 * DAY)
    now = await race.bench.now()

    async def prune(db: Statements) -> None:
        assert [row["term"] for row in await db.rows("prune.duties", APP, now - DAY, DAY, 100)] == [1]
        await db.count("prune.duty_terms", APP, 1)

    async with race.held(prune):
        second = await race.waits(race.second.hold_duties(APP, taker, ["tidy"]))
    assert [(duty.node, duty.term) for duty in (await second).duties] == [(taker, 2)]
