"""The entries of calendars: days, hours of days, or a range between two moments.

    mon-fri                                       days of the week; also "sat,sun", and "fri-mon" across the week's end
    2026-12-25                                    a date; also as a `date`
    2026-12-24..2027-01-01                        dates, both ends included; also as a pair of dates
    12-25                                         the same day of every year
    12-24..01-01                                  the same days of every year, also across the year's end
    22:00-06:00                                   hours of every day, the end not included, also across midnight
    mon-fri 09:00-17:00                           hours of some days
    2026-12-24T18:00:00Z..2027-01-02T06:00:00Z    between two moments, the end not included; also as a pair of datetimes

Hours across midnight belong to the day on which they begin: "fri 22:00-06:00" ends on Saturday morning.

Pure. An entry is parsed into numbers and one canonical text.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

import msgspec

from evertick.errors import InvalidWhen
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND, moment_of, moment_text, to_us

__all__ = ["ALL_DAY", "Entry", "EntryLike", "Window", "read_entry", "yearly"]

EntryLike = str | date | tuple[date, date] | tuple[datetime, datetime]
Window = tuple[int, int]

ALL_DAY: Window = (0, DAY)
ENTRY_LONGEST = 100

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEK = frozenset(range(7))
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_YEARLY = re.compile(r"(\d{2})-(\d{2})", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_LEAP_YEAR = 2000
_HINT = "write it like 'mon-fri', '2026-12-25', '12-24..12-26', '22:00-06:00' or 'mon-fri 09:00-17:00'"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. It has one of the first three, or moments; the window may end after the day."""

    weekdays: frozenset[int] = frozenset()
    yearly: frozenset[int] = frozenset()
    days: tuple[int, int] | None = None
    window: Window = ALL_DAY
    moments: tuple[int, int] | None = None
    text: str


def yearly(day: date) -> int:
    """A day of the year as a number, e.g. 1225."""
    return day.month * 100 + day.day


def read_entry(value: EntryLike) -> Entry:
    """Parse text, a date, or a pair of dates or datetimes."""
    match value:
        case str():
            return _read_text(value)
        case datetime():
            problem = f"calendar entry {value.isoformat()} is one moment"
            raise InvalidWhen(problem, value=value.isoformat(), fix="pass a date, or a pair of datetimes")
        case date():
            return _read_days(value.isoformat(), value.isoformat(), value.isoformat())
        case (datetime() as first, datetime() as last):
            return _moments(to_us(first), to_us(last))
        case (datetime(), date()) | (date(), datetime()):
            problem = f"calendar entry {value!r} mixes a date and a datetime"
            raise InvalidWhen(problem, value=repr(value), fix="pass two of the same type")
        case (date() as first, date() as last):
            return _read_text(f"{first.isoformat()}..{last.isoformat()}")
        case _:
            raise _unknown(repr(str(value)[:ENTRY_LONGEST]))


def _unknown(shown: str) -> InvalidWhen:
    return InvalidWhen(f"calendar entry {shown} is not valid", value=shown, fix=_HINT)


def _read_text(text: str) -> Entry:
    shown = repr(text[:ENTRY_LONGEST])
    words = text.split() if len(text) <= ENTRY_LONGEST else []
    match words:
        case [word] if ":" in word and ".." in word:
            first, _, last = word.partition("..")
            return _moments(moment_of(first, what="calendar entry"), moment_of(last, what="calendar entry"))
        case [hours] if ":" in hours:
            return _with_window(_read_weekdays("mon-sun", shown), hours, shown)
        case [days]:
            return _read_day_word(days, shown)
        case [days, hours] if ":" in hours and ":" not in days:
            return _with_window(_read_day_word(days, shown), hours, shown)
        case _:
            raise _unknown(shown)


def _read_day_word(word: str, shown: str) -> Entry:
    first, _, last = word.partition("..")
    last = last if ".." in word else first
    if _DATE.fullmatch(first) and _DATE.fullmatch(last):
        return _read_days(first, last, shown)
    if _YEARLY.fullmatch(first) and _YEARLY.fullmatch(last):
        return _read_yearly(first, last, shown)
    return _read_weekdays(word, shown)


