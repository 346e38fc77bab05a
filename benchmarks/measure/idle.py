"""The cost of idle nodes with many schedules, none of which is due: processor time, statements, memory.

The schedules are added once, because that takes longer than the measurement. Nodes start and stop in turns.
"""

from __future__ import annotations

import time

from benchmarks.measurement import Measured, Metric
from benchmarks.trial import Trial
from benchmarks.usage import SHARES, Counters, UsageMonitor, counting

__all__ = ["METRICS", "measure"]

METRICS = (
    *SHARES,
    Metric("statements", "statements of all nodes", "a minute"),
    Metric("memory", "memory of all nodes", "MB"),
)
_FAR_SECONDS = 30 * 24 * 3_600


def measure(trial: Trial) -> Measured:
    trial = counting(trial)
    trial.call("plan_herd", trial.number, _FAR_SECONDS)
    trial.backend.settle()
    turns = [_turn(trial) for _ in range(trial.size.idle_turns)]
    assert trial.executed() == 0, "none of these schedules is due"
    return {metric.name: [turn[metric.name] for turn in turns] for metric in METRICS}


def _turn(trial: Trial) -> dict[str, float]:
    """With new nodes, whose caches are empty."""
    with trial.workers("work", trial.number) as workers:
        workers.go()
        time.sleep(trial.size.idle_settle_seconds)
        before = Counters.of_workers(workers, trial)
        began = time.perf_counter()
        with UsageMonitor(trial, workers) as monitor:
            monitor.watch_until(time.time() + trial.size.idle_seconds)
        took = time.perf_counter() - began
        counted = Counters.of_workers(workers, trial).since(before)
    return {**monitor.shares, "statements": counted.statements / took * 60, "memory": monitor.megabytes}
