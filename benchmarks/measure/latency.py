"""From the call that enqueues to the first line of the job, at a steady 50 a second.

Once from another process, whose work the worker has to notice by itself, and once from the worker's own.
"""

from __future__ import annotations

import time

from benchmarks.figure import Figure, Measured
from benchmarks.spread import percentile
from benchmarks.stage import Stage
from benchmarks.watch import SHARES, Watch

__all__ = ["FIGURES", "measure", "measure_alone"]

FIGURES = (
    Figure("p50", "p50", "ms", has_ratio=True, better="less"),
    Figure("p99", "p99", "ms", has_ratio=True, better="less"),
    Figure("max", "max", "ms", better="less"),
    *SHARES,
)
PER_SECOND = 50
_LATE_SECONDS = 60


def measure(stage: Stage) -> Measured:
    count = round(stage.size.latency_seconds * PER_SECOND)
    stage.call("fill", 0, 1)  # makes the tables, and the first run is not like the others
    with stage.workers("work", 0) as workers:
        workers.go()
        stage.wait_for(1, workers, _LATE_SECONDS)
        time.sleep(stage.size.settle_seconds)
        with Watch(stage, workers) as watch:
            stage.call("send", count, PER_SECOND)
            stage.wait_for(1 + count, workers, _LATE_SECONDS)
    return _figures(stage, count, extra=1) | watch.shares


def measure_alone(stage: Stage) -> Measured:
    count = round(stage.size.latency_seconds * PER_SECOND)
    with stage.workers("alone", count, PER_SECOND, stage.size.settle_seconds, count=1) as workers:
        workers.go()
        stage.wait_for(1, workers, _LATE_SECONDS)
        with Watch(stage, workers) as watch:
            stage.wait_for(count, workers, stage.size.latency_seconds + _LATE_SECONDS)
    return _figures(stage, count, extra=0) | watch.shares


def _figures(stage: Stage, count: int, extra: int) -> dict[str, float]:
    seen = stage.witnessed()
    assert len(seen.numbers) == count + extra, f"{len(seen.numbers)} executions of {count + extra} runs"
    sent = [(n, began - due) for n, due, began in zip(seen.numbers, seen.dues, seen.begans, strict=True) if due]
    assert sorted(number for number, _ in sent) == list(range(count)), "a run was lost, or ran twice"
    stage.check_store(count + extra)
    waits = [wait for _, wait in sent]
    return {"p50": percentile(waits, 50) * 1e3, "p99": percentile(waits, 99) * 1e3, "max": max(waits) * 1e3}
