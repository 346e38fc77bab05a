"""Fires through the store while somebody holds a transaction open: how much slower it has become at the end.

On PostgreSQL no row that dies meanwhile can be cleaned away; on SQLite the log grows, because nothing may be moved out
of it.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from benchmarks.figure import Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.measure.fires import StoreLoop, add_schedules, fire, join
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.place import LedgerPlace

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("begin", "at its beginning", "fires/s"),
    Figure("end", "at its end", "fires/s"),
    Figure("ratio", "end / beginning", "ratio"),
)
# The share of the time at each end that is looked at.
_SHARE = 6


def measure(stage: Stage) -> Measured:
    return in_fresh_process(measure_in, stage.ledger, stage.size)


def measure_in(place: LedgerPlace, size: Size) -> dict[str, float]:
    ends = asyncio.run(_turns(place, size))
    place.check(len(ends) * size.fires_turn)
    rates = [size.fires_turn / (after - before) for before, after in pairwise(ends)]
    some = max(len(rates) // _SHARE, 1)
    begin, end = sum(rates[:some]) / some, sum(rates[-some:]) / some
    return {"begin": begin, "end": end, "ratio": end / begin}


async def _turns(place: LedgerPlace, size: Size) -> list[float]:
    """When the first turn of fires began, and when each ended."""
    async with place.store() as store:
        await add_schedules(store, size.fired_schedules)
        await join(store)
        loop = StoreLoop(store)
        await fire(loop, size.fires_turn)  # caches are filled, plans are made
        ends = [time.perf_counter()]
        async with place.held_open():
            while ends[-1] - ends[0] < size.held_open_seconds:
                await fire(loop, size.fires_turn)
                ends.append(time.perf_counter())
    return ends
