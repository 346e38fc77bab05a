"""Runs per second of one process that finds its queue full, and how fast the queue is filled.

The time of execution begins before the node opens the ledger and ends when the last run is written as done: start,
claim, the job itself and the final commit are all in it.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.ledger import BULK, Ledger
from benchmarks.size import Size
from evertick import Scheduler
from evertick.task import TaskOptions

__all__ = ["LIMITS", "measure_enqueue", "measure_execution", "measure_limited"]

# Of the node whose task has a limit.
_SLOTS = 100
# By name: a concurrency that is not reached, one of half the slots, a rate that is not reached.
LIMITS: dict[str, TaskOptions] = {
    "execute_unreached": {"concurrency": 10_000},
    "execute_capped": {"concurrency": _SLOTS // 2},
    "execute_rated": {"rate": "1000000/s"},
}


def measure_execution(ledger: Ledger, size: Size, concurrency: int) -> dict[str, float]:
    return {f"execute_{concurrency}": asyncio.run(_execution(ledger, size, concurrency, {}))}


def measure_limited(ledger: Ledger, size: Size, name: str) -> dict[str, float]:
    """The same with a task that has a limit."""
    return {name: asyncio.run(_execution(ledger, size, _SLOTS, LIMITS[name]))}


def measure_enqueue(ledger: Ledger, size: Size) -> dict[str, float]:
    return asyncio.run(_enqueue(ledger, size))


async def _execution(ledger: Ledger, size: Size, concurrency: int, limits: TaskOptions) -> float:
    scheduler = Scheduler(ledger.url, concurrency=concurrency)
    executed = [0] * size.runs
    left = size.runs
    all_executed = asyncio.Event()

    @scheduler.task(**limits)
    async def count(number: int) -> None:
        nonlocal left
        executed[number] += 1
        left -= 1
        if left == 0:
            all_executed.set()

    for first in range(0, size.runs, BULK):
        await count.enqueue_many({"number": number} for number in range(first, min(first + BULK, size.runs)))
    await scheduler.close()

    began = time.perf_counter()
    async with scheduler:
        await all_executed.wait()
        while (await scheduler.health()).running:
            await asyncio.sleep(0)
        seconds = time.perf_counter() - began
    await ledger.check(executed)
    return size.runs / seconds


async def _enqueue(ledger: Ledger, size: Size) -> dict[str, float]:
    scheduler = Scheduler(ledger.url)

    @scheduler.task
    async def count(number: int) -> None: ...

    await scheduler.health()  # opens the ledger
    began = time.perf_counter()
    for first in range(0, size.runs, BULK):
        await count.enqueue_many({"number": number} for number in range(first, min(first + BULK, size.runs)))
    in_bulk = size.runs / (time.perf_counter() - began)

    began = time.perf_counter()
    for number in range(size.single_runs):
        await count.enqueue(number=number)
    one_by_one = size.single_runs / (time.perf_counter() - began)

    await scheduler.close()
    await ledger.check_waiting(size.runs + size.single_runs)
    return {"enqueue_bulk": in_bulk, "enqueue_single": one_by_one}
