"""The answer in short: what whoever chooses a scheduler asks first, a row for each of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS, EVERTICK
from benchmarks.figure import Case
from benchmarks.results import Results, whole
from benchmarks.table import STORE_TITLES, contender_title, figure_values, line, number_text, share_text

__all__ = ["summary_table"]

_SCHEDULES = 10_000
_MINUTE_MS = 60_000
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
                text_of = share_text if self.figure == "share" else number_text
                return (text_of(statistics.median(values)), results.run_of(case)) if values else None
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
    rows = [row for contender, store in _pairs(results) for row in _rows(results, contender, store)]
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


def _rows(results: Results, contender: str, store: str) -> Iterator[list[str]]:
    cells = [_cell(results, column, contender, store) for column in _COLUMNS]
    title = contender_title(Case("", store, contender, 1, 0))
    if any(cell != "-" for cell in cells):
        yield [title, STORE_TITLES[store], *cells]
    if contender == EVERTICK.name and (herd := _herd(results, store)):
        yield [f"{title}, all at once", STORE_TITLES[store], *herd]


def _herd(results: Results, store: str) -> list[str]:
    """The cells of as many schedules at one instant, for those beside it that can have theirs in no other way."""
    case = Case("herd", store, EVERTICK.name, 1, _SCHEDULES)
    samples = results.cases.get(case, {})
    last, p99 = (whole(samples.get(name, [])) for name in ("last", "p99"))
    if not last:
        return []
    late = number_text(statistics.median(p99 or last))
    run = _run_mark(results, _COLUMNS[-1], store, results.run_of(case))
    share = "100" if max(last) < _MINUTE_MS else "-"
    return ["-"] * (len(_COLUMNS) - 2) + [_marked(share, run), _marked(late, [*([] if p99 else ["the last"]), *run])]


def _cell(results: Results, column: _Column, contender: str, store: str) -> str:
    """Where it is not of the same load, or not by the run that has the figure of Evertick there, it says so; Evertick
    names that run wherever there are several.
    """
    found = column.of(results, contender, store)
    if found is None:
        return "-"
    text, run = found
    about = ["all at once"] if column.measurement == "minute" and contender in _WITHOUT_SECONDS else []
    return _marked(text, about + _own_mark(results, contender, run) + _run_mark(results, column, store, run))


def _run_mark(results: Results, column: _Column, store: str, run: int) -> list[str]:
    ours = column.of(results, EVERTICK.name, store)
    return [f"run {run}"] if ours is not None and ours[1] != run else []


def _own_mark(results: Results, contender: str, run: int) -> list[str]:
    return [f"run {run}"] if contender == EVERTICK.name and len(results.runs) > 1 else []


def _marked(text: str, about: Sequence[str]) -> str:
    return f"{text} ({'; '.join(about)})" if about and text != "-" else text
