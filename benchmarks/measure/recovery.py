"""Recovery: the time from the end of a node until another node has started its runs again.

Each run waits in its job until the node is gone. A killed node is declared dead when its lease has expired. A stopped
node releases its runs after its stop time. Processor time is that of the surviving node and the server, from the end of
the first node to the start of the last run.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable

from benchmarks.contender.verbs import HOLD
from benchmarks.measurement import Measured, Metric, percentile
from benchmarks.processes import Workers
from benchmarks.trial import Trial
from benchmarks.usage import SHARES, UsageMonitor

__all__ = ["METRICS", "measure_kill", "measure_stop"]

METRICS = (
    Metric("first", "first", "s"),
    Metric("p50", "p50", "s"),
    Metric("last", "last", "s"),
    *SHARES,
)
_LATE_SECONDS = 120
# The time between two heartbeats, as a share of the lease.
_BEAT_SHARE = 0.2


def measure_kill(trial: Trial) -> Measured:
    # A node that has just started declares no death for one lease. The time of the last heartbeat decides when the
    # lease expires, so each round kills the node at another point between two heartbeats.
    lease = trial.size.lease_seconds
    return _recover(trial, Workers.kill, wait_seconds=lease * 1.1 + random.uniform(0, lease * _BEAT_SHARE))


def measure_stop(trial: Trial) -> Measured:
    return _recover(trial, Workers.terminate, wait_seconds=trial.size.settle_seconds)


def _recover(trial: Trial, end: Callable[[Workers, int], None], wait_seconds: float) -> Measured:
    size, count = trial.size, trial.number
    options = {"lease": f"{size.lease_seconds}s", "stop_timeout": f"{size.stop_seconds}s"}
    trial = dataclasses.replace(trial, options=options)
    trial.call("fill_held", count)
    hold = trial.backend.folder / HOLD
    hold.touch()
    with trial.workers("work", 0, count=0) as workers:
        first = workers.add()
        workers.go()
        trial.wait_for(count, workers, _LATE_SECONDS)
        workers.add()
        workers.go()
        time.sleep(wait_seconds)
        ended_at = time.time()
        end(workers, first)
        with UsageMonitor(trial, workers) as monitor:
            trial.wait_for(2 * count, workers, _LATE_SECONDS)
        hold.unlink()
        trial.wait_for(2 * count, workers, _LATE_SECONDS)
        time.sleep(size.tail_seconds)
    found = trial.executions()
    found.check_each_once(count, times=2)
    trial.ledger.check(count)
    waits = [began - ended_at for began in found.begans if began > ended_at]
    return {"first": min(waits), "p50": percentile(waits, 50), "last": max(waits), **monitor.shares}
