"""Whether a ledger gets slower with its years: the same queue beside a short history and beside a long one.

Both are on the same server or disk, and nodes execute in both by turns, so that whatever slows the machine down slows
both. The long history is written by the database itself, up to today.
"""

from __future__ import annotations

import asyncio
import dataclasses

from benchmarks.figure import CPU, Figure, Measured
from benchmarks.measure.throughput import execute
from benchmarks.stage import Stage
from benchmarks.store.place import LedgerPlace

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("short", "short history", "runs/s"),
    Figure("long", "long history", "runs/s"),
    Figure("ratio", "long / short", "ratio"),
    *(Figure(f"short_{each.name}", f"{each.text}, short", each.unit) for each in CPU),
    *(Figure(f"long_{each.name}", f"{each.text}, long", each.unit) for each in CPU),
)


def measure(stage: Stage) -> Measured:
    rates: dict[str, list[float]] = {"short": [], "long": []}
    used: dict[str, list[float]] = {}
    with stage.another_place() as beside:
        stages = {"short": stage, "long": dataclasses.replace(stage, place=beside)}
        for name, rows in (("short", stage.size.small_history), ("long", stage.number)):
            asyncio.run(_migrate(stages[name].ledger))
            stages[name].ledger.add_history(rows)
        for turn in range(stage.size.growth_turns):
            for name, each in stages.items():
                each.call("fill", stage.size.growth_runs, 0)
                each.place.settle()
                measured = execute(each, stage.size.growth_runs, kept=turn * stage.size.growth_runs)
                rates[name].append(measured["execute"])
                for figure in CPU:
                    used.setdefault(f"{name}_{figure.name}", []).append(measured[figure.name])
    ratios = [long / short for short, long in zip(rates["short"], rates["long"], strict=True)]
    return {**rates, "ratio": ratios, **used}


async def _migrate(place: LedgerPlace) -> None:
    async with place.store():
        pass
