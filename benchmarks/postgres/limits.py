"""Limits under load: three nodes, each in a process of its own, and a queue of runs that all want the same.

Jobs do nothing, so what is measured is the price of passing the limit: with one key all nodes meet at it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from benchmarks.fresh import in_fresh_process
from benchmarks.ledger import BULK
from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.postgres.meter import Meter
from benchmarks.postgres.size import FleetSize
from evertick import Scheduler
from evertick.task import TaskOptions

__all__ = ["LIMITS", "measure", "work"]

NODES = 3
# By name: no limit, one key that all runs share, many keys, a rate that all of them pass.
LIMITS: dict[str, TaskOptions] = {
    "limit_none": {},
    "limit_one_key": {"concurrency": 10},
    "limit_many_keys": {"concurrency": 10, "concurrency_key": "{key}"},
    "limit_rate": {"rate": "100000/s"},
}


def measure(ledger: PostgresLedger, size: FleetSize, name: str) -> dict[str, float]:
    asyncio.run(_fill(ledger, size, name))
    with ThreadPoolExecutor(NODES) as pool:
        before = asyncio.run(_read(ledger))
        nodes = [pool.submit(in_fresh_process, work, ledger, name) for _ in range(NODES)]
        for node in nodes:
            node.result()
    statements, seconds = asyncio.run(_read(ledger)), asyncio.run(_took(ledger, size))
    return {name: size.limited_runs / seconds, f"{name}_statements": (statements - before) / size.limited_runs}


def work(ledger: PostgresLedger, name: str) -> None:
    asyncio.run(_work(ledger, name))


def _with_task(ledger: PostgresLedger, name: str) -> tuple[Scheduler, object]:
    scheduler = Scheduler(ledger.url)

    @scheduler.task(**LIMITS[name])
    async def pass_through(key: int) -> None: ...

    return scheduler, pass_through


async def _fill(ledger: PostgresLedger, size: FleetSize, name: str) -> None:
    scheduler, task = _with_task(ledger, name)
    for first in range(0, size.limited_runs, BULK):
        numbers = range(first, min(first + BULK, size.limited_runs))
        await task.enqueue_many({"key": number % size.keys} for number in numbers)  # type: ignore[attr-defined]
    await scheduler.close()


async def _work(ledger: PostgresLedger, name: str) -> None:
    """Until nothing is left to do for anybody."""
    scheduler, _ = _with_task(ledger, name)
    left = ledger.sql("SELECT EXISTS (SELECT FROM evertick.runs) AS pg_stat_left")
    async with ledger.connection() as connection, scheduler, asyncio.timeout(300):
        while await connection.fetchval(left):
            await asyncio.sleep(0.02)


async def _read(ledger: PostgresLedger) -> int:
    async with ledger.connection() as connection:
        return (await Meter(ledger, connection).read_when_all_have_left()).statements


async def _took(ledger: PostgresLedger, size: FleetSize) -> float:
    await ledger.check([1] * size.limited_runs)
    question = "SELECT max(finished_at) - min(started_at) AS us FROM evertick.history"
    async with ledger.connection() as connection:
        us: int = await connection.fetchval(ledger.sql(question))
    return us / 1e6
