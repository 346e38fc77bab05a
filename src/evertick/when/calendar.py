"""Calendars: named sets of days and hours at which schedules may fire.

A moment is open if it matches an `include` entry (or there are none) and no `exclude` entry. A closed moment is not a
moment of the schedule: it does not run and gets no verdict. entry.py describes the entries.

Days and hours are those of the calendar's zone, by default the zone of the rule. A day begins when the clock first
shows midnight. Hours open when the clock first shows their start and close when it first shows their end, so that they
are one range also on days with a clock change.

A rule skips a closed range in one jump (`next_open`, `previous_open`). Work is bounded: at most `ENTRIES` entries,
`WINDOWS` different hours, and a search of `HORIZON_DAYS`; a calendar that is closed for longer counts as closed
forever. Without yearly entries the weeks repeat, so the search ends `REPEAT_DAYS` after the last date.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import NoReturn, Self
from zoneinfo import ZoneInfo

import msgspec

from evertick.errors import InvalidWhen
from evertick.when.base import check_name
from evertick.when.entry import ALL_DAY, Entry, EntryLike, Window, read_entry, yearly
from evertick.when.moment import DAY, EARLIEST, LATEST
from evertick.when.wall import day_of, first_moment, midnight
from evertick.when.zone import zone_named

__all__ = ["Calendar"]

ENTRIES = 5_000
WINDOWS = 32
HORIZON_DAYS = 50 * 366
# Weeks are equal except for clock changes during open hours; three years contain every such week.
REPEAT_DAYS = 3 * 366
JSON_LONGEST = 1_000_000

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAYS_KEPT = 512

Stretch = tuple[int, int]


class _Days(msgspec.Struct, frozen=True):
    """A set of days, for one window of hours."""

    weekdays: frozenset[int]
    yearly: frozenset[int]
    stretches: list[Stretch]

    def has(self, day: int) -> bool:
        # 1970-01-01 was a Thursday.
        return (
            (day + 3) % 7 in self.weekdays
            or (bool(self.yearly) and _yearly(day) in self.yearly)
            or _holding(self.stretches, day) is not None
        )


class _Side:
    """All `include` or all `exclude` entries, grouped by their hours."""

    __slots__ = ("moments", "whole", "windows")

    def __init__(self, entries: Sequence[Entry]) -> None:
        by_window: dict[Window, list[Entry]] = {ALL_DAY: []}
        for entry in entries:
            if entry.moments is None:
                by_window.setdefault(entry.window, []).append(entry)
        if len(by_window) > WINDOWS:
            raise InvalidWhen(f"a calendar may have at most {WINDOWS} different hours of the day, not {len(by_window)}")
        self.whole = _gather(by_window.pop(ALL_DAY))
        self.windows = [(window, _gather(same)) for window, same in by_window.items()]
        self.moments = _merged(entry.moments for entry in entries if entry.moments is not None)

    def touches(self, day: int) -> bool:
        """Whether an entry with hours may contain a part of the day, in any zone."""
        if any(days.has(day) or (window[1] > DAY and days.has(day - 1)) for window, days in self.windows):
            return True
        return bool(self.moments) and bool(_cut(self.moments, (day - 2) * DAY, (day + 3) * DAY))

    def of_day(self, zone: ZoneInfo, day: int, whole: Stretch) -> list[Stretch]:
        """The ranges of the day that the entries contain, in order and disjoint."""
        if self.whole.has(day):
            return [whole]
        found = _cut(self.moments, *whole)
        for (begin, end), days in self.windows:
            for first in (day - 1, day) if end > DAY else (day,):
                if days.has(first):
                    hours = first_moment(zone, first * DAY + begin), first_moment(zone, first * DAY + end)
                    found += _cut([hours], *whole)
        return _merged(found)


class Calendar:
    """A named set of open moments. Immutable; two with the same name, entries and zone are equal."""

    __slots__ = (
        "_dated",
        "_exclude",
        "_include",
        "_kept",
        "_repeat",
        "exclude",
        "include",
        "name",
        "tz",
        "version",
        "zone",
    )

    name: str
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    tz: str | None
    zone: ZoneInfo
    version: str
    _include: _Side | None
    _exclude: _Side
    _dated: tuple[int, int]
    _repeat: int
    _kept: dict[int, list[Stretch]]

    def __init__(
        self,
        name: str,
        *,
        include: Iterable[EntryLike] | None = None,
        exclude: Iterable[EntryLike] | None = None,
        tz: str | ZoneInfo | None = None,
    ) -> None:
        included = None if include is None else _read_entries(include, "include")
        excluded = _read_entries(exclude or (), "exclude")
        if included is not None and not included:
            problem = f"calendar {name!r}: include is empty, so it is never open"
            raise InvalidWhen(problem, value="[]", fix="leave it out to include all")
        zone = zone_named("UTC" if tz is None else tz)
        self._fill(
            name=check_name(name, what="calendar"),
            include=None if included is None else tuple(entry.text for entry in included),
            exclude=tuple(entry.text for entry in excluded),
            tz=None if tz is None else zone.key,
            zone=zone,
            _include=None if included is None else _Side(included),
            _exclude=_Side(excluded),
            _dated=_dated_days([*(included or ()), *excluded]),
            _repeat=HORIZON_DAYS if any(entry.yearly for entry in [*(included or ()), *excluded]) else REPEAT_DAYS,
            _kept={},
        )
        self._fill(version=self._content_hash())

    @classmethod
    def weekdays(
        cls,
        name: str,
        *,
        holidays: Iterable[EntryLike] = (),
        days: str = "mon-fri",
        tz: str | ZoneInfo | None = None,
    ) -> Self:
        """Open on some days of the week, except on holidays."""
        return cls(name, include=[days], exclude=holidays, tz=tz)

    @classmethod
    def blackout(cls, name: str, start: datetime, end: datetime) -> Self:
        """Open always, except from start up to end."""
        return cls(name, exclude=[(start, end)])

    def in_zone(self, zone: ZoneInfo) -> Self:
        """The calendar for a rule in that zone; unchanged if it has its own zone."""
        if self.tz is not None or zone == self.zone:
            return self
        twin = object.__new__(type(self))
        for slot in Calendar.__slots__:
            object.__setattr__(twin, slot, getattr(self, slot))
        twin._fill(zone=zone, _kept={})
        return twin

    # Queries.

    def permits(self, moment: int) -> bool:
        """Whether the moment is open."""
        if not EARLIEST <= moment <= LATEST:
            return False
        return _holding(self._of_day(day_of(self.zone, moment)), moment) is not None

    def next_open(self, moment: int) -> int | None:
        """The first open moment at or after this one; None if there is none within the horizon."""
        at = _end_of(self._exclude.moments, moment)
        day = day_of(self.zone, at) if EARLIEST <= at <= LATEST else None
        if day is None or self._is_shut():
            return None
        for ahead in range(day, min(day + HORIZON_DAYS, max(day, self._dated[1]) + self._repeat)):
            for first, last in self._of_day(ahead):
                if last > at:
                    return max(first, at)
        return None

    def previous_open(self, moment: int) -> int | None:
        """The last open moment at or before this one; None if there is none within the horizon."""
        at = _begin_of(self._exclude.moments, moment)
        day = day_of(self.zone, at) if EARLIEST <= at <= LATEST else None
        if day is None or self._is_shut():
            return None
        for back in range(day, max(day - HORIZON_DAYS, min(day, self._dated[0]) - self._repeat), -1):
            for first, last in reversed(self._of_day(back)):
                if first <= at:
                    return min(last - 1, at)
        return None

    def open_until(self, moment: int, latest: int) -> int:
        """When the open range with this moment ends, at most `latest`."""
        at, day = moment, day_of(self.zone, moment)
        while at < latest:
            closes = _end_of(self._of_day(day), at)
            if closes == at:
                return at
            at, day = closes, day + 1
            if at == midnight(self.zone, day) and self._is_plain(day):
                day = self._end_of_plain(day, latest)
                at = midnight(self.zone, day)
        return latest

    def open_since(self, moment: int, earliest: int) -> int:
        """When the open range with this moment began, at least `earliest`."""
        at = moment
        while at >= earliest:
            day = day_of(self.zone, at)
            held = _holding(self._of_day(day), at)
            if held is None:
                return at + 1
            at = held[0] - 1
            if self._is_plain(day - 1) and held[0] == midnight(self.zone, day):
                at = midnight(self.zone, self._begin_of_plain(day - 1, earliest)) - 1
        return earliest

    def inverse(self, since: int, until: int) -> Calendar:
        """The calendar that is open when this one is closed. Only for moments from `since` to `until`."""
        return _Inverse(self, since, until)

    def _begin_of_plain(self, day: int, earliest: int) -> int:
        """The first day of the series of plain days that ends with this one."""
        while self._is_plain(day - 1) and (day + 1) * DAY >= earliest:
            day -= 1
        return day

    def _end_of_plain(self, day: int, latest: int) -> int:
        while self._is_plain(day) and (day - 1) * DAY <= latest:
            day += 1
        return day

    def _is_plain(self, day: int) -> bool:
        """Whether the whole day is open, in any zone."""
        is_included = self._include is None or self._include.whole.has(day)
        return is_included and not self._exclude.whole.has(day) and not self._exclude.touches(day)

    def _is_shut(self) -> bool:
        return len(self._exclude.whole.weekdays) == 7

    def _of_day(self, day: int) -> list[Stretch]:
        """The open ranges of a day, in order and disjoint; they end with the day."""
        if self._exclude.whole.has(day) or not self._may_include(day):
            return []
        kept = self._kept.get(day)
        if kept is None:
            if len(self._kept) >= _DAYS_KEPT:
                self._kept.clear()
            kept = self._kept[day] = self._compute_day(day)
        return kept

    def _may_include(self, day: int) -> bool:
        """False for most closed days, so that a search skips years of them in milliseconds."""
        include = self._include
        return include is None or include.whole.has(day) or include.touches(day)

    def _compute_day(self, day: int) -> list[Stretch]:
        whole = midnight(self.zone, day), midnight(self.zone, day + 1)
        if whole[0] == whole[1]:  # Samoa had no 2011-12-30
            return []
        open_ = [whole] if self._include is None else self._include.of_day(self.zone, day, whole)
        return _without(open_, self._exclude.of_day(self.zone, day, whole))

    # Storing.

    def to_json(self) -> str:
        """The calendar as JSON, for `from_json`."""
        content = {"name": self.name, "include": self.include, "exclude": self.exclude, "tz": self.tz}
        return msgspec.json.encode(content).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The calendar that `to_json` wrote."""
        if len(text) > JSON_LONGEST:
            raise InvalidWhen(f"a calendar of {len(text)} characters is too long", fix=f"write at most {JSON_LONGEST}")
        try:
            stored = msgspec.json.decode(text, type=_Stored)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidWhen(f"not the JSON of a calendar: {error}") from None
        return cls(stored.name, include=stored.include, exclude=stored.exclude, tz=stored.tz)

    def _content_hash(self) -> str:
        include = None if self.include is None else sorted(self.include)
        content = msgspec.json.encode([include, sorted(self.exclude), self.tz])
        return blake2b(content, digest_size=8).hexdigest()

    # Identity.

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Calendar) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str, str]:
        return self.name, self.version, self.zone.key

    def __repr__(self) -> str:
        return f"Calendar({self.name!r}, include={self.include!r}, exclude={self.exclude!r}, tz={self.tz!r})"

    def _fill(self, **slots: object) -> None:
        for slot, value in slots.items():
            object.__setattr__(self, slot, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a calendar is immutable; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a calendar is immutable; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.to_json(), self.zone.key)


