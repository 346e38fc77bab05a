"""Which pictures there are of results: name of the file, and the SVG."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.contender.contenders import CONTENDERS, STORES
from benchmarks.figure import Case
from benchmarks.plot import Bar, Point, bars, lines
from benchmarks.results import Results, Samples, whole
from benchmarks.table import STORE_TITLES, case_title

__all__ = ["pictures_of"]

# Percent of the moments that began in their period; whoever is below did not keep up.
_KEPT_UP = 99
_GUESSING = {each.name for each in CONTENDERS if each.is_guessing}
_PEERS = {each.name for each in CONTENDERS if each.is_peer}


def pictures_of(results: Results) -> dict[str, tuple[str, str]]:
    """By the name of the file: what the picture shows in words, and the picture."""
    return {name: (words, picture) for name, words, picture in _all(results)}


def _all(results: Results) -> Iterator[tuple[str, str, str]]:
    for store in STORES:
        on = STORE_TITLES[store]
        wanted = (
            ("throughput", "execute", "runs/s", f"No-op runs on {on}"),
            ("latency", "p99", "ms", f"Enqueue to start on {on}, p99"),
        )
        for measurement, figure, unit, title in wanted:
            cases = {case: each for case, each in results.of(measurement).items() if case.store == store}
            rows = [bar for case, samples in cases.items() if (bar := _bar(case, samples, figure)) is not None]
            if rows:
                # The best first.
                rows.sort(key=lambda row: row.value, reverse=figure == "execute")
                yield f"how-fast-{measurement}-{store}.svg", title, bars(title, unit, rows)
    yield from _curve(results, "minute", "schedules", "Schedules once a minute: late p99")
    yield from _curve(results, "knee", "fires a second", "More and more fires: late p99")
    yield from _growth(results)


def _bar(case: Case, samples: Samples, figure: str) -> Bar | None:
    values = whole(samples.get(figure, []))
    if not values:
        return None
    kind = "raw" if case.contender == "raw" else "peer" if case.contender in _PEERS else "ours"
    return _spread(case_title(case), values, kind)


def _spread(title: str, values: Sequence[float], kind: str) -> Bar:
    return Bar(title, statistics.median(values), min(values), max(values), kind)


def _growth(results: Results) -> Iterator[tuple[str, str, str]]:
    """Pairs of bars: the shorter history is the yardstick of the longer one."""
    rows: list[Bar] = []
    for case, samples in results.of("history").items():
        where = STORE_TITLES[case.store] + (f", {case.processes} processes" if case.processes > 1 else "")
        wanted = (("short", "short history", "raw"), ("long", f"{case.number:,} runs", "ours"))
        rows += [
            _spread(f"{where}, {text}", found, kind) for name, text, kind in wanted if (found := whole(samples[name]))
        ]
    if rows:
        title = "No-op runs beside a history"
        yield "how-fast-history.svg", title, bars(title, "runs/s", rows)


def _curve(results: Results, measurement: str, across: str, title: str) -> Iterator[tuple[str, str, str]]:
    """A point is hollow where too few began in their period; of jobs that guess their moment it would say nothing."""
    series: dict[str, list[Point]] = {}
    for case, samples in results.of(measurement).items():
        late, shares = whole(samples["p99"]), whole(samples["share"])
        if not late or statistics.median(late) <= 0:
            continue
        is_behind = statistics.median(shares) < _KEPT_UP
        if not (is_behind and case.contender in _GUESSING):
            name = f"{case_title(case)}, {STORE_TITLES[case.store]}"
            series.setdefault(name, []).append(Point(case.number, statistics.median(late), is_behind))
    if series:
        yield f"how-fast-{measurement}.svg", title, lines(title, across, "ms", series)
