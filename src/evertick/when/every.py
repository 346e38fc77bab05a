"""Intervals: every 90 seconds, every 6 hours of the wall clock, 5 minutes after the last run ended.

There are three ways to place the moments:

- aligned to the clock (default). An interval that divides a day, or is whole days, counts from midnight of the rule's
  zone: `Every("1h", tz="Asia/Kolkata")` fires at :00 there, `Every("1d", tz="Europe/Berlin")` at midnight in summer and
  in winter. Any other interval counts from 1970-01-01 00:00 UTC. grid.py describes clock changes.
- `since="start"`: start, start + interval, and so on, in real time; the default start is the creation time.
- `after="end"`: one interval after the end of the last run. There is no fixed sequence; the rule computes as if each
  run took no time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self
from zoneinfo import ZoneInfo

import msgspec

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.text.values import shown
from evertick.when.base import COUNT_LIMIT, Bounds, JitterMode, When
from evertick.when.duration import Duration, duration_text, duration_us, duration_words
from evertick.when.grid import DayParts, Days, Grid, Steps
from evertick.when.moment import DAY, MILLISECOND, moment_text
from evertick.when.zone import zone_named

if TYPE_CHECKING:
    from evertick.when.calendar import Calendar

__all__ = ["Every", "Since"]

Since = Literal["clock", "start"]

SHORTEST = MILLISECOND

# A sentence, a nickname or a cron expression instead of an interval.
_OTHER_RULE = re.compile(r"\s*(?:[a-z]{2}|@|.*(?:\*|\bat\b|\d:\d))", re.IGNORECASE)


class Every(When):
    """One moment per interval."""

    __slots__ = ("_grid", "interval_us", "is_after_end", "since")

    interval_us: int
    since: Since | None
    is_after_end: bool
    _grid: Grid | None

    def __init__(
        self,
        interval: Duration,
        *,
        since: Since | None = None,
        after: Literal["end"] | None = None,
        tz: str | ZoneInfo | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        max_fires: int | None = None,
        jitter: Duration | None = None,
        jitter_mode: JitterMode = "stable",
        calendar: str | Calendar | None = None,
    ) -> None:
        interval_us = _interval_us(interval)
        if interval_us < SHORTEST:
            raise InvalidWhen(
                f"interval: {shown(interval)} is shorter than {duration_text(SHORTEST)}",
                setting="interval",
                value=shown(interval),
            )
        if since not in (None, "clock", "start"):
            problem = f"since: {shown(since)} is neither 'clock' nor 'start'"
            raise InvalidWhen(problem, setting="since", value=shown(since))
        if after not in (None, "end"):
            raise InvalidWhen(f"after: {shown(after)} is not 'end'", value=shown(after))
        if after is not None and since is not None:
            problem = f"after={shown(after)} and since={shown(since)} exclude each other"
            raise InvalidWhen(problem, fix="keep one of them")
        bounds = Bounds.make(
            start=start, end=end, max_fires=max_fires, jitter=jitter, jitter_mode=jitter_mode, calendar=calendar
        )
        zone = zone_named("UTC" if tz is None else tz)
        self._fill_common(
            zone=zone,
            is_zone_given=tz is not None,
            bounds=bounds,
            calendar=calendar,
            interval_us=interval_us,
            is_after_end=after is not None,
            since=since or "clock" if after is None else None,
            _grid=None,
        )
        self._fill(_grid=self._make_grid())

    def _make_grid(self) -> Grid | None:
        """The grid of the moments; None without a known start, and with `after="end"`."""
        if self.is_after_end:
            return None
        if self.since == "start":
            return None if self.bounds.start is None else Steps(self.interval_us, self.bounds.start, begins=True)
        if self.zone.key == "UTC":
            return Steps(self.interval_us)
        if DAY % self.interval_us == 0:
            return DayParts(self.zone, self.interval_us)
        if self.interval_us % DAY == 0:
            return Days(self.zone, self.interval_us)
        return Steps(self.interval_us)

    def bind(self, *, key: str, created: int, tz: str = "UTC", calendars: Mapping[str, Calendar] | None = None) -> Self:
        """See `When.bind`. With `since="start"` the default start is the creation time."""
        bound = super().bind(key=key, created=created, tz=tz, calendars=calendars)
        if self.since == "start" and self.bounds.start is None:
            bound = bound._with(bounds=msgspec.structs.replace(self.bounds, start=created))
        return bound._with(_grid=bound._make_grid())

    def starting_at(self, start: int) -> Self:
        """See `When.starting_at`. With `since="start"` the grid changes too."""
        twin = super().starting_at(start)
        if self.since == "start":
            twin._fill(_grid=twin._make_grid())
        return twin

    def _missing(self) -> str | None:
        return "the start of its interval" if self._grid is None and not self.is_after_end else None

    def next_us(self, after: int) -> int | None:
        """The first moment strictly after. With `after="end"`: one interval after a run that ended at that moment."""
        if not self.is_after_end:
            return super().next_us(after)
        self._check_complete()
        lowest, highest = self._reach()
        found: int | None = max(after + self.interval_us, lowest)
        # Such a rule may fire at any moment, so it fires when the calendar opens.
        if self.calendar is not None and found is not None:
            found = self.calendar.next_open(found)
        return None if found is None or found > highest else found

    def count_us(self, first: int, last: int, limit: int = COUNT_LIMIT) -> int:
        """How many moments lie in [first, last]. With `after="end"` at most one: the next depends on its run."""
        if not self.is_after_end:
            return super().count_us(first, last, limit)
        found = self.next_us(first - self.interval_us)
        return 1 if found is not None and found <= last and limit > 0 else 0

    def _raw_next(self, after: int) -> int | None:
        return after + self.interval_us if self._grid is None else self._grid.next(after)

    def _raw_previous(self, before: int) -> int | None:
        return before - self.interval_us if self._grid is None else self._grid.previous(before)

    def _raw_count(self, first: int, last: int, limit: int) -> int:
        return min(1, limit) if self._grid is None else self._grid.count(first, last, limit)

    def _rule_text(self) -> str:
        parts = [f"every {duration_text(self.interval_us)}"]
        if self.is_zone_given:
            parts.append(f"tz={self.zone.key}")
        if self.since == "start":
            parts.append("since=start")
        if self.is_after_end:
            parts.append("after=end")
        return "; ".join(parts)

    def _words(self) -> str:
        """The interval in words."""
        words = duration_words(self.interval_us)
        if self.is_after_end:
            return f"{words} after the end of the run before"
        words = words.removeprefix("1 ") if words.count(" ") == 1 else words
        match self._grid:
            case None:
                return f"every {words}, counted from its creation"
            case Steps(begins=True, anchor=anchor):
                return f"every {words}, counted from {moment_text(anchor)}"
            case Steps() if DAY % self.interval_us and self.interval_us % DAY:
                return f"every {words}, counted from 1970-01-01T00:00:00Z"
            case _:
                return f"every {words}, counted from midnight in {self.zone.key}"


def _interval_us(interval: Duration) -> int:
    try:
        return duration_us(interval, what="interval")
    except InvalidDuration as error:
        if isinstance(interval, str) and _OTHER_RULE.match(interval):
            raise _other_form(error, interval) from None
        raise


def _other_form(wrong: InvalidDuration, text: str) -> InvalidDuration:
    """The error with the right form of a rule that is not an interval."""
    from evertick.when.text import parse_when  # imports this module

    problem = str(wrong)
    if re.match(r"\d+ ?[a-z]+ ", text):  # "14d at 9:00"
        try:
            parse_when(f"every {text}")
        except InvalidWhen as error:
            problem = f"{problem}; {error}"
    fix = "sentences and cron expressions are for @scheduler.when(...)"
    return InvalidDuration(problem, setting="when", value=shown(text), fix=fix)
