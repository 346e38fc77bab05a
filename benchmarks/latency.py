"""From the call of `enqueue` to the first line of the job, at a steady 50 a second.

Once from the process that runs the node, once from another one, whose work the node has to notice by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.fresh import in_fresh_process
from benchmarks.ledger import Ledger
from benchmarks.size import Size
from benchmarks.spread import percentile
from evertick import Scheduler

__all__ = ["measure"]

PER_SECOND = 50


def measure(ledger: Ledger, size: Size, is_remote: bool) -> dict[str, float]:
    count = round(size.latency_seconds * PER_SECOND)
    waits = asyncio.run(_waits(ledger, count, is_remote))
    name = "latency_remote" if is_remote else "latency"
    return {
        f"{name}_p50": percentile(waits, 50) * 1e3,
        f"{name}_p99": percentile(waits, 99) * 1e3,
        f"{name}_max": max(waits) * 1e3,
    }


async def _waits(ledger: Ledger, count: int, is_remote: bool) -> list[float]:
    scheduler = Scheduler(ledger.url)
    waits: list[float] = []
    executed = [0] * count
    all_executed = asyncio.Event()

    @scheduler.task
    async def hear(number: int, sent_at: float) -> None:
        waits.append(time.time() - sent_at)
        executed[number] += 1
        if len(waits) == count:
            all_executed.set()

    async with scheduler:
        if is_remote:
            await asyncio.to_thread(in_fresh_process, send_from_outside, ledger, count)
        else:
            await _send(hear.enqueue, count)
        await asyncio.wait_for(all_executed.wait(), timeout=60)
    await ledger.check(executed)
    return waits


def send_from_outside(ledger: Ledger, count: int) -> None:
    asyncio.run(_send_from_outside(ledger, count))


async def _send_from_outside(ledger: Ledger, count: int) -> None:
    scheduler = Scheduler(ledger.url, concurrency=0)

    @scheduler.task
    async def hear(number: int, sent_at: float) -> None: ...

    await scheduler.health()  # opens the ledger before the first call is timed
    await _send(hear.enqueue, count)
    await scheduler.close()


async def _send(enqueue: Callable[..., Awaitable[object]], count: int) -> None:
    began = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(began + number / PER_SECOND - time.perf_counter(), 0))
        await enqueue(number=number, sent_at=time.time())
