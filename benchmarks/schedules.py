"""Many schedules, each once a minute: the share that fired, how late their jobs began, and what it took.

Half of the question is where in the minute they lie. `seconds`: at one of the sixty seconds, so that a sixtieth of them
is due at one instant, with sixty rules in all. `spread`: evenly over the minute, each by a rule of its own.

    python -m benchmarks.schedules sqlite:////tmp/many.db --count 10000 --seconds 120
    python -m benchmarks.schedules postgresql://... --count 1000000 --seconds 300 --slots 4000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from benchmarks.fresh import in_fresh_process
from evertick import Context, Scheduler
from evertick.clock import system_clock
from evertick.model import Definition
from evertick.store.base import Change
from evertick.store.url import open_store
from evertick.when import Cron, Every, When
from evertick.when.moment import MINUTE, SECOND, from_us

__all__ = ["Lateness", "fill", "measure"]

Layout = Literal["seconds", "spread"]
_BULK = 5_000
# From the end of filling to the first moment of all, and after the last one until we stop looking.
_AHEAD, _AFTER = 5 * SECOND, 5 * SECOND


class Lateness:
    """How often a job began so late: steps of a tenth of a millisecond, up to a minute. Its size knows no count."""

    def __init__(self) -> None:
        self._steps = array("L", bytes(8 * 600_001))
        self.count = 0

    def add(self, seconds: float) -> None:
        self._steps[min(max(int(seconds * 1e4), 0), 600_000)] += 1
        self.count += 1

    def percentile(self, share: float) -> float:
        """In milliseconds."""
        wanted, seen = self.count * share / 100, 0
        for step, count in enumerate(self._steps):
            seen += count
            if count and seen >= wanted:
                return step / 10
        return 0.0


def rules(count: int, layout: Layout, first: int) -> Iterator[When]:
    if layout == "seconds":
        by_second = [Cron(f"{second} * * * * *", tz="UTC") for second in range(60)]
        return (by_second[number % 60] for number in range(count))
    starts = (from_us(first + number * MINUTE // count) for number in range(count))
    return (Every("1m", tz="UTC", since="start", start=start) for start in starts)


def fill(url: str, count: int, layout: Layout, app: str = "default") -> None:
    asyncio.run(_fill(url, count, layout, app))


async def _fill(url: str, count: int, layout: Layout, app: str) -> None:
    store = open_store(url, clock=system_clock)
    await store.open(migrate="auto")
    # Nothing is due before all of them are there.
    begin = await store.now() + _AHEAD + count * 150
    changes: list[Change] = []
    for number, rule in enumerate(rules(count, layout, begin)):
        moment = rule.next_us(begin)
        definition = Definition(task="note", when=rule.text, args={"number": number})
        changes.append(Change(key=f"s{number}", kind="add", definition=definition, fire_at=moment, at=moment))
        if len(changes) == _BULK or number == count - 1:
            assert all(await store.change_schedules(app, changes))
            changes.clear()
    assert await store.now() < begin, "it took longer to add them than the time before the first moment"
    await store.close()


def measure(url: str, count: int, seconds: float, slots: int) -> dict[str, float]:
    """The schedules are there; one node, from now on."""
    return asyncio.run(_measure(url, count, seconds, slots))


async def _measure(url: str, count: int, seconds: float, slots: int) -> dict[str, float]:
    scheduler = Scheduler(url, concurrency=slots)
    late = Lateness()
    first = last = 0.0

    @scheduler.task
    async def note(ctx: Context, number: int) -> None:
        now, moment = time.time(), ctx.fire_at.timestamp()
        if first <= moment < last:
            late.add(now - moment)

    async with scheduler:
        soonest = await (await scheduler._store()).due_schedules(scheduler.app, 1)
        wait = ((soonest.next_at or 0) - soonest.now) / SECOND
        await asyncio.sleep(max(wait + _AFTER / SECOND, 0))
        first = float(int(datetime.now(UTC).timestamp()) + 1)
        last = first + seconds
        await asyncio.sleep(first - time.time())
        before, rss_before = time.process_time(), _rss_mb()
        await asyncio.sleep(last - time.time())
        used, rss = time.process_time() - before, _rss_mb()
        await asyncio.sleep(_AFTER / SECOND)
    expected = count * seconds / 60
    return {
        "fires": late.count,
        "fired_percent": 100 * late.count / expected,
        "late_p50_ms": late.percentile(50),
        "late_p99_ms": late.percentile(99),
        "late_max_ms": late.percentile(100),
        "node_core_percent": 100 * used / seconds,
        "node_us_per_fire": 1e6 * used / max(late.count, 1),
        "rss_before_mb": rss_before,
        "rss_mb": rss,
        "rss_most_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120, help="whole minutes, so that each fires as often")
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--layout", choices=["seconds", "spread"], default="seconds")
    parser.add_argument("--filled", action="store_true", help="the schedules are there already")
    given = parser.parse_args()
    if not given.filled:
        in_fresh_process(fill, given.url, given.count, given.layout)
    figures = in_fresh_process(measure, given.url, given.count, given.seconds, given.slots)
    print(json.dumps({"count": given.count, "layout": given.layout} | figures))


if __name__ == "__main__":
    main()
