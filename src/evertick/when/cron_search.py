"""The search for the moments of a cron expression: next, previous, count.

Pure. The expression is a set of wall times (days x hours x minutes x seconds). The zone and the rule for clock changes
give spans (zone.py); a moment is an instant of a span whose wall time is in the set. Forward and backward search use
the same definition.

All times are whole seconds. Work is bounded: a search visits at most every month up to 2099, and jumps over ranges
without a day of the expression.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from zoneinfo import ZoneInfo

from evertick.when.cron_day import LAST_DAY, Days
from evertick.when.zone import GapRule, Span, spans

__all__ = ["Clock", "Search"]

_DAY = 86_400
# More than the largest offset of any zone plus a change of a whole day.
_REACH = 2 * _DAY
_NEVER = 1 << 60
_NONE = 255


class Clock:
    """The times of day of an expression."""

    __slots__ = (
        "_hours", "_minutes", "_next_hour", "_next_minute", "_next_second", "_previous_hour", "_previous_minute",
        "_previous_second", "_seconds", "first", "last", "per_day", "per_hour", "per_minute",
    )  # fmt: skip

    def __init__(self, seconds: int, minutes: int, hours: int) -> None:
        self._seconds, self._minutes, self._hours = seconds, minutes, hours
        self._next_second, self._previous_second = _table(seconds, 60)
        self._next_minute, self._previous_minute = _table(minutes, 60)
        self._next_hour, self._previous_hour = _table(hours, 24)
        self.per_minute = seconds.bit_count()
        self.per_hour = self.per_minute * minutes.bit_count()
        self.per_day = self.per_hour * hours.bit_count()
        self.first = self._next_hour[0] * 3600 + self._next_minute[0] * 60 + self._next_second[0]
        self.last = self._previous_hour[23] * 3600 + self._previous_minute[59] * 60 + self._previous_second[59]

    def next(self, time: int) -> int:
        """The first time of day at or after, in seconds; -1 if there is none left."""
        minute_of_day, second = divmod(time, 60)
        hour, minute = divmod(minute_of_day, 60)
        if self._next_hour[hour] == hour:
            found = self._next_second[second]
            if found == _NONE or self._next_minute[minute] != minute:
                minute += found == _NONE
                found = self._next_second[0]
            minute = self._next_minute[minute]
            if minute != _NONE:
                return hour * 3600 + minute * 60 + found
        hour = self._next_hour[hour + 1]
        return -1 if hour == _NONE else hour * 3600 + self._next_minute[0] * 60 + self._next_second[0]

    def previous(self, time: int) -> int:
        """The last time of day at or before, in seconds; -1 if there is none."""
        minute_of_day, second = divmod(time, 60)
        hour, minute = divmod(minute_of_day, 60)
        if self._previous_hour[hour] == hour:
            found = self._previous_second[second]
            if found == _NONE or self._previous_minute[minute] != minute:
                minute -= found == _NONE
                found = self._previous_second[59]
            # At -1 the table returns its last entry, which means none.
            minute = self._previous_minute[minute]
            if minute != _NONE:
                return hour * 3600 + minute * 60 + found
        hour = self._previous_hour[hour - 1]
        return -1 if hour == _NONE else hour * 3600 + self._previous_minute[59] * 60 + self._previous_second[59]

    def below(self, time: int) -> int:
        """How many times of day there are before this one."""
        minute_of_day, second = divmod(time, 60)
        hour, minute = divmod(minute_of_day, 60)
        count = (self._hours & (1 << hour) - 1).bit_count() * self.per_hour
        if self._hours >> hour & 1:
            count += (self._minutes & (1 << minute) - 1).bit_count() * self.per_minute
            if self._minutes >> minute & 1:
                count += (self._seconds & (1 << second) - 1).bit_count()
        return count


@lru_cache(maxsize=4096)
def _table(mask: int, size: int) -> tuple[bytes, bytes]:
    """For each value the next and the previous one in the set, itself included. The extra entry means none."""
    ahead, behind = bytearray([_NONE]) * (size + 1), bytearray([_NONE]) * (size + 1)
    last = _NONE
    for value in range(size):
        last = value if mask >> value & 1 else last
        behind[value] = last
    last = _NONE
    for value in reversed(range(size)):
        last = value if mask >> value & 1 else last
        ahead[value] = last
    return bytes(ahead), bytes(behind)


class Search:
    """The moments of one expression in one zone. Instants in whole seconds; `at` is inclusive."""

    __slots__ = ("_clock", "_day", "_days", "_ends", "_spans", "_starts")

    def __init__(self, clock: Clock, days: Days, zone: ZoneInfo, rule: GapRule) -> None:
        self._clock, self._days = clock, days
        self._spans, self._starts, self._ends = _spans(zone, rule)
        # The last day: from, to, its midnight. Set in one assignment, so that threads can share a search.
        self._day = (0, 0, 0)

    def next(self, at: int) -> int | None:
        """The first moment at or after."""
        start, end, midnight = self._day
        if start <= at < end:
            found = self._clock.next(at - midnight)
            if found >= 0 and found + midnight < end:
                return found + midnight
        index = bisect_right(self._ends, at)
        while index < len(self._spans):
            span = self._spans[index]
            found = self._next_in(span, max(at, span.start))
            if found < span.end:
                return found
            index += 1
            if found > span.end + 2 * _REACH:
                # Nothing near: every later wall time of the expression is at or after this one.
                near = self._next_wall(span.end - _REACH) - _REACH
                index = max(index, bisect_right(self._ends, near))
        return None

    def previous(self, at: int) -> int | None:
        """The last moment at or before."""
        index = bisect_right(self._starts, at) - 1
        while index >= 0:
            span = self._spans[index]
            found = self._previous_in(span, min(at, span.end - 1))
            if found >= span.start:
                return found
            index -= 1
            if found < span.start - 2 * _REACH:
                near = self._previous_wall(span.start + _REACH) + _REACH
                index = min(index, bisect_right(self._starts, near) - 1)
        return None

    def count(self, first: int, last: int, limit: int) -> int:
        """How many moments there are in [first, last], at most `limit`."""
        count, index = 0, bisect_right(self._ends, first)
        while index < len(self._spans) and count < limit:
            span = self._spans[index]
            if span.start > last:
                break
            count += self._count_in(span, max(first, span.start), min(last + 1, span.end), limit - count)
            index += 1
        return min(count, limit)

    def _next_in(self, span: Span, at: int) -> int:
        """The first moment of the span at or after; a value beyond its end means none."""
        if len(span.offsets) > 1:
            return min(self._next_wall(at + offset) - offset for offset in span.offsets)
        offset = span.offsets[0]
        found = self._next_wall(at + offset)
        if span.gap is not None:
            return at if found == at + offset or self._next_wall(span.gap[0]) < span.gap[1] else found - offset
        midnight = found // _DAY * _DAY - offset
        self._day = (max(midnight, span.start), min(midnight + _DAY, span.end), midnight)
        return found - offset

    def _previous_in(self, span: Span, at: int) -> int:
        """The last moment of the span at or before; a value before its start means none."""
        found = max(self._previous_wall(at + offset) - offset for offset in span.offsets)
        if span.gap is not None and self._next_wall(span.gap[0]) < span.gap[1]:
            return at
        return found

    def _count_in(self, span: Span, start: int, end: int, limit: int) -> int:
        """How many moments there are in [start, end) of the span; counting stops soon after the limit."""
        if span.gap is not None:
            return int(self._next_in(span, start) < end)
        if len(span.offsets) == 1:
            return self._count_walls(start + span.offsets[0], end + span.offsets[0], limit)
        # Shifted and regular times may coincide, so they are counted one by one. The span is an hour, rarely a day.
        count = 0
        while count < limit and (start := self._next_in(span, start)) < end:
            count, start = count + 1, start + 1
        return count

    def _next_wall(self, wall: int) -> int:
        """The first wall time of the expression at or after."""
        day, time = divmod(wall, _DAY)
        found = self._days.next(day)
        if found == day:
            ahead = self._clock.next(time)
            if ahead >= 0:
                return day * _DAY + ahead
            found = self._days.next(day + 1)
        return _NEVER if found is None else found * _DAY + self._clock.first

    def _previous_wall(self, wall: int) -> int:
        """The last wall time of the expression at or before."""
        day, time = divmod(wall, _DAY)
        found = self._days.previous(day)
        if found == day:
            behind = self._clock.previous(time)
            if behind >= 0:
                return day * _DAY + behind
            found = self._days.previous(day - 1)
        return -_NEVER if found is None else found * _DAY + self._clock.last

    def _count_walls(self, start: int, end: int, limit: int) -> int:
        """How many wall times of the expression there are in [start, end)."""
        start, end = max(start, 0), min(end, (LAST_DAY + 1) * _DAY)
        if start >= end:
            return 0
        first, first_time = divmod(start, _DAY)
        last, last_time = divmod(end, _DAY)
        clock, days = self._clock, self._days
        if first == last:
            return (clock.below(last_time) - clock.below(first_time)) * days.has(first)
        count = (clock.per_day - clock.below(first_time)) * days.has(first)
        count += clock.per_day * days.count(first + 1, last - 1, limit // clock.per_day + 1)
        return count + clock.below(last_time) * days.has(last)


@lru_cache(maxsize=4096)
def _spans(zone: ZoneInfo, rule: GapRule) -> tuple[tuple[Span, ...], list[int], list[int]]:
    """The spans of a zone with their starts and ends, shared by every search in it."""
    found = spans(zone, rule)
    return found, [span.start for span in found], [span.end for span in found]
