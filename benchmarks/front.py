"""The first sentences of the page: what Evertick does and on which machine, and at what others are better.

All of it is from the samples: a figure that was not measured takes its sentence with it, or its part of one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.contender.contenders import EVERTICK, INSTALLED, STORES
from benchmarks.knee import knee_of_one_node
from benchmarks.losses import largest_losses
from benchmarks.measure.limits import NO_LIMIT, NOT_REACHED
from benchmarks.measure.schedules import MILLION
from benchmarks.plan import LIMITED_PROCESSES
from benchmarks.results import Results, whole
from benchmarks.table import STORE_TITLES, number_text, share_text

__all__ = ["front_of"]

_SCHEDULES = 10_000
# So many of those that others are better at are named here; their table has all.
_LOSSES = 4
_NOT_MEASURED = (
    "The job does nothing and is `async`: real jobs, plain functions in threads, and a network between node and "
    "server are [not measured](#what-this-does-not-measure)."
)


def front_of(results: Results) -> list[str]:
    """Paragraphs, and the points of a list; none where nothing of it was measured."""
    paragraphs = ([*_speed(results)], [*_more_processes(results)], [*_limits(results)], [*_beyond_sqlite(results)])
    return [*(" ".join(each) for each in paragraphs if each), *_losses(results)]


def _speed(results: Results) -> Iterator[str]:
    executed = _by_store(results, "throughput", "execute", " a second")
    started = _by_store(results, "latency", "p50", " ms")
    late = _by_store(results, "minute", "p99", " ms", _SCHEDULES)
    if not (executed or started or late):
        return
    yield from _machine(results)
    if executed:
        installed = _by_store(results, "throughput", "execute", " a second", contender=INSTALLED.name)
        also = f"; as installed, without options and extras, {installed}" if installed else ""
        yield f"Of a full queue of no-op runs, one process of Evertick executes {executed}{also}."
    if started:
        yield f"From the call that enqueues a run to its start it takes {started}, at the median."
    if late:
        yield f"Of {_SCHEDULES:,} schedules a minute, 99 % are late by at most {late}."
    yield _NOT_MEASURED


def _machine(results: Results) -> Iterator[str]:
    cores, processors = (results.machine.get(name, "").split("; ") for name in ("cores", "cpu"))
    if cores != [""]:
        is_virtual = all("virtual machine" in each for each in processors)
        where = "in a virtual machine" if is_virtual else "on a machine"
        yield f"Measured {where} with {' or '.join(cores)} core{'' if cores == ['1'] else 's'}."


def _more_processes(results: Results) -> Iterator[str]:
    """Two share two cores with the server: whoever adds a process wants to know what for. Of one run alone."""
    cases = [case for case in results.of("throughput") if case.contender == EVERTICK.name]
    if len({results.run_of(case) for case in cases}) != 1:
        return
    one, two = (_by_store(results, "throughput", "execute", " a second", processes=number) for number in (1, 2))
    if one and two:
        yield (
            "A second process is for the day on which one of them dies: on these two cores, which the server shares, "
            f"both together execute {two}, and one alone {one}."
        )


def _limits(results: Results) -> Iterator[str]:
    """What costs a whole share of the speed is told before somebody relies on it."""
    free, held = (
        _by_store(results, "limits", "execute", " a second", processes=LIMITED_PROCESSES, variant=each)
        for each in (NO_LIMIT, NOT_REACHED)
    )
    if free and held:
        yield (
            f"Limits cost something, also while they are not reached: three processes execute {free} without one, and "
            f"{held} with one."
        )


def _losses(results: Results) -> Iterator[str]:
    if largest := largest_losses(results, _LOSSES):
        yield "Others are better at some of it ([all](#where-others-are-faster)), by most at:"
        yield "\n".join(f"- {each}." for each in largest)


def _beyond_sqlite(results: Results) -> Iterator[str]:
    """Where a step below a million a minute says that so many are too many."""
    most = knee_of_one_node(results, "sqlite").most_below(MILLION / 60)
    if most is None:
        return
    began = _median(results, "minute", "share", "sqlite", MILLION)
    tried = "" if began is None or began >= 100 else f": {share_text(began)} % of them began in their minute"
    yield (
        f"On SQLite one node manages {most:,} fires a second (the knee); a million schedules a minute, "
        f"which are {MILLION / 60:,.0f} a second, do not fit there{tried}."
    )


def _by_store(
    results: Results, measurement: str, figure: str, unit: str, number: int | None = None, **other: str | int
) -> str:
    """The medians, each with its store. Of Evertick with one process, but for what is said of the case."""
    found = {store: _median(results, measurement, figure, store, number, **other) for store in STORES}
    words = [
        f"{number_text(median)}{unit} on {STORE_TITLES[store]}" for store, median in found.items() if median is not None
    ]
    return " and ".join(words)


def _median(
    results: Results, measurement: str, figure: str, store: str, number: int | None, **other: str | int
) -> float | None:
    """As the table below has it."""
    wanted = {"contender": EVERTICK.name, "store": store, "processes": 1, "variant": "", **other}
    for case, samples in results.of(measurement).items():
        if number in (None, case.number) and all(getattr(case, name) == value for name, value in wanted.items()):
            values = whole(samples.get(figure, []))
            return statistics.median(values) if values else None
    return None
