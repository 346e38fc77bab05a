"""Fires per second: through the store alone, and the same rows by bare statements in a loop.

Both take a thousand due schedules, write their runs as already claimed and move the cursors, and end the runs of the
batch before at the same time, on a second connection. The bare loop has no overlap, no limits, no unique keys, no
second line of defence and no way to recover: what it does not do is what the difference is paid for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.postgres.meter import Meter, Reading
from benchmarks.postgres.size import FleetSize
from evertick.clock import system_clock
from evertick.model import Cause, Definition, NewRun, Outcome, Verdict
from evertick.store.base import Advance, Change, DueSchedule, NodeJoin, Store, TaskTerms
from evertick.store.postgres import PostgresStore
from evertick.when.moment import HOUR, SECOND

__all__ = [
    "APP",
    "BATCH",
    "NODE",
    "TASK",
    "add_schedules",
    "fire_through_store",
    "join",
    "measure_raw",
    "measure_store",
]

APP, NODE, TASK = "bench", "node", "count"
BATCH = 1_000
_LEASE = 24 * HOUR


def measure_store(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    return asyncio.run(_measure_store(ledger, size))


def measure_raw(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    return asyncio.run(_measure_raw(ledger, size))


async def _measure_store(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    async with ledger.store() as store:
        await add_schedules(store, size.fired_schedules)
        await join(store)
    count = size.fired_schedules * size.fires_each
    async with ledger.connection() as connection:
        meter = Meter(connection)
        before = await meter.read_when_all_have_left()
        async with ledger.store() as store:
            seconds = await _timed(lambda: _until(count, fire_through_store(store)))
        used = (await meter.read_when_all_have_left()).since(before)
    await ledger.check([1] * count)
    return {"fires_store": count / seconds, **_per_fire("fires_store", used, count)}


async def _measure_raw(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    async with ledger.store() as store:
        await add_schedules(store, size.fired_schedules)
    count = size.fired_schedules * size.fires_each
    async with ledger.connection() as connection:
        meter = Meter(connection)
        before = await meter.read_when_all_have_left()
        seconds = await _timed(lambda: _until(count, _RawLoop(ledger).batches()))
        used = (await meter.read_when_all_have_left()).since(before)
    await ledger.check([1] * count)
    return {"raw_fires_store": count / seconds, "raw_fires_store_wal": used.wal_bytes / count}


def _per_fire(name: str, used: Reading, count: int) -> dict[str, float]:
    return {
        f"{name}_statements": used.statements / count,
        f"{name}_transactions": used.transactions / count,
        f"{name}_wal": used.wal_bytes / count,
    }


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _until(count: int, batches: Any) -> None:
    """Take batches until so many fires are done."""
    done = 0
    async for size in batches:
        done += size
        if done >= count:
            break
    await batches.aclose()
    assert done == count, f"{done} fires, {count} were wanted"


async def add_schedules(store: Store, count: int) -> None:
    """All due for an hour, a microsecond apart: however often they fire in a measurement, they stay due."""
    first = await store.now() - HOUR
    definition = Definition(task=TASK, when="every 1s")
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        changes = [
            Change(key=f"s{n}", kind="add", definition=definition, created_at=1, fire_at=first + n, at=first + n)
            for n in numbers
        ]
        assert all(await store.change_schedules(APP, changes))


async def join(store: Store) -> None:
    terms = {TASK: TaskTerms()}
    await store.join(
        NodeJoin(id=NODE, name=NODE, app=APP, version="1", lease=_LEASE, queues=("default",), tasks=terms, declares={})
    )


async def fire_through_store(store: PostgresStore) -> Any:
    """Batch after batch: what is due is recorded while the runs of the batch before are ended. Yields their size."""
    ending: asyncio.Task[None] | None = None
    try:
        while True:
            due = await store.due_schedules(APP, BATCH)
            advances = [_advance(row) for row in due.schedules]
            recorded = await store.record_fires(APP, NODE, advances)
            assert all(recorded.taken), "nobody else is here"
            if ending is not None:
                await ending
            ending = asyncio.create_task(_end(store, advances, recorded.fence))
            yield len(advances)
    finally:
        if ending is not None:
            await ending


def _advance(row: DueSchedule) -> Advance:
    """As with the usual overlap, which looks whether a run is live."""
    assert row.fire_at is not None
    run = NewRun(
        id=system_clock.new_id(),
        task=TASK,
        cause=Cause.FIRE,
        fire_at=row.fire_at,
        due_at=row.fire_at,
        schedule_id=row.id,
        version=row.version,
        is_claimed=True,
    )
    return Advance(
        schedule_id=row.id,
        version=row.version,
        fire_at=row.fire_at,
        at=row.at,
        live=row.live,
        runs=(run,),
        next_fire_at=row.fire_at + SECOND,
        next_at=row.at + SECOND,
    )


async def _end(store: PostgresStore, advances: list[Advance], fence: int) -> None:
    outcomes = [
        Outcome(id=run.id, fence=fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1)
        for advance in advances
        for run in advance.runs
    ]
    answers = (await store.finish(APP, NODE, outcomes)).answers
    assert set(answers) == {"done"}, f"ended as {set(answers)}"


_DUE = """
SELECT array_agg(schedule_id) AS ids, array_agg(version) AS versions, array_agg(fire_at) AS fire_ats
FROM (SELECT schedule_id, version, fire_at FROM evertick.due
    WHERE app = $1 AND at <= (SELECT evertick.now_us()) ORDER BY at LIMIT $2) d
