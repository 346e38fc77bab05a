"""Evenly spaced moments: the three grids of intervals.

`Steps` counts from an anchor, without a zone. `DayParts` are the wall times of a zone that are multiples of an interval
that divides a day; `Days` is every n-th midnight. At a clock change:

- skipped wall times fire once, at the change;
- repeated wall times fire twice if the clock goes back by at least one interval, else only the first time.

So "every 15 minutes" also fires in the repeated hour, and "every day" has one midnight per day.

Pure. `next` and `previous` are strict, `count` includes both ends.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

import msgspec

from evertick.when.moment import DAY
from evertick.when.wall import first_moment, offset_us, turn_in_day

__all__ = ["DayParts", "Days", "Grid", "Steps"]

# Only a clock change by a whole day gives a day without a moment; the search looks a little further.
_DAYS_WITHOUT = 4


class Grid(Protocol):
    """An endless, strictly increasing sequence of moments."""

    def next(self, after: int) -> int | None: ...
    def previous(self, before: int) -> int | None: ...
    def count(self, first: int, last: int, limit: int) -> int: ...


class Steps(msgspec.Struct, frozen=True, gc=False):
    """anchor + n * interval; only from the anchor on if `begins`, else in both directions."""

    interval: int
    anchor: int = 0
    begins: bool = False

    def next(self, after: int) -> int:
        found = after + self.interval - (after - self.anchor) % self.interval
        return max(found, self.anchor) if self.begins else found

    def previous(self, before: int) -> int | None:
        found = before - 1 - (before - 1 - self.anchor) % self.interval
        return None if self.begins and found < self.anchor else found

    def count(self, first: int, last: int, limit: int) -> int:
        first = max(first, self.anchor) if self.begins else first
        return min(limit, max(0, (last - self.anchor) // self.interval - (first - 1 - self.anchor) // self.interval))


class Days(msgspec.Struct, frozen=True):
    """Every n-th midnight of a zone, counted from 1970-01-01; n is 2 or more, so no clock change joins two."""

    zone: ZoneInfo
    interval: int

    def next(self, after: int) -> int:
        return self._moment(self._index(after) + 1)

    def previous(self, before: int) -> int:
        return self._moment(self._index(before - 1))

    def count(self, first: int, last: int, limit: int) -> int:
        return min(limit, max(0, self._index(last) - self._index(first - 1)))

    def _moment(self, index: int) -> int:
        return first_moment(self.zone, index * self.interval)

    def _index(self, moment: int) -> int:
        """The index of the last midnight that is not after the moment."""
        index = (moment + offset_us(self.zone, moment)) // self.interval
        # After a clock change over this midnight the clock shows the day before.
        return index + 1 if self._moment(index + 1) <= moment else index


class DayParts(msgspec.Struct, frozen=True):
    """The wall times of a zone that are multiples of an interval that divides a day."""

    zone: ZoneInfo
    interval: int

    def next(self, after: int) -> int | None:
        day = after // DAY
        for fires in (fires for ahead in range(_DAYS_WITHOUT) for fires in _fires(self, day + ahead)):
            if fires[-1] > after:
                return fires[max(0, (after - fires[0]) // self.interval + 1)]
        return None

    def previous(self, before: int) -> int | None:
        day = (before - 2) // DAY
        for fires in (fires for back in range(_DAYS_WITHOUT) for fires in reversed(_fires(self, day - back))):
            if fires[0] < before:
                return fires[min(len(fires) - 1, (before - 1 - fires[0]) // self.interval)]
        return None

    def count(self, first: int, last: int, limit: int) -> int:
        count = 0
        for day in range((first - 1) // DAY, (last - 1) // DAY + 1):
            for fires in _fires(self, day):
                count += len(range(max(0, -((fires[0] - first) // self.interval)), self._upto(fires, last)))
            if count >= limit:
                return limit
        return count

    def _upto(self, fires: range, last: int) -> int:
        return min(len(fires), (last - fires[0]) // self.interval + 1)


@lru_cache(maxsize=4096)
def _fires(grid: DayParts, utc_day: int) -> tuple[range, ...]:
    """The moments in (0:00, 24:00] of a day of UTC, as ranges in order, none of them empty."""
    first, last = utc_day * DAY + 1, (utc_day + 1) * DAY
    yesterday, today = turn_in_day(grid.zone, utc_day - 1), turn_in_day(grid.zone, utc_day)
    if yesterday is not None:
        first = max(first, _end_of_repeat(grid, yesterday))
    if today is None:
        offset = yesterday[2] if yesterday is not None else offset_us(grid.zone, utc_day * DAY)
        ranges = [_multiples(grid, first, last, offset)]
    else:
        turn, before, after = today
        ranges = [
            _multiples(grid, first, turn - 1, before),
            _left_out(grid, turn, before, after),
            _multiples(grid, _end_of_repeat(grid, today), last, after),
        ]
    return tuple(fires for fires in ranges if fires)


def _multiples(grid: DayParts, first: int, last: int, offset: int) -> range:
    ahead = -(first + offset) % grid.interval
    return range(first + ahead, last + 1, grid.interval)


def _left_out(grid: DayParts, turn: int, before: int, after: int) -> range:
    """The moment of the clock change, if it skips a wall time of the grid and is not one itself."""
    is_any = -(turn + before) % grid.interval < after - before
    is_shown = (turn + after) % grid.interval == 0
    return range(turn, turn + 1, grid.interval) if is_any and not is_shown else range(0)


def _end_of_repeat(grid: DayParts, turn: tuple[int, int, int]) -> int:
    """When the grid continues after a clock change: after the repeated wall times, if they do not fire again."""
    at, before, after = turn
    return at + before - after if 0 < before - after < grid.interval else at
