"""Fires through the store while somebody holds a transaction open: how much slower it has become at the end.

On PostgreSQL no row that dies meanwhile can be cleaned away; on SQLite the log grows, because nothing may be moved out
of it.
"""

from __future__ import annotations

import time
from itertools import pairwise

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.measure.fires import StoreLoop, add_schedules, fire, join
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.place import LedgerPlace
from benchmarks.used import Used

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("begin", "at its beginning", "fires/s"),
    Figure("end", "at its end", "fires/s"),
    Figure("ratio", "end / beginning", "ratio"),
    *CPU,
)
# The share of the time at each end that is looked at.
_SHARE = 6


def measure(stage: Stage) -> Measured:
    return in_fresh_process(measure_in, stage.ledger, stage.size)


def measure_in(place: LedgerPlace, size: Size) -> dict[str, float]:
    ends, used = loop.run(_turns(place, size))
    place.check(len(ends) * size.fires_turn)
    rates = [size.fires_turn / (after - before) for before, after in pairwise(ends)]
    some = max(len(rates) // _SHARE, 1)
    begin, end = sum(rates[:some]) / some, sum(rates[-some:]) / some
    return {"begin": begin, "end": end, "ratio": end / begin, **used.each(len(rates) * size.fires_turn)}


async def _turns(place: LedgerPlace, size: Size) -> tuple[list[float], Used]:
    """When the first turn of fires began, and when each ended; and what all of them took."""
    async with place.store() as store:
        await add_schedules(store, size.fired_schedules)
        await join(store)
        firing = StoreLoop(store)
        await fire(firing, size.fires_turn)  # caches are filled, plans are made
        before, ends = Used.here(place), [time.perf_counter()]
        async with place.held_open():
            while ends[-1] - ends[0] < size.held_open_seconds:
                await fire(firing, size.fires_turn)
                ends.append(time.perf_counter())
            used = Used.here(place).since(before)
    return ends, used
