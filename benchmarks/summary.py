"""The answer in short: what whoever chooses a scheduler asks first, a row for each of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS, EVERTICK
from benchmarks.figure import Case
from benchmarks.results import Results, whole
from benchmarks.table import STORE_TITLES, contender_title, figure_values, line, number_text

__all__ = ["summary_table"]

_SCHEDULES = 10_000
# Theirs are all due when the minute begins, which is harder than spread over it.
_WITHOUT_SECONDS = frozenset(each.name for each in CONTENDERS if not each.has_seconds)


@dataclass(frozen=True)
class _Column:
    """One figure of one measurement, with one process."""

    text: str
    measurement: str
    figure: str
    number: int | None = None

    def of(self, results: Results, contender: str, store: str) -> tuple[str, int] | None:
        """Its median in words, and by which run."""
        for case, samples in results.of(self.measurement).items():
            if self._has(case) and (case.contender, case.store) == (contender, store):
                values = whole(figure_values(case, samples, self.figure))
                return (number_text(statistics.median(values)), results.run_of(case)) if values else None
        return None

    def _has(self, case: Case) -> bool:
        return case.processes == 1 and not case.variant and self.number in (None, case.number)


_COLUMNS = (
    _Column("no-op runs/s", "throughput", "execute"),
    _Column("enqueue to start, p50 ms", "latency", "p50"),
    _Column("p99 ms", "latency", "p99"),
    _Column(f"{_SCHEDULES:,} schedules a minute: began in it, %", "minute", "share", _SCHEDULES),
    _Column("late, p99 ms", "minute", "p99", _SCHEDULES),
)


def summary_table(results: Results) -> str:
    """In Markdown; nothing if there is nothing to be compared."""
    rows = [row for contender, store in _pairs(results) if (row := _row(results, contender, store)) is not None]
    if len(rows) < 2:
        return ""
    head = ["", "on", *(column.text for column in _COLUMNS)]
    return "\n".join(line(row) for row in [head, ["---"] * len(head), *rows])


def _pairs(results: Results) -> Iterator[tuple[str, str]]:
    """Store by store, everybody in the order of the tables."""
    for store in (each for each in STORE_TITLES if each):
        for contender in CONTENDERS:
            if any((case.contender, case.store) == (contender.name, store) for case in results.cases):
                yield contender.name, store


def _row(results: Results, contender: str, store: str) -> list[str] | None:
    cells = [_cell(results, column, contender, store) for column in _COLUMNS]
    if all(cell == "-" for cell in cells):
        return None
    case = Case("", store, contender, 1, 0)
    return [contender_title(case), STORE_TITLES[store], *cells]


def _cell(results: Results, column: _Column, contender: str, store: str) -> str:
    """Where it is not of the same load, or not by the run that has the figure of Evertick there, it says so."""
    found = column.of(results, contender, store)
    if found is None:
        return "-"
    text, run = found
    ours = column.of(results, EVERTICK.name, store)
    about = ["all at once"] if column.measurement == "minute" and contender in _WITHOUT_SECONDS else []
    about += [f"run {run}"] if ours is not None and ours[1] != run else []
    return f"{text} ({'; '.join(about)})" if about else text