"""
_RECORD = """
WITH drawn AS MATERIALIZED (SELECT nextval('evertick.fence') AS fence, evertick.now_us() AS now),
moved AS (
    UPDATE evertick.due d SET fire_at = d.fire_at + 1000000, at = d.at + 1000000, fires = d.fires + 1
    FROM unnest($2::bigint[], $3::int[], $4::bigint[]) AS p(schedule_id, version, fire_at)
    WHERE d.schedule_id = p.schedule_id AND d.version = p.version AND d.fire_at = p.fire_at
    RETURNING d.schedule_id),
written AS (
    INSERT INTO evertick.runs (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, state,
        created_at, node, fence, started_at)
    SELECT n.id, $1, n.schedule_id, n.version, 'count', 'fire', n.fire_at, n.fire_at, 'default', 0, 'running',
        c.now, 'node', c.fence, c.now
    FROM unnest($5::uuid[], $2::bigint[], $3::int[], $4::bigint[]) AS n(id, schedule_id, version, fire_at)
    JOIN moved m ON m.schedule_id = n.schedule_id CROSS JOIN drawn c
    RETURNING id)
SELECT (SELECT fence FROM drawn) AS fence, (SELECT count(*) FROM written) AS count
"""
_FINISH = """
WITH gone AS (
    DELETE FROM evertick.runs WHERE id = ANY($1::uuid[]) AND fence = $2 AND node = $3 RETURNING *)
INSERT INTO evertick.history (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, verdict,
    attempts, losses, node, fence, created_at, started_at, finished_at, is_cancel_requested)
SELECT id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, 'succeeded', 1, losses, node, fence,
    created_at, started_at, (SELECT evertick.now_us()), false FROM gone
"""


class _RawLoop:
    """The bare statements, on two connections."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self._ledger = ledger
        self._due, self._record, self._finish = (ledger.sql(text) for text in (_DUE, _RECORD, _FINISH))

    async def batches(self) -> Any:
        async with (
            self._ledger.connection(has_plans=True) as recording,
            self._ledger.connection(has_plans=True) as ending,
        ):
            finish: asyncio.Task[Any] | None = None
            try:
                while True:
                    due = await recording.fetchrow(self._due, APP, BATCH)
                    ids = [system_clock.new_id() for _ in due["ids"]]
                    wanted = (due["ids"], due["versions"], due["fire_ats"], ids)
                    recorded = await recording.fetchrow(self._record, APP, *wanted)
                    assert recorded["count"] == len(ids)
                    if finish is not None:
                        await finish
                    finish = asyncio.create_task(ending.execute(self._finish, ids, recorded["fence"], NODE))
                    yield len(ids)
            finally:
                if finish is not None:
                    await finish
