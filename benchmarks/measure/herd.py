"""Schedules that are all due at one instant: how late the first and the last began, and what it costs per fire.

The cost is by the number of fires, from before the instant until the runs have ended: statements, commits and bytes of
the log, or on SQLite of all that the node has written to the disk; and processor time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.counted import Counted, counting
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.measure.schedules import check_none_early
from benchmarks.spread import percentile
from benchmarks.stage import Stage
from benchmarks.used import Used
from benchmarks.watch import Watch

__all__ = ["COST_FIGURES", "FIGURES", "measure", "measure_cost"]

FIGURES = (
    Figure("first", "first late", "ms"),
    Figure("p50", "late p50", "ms"),
    Figure("p99", "late p99", "ms"),
    Figure("last", "last late", "ms"),
    Figure("rate", "fires", "fires/s"),
    *CPU,
    Figure("memory", "memory of all nodes", "MB"),
)
COST_FIGURES = (
    Figure("statements", "statements", "per fire"),
    Figure("commits", "commits", "per fire"),
    Figure("bytes", "log or file", "bytes per fire"),
    *CPU,
)
_LATE_SECONDS = 300
# Before the instant: everybody has started and is waiting.
_READ_SECONDS = 0.3


@dataclass(frozen=True)
class _Burst:
    late: list[float]
    used: Used
    counted: Counted
    megabytes: float


def measure(stage: Stage) -> Measured:
    burst = _burst(stage)
    late = burst.late
    return {
        "first": min(late) * 1e3,
        "p50": percentile(late, 50) * 1e3,
        "p99": percentile(late, 99) * 1e3,
        "last": max(late) * 1e3,
        "rate": len(late) / max(late),
        **burst.used.each(stage.number),
        "memory": burst.megabytes,
    }


def measure_cost(stage: Stage) -> Measured:
    burst, count = _burst(counting(stage)), stage.number
    return {
        "statements": burst.counted.statements / count,
        "commits": burst.counted.commits / count,
        "bytes": burst.counted.written / count,
        **burst.used.each(count),
    }


def _burst(stage: Stage) -> _Burst:
    count, place = stage.number, stage.place
    first = stage.call("plan_herd", count, stage.size.ahead_seconds)
    place.settle()
    with stage.workers("work", count) as workers:
        workers.go()
        time.sleep(max(first - _READ_SECONDS - time.time(), 0))
        counted, before = Counted.by(workers, stage), Used.by(workers, place)
        with Watch(stage, workers) as watch:
            stage.wait_for(count, workers, _LATE_SECONDS, watch.glance)
            time.sleep(stage.size.end_seconds)
        used, counted = Used.by(workers, place).since(before), Counted.by(workers, stage).since(counted)
    stage.check(count)
    seen = stage.witnessed()
    late = [began - due for due, began in zip(seen.dues, seen.begans, strict=True)]
    check_none_early(late)
    return _Burst(late, used, counted, watch.megabytes)
