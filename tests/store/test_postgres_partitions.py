"""The days of history: each has a partition of its own, nothing is refused for want of one, and the past is dropped."""

from __future__ import annotations

import pytest
from postgres_stores import PostgresStores

from evertick.model import Verdict
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.partitions import keep_partitions
from evertick.testing.conformance import Bench, a_run
from evertick.testing.conformance.bench import APP, DAY, HOUR


@pytest.fixture
async def bench(postgres_stores: PostgresStores) -> Bench:
    return Bench(postgres_stores, await postgres_stores.open())


async def finished(bench: Bench, fire_at: int) -> str:
    node = await bench.node()
    [run] = await bench.store.enqueue(APP, [a_run(fire_at=fire_at, due_at=fire_at)])
    await bench.end(node, await bench.hold(node, run.id))
    return run.id


async def partition_of(stores: PostgresStores, run: str) -> str:
    connection = await stores.connect()
    found: str = await connection.fetchval(
        f"SELECT c.relname FROM {stores.schema}.history h JOIN pg_class c ON c.oid = h.tableoid WHERE h.id = $1", run
    )
    await connection.close()
    return found


async def keep(stores: PostgresStores) -> None:
    connection = await stores.connect()
    await keep_partitions(connection, stores.schema)
    await connection.close()


async def names(stores: PostgresStores) -> list[str]:
    connection = await stores.connect()
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass",
        f"{stores.schema}.history",
    )
    await connection.close()
    return sorted(row["relname"] for row in rows)


async def test_a_run_of_today_is_in_the_partition_of_today(bench: Bench, postgres_stores: PostgresStores) -> None:
    run = await finished(bench, await bench.now() - 1)
    assert (await partition_of(postgres_stores, run)).removeprefix("history_").isdigit()


async def test_a_moment_without_a_partition_is_kept_and_moved_when_its_day_gets_one(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    soon = await bench.now() + 6 * DAY
    await bench.store.enqueue(APP, [new := a_run(fire_at=soon, due_at=soon)])
    await bench.cancel(new.id)
    before = await bench.run(new.id)
    assert await partition_of(postgres_stores, new.id) == "history_default"
    await bench.pass_time(5 * DAY)
    await keep(postgres_stores)
    assert await partition_of(postgres_stores, new.id) != "history_default"
    assert await bench.run(new.id) == before


async def test_a_day_that_is_over_and_empty_is_dropped_and_others_stay(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    run = await finished(bench, await bench.now() - 1)
    before = await names(postgres_stores)
    kept = await partition_of(postgres_stores, run)
    await bench.pass_time(3 * DAY)
    await keep(postgres_stores)
    after = await names(postgres_stores)
    assert kept in after
    assert before[0] not in after
    assert (await bench.run(run)).verdict is Verdict.SUCCEEDED
    await bench.store.prune(APP, before=await bench.now() - HOUR, keep_per_schedule=10, limit=100)
    await keep(postgres_stores)
    assert kept not in await names(postgres_stores)


async def test_upkeep_makes_the_days_to_come(bench: Bench, postgres_stores: PostgresStores) -> None:
    before = await names(postgres_stores)
    await bench.pass_time(30 * DAY)
    assert isinstance(bench.store, PostgresStore)
    await bench.store.prune(APP, before=0, keep_per_schedule=10, limit=100)
    assert len(set(await names(postgres_stores)) - set(before)) >= 4


async def test_nobody_waits_for_a_partition_that_cannot_be_made_now(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    await bench.pass_time(30 * DAY)
    before = await names(postgres_stores)
    connection = await postgres_stores.connect()
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {postgres_stores.schema}.history_default IN ROW EXCLUSIVE MODE")
        await keep(postgres_stores)
        assert await names(postgres_stores) == before
    await keep(postgres_stores)
    assert set(await names(postgres_stores)) - set(before)
    await connection.close()


async def test_a_role_that_may_not_make_tables_keeps_all_in_the_default_partition(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    await bench.pass_time(30 * DAY)
    before = await names(postgres_stores)
    connection = await postgres_stores.connect()
    role = f"role_{postgres_stores.schema}"
    await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {postgres_stores.schema} TO {role}")
    await connection.execute(
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {postgres_stores.schema} TO {role}; SET ROLE {role}"
    )
    await keep_partitions(connection, postgres_stores.schema)
    await connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    await connection.close()
    assert await names(postgres_stores) == before
