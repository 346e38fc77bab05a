"""Fires through the store while a transaction stays open: the slowdown at its beginning and at its end.

On PostgreSQL, vacuum cannot remove rows that die meanwhile; on SQLite, the log grows because it cannot be checkpointed.
The same fires run in turns on a second backend without an open transaction, so that a slow minute of the machine slows
both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.backend.protocol import LedgerBackend
from benchmarks.contender import event_loop
from benchmarks.measure.fires import opened_loops, timed_turn
from benchmarks.measurement import CPU, Measured, Metric, alternate
from benchmarks.processes import in_new_process
from benchmarks.size import Size
from benchmarks.trial import Trial
from benchmarks.usage import CpuTime

__all__ = ["METRICS", "measure", "metrics_of"]

_WITH, _WITHOUT = "with", "without"
METRICS = (
    Metric(_WITH, "with it, at the end", "fires/s"),
    Metric(_WITHOUT, "without it, meanwhile", "fires/s"),
    Metric("ratio", "with / without, at the end", "ratio"),
    Metric("begin_ratio", "with / without, at the beginning", "ratio"),
    *(
        Metric(f"{side}_{each.name}", f"{each.text}, {side} it", each.unit)
        for side in (_WITH, _WITHOUT)
        for each in CPU
    ),
)
# The share of the turns that counts as beginning and as end.
_SHARE = 6

# For each side: the seconds and the processor time of each turn.
Turns = Mapping[str, list[tuple[float, CpuTime]]]


def measure(trial: Trial) -> Measured:
    with trial.another_backend() as other:
        backends = {_WITH: trial.ledger, _WITHOUT: dataclasses.replace(trial, backend=other).ledger}
        turns = in_new_process(fire_in, backends, trial.number, trial.size)
        for name, backend in backends.items():
            # With the turn of the warm-up.
            backend.check((1 + len(turns[name])) * trial.size.fires_turn)
    return metrics_of(turns, trial.size.fires_turn)


def metrics_of(turns: Turns, fires: int) -> dict[str, float]:
    some = max(len(turns[_WITH]) // _SHARE, 1)
    begin = {name: _rate(each[:some], fires) for name, each in turns.items()}
    end = {name: _rate(each[-some:], fires) for name, each in turns.items()}
    used = {
        f"{name}_{metric}": value
        for name, each in turns.items()
        for metric, value in _sum(each).each(len(each) * fires).items()
    }
    return {**end, "ratio": end[_WITH] / end[_WITHOUT], "begin_ratio": begin[_WITH] / begin[_WITHOUT], **used}


def _rate(turns: list[tuple[float, CpuTime]], fires: int) -> float:
    return len(turns) * fires / sum(seconds for seconds, _ in turns)


def _sum(turns: list[tuple[float, CpuTime]]) -> CpuTime:
    return CpuTime(sum(used.node for _, used in turns), sum(used.server for _, used in turns))


def fire_in(backends: Mapping[str, LedgerBackend], schedules: int, size: Size) -> Turns:
    return event_loop.run(_fire(backends, schedules, size))


async def _fire(backends: Mapping[str, LedgerBackend], schedules: int, size: Size) -> Turns:
    turns: dict[str, list[tuple[float, CpuTime]]] = {name: [] for name in backends}
    async with opened_loops(backends, schedules, size.fires_turn) as loops, backends[_WITH].open_transaction():
        while sum(seconds for seconds, _ in turns[_WITH]) < size.open_transaction_seconds:
            for name, backend in alternate(len(turns[_WITH]), backends):
                turns[name].append(await timed_turn(loops[name], backend, size.fires_turn))
    return turns
