"""Where others are better than Evertick, or the raw loop is: every such figure, from the file.

Of the same rounds where one run has measured both. Where different runs have, of their medians, in a table of its own:
it is weaker, but who measures Evertick alone once more does not lose sight of those that are better.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS, EVERTICK
from benchmarks.figure import Case, Figure
from benchmarks.plan import MEASUREMENTS
from benchmarks.results import Results, Samples, whole
from benchmarks.table import STORE_TITLES, contender_title, line, number_text, ratios

__all__ = ["largest_losses", "losses_by_runs_table", "losses_table"]

# Who takes part beside Evertick, by whatever settings.
_OTHERS = tuple(each.name for each in CONTENDERS if each.program != EVERTICK.program)
_RAW = "raw"
_MAXIMUM = "max"
# Times: below it, rounds that disagree about who is better have not found a difference. Above it, they have found one
# that is not always there, and it is told as a number.
_EQUAL = 1.5


@dataclass(frozen=True)
class _Loss:
    """`times` is how many times better: round by round, or once, of medians, where `runs` says whose they are."""

    case: Case
    figure: Figure
    other: Case
    ours: Sequence[float]
    theirs: Sequence[float]
    times: Sequence[float]
    runs: str = ""

    @property
    def is_in_every_round(self) -> bool:
        return min(self.times) > 1

    @property
    def what(self) -> str:
        case = self.case
        where = [MEASUREMENTS[case.measurement].title, STORE_TITLES[case.store] and f"on {STORE_TITLES[case.store]}"]
        where += [f"{case.processes} processes" if case.processes > 1 else "", case.variant]
        number = MEASUREMENTS[case.measurement].number_text
        where.append(f"{case.number:,} {number}" if number else "")
        return f"{', '.join(each for each in where if each)}: {self.figure.text}, {self.figure.unit}"

    @property
    def row(self) -> list[str]:
        median = statistics.median(self.times)
        is_equal = not self.is_in_every_round and median < _EQUAL
        times = "about equal" if is_equal else number_text(median)
        if len(self.times) > 1:
            times += f" [{number_text(min(self.times))}..{number_text(max(self.times))}]"
        theirs, ours = whole(self.theirs), whole(self.ours)
        medians = (number_text(statistics.median(each)) for each in (theirs, ours))
        rounds = f"{len(theirs)} and {len(ours)}" if self.runs else str(len(self.times))
        return [self.what, contender_title(self.other), *medians, times, rounds, *([self.runs] if self.runs else [])]


def largest_losses(results: Results, count: int) -> list[str]:
    """Of others within one run, where every round has it so: of each other the worst case of each figure.

    Without maxima, which one run of many decides.
    """
    worst: dict[tuple[str, str, str], _Loss] = {}
    for loss in _losses(results):
        if loss.other.contender != _RAW and loss.is_in_every_round and loss.figure.name != _MAXIMUM:
            key = (loss.case.measurement, loss.figure.name, loss.other.contender)
            worst[key] = max(loss, worst.get(key, loss), key=_median_times)
    largest = sorted(worst.values(), key=_median_times, reverse=True)[:count]
    return [
        f"{each.what} ({contender_title(each.other)} by {number_text(_median_times(each))} times)" for each in largest
    ]


def _median_times(loss: _Loss) -> float:
    return statistics.median(loss.times)


def losses_table(results: Results, *, is_raw: bool) -> str:
    """Within one run. In Markdown, of the raw loop or of all others; nothing if there is none."""
    return _table(_losses(results), is_raw=is_raw)


def losses_by_runs_table(results: Results, *, is_raw: bool) -> str:
    """The same of those that Evertick shares no run with."""
    return _table(_losses_by_runs(results), "runs", is_raw=is_raw)


def _table(losses: Iterable[_Loss], *columns: str, is_raw: bool) -> str:
    rows = [loss.row for loss in losses if (loss.other.contender == _RAW) == is_raw]
    if not rows:
        return ""
    head = ["", "who", "has", "Evertick has", "times better", "rounds", *columns]
    return "\n".join(line(row) for row in [head, ["---"] * len(head), *rows])


def _losses(results: Results) -> Iterator[_Loss]:
    for case, figure in _ours(results):
        ours = results.cases[case].get(figure.name, [])
        if figure.beside:
            raw = dataclasses.replace(case, contender=_RAW)
            yield from _loss(case, figure, raw, ours, results.cases[case].get(figure.beside, []))
        for other in _others(results, case):
            if results.are_of_one_run(case, other):
                yield from _loss(case, figure, other, ours, results.cases[other].get(figure.name, []))


def _losses_by_runs(results: Results) -> Iterator[_Loss]:
    for case, figure in _ours(results):
        ours = results.cases[case].get(figure.name, [])
        for other in _others(results, case):
            theirs = results.cases[other].get(figure.name, [])
            if whole(ours) and whole(theirs) and not results.are_of_one_run(case, other):
                medians = ([statistics.median(whole(each))] for each in (ours, theirs))
                for loss in _loss(case, figure, other, *medians):
                    yield dataclasses.replace(loss, ours=ours, theirs=theirs, runs=_runs_text(results, case, other))


def _runs_text(results: Results, case: Case, other: Case) -> str:
    """Whose is which, and whether they can be compared at all."""
    theirs, ours = results.run_of(other), results.run_of(case)
    is_same = results.runs[theirs - 1].cpu == results.runs[ours - 1].cpu
    return f"{theirs} and {ours}{'' if is_same else ', on different processors'}"


def _ours(results: Results) -> Iterator[tuple[Case, Figure]]:
    """All that others may be better at."""
    for name, measurement in MEASUREMENTS.items():
        for case in (each for each in results.of(name) if each.contender == EVERTICK.name):
            for figure in (each for each in measurement.figures if each.better):
                yield case, figure


def _others(results: Results, case: Case) -> Iterator[Case]:
    """At the same as that case."""
    for name in _OTHERS:
        other = dataclasses.replace(case, contender=name)
        if other in results.cases and _is_told(results.cases[other]):
            yield other


def _is_told(samples: Samples) -> bool:
    """Who has left moments behind is not better by those that began."""
    shares = whole(samples.get("share", []))
    return not shares or min(shares) >= 100


def _loss(case: Case, figure: Figure, other: Case, ours: Sequence[float], theirs: Sequence[float]) -> Iterator[_Loss]:
    """One, or none."""
    times = ratios(theirs, ours) if figure.better == "more" else ratios(ours, theirs)
    # What cannot be told apart from a draw in the digits that are shown is none.
    if times and float(number_text(statistics.median(times)).replace(",", "")) > 1:
        yield _Loss(case, figure, other, ours, theirs, times)
