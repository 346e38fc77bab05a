"""Moments of cron expressions calculated a second, one after the other from the same day, in a zone with DST.

The walk is repeated with new rules until it took long enough, and must end at the right moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import count, islice
from zoneinfo import ZoneInfo

from benchmarks.measurement import Measured, Metric
from benchmarks.trial import Trial

__all__ = ["EXPRESSIONS", "METRICS", "measure"]

_ZONE = ZoneInfo("America/New_York")
_START = datetime(2026, 3, 7, 12, tzinfo=_ZONE)


def _every_five_minutes() -> Iterator[datetime]:
    return (_START.astimezone(UTC) + number * timedelta(minutes=5) for number in count(1))


def _weekdays_at_nine() -> Iterator[datetime]:
    days = (_START.date() + timedelta(number) for number in count(1))
    return (datetime.combine(day, time(9), _ZONE) for day in days if day.isoweekday() <= 5)


def _leap_days() -> Iterator[datetime]:
    """Before 2100, which has none."""
    return (datetime.combine(date(year, 2, 29), time(), _ZONE) for year in range(2028, 2100, 4))


@dataclass(frozen=True)
class _Expression:
    """`moments` are calculated without any scheduler."""

    text: str
    moments: Callable[[], Iterator[datetime]]


EXPRESSIONS = {
    "often": _Expression("*/5 * * * *", _every_five_minutes),
    "weekdays": _Expression("0 9 * * 1-5", _weekdays_at_nine),
    "leap": _Expression("0 0 29 2 *", _leap_days),
}
METRICS = tuple(Metric(name, f"`{each.text}`", "moments/s", better="more") for name, each in EXPRESSIONS.items())
# Leap days are four years apart, so only a few are calculated.
_RARE = 10


def measure(trial: Trial) -> Measured:
    counts = {each.text: _RARE if name == "leap" else trial.number for name, each in EXPRESSIONS.items()}
    walked = trial.call("next_fires", counts, trial.size.walk_seconds)
    rates = {}
    for name, each in EXPRESSIONS.items():
        moments, seconds, last = walked[each.text]
        # One more than is timed: the first call.
        right = next(islice(each.moments(), counts[each.text], None))
        found = datetime.fromtimestamp(last, _ZONE)
        assert found == right, f"{trial.contender.title}: {found} instead of {right} for {each.text}"
        rates[name] = moments / seconds
    return rates
