"""Where more and more fires a second do not hold any more: the step before it is the knee.

A step holds if all fires began in their period, and 99 % of them less than two seconds late. All steps are looked at
briefly. Those that are far from the knee need no second look, and each takes minutes: the rounds have those around it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.contender.contenders import EVERTICK
from benchmarks.figure import Case
from benchmarks.results import Results, Samples, whole

__all__ = ["LATE_MS", "Knee", "is_near", "knee_of", "knee_of_one_node"]

_SHARE_LEAST = 100
# What 99 % are to stay below.
LATE_MS = 2_000
# Steps that more rounds could turn into the knee: so many of those that hold, and so many of those that do not.
_NEAR = 2


@dataclass(frozen=True)
class Knee:
    """`last` is the highest step below which none failed, `failed` the next one; there may be no such."""

    last: Case | None
    failed: Case | None

    def most_below(self, per_second: float) -> int | None:
        """How many a second hold, where it was seen that so many do not."""
        is_seen = self.failed is not None and self.failed.number <= per_second
        return self.last.number if is_seen and self.last is not None else None


def knee_of(results: Results, steps: Iterable[Case]) -> Knee:
    """By the medians."""
    ordered = _in_order(steps)
    count = _holding(results, ordered)
    last = ordered[count - 1] if count else None
    return Knee(last, ordered[count] if count < len(ordered) else None)


def knee_of_one_node(results: Results, store: str) -> Knee:
    """Of Evertick, as the page tells it; without any step where it was not looked for."""
    wanted = (store, EVERTICK.name, 1)
    return knee_of(
        results, (case for case in results.of("knee") if (case.store, case.contender, case.processes) == wanted)
    )


def is_near(case: Case, results: Results) -> bool:
    """By the rounds so far: where a later one moves the knee, the steps that it moves to are looked at.

    Of a step that nobody has looked at it is not known.
    """
    if case not in results.cases:
        return True
    steps = _in_order(each for each in results.of(case.measurement) if _alike(each) == _alike(case))
    knee = _holding(results, steps)
    return case in steps[max(knee - _NEAR, 0) : knee + _NEAR]


def _holding(results: Results, ordered: list[Case]) -> int:
    """How many hold before the first that does not."""
    return next((at for at, case in enumerate(ordered) if not _holds(results.cases[case])), len(ordered))


def _holds(samples: Samples) -> bool:
    shares, late = (whole(samples.get(name, [])) for name in ("share", "p99"))
    if not shares or not late:
        return False
    return statistics.median(shares) >= _SHARE_LEAST and statistics.median(late) < LATE_MS


def _in_order(steps: Iterable[Case]) -> list[Case]:
    return sorted(steps, key=lambda case: case.number)


def _alike(case: Case) -> Case:
    """What all steps of one knee have in common."""
    return dataclasses.replace(case, number=0)
