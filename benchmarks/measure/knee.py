"""The knee: the highest rate of fires that a node sustains.

A step is sustained if all fires started in their period and the p99 lateness is below two seconds. All steps have a
short preview. Rounds take minutes, so only the steps near the knee get them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.contender.contenders import EVERTICK
from benchmarks.measure.schedules import watch_schedules
from benchmarks.measurement import Case, Measured
from benchmarks.samples import Results, Samples, present
from benchmarks.trial import Trial

__all__ = ["LATE_MS", "Knee", "is_near", "knee_of", "knee_of_one_node", "measure"]

_SHARE_LEAST = 100
# The limit of the p99 lateness.
LATE_MS = 2_000
# Another round could move the knee by that many steps, up or down.
_NEAR = 2


def measure(trial: Trial) -> Measured:
    """The same as schedules once a minute, with a period of a few seconds."""
    period = trial.size.knee_period
    periods = trial.size.preview_periods if trial.is_preview else trial.size.knee_periods
    return watch_schedules(trial, trial.number * period, period, periods)


@dataclass(frozen=True)
class Knee:
    """`last` is the highest step below which none failed, `failed` the next one; either may be missing."""

    last: Case | None
    failed: Case | None

    def excludes(self, per_second: float) -> str:
        """A text if the knee is below that rate and was found; else empty."""
        if self.last is None or self.failed is None or self.last.number >= per_second:
            return ""
        return f"one node sustains {self.last.number:,} and not {self.failed.number:,}"


def knee_of(results: Results, steps: Iterable[Case]) -> Knee:
    """By the medians."""
    ordered = _in_order(steps)
    count = _sustained(results, ordered)
    last = ordered[count - 1] if count else None
    return Knee(last, ordered[count] if count < len(ordered) else None)


def knee_of_one_node(results: Results, store: str) -> Knee:
    """The knee of Evertick with one process; without steps if there are no results."""
    wanted = (store, EVERTICK.name, 1)
    return knee_of(
        results, (case for case in results.of("knee") if (case.store, case.contender, case.processes) == wanted)
    )


def is_near(case: Case, results: Results) -> bool:
    """Whether the step is near the knee by the rounds so far; true if it has no results."""
    if case not in results.cases:
        return True
    steps = _in_order(each for each in results.of(case.measurement) if _without_number(each) == _without_number(case))
    knee = _sustained(results, steps)
    return case in steps[max(knee - _NEAR, 0) : knee + _NEAR]


def _sustained(results: Results, ordered: list[Case]) -> int:
    """The number of steps before the first that is not sustained."""
    failed = (at for at, case in enumerate(ordered) if not _is_sustained(results.cases[case]))
    return next(failed, len(ordered))


def _is_sustained(samples: Samples) -> bool:
    shares, late = (present(samples.get(name, [])) for name in ("share", "p99"))
    if not shares or not late:
        return False
    return statistics.median(shares) >= _SHARE_LEAST and statistics.median(late) < LATE_MS


def _in_order(steps: Iterable[Case]) -> list[Case]:
    return sorted(steps, key=lambda case: case.number)


def _without_number(case: Case) -> Case:
    """The parts that all steps of a knee share."""
    return dataclasses.replace(case, number=0)
