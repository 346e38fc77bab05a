"""The cost of limits: three nodes and a queue of no-op runs whose task has a limit."""

from __future__ import annotations

import dataclasses

from benchmarks.measure.throughput import execute
from benchmarks.measurement import CPU, Measured, Metric
from benchmarks.trial import Trial
from benchmarks.usage import Counters

__all__ = ["LIMITS", "METRICS", "NOT_REACHED", "NO_LIMIT", "measure"]

METRICS = (
    Metric("execute", "executed", "runs/s"),
    Metric("statements", "statements", "per run"),
    *CPU,
)
_SLOTS = 100
NO_LIMIT, NOT_REACHED = "no limit", "a concurrency that is not reached"
# Options of the task, by variant.
LIMITS: dict[str, dict[str, object]] = {
    NO_LIMIT: {},
    NOT_REACHED: {"concurrency": 10_000},
    "a concurrency of 10": {"concurrency": 10},
    "a concurrency of 10 for each key": {"concurrency": 10, "concurrency_key": "{key}"},
    "a rate that is not reached": {"rate": "100000/s"},
}


def measure(trial: Trial) -> Measured:
    limit = {"concurrency": _SLOTS, "task": LIMITS[trial.variant], "keys": trial.size.keys}
    trial = dataclasses.replace(trial, options=limit)
    trial.call("fill", trial.number, 0)
    trial.backend.settle()
    before = Counters.of_server(trial)
    measured = execute(trial, trial.number)
    after = Counters.of_server(trial)
    if before and after:
        measured["statements"] = after.since(before).statements / trial.number
    return measured
