"""Whether a ledger gets slower with its years: the same work beside a short history and beside a long one.

Both are on the same server or disk, and take turns, each first in every other one, so that whatever slows the machine
down slows both. The long history is written by the database itself, up to today. First nodes execute a queue; then,
with nobody else there, schedules fire through the store alone, as in `fires`, of the app whose history it is.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.measure.fires import firing_in, timed_turn
from benchmarks.measure.throughput import execute
from benchmarks.order import by_turn
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.place import LedgerPlace

__all__ = ["FIGURES", "measure"]

_LENGTHS = ("short", "long")
FIGURES = (
    Figure("short", "short history", "runs/s"),
    Figure("long", "long history", "runs/s"),
    Figure("ratio", "long / short", "ratio"),
    *(Figure(f"{length}_{each.name}", f"{each.text}, {length}", each.unit) for length in _LENGTHS for each in CPU),
    Figure("fires_short", "short history", "fires/s"),
    Figure("fires_long", "long history", "fires/s"),
    Figure("fires_ratio", "fires, long / short", "ratio"),
    *(
        Figure(f"fires_{length}_{each.name}", f"{each.text}, {length}", "us a fire")
        for length in _LENGTHS
        for each in CPU
    ),
)


def measure(stage: Stage) -> Measured:
    with stage.another_place() as beside:
        stages = {"short": stage, "long": dataclasses.replace(stage, place=beside)}
        for name, rows in (("short", stage.size.small_history), ("long", stage.number)):
            asyncio.run(_migrate(stages[name].ledger))
            stages[name].ledger.add_history(rows)
        queued = _figures(_execute(stages))
        if stage.processes > 1:
            return queued
        # What the queue has left behind is not to be cleaned away while the fires are timed.
        for each in stages.values():
            each.place.settle()
        fired = in_fresh_process(fire_in, {name: each.ledger for name, each in stages.items()}, stage.size)
        for each in stages.values():
            each.ledger.check(stage.size.growth_turns * stage.size.growth_runs + _fires(stage.size))
    return {**queued, **{f"fires_{name}": samples for name, samples in _figures(fired).items()}}


# By the length of the history: of each turn how many there were in a second, and the processor time of each.
Turns = Mapping[str, list[dict[str, float]]]


def _figures(turns: Turns) -> dict[str, list[float]]:
    rates = {length: [turn["rate"] for turn in turns[length]] for length in _LENGTHS}
    used = {f"{length}_{each.name}": [turn[each.name] for turn in turns[length]] for length in _LENGTHS for each in CPU}
    ratios = [long / short for short, long in zip(rates["short"], rates["long"], strict=True)]
    return {**rates, "ratio": ratios, **used}


def _execute(stages: Mapping[str, Stage]) -> Turns:
    turns: dict[str, list[dict[str, float]]] = {length: [] for length in _LENGTHS}
    for turn in range(stages["short"].size.growth_turns):
        for length, stage in by_turn(turn, stages):
            runs = stage.size.growth_runs
            stage.call("fill", runs, 0)
            stage.place.settle()
            measured = execute(stage, runs, kept=turn * runs)
            turns[length].append({"rate": measured.pop("execute"), **measured})
    return turns


def fire_in(places: Mapping[str, LedgerPlace], size: Size) -> Turns:
    return loop.run(_fire(places, size))


async def _fire(places: Mapping[str, LedgerPlace], size: Size) -> Turns:
    turns: dict[str, list[dict[str, float]]] = {length: [] for length in _LENGTHS}
    fires = size.fired_schedules
    async with firing_in(places, schedules=fires, warm_up=fires) as firing:
        for turn in range(size.growth_turns):
            for length, place in by_turn(turn, places):
                seconds, used = await timed_turn(firing[length], place, fires)
                turns[length].append({"rate": fires / seconds, **used.each(fires)})
    return turns


def _fires(size: Size) -> int:
    """Of one ledger, with those that are not measured."""
    return (1 + size.growth_turns) * size.fired_schedules


async def _migrate(place: LedgerPlace) -> None:
    async with place.store():
        pass
