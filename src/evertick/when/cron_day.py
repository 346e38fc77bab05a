"""The days of a cron expression.

Pure. A month is one of 28 shapes, by its first weekday and its length; the days of a shape are an integer with a bit
per day. Days count from 1970-01-01 = 0, months from January 1970 = 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from calendar import monthrange
from datetime import date
from functools import lru_cache
from typing import Literal, assert_never

from evertick.when.field import (
    Field,
    LastDay,
    LastWeekday,
    LastWorkday,
    NearestWorkday,
    NthWeekday,
    Spread,
    Values,
    values_of,
)

__all__ = ["LAST_DAY", "Days", "DaysRule", "days_of"]

DaysRule = Literal["or", "and"]

_FIRST_YEAR, _LAST_YEAR = 1970, 2099
_MONTHS = (_LAST_YEAR - _FIRST_YEAR + 1) * 12
_EPOCH = date(_FIRST_YEAR, 1, 1).toordinal()
_STARTS = array("i", (date(_FIRST_YEAR + i // 12, i % 12 + 1, 1).toordinal() - _EPOCH for i in range(_MONTHS)))
LAST_DAY = date(_LAST_YEAR, 12, 31).toordinal() - _EPOCH
# One bit for each of the five times that a month can have a weekday.
_WEEKLY = sum(1 << 7 * week for week in range(5))


def _shape(month: int) -> int:
    weekday, length = monthrange(_FIRST_YEAR + month // 12, month % 12 + 1)
    return (weekday + 1) % 7 * 4 + length - 28


# The weekday of the first (Sunday = 0) times four, plus the days beyond 28.
_SHAPES = bytes(_shape(month) for month in range(_MONTHS))


class Days:
    """The days on which an expression fires."""

    __slots__ = ("_by_shape", "_day", "_is_and", "_months", "_weekday", "_years")

    def __init__(self, day: Field, month: Field, weekday: Field, year: Field | None, *, is_and: bool) -> None:
        self._day, self._weekday, self._is_and = day, weekday, is_and
        self._months = month.mask() >> 1
        self._years = None if year is None else year.mask() >> _FIRST_YEAR
        self._by_shape: dict[int, int] = {}

    def next(self, day: int) -> int | None:
        """The first day on or after."""
        if day > LAST_DAY:
            return None
        day = max(day, 0)
        month = bisect_right(_STARTS, day) - 1
        skipped = day - _STARTS[month] + 1
        mask = self._in_month(month) >> skipped << skipped
        while not mask:
            month += 1
            if month == _MONTHS:
                return None
            mask = self._in_month(month)
        return _STARTS[month] + (mask & -mask).bit_length() - 2

    def previous(self, day: int) -> int | None:
        """The last day on or before."""
        if day < 0:
            return None
        day = min(day, LAST_DAY)
        month = bisect_right(_STARTS, day) - 1
        mask = self._in_month(month) & (2 << day - _STARTS[month] + 1) - 1
        while not mask:
            month -= 1
            if month < 0:
                return None
            mask = self._in_month(month)
        return _STARTS[month] + mask.bit_length() - 2

    def has(self, day: int) -> bool:
        return self.next(day) == day

    def count(self, first: int, last: int, limit: int) -> int:
        """How many days there are in [first, last]; counting stops soon after the limit."""
        first, last = max(first, 0), min(last, LAST_DAY)
        if first > last:
            return 0
        month, last_month = bisect_right(_STARTS, first) - 1, bisect_right(_STARTS, last) - 1
        skipped = first - _STARTS[month] + 1
        mask = self._in_month(month) >> skipped << skipped
        count = 0
        while month < last_month and count < limit:
            count += mask.bit_count()
            month += 1
            mask = self._in_month(month)
        if month == last_month:
            count += (mask & (2 << last - _STARTS[month] + 1) - 1).bit_count()
        return count

    def _in_month(self, month: int) -> int:
        """The days of a month as bits, the first being bit 1."""
        year, in_year = divmod(month, 12)
        if not self._months >> in_year & 1 or (self._years is not None and not self._years >> year & 1):
            return 0
        shape = _SHAPES[month]
        days = self._by_shape.get(shape)
        if days is None:
            days = self._by_shape[shape] = self._in_shape(shape // 4, shape % 4 + 28)
        return days

    def _in_shape(self, first: int, length: int) -> int:
        by_day = _by_day(self._day, first, length)
        by_weekday = _by_weekday(self._weekday, first, length)
        both = by_day & by_weekday if self._is_and else by_day | by_weekday
        return both & (2 << length) - 2


@lru_cache(maxsize=4096)
def days_of(day: Field, month: Field, weekday: Field, year: Field | None, rule: DaysRule) -> Days:
    """The days of these fields. Even with `or`, both must match if either begins with a star, as in crontab."""
    is_and = rule == "and" or day.begins_with_star or weekday.begins_with_star
    return Days(day, month, weekday, year, is_and=is_and)


def _by_day(field: Field, first: int, length: int) -> int:
    mask = 0
    for item in field.items:
        match item:
            case Values():
                for value in values_of(field.kind, item):
                    mask |= 1 << value
            case LastDay(back=back):
                mask |= 1 << max(length - back, 0)
            case LastWorkday():
                mask |= 1 << _nearest_workday(length, first, length, is_backward=True)
            case NearestWorkday(day=day):
                mask |= 1 << _nearest_workday(day, first, length) if day <= length else 0
            case Spread() | NthWeekday() | LastWeekday():
                raise AssertionError(item)
            case _:
                assert_never(item)
    return mask


def _by_weekday(field: Field, first: int, length: int) -> int:
    mask = 0
    for item in field.items:
        match item:
            case Values():
                for weekday in values_of(field.kind, item):
                    mask |= _WEEKLY << _first_of(weekday, first)
            case NthWeekday(weekday=weekday, nth=nth):
                mask |= 1 << _first_of(weekday, first) + 7 * (nth - 1)
            case LastWeekday(weekday=weekday):
                day = _first_of(weekday, first)
                mask |= 1 << day + (length - day) // 7 * 7
            case Spread() | LastDay() | LastWorkday() | NearestWorkday():
                raise AssertionError(item)
            case _:
                assert_never(item)
    return mask


def _first_of(weekday: int, first: int) -> int:
    return 1 + (weekday - first) % 7


def _nearest_workday(day: int, first: int, length: int, *, is_backward: bool = False) -> int:
    match (first + day - 1) % 7:
        case 6:
            return day - 1 if day > 1 else day + 2
        case 0:
            return day + 1 if day < length and not is_backward else day - 2
        case _:
            return day