class _Inverse(Calendar):
    """The closed moments of another calendar, between two moments."""

    __slots__ = ("_other", "_since", "_until")

    _other: Calendar
    _since: int
    _until: int

    def __init__(self, other: Calendar, since: int, until: int) -> None:
        for slot in Calendar.__slots__:
            object.__setattr__(self, slot, getattr(other, slot))
        self._fill(_other=other, _since=since, _until=until)

    def permits(self, moment: int) -> bool:
        return self._since <= moment <= self._until and not self._other.permits(moment)

    def next_open(self, moment: int) -> int | None:
        moment = max(moment, self._since)
        if moment > self._until:
            return None
        closes = self._other.open_until(moment, self._until + 1) if self._other.permits(moment) else moment
        return None if closes > self._until else closes

    def previous_open(self, moment: int) -> int | None:
        moment = min(moment, self._until)
        if moment < self._since:
            return None
        closed = self._other.open_since(moment, self._since) - 1 if self._other.permits(moment) else moment
        return None if closed < self._since else closed

    def open_until(self, moment: int, latest: int) -> int:
        opens = self._other.next_open(moment)
        return latest if opens is None else min(opens, latest)


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    include: list[str] | None = None
    exclude: list[str] = []
    tz: str | None = None


def _restore(text: str, zone: str) -> Calendar:
    return Calendar.from_json(text).in_zone(zone_named(zone))


