"""The effect of a long history: the same work beside a short history and beside a long one, in turns.

The database itself writes the long history, up to today. First nodes execute a queue; then, without nodes, schedules of
the same app fire through the store alone, as in `fires`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from benchmarks.backend.protocol import LedgerBackend
from benchmarks.contender import event_loop
from benchmarks.measure.fires import opened_loops, timed_turn
from benchmarks.measure.throughput import execute
from benchmarks.measurement import CPU, Measured, Metric, alternate
from benchmarks.processes import in_new_process
from benchmarks.size import Size
from benchmarks.trial import Trial

__all__ = ["METRICS", "measure"]

_LENGTHS = ("short", "long")
METRICS = (
    Metric("short", "short history", "runs/s"),
    Metric("long", "long history", "runs/s"),
    Metric("ratio", "long / short", "ratio"),
    *(Metric(f"{length}_{each.name}", f"{each.text}, {length}", each.unit) for length in _LENGTHS for each in CPU),
    Metric("fires_short", "short history", "fires/s"),
    Metric("fires_long", "long history", "fires/s"),
    Metric("fires_ratio", "fires, long / short", "ratio"),
    *(
        Metric(f"fires_{length}_{each.name}", f"{each.text}, {length}", "µs per fire")
        for length in _LENGTHS
        for each in CPU
    ),
)

# By length of the history: the rate and the processor time of each turn.
Turns = Mapping[str, list[dict[str, float]]]


def measure(trial: Trial) -> Measured:
    with trial.another_backend() as other:
        trials = {"short": trial, "long": dataclasses.replace(trial, backend=other)}
        for name, rows in (("short", trial.size.small_history), ("long", trial.number)):
            asyncio.run(_migrate(trials[name].ledger))
            trials[name].ledger.add_history(rows)
        executed = _metrics(_execute(trials))
        if trial.processes > 1:
            return executed
        # The dead rows of the queue must not be cleaned up while the fires are timed.
        for each in trials.values():
            each.backend.settle()
        fired = in_new_process(fire_in, {name: each.ledger for name, each in trials.items()}, trial.size)
        for each in trials.values():
            each.ledger.check(trial.size.growth_turns * trial.size.growth_runs + _fires(trial.size))
    return {**executed, **{f"fires_{name}": samples for name, samples in _metrics(fired).items()}}


def _metrics(turns: Turns) -> dict[str, list[float]]:
    rates = {length: [turn["rate"] for turn in turns[length]] for length in _LENGTHS}
    used = {f"{length}_{each.name}": [turn[each.name] for turn in turns[length]] for length in _LENGTHS for each in CPU}
    ratios = [long / short for short, long in zip(rates["short"], rates["long"], strict=True)]
    return {**rates, "ratio": ratios, **used}


def _execute(trials: Mapping[str, Trial]) -> Turns:
    turns: dict[str, list[dict[str, float]]] = {length: [] for length in _LENGTHS}
    for turn in range(trials["short"].size.growth_turns):
        for length, trial in alternate(turn, trials):
            runs = trial.size.growth_runs
            trial.call("fill", runs, 0)
            trial.backend.settle()
            measured = execute(trial, runs, existing=turn * runs)
            turns[length].append({"rate": measured.pop("execute"), **measured})
    return turns


def fire_in(backends: Mapping[str, LedgerBackend], size: Size) -> Turns:
    return event_loop.run(_fire(backends, size))


async def _fire(backends: Mapping[str, LedgerBackend], size: Size) -> Turns:
    turns: dict[str, list[dict[str, float]]] = {length: [] for length in _LENGTHS}
    fires = size.fired_schedules
    async with opened_loops(backends, schedules=fires, warm_up=fires) as loops:
        for turn in range(size.growth_turns):
            for length, backend in alternate(turn, backends):
                seconds, used = await timed_turn(loops[length], backend, fires)
                turns[length].append({"rate": fires / seconds, **used.each(fires)})
    return turns


def _fires(size: Size) -> int:
    """In one ledger, with the warm-up."""
    return (1 + size.growth_turns) * size.fired_schedules


async def _migrate(backend: LedgerBackend) -> None:
    async with backend.store():
        pass
