"""Runs per second of workers that find a full queue, and how fast it was filled: in bulk, and one by one.

One process fills it, however many workers there are, so how fast that was is told of one worker only; `enqueue.py` has
several.

The time is from the first execution to the last. Where there is a ledger it is longer: until the store wrote down the
last end of a run, for workers may be ahead of what is written. Starting is not in it, and neither is the commit of the
last batch, which is nothing beside tens of thousands of runs. Processor time is from when all are let go until what was
executed has ended, too: the half second after the last has begun. Whoever opens its store after that, as Evertick does,
is charged for it; the raw loops have connected before.
"""

from __future__ import annotations

import time

from benchmarks.figure import CPU, Figure, Measured
from benchmarks.stage import Stage
from benchmarks.used import Used

__all__ = ["FIGURES", "execute", "measure"]

FIGURES = (
    Figure("runs", "in the queue", "runs"),
    Figure("execute", "executed", "runs/s", has_ratio=True, better="more"),
    *CPU,
    Figure("bulk", "enqueued in bulk", "runs/s", has_ratio=True, better="more"),
    Figure("single", "one by one", "runs/s", has_ratio=True, better="more"),
)
# Nobody who is worth a figure takes longer than that for one run.
_SECONDS_PER_RUN = 0.1
# Before it is executed, a run is due no longer than that.
_DUE_SECONDS = 3_600


def measure(stage: Stage) -> Measured:
    runs = max(round(stage.number * stage.contender.share), 10)
    singles = max(round(stage.size.singles * min(stage.contender.share * 10, 1)), 1)
    took = stage.call("fill", runs, singles)
    stage.place.settle()
    measured = {"runs": runs + singles, **execute(stage, runs + singles)}
    if stage.processes > 1:
        return measured
    if "bulk_seconds" in took:
        measured["bulk"] = runs / took["bulk_seconds"]
    return {**measured, "single": singles / took["single_seconds"]}


def execute(stage: Stage, count: int, kept: int = 0) -> dict[str, float]:
    """Let the workers execute what is there, and check it; `kept` are runs that the ledger has from before."""
    stage.forget()
    with stage.workers("work", 0) as workers:
        workers.wait_until_ready()
        before = Used.by(workers, stage.place)
        workers.go()
        stage.wait_for(count, workers, 60 + count * _SECONDS_PER_RUN)
        time.sleep(stage.size.end_seconds)
        used = Used.by(workers, stage.place).since(before)
    stage.check(count, kept)
    return {"execute": count / _seconds(stage), **used.each(count)}


def _seconds(stage: Stage) -> float:
    seen = stage.witnessed()
    if not stage.contender.has_ledger:
        return seen.seconds
    first = min(seen.begans)
    return max(max(seen.begans), stage.ledger.last_written(round((first - _DUE_SECONDS) * 1e6))) - first
