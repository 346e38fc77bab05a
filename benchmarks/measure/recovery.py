"""How long work waits that a node had when it was killed, or stopped: until another node has begun it again.

Each run waits in its job until it may end, which is after the node is gone. Killed, the node is believed dead when its
lease has run out. Stopped, it gives its work back when the time is over that it has for ending. Processor time is that
of the node which goes on, and of the server, from the end of the other to the last run begun again.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable

from benchmarks.contender.verbs import HOLD
from benchmarks.figure import Figure, Measured
from benchmarks.processes import Workers
from benchmarks.spread import percentile
from benchmarks.stage import Stage
from benchmarks.watch import SHARES, Watch

__all__ = ["FIGURES", "measure_kill", "measure_stop"]

FIGURES = (
    Figure("first", "first", "s"),
    Figure("p50", "p50", "s"),
    Figure("last", "last", "s"),
    *SHARES,
)
_LATE_SECONDS = 120
# Of the lease: from one beat of a node to the next.
_BEAT_SHARE = 0.2


def measure_kill(stage: Stage) -> Measured:
    # Who has just begun judges nobody for one lease. How long ago the last beat was decides when it is over, so each
    # round ends the node at another moment between two beats.
    lease = stage.size.lease_seconds
    return _dispatched(stage, Workers.kill, wait_seconds=lease * 1.1 + random.uniform(0, lease * _BEAT_SHARE))


def measure_stop(stage: Stage) -> Measured:
    return _dispatched(stage, Workers.terminate, wait_seconds=stage.size.settle_seconds)


def _dispatched(stage: Stage, end: Callable[[Workers, int], None], wait_seconds: float) -> Measured:
    size, count = stage.size, stage.number
    options = {"lease": f"{size.lease_seconds}s", "stop_timeout": f"{size.stop_seconds}s"}
    stage = dataclasses.replace(stage, options=options)
    stage.call("fill_held", count)
    hold = stage.place.folder / HOLD
    hold.touch()
    with stage.workers("work", 0, count=0) as workers:
        leaving = workers.add()
        workers.go()
        stage.wait_for(count, workers, _LATE_SECONDS)
        workers.add()
        workers.go()
        time.sleep(wait_seconds)
        ended_at = time.time()
        end(workers, leaving)
        with Watch(stage, workers) as watch:
            stage.wait_for(2 * count, workers, _LATE_SECONDS)
        hold.unlink()
        stage.wait_for(2 * count, workers, _LATE_SECONDS)
        time.sleep(size.tail_seconds)
    seen = stage.witnessed()
    seen.check_each_once(count, times=2)
    stage.ledger.check(count)
    waits = [began - ended_at for began in seen.begans if began > ended_at]
    return {"first": min(waits), "p50": percentile(waits, 50), "last": max(waits), **watch.shares}
