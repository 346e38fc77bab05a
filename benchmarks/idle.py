"""What a node costs that has schedules and nothing to do: processor time and memory.

The schedules are added by another process, so that the memory measured is that of living with them, not of adding.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.fresh import in_fresh_process
from benchmarks.ledger import Ledger
from benchmarks.size import Size
from evertick import Every, Scheduler

__all__ = ["fill", "measure"]


def measure(ledger: Ledger, size: Size) -> dict[str, float]:
    in_fresh_process(fill, ledger, size.idle_schedules)
    return asyncio.run(_watch(ledger, size))


def fill(ledger: Ledger, count: int) -> None:
    asyncio.run(_fill(ledger, count))


async def _fill(ledger: Ledger, count: int) -> None:
    scheduler = Scheduler(ledger.url)

    @scheduler.task
    async def never() -> None: ...

    rule = Every("30d", since="start", start=datetime.now(UTC) + timedelta(days=30))
    await scheduler.add_many({"key": f"s{number}", "when": rule, "task": never} for number in range(count))
    await scheduler.close()


async def _watch(ledger: Ledger, size: Size) -> dict[str, float]:
    scheduler = Scheduler(ledger.url)

    @scheduler.task
    async def never() -> None:
        raise AssertionError("none of these schedules is due")

    memory_before = _resident_megabytes()
    async with scheduler:
        await asyncio.sleep(min(1, size.idle_seconds))  # what belongs to the start is over
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(size.idle_seconds)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        memory_after = _resident_megabytes()
    return {"idle_cpu": share * 100, "memory_before": memory_before, "memory_after": memory_after}


def _resident_megabytes() -> float:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    import resource  # macOS, in bytes there; the greatest so far is the nearest it tells

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
