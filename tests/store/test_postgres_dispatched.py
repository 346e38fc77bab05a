"""Dispatched runs on PostgreSQL: a batch costs a few statements, concurrent reports agree on a run's outcome, and a
hundred thousand of them slow nothing down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
from postgres_stores import PostgresStores
from test_postgres_outbox import counting

from evertick.model import Claimed, State, Verdict
from evertick.model.limits import make_concurrency
from evertick.store.base import ReportWindow, TaskTerms
from evertick.store.postgres.connection import PLANNER_SETTINGS, in_schema, statements_for
from evertick.testing.conformance import Bench, a_run
from evertick.testing.conformance.bench import APP, HOUR, TASK
from evertick.testing.conformance.dispatched import _PATIENT, a_dispatch, report_of

BATCH = 1_000
MANY = 100_000
# By a node that has read all reports.
HEARD = {"queue": ReportWindow(0, 1 << 62)}


@pytest.fixture
async def bench(postgres_stores: PostgresStores) -> AsyncIterator[Bench]:
    bench = Bench(postgres_stores, await postgres_stores.open())
    yield bench
    await bench.check()


async def dispatch(bench: Bench, count: int, **agreed: object) -> list[Claimed]:
    node = await bench.node()
    await bench.store.enqueue(APP, [a_run() for _ in range(count)])
    held = (await bench.claim(node, limit=count)).runs
    dispatch = msgspec.structs.replace(_PATIENT, **agreed)
    answers = await bench.finish(node, *(a_dispatch(each, dispatch) for each in held))
    assert answers == ["done"] * count
    return held


async def test_a_thousand_dispatchs_and_reports_cost_a_constant_number_of_statements(bench: Bench) -> None:
    node = await bench.node()
    await bench.store.enqueue(APP, [a_run() for _ in range(BATCH)])
    held = (await bench.claim(node, limit=BATCH)).runs
    with counting() as sent:
        await bench.finish(node, *(a_dispatch(each) for each in held))
    assert sent == ["finish.dispatch_with_messages"]
    for kind in ("pushed", "taken", "progress", "finish"):
        with counting() as sent:
            answers = await bench.store.apply_reports(APP, [report_of(each, kind) for each in held])
        assert {answer.answer for answer in answers} == {"done"}
        assert len(sent) <= 5, (kind, sent)
    with counting() as sent:
        answers = await bench.store.apply_reports(APP, [report_of(each, "finish") for each in held])
    assert {answer.answer for answer in answers} == {"already"}
    assert len(sent) <= 6, sent


async def test_a_report_and_the_end_of_its_time_are_one_after_the_other(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    other = await postgres_stores.open()
    held = await dispatch(bench, 200, ack_timeout=0)
    await bench.store.apply_reports(APP, [report_of(each, "pushed") for each in held])
    answers, *tended = await asyncio.gather(
        bench.store.apply_reports(APP, [report_of(each, "finish") for each in held]),
        *(other.check_dispatched(APP, 50, HEARD) for _ in range(4)),
    )
    released = [run for each in tended for run in each.released]
    assert len(released) == len(set(released))
    finished = {each.id for each, answer in zip(held, answers, strict=True) if answer.answer == "done"}
    assert finished.isdisjoint(released)
    assert len(finished) + len(released) == 200
    for each in held:
        run = await bench.run(each.id)
        assert (run.verdict is Verdict.SUCCEEDED) == (each.id in finished)
        assert (run.state is State.WAITING, run.losses) == ((each.id in released), int(each.id in released))


async def test_many_reports_of_one_end_write_it_once(bench: Bench, postgres_stores: PostgresStores) -> None:
    other = await postgres_stores.open()
    held = await dispatch(bench, 100)
    reports = [report_of(each, "finish") for each in held]
    # The other way round: a transaction that locks in another order would wait for the first for ever.
    answers = await asyncio.gather(
        *(bench.store.apply_reports(APP, reports) for _ in range(3)),
        *(other.apply_reports(APP, reports[::-1]) for _ in range(3)),
    )
    done = sum(answer.answer == "done" for batch in answers for answer in batch)
    assert done == 100
    assert {answer.answer for batch in answers for answer in batch} == {"done", "already"}


async def test_a_cancel_and_an_end_meet_without_waiting_for_each_other_for_ever(
    bench: Bench, postgres_stores: PostgresStores
) -> None:
    other = await postgres_stores.open()
    terms = {TASK: TaskTerms(concurrency=make_concurrency(100, None, TASK, {}))}
    node = await bench.node(tasks=terms)
    await bench.store.enqueue(APP, [a_run() for _ in range(150)])
    held = (await bench.claim(node, limit=100, tasks=terms)).runs
    await bench.finish(node, *(a_dispatch(each, msgspec.structs.replace(_PATIENT, kill="kills")) for each in held))
    ids = [each.id for each in held]
    async with asyncio.timeout(60):
        await asyncio.gather(
            bench.store.cancel(APP, ids[::-1], "unwanted"),
            other.apply_reports(APP, [report_of(each, "fail", error="no") for each in held]),
            other.check_dispatched(APP, 100, HEARD),
            bench.store.drop_messages(APP, ids),
        )
        await bench.store.check_dispatched(APP, 100, HEARD)
    for each in held:
        assert (await bench.run(each.id)).verdict in (Verdict.FAILED, Verdict.CANCELLED)
    # Runs that the limit of the ended ones has blocked come now.
    assert len((await bench.claim(node, limit=100, tasks=terms)).runs) == 50


_DISPATCHED = """
    INSERT INTO evertick.runs (id, app, task, cause, fire_at, due_at, queue, priority, state, created_at, node, fence,
        dispatch, dispatched_at, pushed_at, deadline)
        SELECT gen_random_uuid(), 'app', 'tidy', 'enqueue', n, n, 'default', n % 3, 'dispatched', 0, 'node-1', n,
            '{"to":"queue"}', n, n, CASE WHEN n <= 20 THEN n ELSE 9223372036854775807 END
        FROM generate_series(1, {many}) n
