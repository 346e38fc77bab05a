"""The days of history: each has a partition of its own, nothing is refused for want of one, and the past is dropped."""

from __future__ import annotations

import asyncio

import pytest
from postgres_stores import PostgresStores

from evertick.store.base import Note
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.partitions import keep_partitions
from evertick.testing.conformance import Bench, a_run, an_outcome
from evertick.testing.conformance.bench import APP, DAY, HOUR, OTHER_APP, TERMS


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


async def ended(bench: Bench, fire_at: int, app: str = APP) -> str:
    [run] = await bench.store.enqueue(app, [a_run(fire_at=fire_at, due_at=fire_at)])
    await bench.store.cancel(app, [run.id], "not needed")
    return run.id


async def is_known(bench: Bench, run: str, app: str = APP) -> bool:
    return bool(await bench.runs(app=app, ids=(run,)))


async def prune(bench: Bench, before: int, app: str = APP, limit: int = 100) -> int:
    return await bench.store.prune(app, before=before, keep_per_schedule=None, limit=limit)


async def rows_of(stores: PostgresStores, *tables: str) -> list[int]:
    connection = await stores.connect()
    counts = [await connection.fetchval(f"SELECT count(*) FROM {stores.schema}.{table}") for table in tables]
    await connection.close()
    return counts


async def keep(stores: PostgresStores) -> None:
    connection = await stores.connect()
    await keep_partitions(connection, stores.schema)
    await connection.close()


async def names(stores: PostgresStores, parent: str = "history") -> list[str]:
    connection = await stores.connect()
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass",
        f"{stores.schema}.{parent}",
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


async def test_upkeep_makes_the_days_to_come(bench: Bench, postgres_stores: PostgresStores) -> None:
    before = await names(postgres_stores)
    await bench.pass_time(30 * DAY)
    assert isinstance(bench.store, PostgresStore)
    await bench.store.prune(APP, before=0, keep_per_schedule=10, limit=100)
    assert len(set(await names(postgres_stores)) - set(before)) >= 4


async def test_any_node_makes_the_days_to_come(bench: Bench, postgres_stores: PostgresStores) -> None:
    """Also where none of them has the duty to prune."""
    before = await names(postgres_stores)
    await bench.pass_time(30 * DAY)
    await bench.store.park_unknown(APP, 9)
    assert len(set(await names(postgres_stores)) - set(before)) >= 4


