"""The time from the call that enqueues to the first line of the job, at a steady 50 calls a second.

`measure` calls from another process, `measure_alone` from the worker's own process.
"""

from __future__ import annotations

import time

from benchmarks.measurement import Measured, Metric, percentile
from benchmarks.trial import Trial
from benchmarks.usage import SHARES, UsageMonitor

__all__ = ["METRICS", "measure", "measure_alone"]

METRICS = (
    Metric("p50", "p50", "ms", has_ratio=True, better="less"),
    Metric("p99", "p99", "ms", has_ratio=True, better="less"),
    Metric("max", "max", "ms", better="less"),
    *SHARES,
)
PER_SECOND = 50
_LATE_SECONDS = 60


def measure(trial: Trial) -> Measured:
    count = round(trial.size.latency_seconds * PER_SECOND)
    trial.call("fill", 0, 1)  # creates the tables; the first run is a warm-up
    with trial.workers("work", 0) as workers:
        workers.go()
        trial.wait_for(1, workers, _LATE_SECONDS)
        time.sleep(trial.size.settle_seconds)
        with UsageMonitor(trial, workers) as monitor:
            trial.call("send", count, PER_SECOND)
            trial.wait_for(1 + count, workers, _LATE_SECONDS)
    return _metrics(trial, count, extra=1) | monitor.shares


def measure_alone(trial: Trial) -> Measured:
    count = round(trial.size.latency_seconds * PER_SECOND)
    with trial.workers("alone", count, PER_SECOND, trial.size.settle_seconds, count=1) as workers:
        workers.go()
        trial.wait_for(1, workers, _LATE_SECONDS)
        with UsageMonitor(trial, workers) as monitor:
            trial.wait_for(count, workers, trial.size.latency_seconds + _LATE_SECONDS)
    return _metrics(trial, count, extra=0) | monitor.shares


def _metrics(trial: Trial, count: int, extra: int) -> dict[str, float]:
    found = trial.executions()
    assert len(found.numbers) == count + extra, f"{len(found.numbers)} executions of {count + extra} runs"
    sent = [(n, began - due) for n, due, began in zip(found.numbers, found.dues, found.begans, strict=True) if due]
    assert sorted(number for number, _ in sent) == list(range(count)), "a run was lost, or ran twice"
    trial.check_store(count + extra)
    waits = [wait for _, wait in sent]
    return {"p50": percentile(waits, 50) * 1e3, "p99": percentile(waits, 99) * 1e3, "max": max(waits) * 1e3}
