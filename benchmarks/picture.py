"""Which pictures there are of results: name of the file, and the SVG."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.aims import HISTORY_AIM, LATE_AIMS
from benchmarks.contender.contenders import CONTENDERS, STORES
from benchmarks.figure import Case
from benchmarks.knee import LATE_MS
from benchmarks.plot import Aim, Axes, Bar, Point, bars, lines
from benchmarks.results import Results, whole
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
            found = {case: values for case, each in cases.items() if (values := whole(each.get(figure, [])))}
            if found:
                rows = [_spread(case_title(case), values, _kind(case)) for case, values in found.items()]
                # The best first.
                rows.sort(key=lambda row: row.value, reverse=figure == "execute")
                legend = _spread_legend(found.values(), "rounds")
                yield f"how-fast-{measurement}-{store}.svg", title, bars(title, unit, rows, legend)
    late = [Aim(up, across) for across, up in LATE_AIMS.items()]
    yield from _curve(results, "minute", "schedules", "Schedules once a minute: late p99", late)
    yield from _curve(results, "knee", "fires a second", "More and more fires: late p99", [Aim(LATE_MS)])
    yield from _growth(results)


def _kind(case: Case) -> str:
    return "raw" if case.contender == "raw" else "peer" if case.contender in _PEERS else "ours"


def _spread(title: str, values: Sequence[float], kind: str, aim: float | None = None) -> Bar:
    return Bar(title, statistics.median(values), min(values), max(values), kind, aim)


def _spread_legend(samples: Iterable[Sequence[float]], what: str) -> str:
    counts = sorted({len(each) for each in samples})
    if counts == [1]:
        return f"of one {what.removesuffix('s')} each"
    return f"bars: the median of {_counted(counts)} {what}; lines: from least to greatest"


def _counted(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _growth(results: Results) -> Iterator[tuple[str, str, str]]:
    """Pairs of bars: the shorter history is the yardstick of the longer one."""
    rows: list[Bar] = []
    samples: list[Sequence[float]] = []
    for case, found in results.of("history").items():
        where = STORE_TITLES[case.store] + (f", {case.processes} processes" if case.processes > 1 else "")
        short, long = whole(found["short"]), whole(found["long"])
        if short and long:
            aim = statistics.median(short) * HISTORY_AIM
            rows.append(_spread(f"{where}, short history", short, "raw"))
            rows.append(_spread(f"{where}, {case.number:,} runs", long, "ours", aim))
            samples += [short, long]
    if rows:
        title = "No-op runs beside a history"
        legend = f"{_spread_legend(samples, 'turns')}; dashed: the aim"
        yield "how-fast-history.svg", title, bars(title, "runs/s", rows, legend)


def _curve(
    results: Results, measurement: str, across: str, title: str, aims: Sequence[Aim]
) -> Iterator[tuple[str, str, str]]:
    """A point is hollow where too few began in their period; of jobs that guess their moment it would say nothing."""
    series: dict[str, list[Point]] = {}
    counts: set[int] = set()
    for case, samples in results.of(measurement).items():
        late, shares = whole(samples["p99"]), whole(samples["share"])
        if not late or statistics.median(late) <= 0:
            continue
        is_behind = statistics.median(shares) < _KEPT_UP
        if not (is_behind and case.contender in _GUESSING):
            name = f"{case_title(case)}, {STORE_TITLES[case.store]}"
            series.setdefault(name, []).append(Point(case.number, statistics.median(late), is_behind))
            counts.add(len(late))
    if series:
        rounds = f"{_counted(sorted(counts))} round{'s' if max(counts) > 1 else ''}"
        legend = (
            f"points: the median of {rounds}; hollow: fewer than {_KEPT_UP} % began in their period; dashed: the aim"
        )
        numbers = {point.across for each in series.values() for point in each}
        near = [aim for aim in aims if aim.across is None or aim.across in numbers]
        picture = lines(title, Axes(across, "ms", legend, near), series)
        yield f"how-fast-{measurement}.svg", title, picture
