"""Results as tables in Markdown: a table per measurement and store, a row per case, median and spread in each cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS
from benchmarks.figure import Case, Figure, Measurement
from benchmarks.plan import PLAN
from benchmarks.results import Results, Samples, whole

__all__ = [
    "STORE_TITLES",
    "Table",
    "case_title",
    "contender_title",
    "figure_values",
    "line",
    "number_text",
    "ratios",
    "share_text",
    "tables_of",
]

STORE_TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "broker": "a broker", "": ""}
# Rounds; the median of fewer is not worth much, and the page says so.
_ENOUGH = 5
# Of a share, from here on one digit would make a hundred of it: all instead of nearly all.
_ALMOST = 99.95
_TITLES = {each.name: each.title for each in CONTENDERS}
_PLACES = {case: place for place, case in enumerate(PLAN)}
_GUESSING = {each.name for each in CONTENDERS if each.is_guessing}
# What is made of how late each moment was.
_LATENESS = ("p50", "p99", "max")
# Which share of moments began in their period.
_SHARE = "share"
_NOT_IN_TIME = "not all in time"


@dataclass(frozen=True)
class Table:
    """`about` says by which run of those on the page, and in how many rounds it was measured."""

    title: str
    about: str
    text: str


def tables_of(results: Results, measurement: Measurement) -> list[Table]:
    """The tables of one measurement, one for each store, in the order of the plan, whenever each was measured."""
    found = results.of(measurement.name)
    cases = {case: found[case] for case in sorted(found, key=lambda case: _PLACES.get(case, len(_PLACES)))}
    tables = []
    for store in dict.fromkeys(case.store for case in cases):
        here = {case: samples for case, samples in cases.items() if case.store == store}
        title = f"{measurement.title}{f', on {STORE_TITLES[store]}' if store else ''}"
        about = f"{_runs_text(here, results)}; {_rounds_text(measurement, here, results)}"
        tables.append(Table(title, about, _text(measurement, here, results)))
    return tables


def _runs_text(cases: Iterable[Case], results: Results) -> str:
    numbers = sorted({results.run_of(case) for case in cases})
    return f"run{'s' if len(numbers) > 1 else ''} {' and '.join(map(str, numbers))}"


def _rounds_text(measurement: Measurement, cases: Mapping[Case, Samples], results: Results) -> str:
    """Most are measured round by round; some once, in which they take turns by themselves."""
    count = max((_rounds(case, results) for case in cases), default=0)
    what = "turn" if measurement.is_once and count > 1 else "round"
    text = f"{count} {what}s" if count > 1 else f"one {what}"
    return text if count >= _ENOUGH else f"{text}: fewer than {_ENOUGH}"


def _rounds(case: Case, results: Results) -> int:
    """With those that gave no figure; without the last of a run that was broken off before it came to this case."""
    samples = results.cases[case].values()
    count = max(map(len, samples), default=0)
    is_broken_off = bool(results.runs[results.run_of(case) - 1].broken_off)
    has_last = any(len(each) == count and not math.isnan(each[-1]) for each in samples)
    return count - 1 if is_broken_off and count and not has_last else count


def _text(measurement: Measurement, cases: Mapping[Case, Samples], results: Results) -> str:
    figures = [each for each in measurement.figures if _is_told(each, cases)]
    has_runs = len({results.run_of(case) for case in cases}) > 1
    number = [measurement.number_text] if measurement.number_text else []
    head = ["", *number, *(f"{each.text}, {each.unit}" for each in figures)]
    rows, most = [], max((_rounds(case, results) for case in cases), default=0)
    for case, samples in cases.items():
        found = max((len(whole(each)) for each in samples.values()), default=0)
        rounds = _rounds(case, results)
        about = [f"run {results.run_of(case)}"] if has_runs else []
        if found < rounds:
            about.append(f"{found} of {rounds} round{'s' if rounds > 1 else ''}")
        elif found < most:
            about.append(f"{found} round{'s' if found > 1 else ''}")
        if _has_left_some(samples) and whole(figure_values(case, samples, "p99")):
            about.append(_NOT_IN_TIME)
        row = [
            case_title(case) + (f" ({'; '.join(about)})" if about else ""),
            *([f"{case.number:,}"] if number else []),
        ]
        beside = _raw(case)
        raw = cases.get(beside) if beside != case and results.are_of_one_run(case, beside) else None
        rows.append(row + [_cell(each, case, samples, raw) for each in figures])
    return "\n".join(line(row) for row in [head, ["---"] * len(head), *rows])


def _is_told(figure: Figure, cases: Mapping[Case, Samples]) -> bool:
    has_any = any(whole(samples.get(figure.name, [])) for samples in cases.values())
    return has_any and not (figure.is_of_server and all(case.store == "sqlite" for case in cases))


def contender_title(case: Case) -> str:
    return _TITLES[case.contender]


def case_title(case: Case) -> str:
    words = [contender_title(case), *([case.variant] if case.variant else [])]
    if case.processes > 1:
        words.append(f"{case.processes} processes")
    return ", ".join(words)


def _raw(case: Case) -> Case:
    return Case(case.measurement, case.store, "raw", case.processes, case.number, case.variant)


def figure_values(case: Case, samples: Samples, name: str) -> list[float]:
    """All samples of a figure, holes included. None of those who guess their moments and left some behind: what was
    later than a minute is not known to have been."""
    is_guessed = case.contender in _GUESSING and name in _LATENESS and _has_left_some(samples)
    return [] if is_guessed else samples.get(name, [])


def _has_left_some(samples: Samples) -> bool:
    return min(whole(samples.get(_SHARE, [])), default=100) < 100


def _cell(figure: Figure, case: Case, samples: Samples, raw: Samples | None) -> str:
    """Median [min..max]; and how that is to the raw loop, round by round."""
    values = whole(figure_values(case, samples, figure.name))
    if not values:
        return "-"
    text_of = share_text if figure.name == _SHARE else number_text
    text = text_of(statistics.median(values))
    if len(values) > 1:
        text += f" [{text_of(min(values))}..{text_of(max(values))}]"
    to_raw = ratios(samples[figure.name], raw.get(figure.name, [])) if figure.has_ratio and raw is not None else []
    if to_raw:
        text += f", {number_text(statistics.median(to_raw))} of raw"
    return text


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of the rounds that have both. Of a file without holes it is not known which round is which."""
    if len(ours) != len(theirs):
        return []
    # What is too little to be seen is beside nothing: SQLite has no server, and a core is counted in hundredths.
    return whole(own / other if other else math.nan for own, other in zip(ours, theirs, strict=True))


def line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def share_text(value: float) -> str:
    """In percent; what is nearly all is not shown as all."""
    return f"{math.floor(value * 1_000) / 1_000:g}" if _ALMOST <= value < 100 else number_text(value)


def number_text(value: float) -> str:
    """As many digits as mean something."""
    size = abs(value)
    if 1 <= size < 1_000:
        # First, so that what is nearly ten or a hundred has no digit more than these.
        value = float(f"{value:.3g}")
        size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 10 or value == 0:
        return f"{value:.0f}" if size >= 100 or value == 0 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.4f}"
