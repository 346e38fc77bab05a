"""Fires through the store while somebody holds a transaction open: how much slower that makes it, the longer it lasts.

On PostgreSQL no row that dies meanwhile can be cleaned away; on SQLite the log grows, because nothing may be moved out
of it. The same fires go on at a second place where nobody holds anything, by turns, so that whatever slows the machine
down slows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.measure.fires import firing_in, timed_turn
from benchmarks.order import by_turn
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.place import LedgerPlace
from benchmarks.used import Used

__all__ = ["FIGURES", "figures_of", "measure"]

_HELD, _FREE = "held", "free"
FIGURES = (
    Figure(_HELD, "with it, at its end", "fires/s"),
    Figure(_FREE, "without it, meanwhile", "fires/s"),
    Figure("ratio", "with / without, at its end", "ratio"),
    Figure("begin_ratio", "with / without, at its beginning", "ratio"),
    *(Figure(f"{_HELD}_{each.name}", f"{each.text}, with it", each.unit) for each in CPU),
    *(Figure(f"{_FREE}_{each.name}", f"{each.text}, without it", each.unit) for each in CPU),
)
# The share of the turns at each end that is looked at.
_SHARE = 6

# By place: what each turn of fires took, in seconds and in processor time.
Turns = Mapping[str, list[tuple[float, Used]]]


def measure(stage: Stage) -> Measured:
    with stage.another_place() as beside:
        places = {_HELD: stage.ledger, _FREE: dataclasses.replace(stage, place=beside).ledger}
        turns = in_fresh_process(fire_in, places, stage.number, stage.size)
        for name, place in places.items():
            # The first of all was not measured.
            place.check((1 + len(turns[name])) * stage.size.fires_turn)
    return figures_of(turns, stage.size.fires_turn)


def figures_of(turns: Turns, fires: int) -> dict[str, float]:
    some = max(len(turns[_HELD]) // _SHARE, 1)
    begin = {name: _rate(each[:some], fires) for name, each in turns.items()}
    end = {name: _rate(each[-some:], fires) for name, each in turns.items()}
    used = {
        f"{name}_{figure}": value
        for name, each in turns.items()
        for figure, value in _together(each).each(len(each) * fires).items()
    }
    return {**end, "ratio": end[_HELD] / end[_FREE], "begin_ratio": begin[_HELD] / begin[_FREE], **used}


def _rate(turns: list[tuple[float, Used]], fires: int) -> float:
    return len(turns) * fires / sum(seconds for seconds, _ in turns)


def _together(turns: list[tuple[float, Used]]) -> Used:
    return Used(sum(used.node for _, used in turns), sum(used.server for _, used in turns))


def fire_in(places: Mapping[str, LedgerPlace], schedules: int, size: Size) -> Turns:
    return loop.run(_fire(places, schedules, size))


async def _fire(places: Mapping[str, LedgerPlace], schedules: int, size: Size) -> Turns:
    turns: dict[str, list[tuple[float, Used]]] = {name: [] for name in places}
    async with firing_in(places, schedules, size.fires_turn) as firing, places[_HELD].held_open():
        while sum(seconds for seconds, _ in turns[_HELD]) < size.held_open_seconds:
            for name, place in by_turn(len(turns[_HELD]), places):
                turns[name].append(await timed_turn(firing[name], place, size.fires_turn))
    return turns
