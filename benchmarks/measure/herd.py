"""Schedules that are all due at one instant: how late the first and the last began, and what it costs per fire.

The cost is what the server has counted from before the instant until the node has stopped, by the number of fires; on
SQLite, where there is no server, what the node has written to the disk.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.figure import CPU, Figure, Measured
from benchmarks.spread import percentile
from benchmarks.stage import Stage
from benchmarks.store import meter
from benchmarks.store.postgres import PostgresPlace

__all__ = ["COST_FIGURES", "FIGURES", "measure", "measure_cost"]

FIGURES = (
    Figure("first", "first late", "ms"),
    Figure("p50", "late p50", "ms"),
    Figure("last", "last late", "ms"),
    Figure("rate", "fires", "fires/s"),
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
    node_seconds: float
    server_seconds: float
    written: int
    counted: meter.Reading | None


def measure(stage: Stage) -> Measured:
    late = _burst(stage).late
    return {
        "first": min(late) * 1e3,
        "p50": percentile(late, 50) * 1e3,
        "last": max(late) * 1e3,
        "rate": len(late) / max(late),
    }


def measure_cost(stage: Stage) -> Measured:
    burst, count = _burst(stage), stage.number
    used = {"node_us": burst.node_seconds / count * 1e6, "server_us": burst.server_seconds / count * 1e6}
    if burst.counted is None:
        return {"bytes": burst.written / count, **used}
    return {
        "statements": burst.counted.statements / count,
        "commits": burst.counted.commits / count,
        "bytes": burst.counted.log_bytes / count,
        **used,
    }


def _burst(stage: Stage) -> _Burst:
    count, place = stage.number, stage.place
    first = stage.call("plan_herd", count, stage.size.ahead_seconds)
    place.settle()
    with stage.workers("work", count) as workers:
        workers.go()
        time.sleep(max(first - _READ_SECONDS - time.time(), 0))
        counted = meter.read(place) if isinstance(place, PostgresPlace) else None
        node, written, server = workers.seconds(), workers.bytes_written(), place.server_seconds()
        stage.wait_for(count, workers, _LATE_SECONDS)
        node, written = workers.seconds() - node, workers.bytes_written() - written
    if isinstance(place, PostgresPlace) and counted is not None:
        counted = meter.read(place).since(counted)
    server = place.server_seconds() - server
    stage.check(count)
    seen = stage.witnessed()
    late = [began - due for due, began in zip(seen.dues, seen.begans, strict=True)]
    return _Burst(late, node, server, written, counted)