def _read_entries(values: Iterable[EntryLike], what: str) -> list[Entry]:
    if isinstance(values, str | bytes | date) or not isinstance(values, Iterable):
        raise InvalidWhen(
            f"{what}: {values!r:.60} is not a list", value=repr(values)[:60], fix="pass a list of entries"
        )
    found: dict[str, Entry] = {}
    for number, value in enumerate(values, 1):
        if number > ENTRIES:
            raise InvalidWhen(f"{what}: a calendar has at most {ENTRIES} entries", fix="use ranges, or split it")
        entry = read_entry(value)
        found.setdefault(entry.text, entry)
    return list(found.values())


def _dated_days(entries: list[Entry]) -> tuple[int, int]:
    """The first and the last day of all entries with dates, with a margin for zones."""
    days = [entry.days for entry in entries if entry.days is not None]
    days += [(entry.moments[0] // DAY, entry.moments[1] // DAY) for entry in entries if entry.moments is not None]
    return min((day[0] for day in days), default=0) - 2, max((day[1] for day in days), default=0) + 2


def _gather(entries: list[Entry]) -> _Days:
    # One apart is enough for consecutive dates to merge: their ranges are half open.
    return _Days(
        frozenset().union(*(entry.weekdays for entry in entries)),
        frozenset().union(*(entry.yearly for entry in entries)),
        _merged((entry.days[0], entry.days[1] + 1) for entry in entries if entry.days is not None),
    )


@lru_cache(maxsize=4096)
def _yearly(day: int) -> int:
    return yearly(date.fromordinal(day + _EPOCH_ORDINAL))


# Lists of ranges: half open, in order and disjoint.


def _merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    found: list[Stretch] = []
    for first, last in sorted(stretches):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        elif first < last:
            found.append((first, last))
    return found


def _cut(stretches: list[Stretch], first: int, last: int) -> list[Stretch]:
    """Their parts in [first, last)."""
    found = []
    for index in range(max(0, bisect_right(stretches, (first, first)) - 1), len(stretches)):
        begin, end = stretches[index]
        if begin >= last:
            break
        if end > first and begin < end:
            found.append((max(begin, first), min(end, last)))
    return found


def _without(stretches: list[Stretch], taken: list[Stretch]) -> list[Stretch]:
    for begin, end in taken:
        stretches = [
            part
            for first, last in stretches
            for part in ((first, min(last, begin)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return stretches


def _holding(stretches: list[Stretch], at: int) -> Stretch | None:
    index = bisect_right(stretches, at, key=lambda stretch: stretch[0]) - 1
    return stretches[index] if index >= 0 and at < stretches[index][1] else None


def _end_of(stretches: list[Stretch], at: int) -> int:
    """The end of the range with this moment, else the moment itself."""
    held = _holding(stretches, at)
    return at if held is None else held[1]


def _begin_of(stretches: list[Stretch], at: int) -> int:
    """The last moment before the range with this one, else the moment itself."""
    held = _holding(stretches, at)
    return at if held is None else held[0] - 1
