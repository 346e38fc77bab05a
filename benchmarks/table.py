"""Results as tables in Markdown: a table per measurement and store, a row per case, median and spread in each cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.contender.contenders import CONTENDERS
from benchmarks.figure import Case, Figure, Measurement
from benchmarks.results import Results, Samples

__all__ = ["STORE_TITLES", "case_title", "number_text", "tables_of"]

STORE_TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "broker": "a broker", "": ""}
_TITLES = {each.name: each.title for each in CONTENDERS}


def tables_of(results: Results, measurement: Measurement) -> list[tuple[str, str]]:
    """The tables of one measurement, each with the title of its store."""
    cases = results.of(measurement.name)
    stores = list(dict.fromkeys(case.store for case in cases))
    return [
        (STORE_TITLES[store], _table(measurement, {case: each for case, each in cases.items() if case.store == store}))
        for store in stores
    ]


def _table(measurement: Measurement, cases: dict[Case, Samples]) -> str:
    figures = [each for each in measurement.figures if any(each.name in samples for samples in cases.values())]
    has_number = bool(measurement.number_text) and len({case.number for case in cases}) > 1
    head = ["", *([measurement.number_text] if has_number else []), *(f"{each.text}, {each.unit}" for each in figures)]
    rows = []
    for case, samples in cases.items():
        row = [case_title(case), *([f"{case.number:,}"] if has_number else [])]
        raw = cases.get(_raw(case))
        rows.append(row + [_cell(each, samples, raw if raw is not samples else None) for each in figures])
    return "\n".join(_line(row) for row in [head, ["---"] * len(head), *rows])


def case_title(case: Case) -> str:
    words = [_TITLES[case.contender], *([case.variant] if case.variant else [])]
    if case.processes > 1:
        words.append(f"{case.processes} processes")
    return ", ".join(words)


def _raw(case: Case) -> Case:
    return Case(case.measurement, case.store, "raw", case.processes, case.number, case.variant)


def _cell(figure: Figure, samples: Samples, raw: Samples | None) -> str:
    """Median [min..max]; and how that is to the raw loop, round by round."""
    values = [each for each in samples.get(figure.name, []) if not math.isnan(each)]
    if not values:
        return "-"
    text = number_text(statistics.median(values))
    if len(values) > 1:
        text += f" [{number_text(min(values))}..{number_text(max(values))}]"
    if figure.has_ratio and raw is not None and len(raw.get(figure.name, [])) == len(values):
        ratios = [ours / theirs for ours, theirs in zip(values, raw[figure.name], strict=True)]
        text += f", {number_text(statistics.median(ratios))} of raw"
    return text


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number_text(value: float) -> str:
    """As many digits as mean something."""
    size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 10 or value == 0:
        return f"{value:.0f}" if size >= 100 or value == 0 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.4f}"
