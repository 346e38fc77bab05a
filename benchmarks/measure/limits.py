"""Limits under load: nodes in processes of their own, and a queue of runs that all want the same.

Jobs do nothing, so what is measured is the price of passing the limit: with one key all nodes meet at it.
"""

from __future__ import annotations

import dataclasses

from benchmarks.figure import CPU, Figure, Measured
from benchmarks.measure.throughput import execute
from benchmarks.stage import Stage
from benchmarks.store import meter
from benchmarks.store.postgres import PostgresPlace

__all__ = ["FIGURES", "LIMITS", "NOT_REACHED", "NO_LIMIT", "measure"]

FIGURES = (
    Figure("execute", "executed", "runs/s"),
    Figure("statements", "statements", "per run"),
    *CPU,
)
_SLOTS = 100
NO_LIMIT, NOT_REACHED = "no limit", "a concurrency that is not reached"
# What the task is given, by the name of the case.
LIMITS: dict[str, dict[str, object]] = {
    NO_LIMIT: {},
    NOT_REACHED: {"concurrency": 10_000},
    "a concurrency of 10": {"concurrency": 10},
    "a concurrency of 10 for each key": {"concurrency": 10, "concurrency_key": "{key}"},
    "a rate that is not reached": {"rate": "100000/s"},
}


def measure(stage: Stage) -> Measured:
    limit = {"concurrency": _SLOTS, "task": LIMITS[stage.variant], "keys": stage.size.keys}
    stage = dataclasses.replace(stage, options=limit)
    place = stage.place
    stage.call("fill", stage.number, 0)
    place.settle()
    before = meter.read(place) if isinstance(place, PostgresPlace) else None
    measured = execute(stage, stage.number)
    if isinstance(place, PostgresPlace) and before is not None:
        measured["statements"] = meter.read(place).since(before).statements / stage.number
    return measured
