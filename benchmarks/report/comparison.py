"""The metrics at which another contender or the raw loop is better than Evertick.

Samples of the same run are compared round by round. Results of different runs are compared by their medians and kept in
a separate table, because they are weaker evidence.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS, EVERTICK
from benchmarks.measurement import Case, Metric
from benchmarks.plan import MEASUREMENTS
from benchmarks.report.text import STORE_TITLES, contender_title, number_text, range_text, table
from benchmarks.samples import Results, Samples, present

__all__ = ["Loss", "comparison_table", "cross_run_table", "ratios", "worst_losses"]

# All contenders but Evertick and its variants.
_OTHERS = tuple(each.name for each in CONTENDERS if each.program != EVERTICK.program)
_RAW = "raw"
_MAXIMUM = "max"
# Below this ratio, rounds that disagree about the better one show no difference.
_EQUAL = 1.5


@dataclass(frozen=True)
class Loss:
    """`times` has the ratio of each round, or one ratio of medians if `runs` names two runs."""

    case: Case
    metric: Metric
    other: Case
    ours: Sequence[float]
    theirs: Sequence[float]
    times: Sequence[float]
    runs: str = ""

    @property
    def is_in_every_round(self) -> bool:
        return min(self.times) > 1

    @property
    def median_times(self) -> float:
        return statistics.median(self.times)

    @property
    def title(self) -> str:
        case = self.case
        words = [MEASUREMENTS[case.measurement].title, STORE_TITLES[case.store]]
        words += [f"{case.processes} processes" if case.processes > 1 else "", case.variant]
        number = MEASUREMENTS[case.measurement].number_text
        words.append(f"{case.number:,} {number}" if number else "")
        return f"{', '.join(each for each in words if each)}: {self.metric.text}, {self.metric.unit}"

    @property
    def cells(self) -> list[str]:
        is_equal = not self.is_in_every_round and self.median_times < _EQUAL
        times = "about equal" if is_equal else number_text(self.median_times)
        if len(self.times) > 1:
            times += f" {range_text(number_text(min(self.times)), number_text(max(self.times)))}"
        rounds = f"{len(present(self.theirs))} and {len(present(self.ours))}" if self.runs else str(len(self.times))
        return [self.title, contender_title(self.other), *self.medians, times, rounds, *([self.runs] * bool(self.runs))]

    @property
    def medians(self) -> list[str]:
        """Theirs and ours."""
        return [number_text(statistics.median(present(each))) for each in (self.theirs, self.ours)]


def worst_losses(results: Results) -> list[Loss]:
    """The losses to peers in every round of one run: for each metric and peer the worst case, the worst first.

    Maxima are left out, because a single run decides them.
    """
    worst: dict[tuple[str, str, str], Loss] = {}
    for loss in _losses(results):
        if loss.other.contender != _RAW and loss.is_in_every_round and loss.metric.name != _MAXIMUM:
            key = (loss.case.measurement, loss.metric.name, loss.other.contender)
            worst[key] = max(loss, worst.get(key, loss), key=lambda each: each.median_times)
    return sorted(worst.values(), key=lambda each: each.median_times, reverse=True)


def comparison_table(results: Results, *, is_raw: bool) -> str:
    """Losses within one run, to the raw loop or to peers; empty if there are none."""
    return _table(_losses(results), is_raw=is_raw)


def cross_run_table(results: Results, *, is_raw: bool) -> str:
    """Losses between different runs."""
    return _table(_losses_between_runs(results), "runs", is_raw=is_raw)


def _table(losses: Iterable[Loss], *columns: str, is_raw: bool) -> str:
    rows = [loss.cells for loss in losses if (loss.other.contender == _RAW) == is_raw]
    head = ["", "better", "its median", "Evertick", "times better", "rounds", *columns]
    return table(head, rows) if rows else ""


def _losses(results: Results) -> Iterator[Loss]:
    for case, metric in _ours(results):
        ours = results.cases[case].get(metric.name, [])
        if metric.beside:
            raw = dataclasses.replace(case, contender=_RAW)
            yield from _loss(case, metric, raw, ours, results.cases[case].get(metric.beside, []))
        for other in _others(results, case):
            if results.are_of_one_run(case, other):
                yield from _loss(case, metric, other, ours, results.cases[other].get(metric.name, []))


def _losses_between_runs(results: Results) -> Iterator[Loss]:
    for case, metric in _ours(results):
        for other in _others(results, case):
            ours, theirs = (results.cases[each].get(metric.name, []) for each in (case, other))
            if not results.are_of_one_run(case, other) and present(ours) and present(theirs):
                medians = ([statistics.median(present(each))] for each in (ours, theirs))
                for loss in _loss(case, metric, other, *medians):
                    yield dataclasses.replace(loss, ours=ours, theirs=theirs, runs=_runs_text(results, case, other))


def _runs_text(results: Results, case: Case, other: Case) -> str:
    is_same = results.cpu_of(case) == results.cpu_of(other)
    return f"{results.run_of(other)} and {results.run_of(case)}{'' if is_same else ', different processors'}"


def _ours(results: Results) -> Iterator[tuple[Case, Metric]]:
    """All metrics at which a contender can be better."""
    for name, measurement in MEASUREMENTS.items():
        for case in (each for each in results.of(name) if each.contender == EVERTICK.name):
            for metric in (each for each in measurement.metrics if each.better):
                yield case, metric


def _others(results: Results, case: Case) -> Iterator[Case]:
    for name in _OTHERS:
        other = dataclasses.replace(case, contender=name)
        if other in results.cases and _has_started_all(results.cases[other]):
            yield other


def _has_started_all(samples: Samples) -> bool:
    """A contender that left moments behind is not better by those that started."""
    shares = present(samples.get("share", []))
    return not shares or min(shares) >= 100


def _loss(case: Case, metric: Metric, other: Case, ours: Sequence[float], theirs: Sequence[float]) -> Iterator[Loss]:
    """One loss, or none."""
    times = ratios(theirs, ours) if metric.better == "more" else ratios(ours, theirs)
    # A ratio that is shown as 1 is none.
    if times and float(number_text(statistics.median(times)).replace(",", "")) > 1:
        yield Loss(case, metric, other, ours, theirs, times)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratios of rounds that have both samples. With different numbers of rounds they cannot be paired."""
    if len(ours) != len(theirs):
        return []
    # A zero is too small to be counted, such as processor time in hundredths of a second.
    return present(own / other if other else float("nan") for own, other in zip(ours, theirs, strict=True))
