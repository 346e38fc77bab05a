"""Whether a ledger gets slower with its years: the same steps beside a short history and beside a long one.

Both are in the same server, and the steps are taken by turns, so that whatever slows the machine down slows both. The
long history is written by the server itself, a day in each partition, up to today.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable
from typing import TypeVar

from benchmarks.postgres.fires import APP, NODE, TASK, add_schedules, advance_of, join
from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.postgres.size import FleetSize
from evertick.clock import system_clock
from evertick.model import Cause, Claimed, NewRun, Outcome, Verdict
from evertick.store.base import Owned, TaskTerms
from evertick.store.postgres import PostgresStore
from evertick.when.moment import DAY, from_us

__all__ = ["STEPS", "measure"]

T = TypeVar("T")

STEPS = ("due", "record", "finish", "enqueue", "claim")
_DAYS = 10
_SCHEDULES = 10_000
# A table of its own until it is full: an index is built faster than it grows.
_MAKE_DAY = "CREATE TABLE evertick.{name} (LIKE evertick.history INCLUDING DEFAULTS)"
_FILL_DAY = """
INSERT INTO evertick.{name} (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority,
    verdict, attempts, losses, node, fence, created_at, started_at, finished_at, is_cancel_requested)
SELECT (lpad(to_hex(at / 1000), 12, '0') || '7' || substr(md5(n::text), 1, 3) || 'a'
        || substr(md5(n::text), 5, 15))::uuid,
    '{app}', n % {schedules} + 1, 's' || n % {schedules}, 1, '{task}', 'fire', at, at, 'default', 0, 'succeeded', 1, 0,
    'node', n, at, at, at, false
FROM (SELECT n, {first}::bigint + n * ({length}::bigint / {count}) AS at FROM generate_series(0, {count} - 1) n) m
"""
_ATTACH_DAY = "ALTER TABLE evertick.history ATTACH PARTITION evertick.{name} FOR VALUES FROM ({first}) TO ({end})"
_DROP_DAY = """
ALTER TABLE evertick.history DETACH PARTITION evertick.{name};
DROP TABLE evertick.{name}
"""


def measure(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    return asyncio.run(_measure((ledger, ledger.beside("large")), size))


async def _measure(ledgers: tuple[PostgresLedger, PostgresLedger], size: FleetSize) -> dict[str, float]:
    samples: list[dict[str, list[float]]] = []
    for ledger, rows in zip(ledgers, (size.small_history, size.large_history), strict=True):
        await _prepare(ledger, rows)
        samples.append({step: [] for step in STEPS})
    async with ledgers[0].store() as small, ledgers[1].store() as large:
        for number in range(size.growth_rounds + 1):
            for store, took in zip((small, large), samples, strict=True):
                # The first round fills caches and makes plans.
                await _take_steps(store, size.growth_batch, took if number else {step: [] for step in STEPS})
    medians = [{step: statistics.median(took) for step, took in each.items()} for each in samples]
    return {
        **{f"growth_{step}_small": medians[0][step] * 1e3 for step in STEPS},
        **{f"growth_{step}_large": medians[1][step] * 1e3 for step in STEPS},
        **{f"growth_{step}": medians[1][step] / medians[0][step] for step in STEPS},
    }


async def _take_steps(store: PostgresStore, batch: int, took: dict[str, list[float]]) -> None:
    due = await _timed(took["due"], store.due_schedules(APP, batch))
    advances = [advance_of(row) for row in due.schedules]
    recorded = await _timed(took["record"], store.record_fires(APP, NODE, advances))
    assert all(recorded.taken), "nobody else is here"
    held = [Owned(id=run.id, fence=recorded.fence) for advance in advances for run in advance.runs]
    await _timed(took["finish"], store.finish(APP, NODE, [_done(run) for run in held]))
    runs = [NewRun(id=system_clock.new_id(), task=TASK, cause=Cause.ENQUEUE) for _ in range(batch)]
    await _timed(took["enqueue"], store.enqueue(APP, runs))
    claim = await _timed(took["claim"], store.claim(APP, NODE, ["default"], {TASK: TaskTerms()}, batch))
    assert len(claim.runs) == batch, f"{len(claim.runs)} runs were claimed"
    await store.finish(APP, NODE, [_done(run) for run in claim.runs])


def _done(run: Owned | Claimed) -> Outcome:
    return Outcome(id=run.id, fence=run.fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1)


async def _timed(took: list[float], intent: Awaitable[T]) -> T:
    began = time.perf_counter()
    answer = await intent
    took.append(time.perf_counter() - began)
    return answer


async def _prepare(ledger: PostgresLedger, rows: int) -> None:
    async with ledger.store() as store:
        now = await store.now()
    per_day = max(rows // _DAYS, 1)
    # Today only up to two hours ago: the fires of the measurement itself are of the last hour.
    today = now // DAY
    async with ledger.connection() as connection:
        await connection.execute("SET maintenance_work_mem = '256MB'")
        for day in range(today - _DAYS + 1, today + 1):
            length = DAY if day < today else max(now - 2 * 3_600_000_000 - today * DAY, DAY // 24)
            await _fill_day(ledger, connection, day, per_day, length)
    # After the history, so that these fires are not in it.
    async with ledger.store() as store:
        await add_schedules(store, _SCHEDULES)
        await join(store)
    async with ledger.connection() as connection:
        for table in ("history", "due", "schedules", "schedule_versions"):
            await connection.execute(ledger.sql(f"VACUUM ANALYZE evertick.{table}"))


async def _fill_day(ledger: PostgresLedger, connection: object, day: int, count: int, length: int) -> None:
    values = {
        "name": f"history_{from_us(day * DAY):%Y%m%d}",
        "first": day * DAY,
        "end": (day + 1) * DAY,
        "length": length,
        "count": count,
        "app": APP,
        "task": TASK,
        "schedules": _SCHEDULES,
    }
    execute = connection.execute  # type: ignore[attr-defined]
    if await connection.fetchval("SELECT to_regclass($1)", f"{ledger.schema}.{values['name']}"):  # type: ignore[attr-defined]
        await execute(ledger.sql(_DROP_DAY.format(**values)))
    for statement in (_MAKE_DAY, _FILL_DAY, _ATTACH_DAY):
        await execute(ledger.sql(statement.format(**values)))
