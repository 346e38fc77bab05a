"""Many schedules, each once a minute, spread over the seconds: which share began in its minute, and how late.

Every schedule is due in the second that its number falls on, so all of one second are due at the same moment; from any
full second on, a minute has one moment of each. The knee is the same with a period of a few seconds and more fires in
each second, from case to case.

Whoever cannot place schedules within the minute has them all when it begins, and whoever does not tell a job its moment
is given the last one that fits: where fewer than all began in their minute, its percentiles mean nothing.
"""

from __future__ import annotations

import math
import time

from benchmarks.contender import verbs
from benchmarks.figure import Case, Figure, Measured
from benchmarks.results import Results, whole
from benchmarks.spread import percentile
from benchmarks.stage import Stage
from benchmarks.store import meter
from benchmarks.store.postgres import PostgresPlace
from benchmarks.watch import SHARES, Watch

__all__ = [
    "EVENLY",
    "FIGURES",
    "MILLION",
    "check_none_early",
    "check_none_lost",
    "is_needed",
    "measure_knee",
    "measure_minute",
    "with_missing",
]

FIGURES = (
    Figure("share", "began in their period", "%"),
    Figure("p50", "late p50", "ms", better="less"),
    Figure("p99", "late p99", "ms", better="less"),
    Figure("max", "late max", "ms", better="less"),
    *SHARES,
    Figure("memory", "memory", "MB", better="less"),
    Figure("memory_first", "after the first period", "MB"),
    Figure("memory_last", "at the end", "MB"),
    Figure("bytes", "log", "bytes per fire", better="less"),
    Figure("checkpoints", "checkpoints", "began meanwhile"),
)
MILLION = 1_000_000
# A variant: no two are due at one moment, and no two have the same rule.
EVENLY = "evenly"
# As long as a checkpoint takes and longer.
_MILLION_PERIODS = 5
_MINUTE = 60
# Of a million, who began fewer than these in their minute did not have a bad moment, but too little time.
_FITTING_PERCENT = 50
# Before the first moment: the server is asked what it has counted, when nobody minds.
_ASKED_SECONDS = 1
_MICRO = 1_000_000
# What two floating-point numbers of one moment may differ by.
_SAME_SECONDS = 1e-5


def is_needed(case: Case, results: Results) -> bool:
    """A million take their time. Once is enough for those with a rule each, which shows what reading rules costs, and
    where they do not fit: how far the node is behind by the end is then a question of when that is.
    """
    if case.number < MILLION or case not in results.cases:
        return True
    shares = whole(results.cases[case].get("share", []))
    return case.variant != EVENLY and min(shares, default=100) > _FITTING_PERCENT


def measure_minute(stage: Stage) -> Measured:
    periods = _MILLION_PERIODS if stage.number >= MILLION else stage.size.periods
    # Most others know no shorter one.
    period = _MINUTE if stage.contender.is_peer else stage.size.period
    return _watched(stage, stage.number, period, periods)


def measure_knee(stage: Stage) -> Measured:
    period = stage.size.knee_period
    periods = stage.size.preview_periods if stage.is_preview else stage.size.knee_periods
    return _watched(stage, stage.number * period, period, periods)


def _watched(stage: Stage, schedules: int, period: int, periods: int) -> Measured:
    verb = "plan_evenly" if stage.variant == EVENLY else "plan"
    first = stage.call(verb, schedules, period, stage.size.ahead_seconds)
    stage.place.settle()
    with stage.workers("work", schedules) as workers:
        workers.go()
        begin = max(first, verbs.beginning(stage.size.settle_seconds, 1 if stage.contender.has_seconds else period))
        end = begin + period * periods
        time.sleep(max(begin - _ASKED_SECONDS - time.time(), 0))
        before = meter.read(stage.place) if isinstance(stage.place, PostgresPlace) else None
        time.sleep(max(begin - time.time(), 0))
        with Watch(stage, workers) as watch:
            watch.look_until(begin + period)
            # What is kept of schedules that were seen is there by now; what comes later has grown.
            first_megabytes = workers.megabytes()
            watch.look_until(end)
        watch.look_until(end + stage.size.tail_seconds)
        used = meter.read(stage.place).since(before) if isinstance(stage.place, PostgresPlace) and before else None
    late = _late(stage, begin, end)
    executed, expected = len(late), schedules * periods
    if stage.contender.has_ledger:
        check_none_lost(stage, begin, end, period, executed, expected)
    assert late or stage.contender.is_peer, f"none of {expected} moments began"
    share = sum(each < period for each in late) / expected * 100
    late = with_missing(late, expected, stage.size.tail_seconds)
    return {
        "share": share,
        "p50": percentile(late, 50) * 1e3 if late else math.nan,
        "p99": percentile(late, 99) * 1e3 if late else math.nan,
        "max": max(late, default=math.nan) * 1e3,
        **watch.shares,
        "memory": watch.megabytes,
        "memory_first": first_megabytes,
        "memory_last": watch.last_megabytes,
        **_logged(used, executed),
    }


def check_none_lost(stage: Stage, begin: float, end: float, period: int, executed: int, expected: int) -> None:
    """What has not begun in time is still to come, or the ledger says that it was skipped."""
    known = stage.ledger.outstanding(round(begin * _MICRO), round(end * _MICRO), period * _MICRO)
    lost = expected - executed - known
    assert not lost, f"of {expected} moments {executed} were executed and {known} are still to come: {lost} were lost"


def check_none_early(late: list[float]) -> None:
    """A moment is promised not to begin before its time, however much is read and planned ahead."""
    early = -min(late, default=0.0)
    assert early < _SAME_SECONDS, f"a run began {early * 1e3:.3f} ms before its moment"


def with_missing(late: list[float], expected: int, tail_seconds: float) -> list[float]:
    """In order, with those that had not begun when the watch ended: as late as the latest, and the tail at least.

    Without them, whoever leaves most behind would have the best percentiles. They are later than that, but nobody knows
    by how much. Where none began there is nothing to tell.
    """
    return late + [max(late[-1], tail_seconds)] * (expected - len(late)) if late else []


def _logged(used: meter.Reading | None, fires: int) -> Measured:
    if used is None:
        return {}
    return {"bytes": used.log_bytes / fires if fires else math.nan, "checkpoints": used.checkpoints}


def _late(stage: Stage, begin: float, end: float) -> list[float]:
    """By how much each moment of that time was late, in order; each was executed once, and the ledger has it."""
    seen, first_us, end_us = stage.witnessed(), round(begin * _MICRO), round(end * _MICRO)
    late: list[float] = []
    # Numbers, not pairs: there may be millions.
    moments: set[int] = set()
    length = end_us - first_us
    for number, due, began in zip(seen.numbers, seen.dues, seen.begans, strict=True):
        if first_us <= (due_us := round(due * _MICRO)) < end_us:
            late.append(began - due)
            moments.add(number * length + due_us - first_us)
    if not stage.contender.has_copies:
        doubled = len(late) - len(moments)
        or_late = ", or more than a minute late" if stage.contender.is_guessing else ""
        assert not doubled, f"{doubled} moments were executed twice{or_late}"
    if stage.contender.has_ledger:
        kept = stage.ledger.succeeded(first_us, end_us)
        assert kept == len(late), f"{len(late)} moments were executed, the ledger has {kept}"
        check_none_early(late)
    return sorted(late)
