"""How much after its moment a schedule's job begins: schedules spread over the second, and all of them at one instant.

Spread, 1,000 schedules are due one millisecond apart, each once a second. As a herd they are due together, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from benchmarks.ledger import Ledger
from benchmarks.size import Size
from benchmarks.spread import percentile
from evertick import Context, Every, Once, Scheduler
from evertick.when import When

__all__ = ["measure_herd", "measure_spread"]


def measure_spread(ledger: Ledger, size: Size) -> dict[str, float]:
    step = timedelta(milliseconds=1)

    def spread(first: datetime) -> list[When]:
        return [
            Every("1s", since="start", start=first + number * step, max_fires=size.schedule_seconds)
            for number in range(size.schedules)
        ]

    began = asyncio.run(_starts(ledger, spread, size.schedules * size.schedule_seconds, size.ahead_seconds))
    late = [at - fire_at for fire_at, at in began]
    return {"lateness_p50": percentile(late, 50) * 1e3, "lateness_p99": percentile(late, 99) * 1e3}


def measure_herd(ledger: Ledger, size: Size) -> dict[str, float]:
    def herd(moment: datetime) -> list[When]:
        return [Once(moment)] * size.schedules

    began = asyncio.run(_starts(ledger, herd, size.schedules, size.ahead_seconds))
    late = [at - fire_at for fire_at, at in began]
    return {"herd_first": min(late) * 1e3, "herd_last": max(late) * 1e3}


async def _starts(
    ledger: Ledger, rules: Callable[[datetime], list[When]], count: int, ahead_seconds: float
) -> list[tuple[float, float]]:
    """The moment and the beginning of each run, in seconds since 1970."""
    scheduler = Scheduler(ledger.url)
    began: list[tuple[float, float]] = []
    executed: dict[tuple[str | None, datetime], int] = {}
    all_began = asyncio.Event()

    @scheduler.task
    async def note(ctx: Context) -> None:
        began.append((ctx.fire_at.timestamp(), time.time()))
        moment = (ctx.schedule_key, ctx.fire_at)
        executed[moment] = executed.get(moment, 0) + 1
        if len(began) == count:
            all_began.set()

    async with scheduler:
        # Every moment gets its run, however late: a backlog shows as lateness, not as moments passed over.
        options = {"task": note, "catch_up": "all", "overlap": "allow", "grace": None}
        first = datetime.now(UTC) + timedelta(seconds=ahead_seconds)
        await scheduler.add_many({"key": f"s{n}", "when": rule, **options} for n, rule in enumerate(rules(first)))
        assert datetime.now(UTC) < first, "adding the schedules took longer than the time before their first moment"
        await asyncio.wait_for(all_began.wait(), timeout=120)
    assert len(executed) == count, f"{len(executed)} of {count} moments were executed"
    await ledger.check(list(executed.values()))
    return began