"""


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_a_hundred_thousand_dispatched_runs_are_not_looked_at(
    unmigrated_stores: PostgresStores, is_analyzed: bool
) -> None:
    bench = Bench(unmigrated_stores, await unmigrated_stores.open())
    node = await bench.node()
    schema = unmigrated_stores.schema
    connection = await unmigrated_stores.connect()
    try:
        for setting, value in PLANNER_SETTINGS.items():
            await connection.execute(f"SET {setting} = {value}")
        await connection.execute(in_schema("ANALYZE evertick.runs", schema))
        await connection.execute(in_schema(_DISPATCHED.replace("{many}", str(MANY)), schema))
        if is_analyzed:
            await connection.execute(in_schema("ANALYZE evertick.runs", schema))
        await bench.enqueue()
        statements = statements_for(schema)
        claim = f"'app', '{node}', ARRAY['default'], ARRAY['tidy'], 10, '{{}}', '{{}}'"
        for name, values, most in (
            ("claim", claim, 200),
            ("check_dispatched.find_cancelled", "'app', 1000", 40),
            ("check_dispatched.find_overdue", "'app', 1000, '{}'", 40),
            ("beat", f"'{node}', {HOUR}, NULL", 200),
        ):
            await connection.execute(f"PREPARE asked AS {statements[name]}")
            explained = f"EXPLAIN (ANALYZE, TIMING OFF, BUFFERS, FORMAT JSON) EXECUTE asked({values})"
            [plan] = json.loads(await connection.fetchval(explained))
            await connection.execute("DEALLOCATE asked")
            pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
            # All of them would be thousands.
            assert pages < most, (name, pages, plan)
    finally:
        await connection.close()
