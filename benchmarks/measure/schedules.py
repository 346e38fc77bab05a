"""Schedules once a minute, spread over its seconds: the share that started in its minute, and the lateness.

Schedule N is due in second N of the minute, so all schedules of one second are due at the same time; from any full
second on, a minute has one moment of each. A contender without seconds in its cron has all of them when the minute
begins. A contender that does not pass the moment to its job is assigned the latest that fits: if not all started in
their minute, its percentiles mean nothing.
"""

from __future__ import annotations

import math
import time

from benchmarks.contender import verbs
from benchmarks.measurement import Case, Measured, Metric, percentile
from benchmarks.samples import Results, present
from benchmarks.trial import Trial
from benchmarks.usage import SHARES, Counters, UsageMonitor

__all__ = [
    "EVENLY",
    "METRICS",
    "MILLION",
    "check_none_early",
    "check_none_lost",
    "is_needed",
    "measure",
    "watch_schedules",
    "with_missing",
]

METRICS = (
    Metric("share", "started in their period", "%"),
    Metric("p50", "lateness p50", "ms", better="less"),
    Metric("p99", "lateness p99", "ms", better="less"),
    Metric("max", "lateness max", "ms", better="less"),
    *SHARES,
    Metric("memory", "memory", "MB", better="less"),
    Metric("memory_first", "memory after the first period", "MB"),
    Metric("memory_last", "memory at the end", "MB"),
    Metric("bytes", "WAL", "bytes per fire", better="less"),
    Metric("checkpoints", "checkpoints", "started meanwhile"),
)
MILLION = 1_000_000
# A variant: each schedule has its own moment and its own rule.
EVENLY = "evenly"
# Longer than a checkpoint takes.
_MILLION_PERIODS = 5
_MINUTE = 60
# If fewer of a million started in their minute, the store is too slow for them.
_FITTING_PERCENT = 50
# The counters of the server are read this long before the first moment.
_READ_AHEAD_SECONDS = 1
_MICRO = 1_000_000
# Floating-point error of one moment.
_SAME_SECONDS = 1e-5


def is_needed(case: Case, results: Results) -> bool:
    """A million schedules take long, so one round is enough with a rule for each, and where they do not fit: there
    the lateness only depends on how long they are watched.
    """
    if case.number < MILLION or case not in results.cases:
        return True
    shares = present(results.cases[case].get("share", []))
    return case.variant != EVENLY and min(shares, default=100) > _FITTING_PERCENT


def measure(trial: Trial) -> Measured:
    periods = _MILLION_PERIODS if trial.number >= MILLION else trial.size.periods
    # Most peers know no shorter period.
    period = _MINUTE if trial.contender.is_peer else trial.size.period
    return watch_schedules(trial, trial.number, period, periods)


def watch_schedules(trial: Trial, schedules: int, period: int, periods: int) -> Measured:
    verb = "plan_evenly" if trial.variant == EVENLY else "plan"
    first = trial.call(verb, schedules, period, trial.size.ahead_seconds)
    trial.backend.settle()
    with trial.workers("work", schedules) as workers:
        workers.go()
        begin = max(first, verbs.beginning(trial.size.settle_seconds, 1 if trial.contender.has_seconds else period))
        end = begin + period * periods
        time.sleep(max(begin - _READ_AHEAD_SECONDS - time.time(), 0))
        before = Counters.of_server(trial)
        time.sleep(max(begin - time.time(), 0))
        with UsageMonitor(trial, workers) as monitor:
            monitor.watch_until(begin + period)
            # The caches of schedules are full by now; later growth is a leak.
            first_megabytes = workers.megabytes()
            monitor.watch_until(end)
        monitor.watch_until(end + trial.size.tail_seconds)
        after = Counters.of_server(trial)
    late = _late(trial, begin, end)
    executed, expected = len(late), schedules * periods
    if trial.contender.has_ledger:
        check_none_lost(trial, begin, end, period, executed, expected)
    assert late or trial.contender.is_peer, f"none of {expected} moments started"
    share = sum(each < period for each in late) / expected * 100
    late = with_missing(late, expected, trial.size.tail_seconds)
    return {
        "share": share,
        "p50": percentile(late, 50) * 1e3 if late else math.nan,
        "p99": percentile(late, 99) * 1e3 if late else math.nan,
        "max": max(late, default=math.nan) * 1e3,
        **monitor.shares,
        "memory": monitor.megabytes,
        "memory_first": first_megabytes,
        "memory_last": monitor.last_megabytes,
        **(_of_server(after.since(before), executed) if before and after else {}),
    }


def check_none_lost(trial: Trial, begin: float, end: float, period: int, executed: int, expected: int) -> None:
    """The ledger must know each moment that was not executed, as due, waiting or skipped."""
    known = trial.ledger.outstanding(round(begin * _MICRO), round(end * _MICRO), period * _MICRO)
    lost = expected - executed - known
    assert not lost, f"of {expected} moments {executed} were executed and {known} are still to come: {lost} were lost"


def check_none_early(late: list[float]) -> None:
    """No run may start before its moment, although nodes read and plan ahead."""
    early = -min(late, default=0.0)
    assert early < _SAME_SECONDS, f"a run started {early * 1e3:.3f} ms before its moment"


def with_missing(late: list[float], expected: int, tail_seconds: float) -> list[float]:
    """Add the moments that had not started when the watch ended, as late as the latest one and at least the tail.

    Without them, the contender that leaves most behind would have the best percentiles. `late` is sorted.
    """
    return late + [max(late[-1], tail_seconds)] * (expected - len(late)) if late else []


def _of_server(used: Counters, fires: int) -> Measured:
    return {"bytes": used.bytes / fires if fires else math.nan, "checkpoints": used.checkpoints}


def _late(trial: Trial, begin: float, end: float) -> list[float]:
    """The sorted lateness of each moment of that time; each was executed once, and the ledger has it."""
    found, first_us, end_us = trial.executions(), round(begin * _MICRO), round(end * _MICRO)
    late: list[float] = []
    # Numbers instead of pairs, because there may be millions.
    moments: set[int] = set()
    length = end_us - first_us
    for number, due, began in zip(found.numbers, found.dues, found.begans, strict=True):
        if first_us <= (due_us := round(due * _MICRO)) < end_us:
            late.append(began - due)
            moments.add(number * length + due_us - first_us)
    if not trial.contender.has_copies:
        doubled = len(late) - len(moments)
        or_late = ", or more than a minute late" if trial.contender.is_guessing else ""
        assert not doubled, f"{doubled} moments were executed twice{or_late}"
    if trial.contender.has_ledger:
        succeeded = trial.ledger.succeeded(first_us, end_us)
        assert succeeded == len(late), f"{len(late)} moments were executed, the ledger has {succeeded}"
        check_none_early(late)
    return sorted(late)