async def test_ten_that_make_the_days_at_once_make_each_of_them_once(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    await bench.pass_time(30 * DAY)
    parents = ("history", "attempts", "log_chunks")
    before = {parent: len(await names(postgres_stores, parent)) for parent in parents}
    new: dict[str, int] = {}
    # A session that is blocked tries again later, as nodes do: on a busy machine all of them may be blocked.
    for _ in range(10):
        await asyncio.gather(*(keep(postgres_stores) for _ in range(10)))
        new = {parent: len(await names(postgres_stores, parent)) - before[parent] for parent in parents}
        if min(new.values()) > 0:
            break
    assert new == dict.fromkeys(parents, 5)


# --- dropping --------------------------------------------------------------------------------------------------------


async def test_a_day_that_no_app_keeps_is_dropped_whole_with_attempts_and_log(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    node, start = await bench.node(), await bench.now()
    run = await bench.enqueue()
    held = await bench.hold(node, run.id)
    await bench.finish(node, an_outcome(held, "retry"))
    held = await bench.hold(node, run.id)
    await bench.store.note(APP, node, [Note(id=run.id, fence=held.fence, lines=((1, "info", "text"),))])
    await bench.end(node, held)
    others = [await ended(bench, start) for _ in range(5)]
    day = await partition_of(postgres_stores, run.id)
    later = await ended(bench, start + 2 * DAY)
    assert await rows_of(postgres_stores, "history", "attempts", "log_chunks") == [7, 1, 1]
    await bench.pass_time(10 * DAY)
    # A bite of one row would not get far.
    await prune(bench, start + 2 * DAY, limit=1)
    assert await rows_of(postgres_stores, "history", "attempts", "log_chunks") == [1, 0, 0]
    assert day not in await names(postgres_stores)
    assert not any([await is_known(bench, other) for other in others])
    assert await is_known(bench, later)


async def test_a_day_stays_until_it_lies_wholly_before_what_is_kept(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    start = await bench.now()
    run = await ended(bench, start - 1)
    await bench.pass_time(10 * DAY)
    await prune(bench, start)
    assert await is_known(bench, run)
    await prune(bench, start + 2 * DAY)
    assert not await is_known(bench, run)


async def test_where_less_than_two_days_are_kept_runs_go_one_by_one(bench: Bench) -> None:
    start = await bench.now()
    run, other = await ended(bench, start - 1), await ended(bench, start + HOUR)
    await prune(bench, await bench.now())
    assert (await is_known(bench, run), await is_known(bench, other)) == (False, True)


async def test_a_day_that_another_app_keeps_stays_and_the_rows_of_this_one_go(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    start = await bench.now()
    mine, theirs = await ended(bench, start), await ended(bench, start, OTHER_APP)
    day = await partition_of(postgres_stores, mine)
    await bench.pass_time(10 * DAY)
    await prune(bench, start + 2 * DAY)
    assert not await is_known(bench, mine)
    assert await is_known(bench, theirs, OTHER_APP)
    # They keep more of it, then no more than we.
    await prune(bench, start - DAY, OTHER_APP)
    assert await is_known(bench, theirs, OTHER_APP)
    await prune(bench, start + 2 * DAY, OTHER_APP)
    assert not await is_known(bench, theirs, OTHER_APP)
    assert day not in await names(postgres_stores)


async def test_a_run_that_ended_late_is_kept_with_its_day(bench: Bench, postgres_stores: PostgresStores) -> None:
    start = await bench.now()
    early = await ended(bench, start)
    late = await bench.enqueue(fire_at=start, due_at=start)
    await bench.pass_time(4 * DAY)
    await bench.cancel(late.id)
    day = await partition_of(postgres_stores, late.id)
    await bench.pass_time(4 * DAY)
    await prune(bench, start + 3 * DAY)
    assert (await is_known(bench, early), await is_known(bench, late.id)) == (False, True)
    assert day in await names(postgres_stores)
    await prune(bench, start + 5 * DAY)
    assert not await is_known(bench, late.id)
    assert day not in await names(postgres_stores)


async def test_what_has_no_day_of_its_own_is_pruned_too(bench: Bench, postgres_stores: PostgresStores) -> None:
    start = await bench.now()
    old, new = await ended(bench, start - 50 * DAY), await ended(bench, start - 40 * DAY)
    assert await partition_of(postgres_stores, old) == await partition_of(postgres_stores, new) == "history_default"
    # They ended just now, however old their moments are.
    await prune(bench, start - 45 * DAY)
    assert (await is_known(bench, old), await is_known(bench, new)) == (True, True)
    await bench.pass_time(80 * DAY)
    await prune(bench, start + DAY)
    assert (await is_known(bench, old), await is_known(bench, new)) == (False, False)


async def test_a_day_that_is_being_written_is_dropped_later_and_no_session_waits_long(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    start = await bench.now()
    run = await ended(bench, start)
    day = await partition_of(postgres_stores, run)
    await bench.pass_time(10 * DAY)
    connection = await postgres_stores.connect()
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {postgres_stores.schema}.history IN ROW EXCLUSIVE MODE")
        async with asyncio.timeout(10):
            # Rows that cannot be dropped as a partition are deleted one by one meanwhile.
            assert await prune(bench, start + 2 * DAY) == 1
        assert day in await names(postgres_stores)
    await connection.close()
    await prune(bench, start + 2 * DAY)
    assert day not in await names(postgres_stores)


async def test_verdicts_are_written_while_days_are_dropped(bench: Bench, postgres_stores: PostgresStores) -> None:
    node, start = await bench.node(), await bench.now()
    for number in range(5):
        await ended(bench, start + (number - 1) * DAY)
    await bench.pass_time(20 * DAY)
    await keep(postgres_stores)
    old = await names(postgres_stores)
    over = asyncio.Event()

    async def finish() -> int:
        count = 0
        while not over.is_set():
            await bench.store.enqueue(APP, [a_run() for _ in range(20)])
            claim = await bench.store.claim(APP, node, ["default"], TERMS, 20)
            finished = await bench.store.finish(APP, node, [an_outcome(run) for run in claim.runs])
            assert set(finished.answers) <= {"done"}
            count += len(finished.answers)
        return count

    finishing = [asyncio.create_task(finish()) for _ in range(2)]
    async with asyncio.timeout(60):
        while any([name in await names(postgres_stores) for name in old[:5]]):
            await prune(bench, start + 10 * DAY)
    over.set()
    assert sum(await asyncio.gather(*finishing)) > 0


# --- what cannot be made ---------------------------------------------------------------------------------------------


async def test_no_session_waits_for_a_partition_that_cannot_be_made_now(
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


@pytest.mark.parametrize("away", [-20 * DAY, 20 * DAY])
async def test_a_run_whose_moment_is_far_from_its_making_is_found_by_its_id(bench: Bench, away: int) -> None:
    """Looked for near its making first, then everywhere."""
    node, moment = await bench.node(), await bench.now() + away
    [run] = await bench.store.enqueue(APP, [a_run(fire_at=moment, due_at=min(moment, await bench.now()))])
    near = await bench.enqueue()
    claims = {held.id: held for held in (await bench.claim(node)).runs}
    outcomes = [an_outcome(claims[id_]) for id_ in (run.id, near.id)]
    assert await bench.finish(node, *outcomes) == ["done", "done"]
    assert await bench.finish(node, *outcomes) == ["already", "already"]
    assert await bench.cancel(run.id, near.id) == ["done", "done"]
    note = Note(id=run.id, fence=claims[run.id].fence, seq=0, lines=((0, "INFO", "one more line"),))
    assert await bench.store.note(APP, node, [note]) == []
