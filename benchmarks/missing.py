"""What the plan has and the results have not, in words: what a page would otherwise be silent about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.figure import Case, Measurement
from benchmarks.plan import PLAN
from benchmarks.results import Results
from benchmarks.table import STORE_TITLES, contender_title

__all__ = ["missing_of"]

# From the widest on: who lacks a whole store is not told of each of its cases.
_PARTS: tuple[Callable[[Case], str], ...] = (
    lambda case: f"on {STORE_TITLES[case.store]}",
    lambda case: f"{case.processes} process{'es' if case.processes > 1 else ''}",
    lambda case: _in_a_list(contender_title(case)),
    lambda case: case.variant,
    lambda case: f"{case.number:,}",
)


def _in_a_list(title: str) -> str:
    """Without a comma of its own."""
    name, _, how = title.partition(", ")
    return f"{name} ({how})" if how else name


def missing_of(results: Results, measurement: Measurement) -> str:
    """Of one measurement; nothing if all of it is there."""
    planned = [case for case in PLAN if case.measurement == measurement.name]
    # Who was tried and failed has a row, and is told of elsewhere.
    there = list(results.of(measurement.name))
    return "; ".join(_missing(planned, there, _PARTS, ())) if there else "all of it"


def _missing(
    planned: Sequence[Case], there: Sequence[Case], parts: Sequence[Callable[[Case], str]], within: Sequence[str]
) -> Iterator[str]:
    """Those parts of which nothing is there, and then what lacks in each of the others."""
    if not parts:
        return
    part, *finer = parts
    wanted, found = _by(part, planned), _by(part, there)
    lacking = [text for text in wanted if text not in found]
    if lacking:
        where = f"{', '.join(within)}: " if within else ""
        yield where + ", ".join(lacking)
    for text in (each for each in wanted if each in found):
        # What all have in common need not be said.
        deeper = [*within, text] if text and len(wanted) > 1 else within
        yield from _missing(wanted[text], found[text], finer, deeper)


def _by(part: Callable[[Case], str], cases: Sequence[Case]) -> dict[str, list[Case]]:
    by_text: dict[str, list[Case]] = {}
    for case in cases:
        by_text.setdefault(part(case), []).append(case)
    return by_text
