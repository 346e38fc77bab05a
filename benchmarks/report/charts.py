"""The charts of the results, by the name of their file. They show one process; the tables have two as well."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.contender.contenders import BROKER, CONTENDERS, EVERTICK, STORES
from benchmarks.measure.knee import LATE_MS
from benchmarks.measure.schedules import EVENLY
from benchmarks.measurement import Case
from benchmarks.report.aims import HISTORY_AIM, LATE_AIMS
from benchmarks.report.svg import Aim, Axis, Bar, Point, Range, Series, bars, lines, ranges
from benchmarks.report.tables import metric_values
from benchmarks.report.text import STORE_TITLES, contender_title, count_text, share_text
from benchmarks.samples import Results, Samples, present

__all__ = ["PEER_SCHEDULES", "chart_file", "charts_of"]

# The number of schedules at which peers were measured.
PEER_SCHEDULES = 10_000
# Percent of the fires that started in their period; below it a point is hollow.
_KEPT_UP = 99
_PEERS = {each.name for each in CONTENDERS if each.is_peer}
_WITHOUT_SECONDS = {each.name for each in CONTENDERS if not each.has_seconds}
_MINUTE_MS = 60_000


def chart_file(name: str) -> str:
    return f"how-fast-{name}.svg"


def charts_of(results: Results) -> dict[str, tuple[str, str]]:
    """By name: the description, and the SVG."""
    return {name: (title, chart) for name, title, chart in _all(results)}


def _all(results: Results) -> Iterator[tuple[str, str, str]]:
    yield from _throughput(results)
    yield from _latency(results)
    yield from _peers(results)
    late = [Aim(up, across) for across, up in LATE_AIMS.items()]
    title = "Schedules once a minute: p99 lateness"
    yield from _curve(results, "minute", title, "schedules", aims=late, is_log=True)
    title = "Rising rate of fires: p99 lateness"
    yield from _curve(results, "knee", title, "fires a second", aims=[Aim(LATE_MS)], is_log=False)
    yield from _history(results)


def _throughput(results: Results) -> Iterator[tuple[str, str, str]]:
    groups: dict[str, list[Bar]] = {}
    counts = []
    for store in STORES:
        found = {case: present(each.get("execute", [])) for case, each in _of_one(results, "throughput", store)}
        rows = [_bar(contender_title(case), values, _kind(case)) for case, values in found.items() if values]
        if rows:
            groups[STORE_TITLES[store]] = sorted(rows, key=lambda row: row.value, reverse=True)
            counts += [len(values) for values in found.values() if values]
    if groups:
        title = "No-op runs a second from a full queue, one process"
        yield "throughput", title, bars(title, groups, _bar_legend(counts, "round"))


def _latency(results: Results) -> Iterator[tuple[str, str, str]]:
    groups = {STORE_TITLES[store]: _range_rows(_of_one(results, "latency", store)) for store in STORES}
    if any(groups.values()):
        title = "Enqueue to start at 50 runs a second, one process"
        legend = "p50 / p99: medians of the rounds; hollow dot: p50, filled dot: p99"
        yield "latency", title, ranges(title, "ms", {name: rows for name, rows in groups.items() if rows}, legend)


def _peers(results: Results) -> Iterator[tuple[str, str, str]]:
    """Contenders without seconds in their cron are comparable with a herd of Evertick."""
    groups: dict[str, list[Range]] = {}
    for store in (*STORES, BROKER):
        cases = [
            (case, samples)
            for case, samples in _of_one(results, "minute", store)
            if case.number == PEER_SCHEDULES and not case.variant
        ]
        herd = Case("herd", store, EVERTICK.name, 1, PEER_SCHEDULES)
        if cases and herd in results.cases:
            cases.append((herd, results.cases[herd]))
        if rows := _range_rows(cases):
            groups["Broker" if store == BROKER else STORE_TITLES[store]] = rows
    if any(row.low is not None for rows in groups.values() for row in rows):
        title = f"{PEER_SCHEDULES:,} schedules a minute: lateness, one process"
        legend = "p50 / p99; hollow dot: p50, filled dot: p99; at once: all due at one instant"
        yield "peers", title, ranges(title, "ms", groups, legend)


def _curve(
    results: Results, measurement: str, title: str, across: str, *, aims: Sequence[Aim], is_log: bool
) -> Iterator[tuple[str, str, str]]:
    series: list[Series] = []
    counts: list[int] = []
    for store in STORES:
        for variant in ("", EVENLY):
            found = _of_one(results, measurement, store)
            points = []
            for case, samples in found:
                late, shares = present(samples["p99"]), present(samples["share"])
                if (case.contender, case.variant) == (EVERTICK.name, variant) and late and statistics.median(late) > 0:
                    is_behind = statistics.median(shares) < _KEPT_UP
                    points.append(Point(case.number, statistics.median(late), is_behind))
                    counts.append(len(late))
            if points:
                name = STORE_TITLES[store] + (f", {variant}" if variant else "")
                series.append(Series(name, points, STORES.index(store), int(bool(variant))))
    if series:
        numbers = {point.across for each in series for point in each.points}
        near = [aim for aim in aims if aim.across is None or aim.across in numbers]
        legend = (
            f"{_counts_text(counts, 'round')}; hollow: fewer than {_KEPT_UP} % started in their period; dashed red: aim"
        )
        axis = Axis(across, "ms", legend, near, is_log)
        yield measurement, title, lines(title, axis, series)


def _history(results: Results) -> Iterator[tuple[str, str, str]]:
    groups: dict[str, list[Bar]] = {}
    counts = []
    for store in STORES:
        for case, samples in _of_one(results, "history", store):
            short, long = present(samples["short"]), present(samples["long"])
            if short and long:
                aim = statistics.median(short) * HISTORY_AIM
                groups[STORE_TITLES[store]] = [
                    _bar("short history", short, "raw"),
                    _bar(f"{case.number:,} finished runs", long, "ours", aim),
                ]
                counts += [len(short), len(long)]
    if groups:
        title = "No-op runs a second beside a history, one process"
        yield "history", title, bars(title, groups, f"{_bar_legend(counts, 'turn')}; dashed red: aim")


def _of_one(results: Results, measurement: str, store: str) -> list[tuple[Case, Samples]]:
    """The cases of one process."""
    return [each for each in results.of(measurement).items() if (each[0].store, each[0].processes) == (store, 1)]


def _kind(case: Case) -> str:
    return "raw" if case.contender == "raw" else "peer" if case.contender in _PEERS else "ours"


def _bar(title: str, values: Sequence[float], kind: str, aim: float | None = None) -> Bar:
    return Bar(title, statistics.median(values), min(values), max(values), kind, aim)


def _range_rows(cases: Iterable[tuple[Case, Samples]]) -> list[Range]:
    """Sorted by p99; contenders with unknown lateness last."""
    rows = [_range_row(case, samples) for case, samples in cases]
    return sorted(rows, key=lambda row: (row.high is None, row.high or 0))


def _range_row(case: Case, samples: Mapping[str, Sequence[float]]) -> Range:
    title, kind = contender_title(case), _kind(case)
    if case.measurement == "herd" or (case.measurement == "minute" and case.contender in _WITHOUT_SECONDS):
        title += ", at once"
    own = {name: [*values] for name, values in samples.items()}
    p50, p99 = (present(metric_values(case, own, name)) for name in ("p50", "p99"))
    if not p50 or not p99:
        shares = present(own.get("share", []))
        started = f"{share_text(statistics.median(shares))} % started in their minute" if shares else "failed"
        return Range(title, kind, note=started)
    return Range(title, kind, statistics.median(p50), statistics.median(p99))


def _bar_legend(counts: Sequence[int], noun: str) -> str:
    return f"bar: {_counts_text(counts, noun)}; line: range"


def _counts_text(counts: Sequence[int], noun: str) -> str:
    least, most = min(counts), max(counts)
    if most == 1:
        return f"one {noun}"
    return f"median of {count_text(most, noun) if least == most else f'{least} to {most} {noun}s'}"
