"""A herd: schedules that are all due at one instant. The lateness of the first and the last, and the cost of a fire.

The cost is counted from before the instant until the runs have ended, for each fire: statements, commits, bytes of the
write-ahead log (on SQLite, all bytes that the node wrote to the disk) and processor time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.measure.schedules import check_none_early
from benchmarks.measurement import CPU, Measured, Metric, percentile
from benchmarks.trial import Trial
from benchmarks.usage import Counters, CpuTime, UsageMonitor, counting

__all__ = ["COST_METRICS", "METRICS", "measure", "measure_cost"]

METRICS = (
    Metric("first", "lateness of the first", "ms"),
    Metric("p50", "lateness p50", "ms"),
    Metric("p99", "lateness p99", "ms"),
    Metric("last", "lateness of the last", "ms"),
    Metric("rate", "fires", "fires/s"),
    *CPU,
    Metric("memory", "memory of all nodes", "MB"),
)
COST_METRICS = (
    Metric("statements", "statements", "per fire"),
    Metric("commits", "commits", "per fire"),
    Metric("bytes", "WAL or file", "bytes per fire"),
    *CPU,
)
_LATE_SECONDS = 300
# The counters are read this long before the instant, when all workers wait.
_READ_AHEAD_SECONDS = 0.3


@dataclass(frozen=True)
class _Herd:
    late: list[float]
    used: CpuTime
    counted: Counters
    megabytes: float


def measure(trial: Trial) -> Measured:
    herd = _fire(trial)
    late = herd.late
    return {
        "first": min(late) * 1e3,
        "p50": percentile(late, 50) * 1e3,
        "p99": percentile(late, 99) * 1e3,
        "last": max(late) * 1e3,
        "rate": len(late) / max(late),
        **herd.used.each(trial.number),
        "memory": herd.megabytes,
    }


def measure_cost(trial: Trial) -> Measured:
    herd, count = _fire(counting(trial)), trial.number
    return {
        "statements": herd.counted.statements / count,
        "commits": herd.counted.commits / count,
        "bytes": herd.counted.bytes / count,
        **herd.used.each(count),
    }


def _fire(trial: Trial) -> _Herd:
    count, backend = trial.number, trial.backend
    first = trial.call("plan_herd", count, trial.size.ahead_seconds)
    backend.settle()
    with trial.workers("work", count) as workers:
        workers.go()
        time.sleep(max(first - _READ_AHEAD_SECONDS - time.time(), 0))
        counted, used = Counters.of_workers(workers, trial), CpuTime.of_workers(workers, backend)
        with UsageMonitor(trial, workers) as monitor:
            trial.wait_for(count, workers, _LATE_SECONDS, monitor.poll)
            time.sleep(trial.size.end_seconds)
        used = CpuTime.of_workers(workers, backend).since(used)
        counted = Counters.of_workers(workers, trial).since(counted)
    trial.check(count)
    found = trial.executions()
    late = [began - due for due, began in zip(found.dues, found.begans, strict=True)]
    check_none_early(late)
    return _Herd(late, used, counted, monitor.megabytes)
