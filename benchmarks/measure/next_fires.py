"""Moments of cron expressions per second, one after the other from the same day, in a zone with summer time."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured
from benchmarks.stage import Stage

__all__ = ["EXPRESSIONS", "FIGURES", "measure"]

EXPRESSIONS = {"often": "*/5 * * * *", "weekdays": "0 9 * * 1-5", "leap": "0 0 29 2 *"}
FIGURES = tuple(Figure(name, f"`{text}`", "moments/s") for name, text in EXPRESSIONS.items())
# A leap day is four years away from the next; nobody shall walk through millennia.
_RARE = 10


def measure(stage: Stage) -> Measured:
    counts = {text: _RARE if name == "leap" else stage.number for name, text in EXPRESSIONS.items()}
    seconds = stage.call("next_fires", counts)
    return {name: counts[text] / seconds[text] for name, text in EXPRESSIONS.items()}
