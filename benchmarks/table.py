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
    "tables_of",
]

STORE_TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "broker": "a broker", "": ""}
# Rounds; the median of fewer is not worth much, and the page says so.
_ENOUGH = 5
# From here on one digit would make a hundred of it: of a share, all instead of nearly all.
_ALMOST = 99.95
_TITLES = {each.name: each.title for each in CONTENDERS}
_PLACES = {case: place for place, case in enumerate(PLAN)}
_GUESSING = {each.name for each in CONTENDERS if each.is_guessing}
# What is made of how late each moment was.
_LATENESS = ("p50", "p99", "max")


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
        about = f"{_runs_text(here, results)}; {_rounds_text(measurement, here)}"
        tables.append(Table(title, about, _text(measurement, here, results)))
    return tables


def _runs_text(cases: Iterable[Case], results: Results) -> str:
    numbers = sorted({results.run_of(case) for case in cases})
    return f"run{'s' if len(numbers) > 1 else ''} {' and '.join(map(str, numbers))}"


def _rounds_text(measurement: Measurement, cases: Mapping[Case, Samples]) -> str:
    """Most are measured round by round; some once, in which they take turns by themselves."""
    count = _most(cases)
    what = "turn" if measurement.is_once and count > 1 else "round"
    text = f"{count} {what}s" if count > 1 else f"one {what}"
    return text if count >= _ENOUGH else f"{text}: fewer than {_ENOUGH}"


def _most(cases: Mapping[Case, Samples]) -> int:
    """Rounds, with those that gave no figure."""
    return max((len(each) for samples in cases.values() for each in samples.values()), default=0)


def _text(measurement: Measurement, cases: Mapping[Case, Samples], results: Results) -> str:
    figures = [each for each in measurement.figures if _is_told(each, cases)]
    has_runs = len({results.run_of(case) for case in cases}) > 1
    number = [measurement.number_text] if measurement.number_text else []
    head = ["", *number, *(f"{each.text}, {each.unit}" for each in figures)]
    rows, most = [], _most(cases)
    for case, samples in cases.items():
        found = max((len(whole(each)) for each in samples.values()), default=0)
        rounds = _most({each: cases[each] for each in cases if results.are_of_one_run(each, case)})
        about = [f"run {results.run_of(case)}"] if has_runs else []
        if found < rounds:
            about.append(f"{found} of {rounds} round{'s' if rounds > 1 else ''}")
        elif found < most:
            about.append(f"{found} round{'s' if found > 1 else ''}")
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
    has_left_some = min(whole(samples.get("share", [])), default=100) < 100
    is_guessed = case.contender in _GUESSING and name in _LATENESS and has_left_some
    return [] if is_guessed else samples.get(name, [])


def _cell(figure: Figure, case: Case, samples: Samples, raw: Samples | None) -> str:
    """Median [min..max]; and how that is to the raw loop, round by round."""
    values = whole(figure_values(case, samples, figure.name))
    if not values:
        return "-"
    text = number_text(statistics.median(values))
    if len(values) > 1:
        text += f" [{number_text(min(values))}..{number_text(max(values))}]"
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


def number_text(value: float) -> str:
    """As many digits as mean something."""
    size = abs(value)
    if _ALMOST <= size < 100:
        return f"{math.floor(value * 1_000) / 1_000:g}"
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 10 or value == 0:
        return f"{value:.0f}" if size >= 100 or value == 0 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.4f}"
