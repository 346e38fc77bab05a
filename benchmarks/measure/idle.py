"""What nodes cost that have many schedules and nothing to do: processor time, statements, memory."""

from __future__ import annotations

import time

from benchmarks.figure import Figure, Measured
from benchmarks.stage import Stage
from benchmarks.store import meter
from benchmarks.store.postgres import PostgresPlace
from benchmarks.watch import SHARES, Watch

__all__ = ["FIGURES", "measure"]

FIGURES = (
    *SHARES,
    Figure("statements", "statements of all nodes", "a minute"),
    Figure("memory", "memory of all nodes", "MB"),
)
_FAR_SECONDS = 30 * 24 * 3_600


def measure(stage: Stage) -> Measured:
    place = stage.place
    stage.call("plan_herd", stage.number, _FAR_SECONDS)
    place.settle()
    with stage.workers("work", stage.number) as workers:
        workers.go()
        time.sleep(stage.size.settle_seconds)
        before = meter.read(place) if isinstance(place, PostgresPlace) else None
        began = time.perf_counter()
        with Watch(stage, workers) as watch:
            watch.look_until(time.time() + stage.size.idle_seconds)
        took = time.perf_counter() - began
        used = meter.read(place).since(before) if isinstance(place, PostgresPlace) and before else None
    assert stage.executed() == 0, "none of these schedules is due"
    statements = {} if used is None else {"statements": used.statements / took * 60}
    return {**watch.shares, **statements, "memory": watch.megabytes}