def _read_days(first: str, last: str, shown: str) -> Entry:
    try:
        days = tuple(date.fromisoformat(text).toordinal() - _EPOCH_ORDINAL for text in (first, last))
    except ValueError:
        raise InvalidWhen(f"calendar entry {shown} has a date that does not exist", value=shown) from None
    if days[0] > days[1]:
        raise InvalidWhen(f"calendar entry {shown} ends before it begins", value=shown, fix="swap the dates")
    return Entry(days=(days[0], days[1]), text=first if first == last else f"{first}..{last}")


def _read_yearly(first: str, last: str, shown: str) -> Entry:
    try:
        day, end = (date(_LEAP_YEAR, int(text[:2]), int(text[3:])) for text in (first, last))
    except ValueError:
        raise InvalidWhen(
            f"calendar entry {shown} has a day that no year has",
            value=shown,
            fix="write days like '12-25', month first, and hours like '22:00-06:00'",
        ) from None
    length = (end - day).days % 366
    found = frozenset(yearly(date.fromordinal(_of_leap_year(day + timedelta(days=step)))) for step in range(length + 1))
    return Entry(yearly=found, text=first if first == last else f"{first}..{last}")


def _of_leap_year(day: date) -> int:
    """The day within the leap year: days after its end wrap around."""
    return day.toordinal() - (366 if day.year > _LEAP_YEAR else 0)


def _read_weekdays(word: str, shown: str) -> Entry:
    found: set[int] = set()
    for part in word.lower().split(","):
        first, dash, last = part.partition("-")
        begin = _weekday(first, shown)
        end = _weekday(last, shown) if dash else begin
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return Entry(weekdays=frozenset(found), text=_weekdays_text(found))


def _weekday(word: str, shown: str) -> int:
    for names in (_WEEKDAYS, _FULL):
        if word in names:
            return names.index(word)
    raise _unknown(shown)


def _weekdays_text(days: set[int]) -> str:
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    names = [(_WEEKDAYS[run[0]], _WEEKDAYS[run[-1]]) for run in runs]
    return ",".join(first if first == last else f"{first}-{last}" for first, last in names)


def _with_window(days: Entry, hours: str, shown: str) -> Entry:
    begin, dash, end = hours.partition("-")
    first, last = _clock(begin, shown), _clock(end, shown)
    if not dash or first in (DAY, last):
        fix = "write hours like '09:00-17:00' or '22:00-06:00'"
        raise InvalidWhen(f"calendar entry {shown} has an empty range of hours", value=shown, fix=fix)
    last = last or DAY
    if (first, last) == ALL_DAY:
        return days
    hours = f"{_clock_text(first)}-{_clock_text(last)}"
    text = hours if days.weekdays == _WEEK else f"{days.text} {hours}"
    return msgspec.structs.replace(days, window=(first, last if last > first else last + DAY), text=text)


def _clock(text: str, shown: str) -> int:
    found = _CLOCK.fullmatch(text)
    hour, minute, second = (int(part or 0) for part in found.groups()) if found else (99, 0, 0)
    us = hour * HOUR + minute * MINUTE + second * SECOND
    if minute > 59 or second > 59 or us > DAY:
        problem = f"calendar entry {shown}: {text!r} is not a time of day"
        raise InvalidWhen(problem, value=shown, fix="write it like '09:30'")
    return us


def _clock_text(us: int) -> str:
    minutes, seconds = divmod(us // SECOND, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{seconds:02}" if seconds else text


def _moments(first: int, last: int) -> Entry:
    text = f"{moment_text(first)}..{moment_text(last)}"
    if first >= last:
        raise InvalidWhen(f"calendar entry {text!r} ends before it begins", value=repr(text), fix="swap the moments")
    return Entry(moments=(first, last), text=text)
