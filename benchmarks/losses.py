"""Where others are better than Evertick, or the raw loop is: every such figure of the same rounds, from the file."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS, EVERTICK
from benchmarks.figure import Case, Figure
from benchmarks.plan import MEASUREMENTS
from benchmarks.results import Results, Samples, whole
from benchmarks.table import STORE_TITLES, contender_title, line, number_text, ratios

__all__ = ["losses_table"]

# Who takes part beside Evertick, by whatever settings.
_OTHERS = tuple(each.name for each in CONTENDERS if each.program != EVERTICK.program)
_RAW = "raw"


@dataclass(frozen=True)
class _Loss:
    """`times` is how many times better, round by round."""

    case: Case
    figure: Figure
    other: Case
    ours: Sequence[float]
    theirs: Sequence[float]
    times: Sequence[float]

    @property
    def row(self) -> list[str]:
        case = self.case
        where = [MEASUREMENTS[case.measurement].title, STORE_TITLES[case.store] and f"on {STORE_TITLES[case.store]}"]
        where += [f"{case.processes} processes" if case.processes > 1 else "", case.variant]
        number = MEASUREMENTS[case.measurement].number_text
        where.append(f"{case.number:,} {number}" if number else "")
        text = f"{', '.join(each for each in where if each)}: {self.figure.text}, {self.figure.unit}"
        times = number_text(statistics.median(self.times))
        if len(self.times) > 1:
            times += f" [{number_text(min(self.times))}..{number_text(max(self.times))}]"
        medians = (number_text(statistics.median(whole(each))) for each in (self.theirs, self.ours))
        return [text, contender_title(self.other), *medians, times, str(len(self.times))]


def losses_table(results: Results, *, is_raw: bool) -> str:
    """In Markdown, of the raw loop or of all others; nothing if there is none."""
    rows = [loss.row for loss in _losses(results) if (loss.other.contender == _RAW) == is_raw]
    if not rows:
        return ""
    head = ["", "who", "has", "Evertick has", "times better", "rounds"]
    return "\n".join(line(row) for row in [head, ["---"] * len(head), *rows])


def _losses(results: Results) -> Iterator[_Loss]:
    ours = [case for name in MEASUREMENTS for case in results.of(name) if case.contender == EVERTICK.name]
    for case in ours:
        for figure in (each for each in MEASUREMENTS[case.measurement].figures if each.better):
            for other, theirs in _others(results, case, figure):
                loss = _compared(results.cases[case], case, figure, other, theirs)
                if loss is not None:
                    yield loss


def _others(results: Results, case: Case, figure: Figure) -> Iterator[tuple[Case, Sequence[float]]]:
    if figure.beside:
        yield dataclasses.replace(case, contender=_RAW), results.cases[case].get(figure.beside, [])
    for name in _OTHERS:
        other = dataclasses.replace(case, contender=name)
        if other in results.cases and results.are_of_one_run(case, other) and _is_told(results.cases[other]):
            yield other, results.cases[other].get(figure.name, [])


def _is_told(samples: Samples) -> bool:
    """Who has left moments behind is not better by those that began."""
    shares = whole(samples.get("share", []))
    return not shares or min(shares) >= 100


def _compared(samples: Samples, case: Case, figure: Figure, other: Case, theirs: Sequence[float]) -> _Loss | None:
    ours = samples.get(figure.name, [])
    times = ratios(theirs, ours) if figure.better == "more" else ratios(ours, theirs)
    # What cannot be told apart from a draw in the digits that are shown is none.
    if not times or float(number_text(statistics.median(times)).replace(",", "")) <= 1:
        return None
    return _Loss(case, figure, other, ours, theirs, times)
