"""What nodes cost that have many schedules and nothing to do: processor time, statements, memory.

Adding a million schedules takes longer than watching nobody fire them, and nobody changes any: so they are added once,
and nodes come and go beside them, turn by turn.
"""

from __future__ import annotations

import time

from benchmarks.counted import Counted, counting
from benchmarks.figure import Figure, Measured
from benchmarks.stage import Stage
from benchmarks.watch import SHARES, Watch

__all__ = ["FIGURES", "measure"]

FIGURES = (
    *SHARES,
    Figure("statements", "statements of all nodes", "a minute"),
    Figure("memory", "memory of all nodes", "MB"),
)
_FAR_SECONDS = 30 * 24 * 3_600


def measure(stage: Stage) -> Measured:
    stage = counting(stage)
    stage.call("plan_herd", stage.number, _FAR_SECONDS)
    stage.place.settle()
    turns = [_turn(stage) for _ in range(stage.size.idle_turns)]
    assert stage.executed() == 0, "none of these schedules is due"
    return {figure.name: [turn[figure.name] for turn in turns] for figure in FIGURES}


def _turn(stage: Stage) -> dict[str, float]:
    """Of new nodes, which know nothing of those before."""
    with stage.workers("work", stage.number) as workers:
        workers.go()
        time.sleep(stage.size.idle_settle_seconds)
        before = Counted.by(workers, stage)
        began = time.perf_counter()
        with Watch(stage, workers) as watch:
            watch.look_until(time.time() + stage.size.idle_seconds)
        took = time.perf_counter() - began
        counted = Counted.by(workers, stage).since(before)
    return {**watch.shares, "statements": counted.statements / took * 60, "memory": watch.megabytes}
