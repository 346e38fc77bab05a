"""English sentences as rules: "weekdays at 18:30", "every 15 minutes", "monthly on the 1st at 6:00 in Europe/Berlin".

Pure. A sentence is translated into a cron expression or an interval; the canonical text of that rule is stored and
shown.

    sentence = ( interval | [times] days [times] | times ) [["in"] zone]
    interval = "every" [number] unit {number unit} | "every half hour" | "hourly"
    times    = "at" time {"and" time}                             9:00, 9am, 9:30 pm, noon, midnight
    days     = "daily" | a part of the day | weekdays | days of the month | a day of the year

Every sentence repeats. Ambiguous sentences are rejected: one day or each of them ("monday at 8:00"), morning or evening
("at 9", "every evening at 8:00"). A sentence is read from left to right, each word once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from itertools import product
from typing import Literal, NamedTuple

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.when.duration import duration_us
from evertick.when.moment import moment_text, to_us
from evertick.when.zone import zone_named

__all__ = ["English", "read_english"]

_SHOWN = 60
_EXAMPLES = "understood are, for example, 'every 15 minutes' and 'weekdays at 18:30'"
# Suggestions for a similar sentence that is not understood.
_FORMS = (
    *("every 5 minutes", "every 2 hours", "every 2 days", "every hour", "every half hour", "hourly"),
    *("daily at 9:00", "every day at 9:00", "nightly at 2:30", "every morning at 8:00", "every evening at 20:00"),
    *("weekdays at 18:30", "weekends at 10:00", "every monday at 8:00", "weekly on monday at 8:00"),
    *("monthly on the 1st at 6:00", "on the last day of the month at 23:00", "yearly on 1 january at 0:00"),
    *("on the first monday of the month at 9:00", "daily at 9:00 in Europe/Berlin"),
)
_ALIKE = 0.7

_WORD = re.compile(r"[,-]|[^\s,-]+")
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?(am|pm)?", re.ASCII)
_SHORT_INTERVAL = re.compile(r"(?:\d{1,9}(?:ms|us|[wdhms]))+", re.ASCII)
_AFTER_INTERVAL = "cannot follow an interval: write it as cron, like '*/15 9-16 * * mon-fri'"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
# Unambiguous zones; "Japan" and "Cuba" need an "in" before them.
_CLEAR_ZONE = re.compile(r"UTC|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+)+")

_UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d"}
_UNITS_OF_MANY = {
    written: short
    for unit, short in (_UNITS | {"sec": "s", "min": "m", "hr": "h"}).items()
    for written in (unit, f"{unit}s")
}
# The hours of a part of the day. They are generous: a time outside is a mistake, or means pm.
_PARTS_OF_A_DAY = {
    "morning": range(12),
    "afternoon": range(12, 19),
    "evening": range(16, 24),
    "night": (*range(18, 24), *range(7)),
}
# Sunday is 7 here, so that a weekend is a range; cron writes 0.
_WEEKDAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ONE_WEEKDAY = {
    written: number for number, name in enumerate(_WEEKDAY_NAMES, 1) for written in (name, name[:3], f"{name}s")
}
_WEEKDAYS = {written: frozenset([number]) for written, number in _ONE_WEEKDAY.items()} | {
    "weekday": frozenset(range(1, 6)),
    "weekdays": frozenset(range(1, 6)),
    "weekend": frozenset([6, 7]),
    "weekends": frozenset([6, 7]),
}
_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTHS = {written: number for number, name in enumerate(_MONTH_NAMES, 1) for written in (name, name[:3])}
_SUFFIXES = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
_ORDINALS = {f"{number}{_SUFFIXES.get(number, 'th')}": number for number in range(1, 32)} | {
    word: number for number, word in enumerate(("first", "second", "third", "fourth", "fifth"), 1)
}
_WEEKS_OF_A_MONTH = 5
_ON_A_DAY = {
    "week": "weekly on monday at 9:00",
    "month": "monthly on the 1st at 9:00",
    "year": "yearly on 1 january at 9:00",
}
_SO_MANY_DAYS = re.compile(
    r"(?:every (?P<count>\d{1,4}) ?(?P<unit>d|days?|w|weeks?)|every (?:other|second) (?P<one>day|week|[a-z]+day)"
    r"|biweekly|fortnightly|every fortnight)\b(?P<rest>.*)",
    re.ASCII,
)
_SO_MANY_MONTHS = re.compile(r"(?:every (?P<count>\d{1,3}) ?months?|every quarter(?! hour)|quarterly)\b", re.ASCII)


class English(NamedTuple):
    """A parsed sentence: a cron expression or an interval, and its zone."""

    kind: Literal["cron", "every"]
    body: str
    tz: str | None


class _Days(NamedTuple):
    """The three day fields of a cron expression."""

    day: str = "*"
    month: str = "*"
    weekday: str = "*"


class _Words:
    """The words of a sentence, read once from left to right."""

    def __init__(self, sentence: str, text: str) -> None:
        self._sentence = sentence
        self._words = _WORD.findall(text.lower())
        self._at = 0

    def peek(self, ahead: int = 0) -> str:
        """The next word; empty after the last one."""
        at = self._at + ahead
        return self._words[at] if at < len(self._words) else ""

    def next(self) -> str:
        word = self.peek()
        if not word:
            shown = repr(self._sentence[:_SHOWN])
            raise InvalidWhen(f"{shown} is incomplete", value=shown, fix=self._suggestion())
        self._at += 1
        return word

    def take(self, *words: str) -> bool:
        """Read exactly these words, if they are next; returns whether they were."""
        is_here = all(self.peek(ahead) == word for ahead, word in enumerate(words))
        self._at += len(words) if is_here else 0
        return is_here

    def take_separator(self, is_item: Callable[[str], bool]) -> bool:
        """Read a separator if the list continues. A comma may also end a list; "and" never does."""
        if self.take("and") or self.take(",", "and"):
            return True
        return is_item(self.peek(1)) and self.take(",")

    def refuse(self, word: str, why: str = "is not understood") -> InvalidWhen:
        shown = repr(self._sentence[:_SHOWN])
        return InvalidWhen(f"{word[:_SHOWN]!r} in {shown} {why}", value=shown, fix=self._suggestion())

    def _suggestion(self) -> str:
        alike = get_close_matches(self._sentence[:_SHOWN].lower(), _FORMS, 1, _ALIKE)
        return f"understood is, for example, {alike[0]!r}" if alike else _EXAMPLES

    def check_end(self) -> None:
        if self.peek():
            raise self.refuse(self.peek())


def read_english(sentence: str) -> English:
    """Parse a sentence. InvalidWhen names the first word that is not understood."""
    try:
        return _read(sentence)
    except InvalidWhen:
        # Common rules that no sentence can express get the nearest rule as fix.
        text, tz = _without_zone(sentence)
        instead = _instead_of_days(text, tz) or _instead_of_months(text)
        if instead is None:
            raise
        raise InvalidWhen(f"{sentence[:_SHOWN]!r} is not a rule: {instead}", value=repr(sentence[:_SHOWN])) from None


def _read(sentence: str) -> English:
    text, tz = _without_zone(sentence)
    words = _Words(sentence, text)
    interval = _short_interval(text) or _interval(words)
    if interval is not None:
        return English("every", interval, tz)
    times = _times(words)
    words.take(",")
    part = _part_of_the_day(words)
    days = _days(words) if part is None else _Days()
    if times is None and days is None:
        raise words.refuse(words.next())
    times = times or _times(words)
    words.take(",")
    words.check_end()
    if part is not None:
        _check_part(words, part, times or [])
    times = times or [(0, 0)]
    return English("cron", " ".join([*_clock(words, times), *(days or _Days())]), tz)


def _instead_of_days(text: str, tz: str | None) -> str | None:
    """The fix for "every N days" or "every N weeks" with a time of day or a weekday."""
    found = _SO_MANY_DAYS.fullmatch(text.lower())
    if found is None:
        return None
    is_day = (found["unit"] or "").startswith("d") or found["one"] == "day"
    days, rest = int(found["count"] or 2) * (1 if is_day else 7), found["rest"]
    weekday = next((_ONE_WEEKDAY[word] for word in _WORD.findall(f"{found['one']} {rest}") if word in _ONE_WEEKDAY), 0)
    if is_day and not rest:
        return None
    hour, minute = _time_within(rest)
    name, zone = _WEEKDAY_NAMES[(weekday or 1) - 1], zone_named(tz or "UTC")
    at = f"{hour}:{minute:02}" + (f" in {tz}" if tz else "")
    if days == 1:
        return f"write 'daily at {at}'"
    if days == 7 and weekday:
        return f"write 'weekly on {name} at {at}'"
    # The 5th is a Monday.
    first = datetime(2026, 1, 4 + (weekday or 1), hour, minute, tzinfo=zone)
    ordinal = f", or 'monthly on the second {name} at {at}'" if found["one"] == name else ""
    if not rest and not weekday:
        start = moment_text(to_us(first))
        return (
            f"write 'every {days}d', or with a first moment to count from 'every {days}d; since=start; start={start}'"
        )
    return (
        "an interval of days takes no time of day and no weekday; give it a first moment to count from: "
        f"'every {days}d; since=start; start={moment_text(to_us(first))}', which counts {24 * days} hours each time, "
        f"also across a clock change{ordinal}"
    )


def _time_within(rest: str) -> tuple[int, int]:
    """The time of day after the days; if there is none, 9:00 as an example."""
    found = re.search(r"\bat .*", rest)
    if found is None:
        return 9, 0
    words = _Words(rest.strip(), found[0])
    times = _times(words) or []
    if len(times) > 1:
        raise words.refuse(found[0], "has several times of day: use a rule for each")
    return times[0]


def _instead_of_months(text: str) -> str | None:
    found = _SO_MANY_MONTHS.match(text.lower())
    if found is None:
        return None
    count = 3 if found["count"] is None else int(found["count"])
    if count == 1:
        return "write 'monthly on the 1st at 9:00'"
    if count in (2, 3, 4, 6):
        return f"write it as cron: '0 9 1 */{count} *' is the 1st of every {count} months, from January on, at 9:00"
    return "months cannot be counted like this; name them in cron, like '0 9 1 1,6 *': 1 January and 1 June at 9:00"


def _without_zone(sentence: str) -> tuple[str, str | None]:
    *before, word, name = ["", "", *sentence.split()]
    if word.lower() == "in":
        return " ".join(before).strip(), name
    if _CLEAR_ZONE.fullmatch(name):
        return " ".join([*before, word]).strip(), name
    return " ".join(sentence.split()), None


# Intervals.


def _short_interval(text: str) -> str | None:
    """The duration of "every 90s", which may be followed by a zone."""
    first, _, rest = text.partition(" ")
    try:
        return rest if first.lower() == "every" and duration_us(rest) else None
    except InvalidDuration:
        return None


def _interval(words: _Words) -> str | None:
    """The interval as a duration; None if the sentence is about days."""
    if words.take("hourly"):
        words.check_end()
        return "1h"
    if words.peek() != "every":
        return None
    if words.take("every", "half", "hour") or words.take("every", "half", "an", "hour"):
        words.check_end()
        return "30m"
    if _NUMBER.fullmatch(words.peek(1)):
        words.next()
        return _numbered_interval(words)
    if _SHORT_INTERVAL.fullmatch(words.peek(1)) and words.peek(2):
        words.next(), words.next()
        raise words.refuse(words.peek(), _AFTER_INTERVAL)
    unit = words.peek(1)
    # "every second monday" is not about seconds, and "every day" has a time of day.
    if unit not in _UNITS or unit == "day" or (unit == "second" and words.peek(2)):
        return None
    words.take("every", unit)
    words.check_end()
    return f"1{_UNITS[unit]}"


def _numbered_interval(words: _Words) -> str:
    parts: list[str] = []
    while not parts or words.take("and") or words.peek():
        number = words.next()
        if parts and number in ("on", "at", "from", "between"):
            raise words.refuse(number, _AFTER_INTERVAL)
        if not _NUMBER.fullmatch(number):
            raise words.refuse(number)
        unit = words.next()
        if unit in ("week", "weeks"):
            raise words.refuse(unit, "does not say on which day")
        if unit not in _UNITS_OF_MANY:
            raise words.refuse(unit)
        parts.append(f"{int(number)}{_UNITS_OF_MANY[unit]}")
    return "".join(parts)


# Times of day.


def _times(words: _Words) -> list[tuple[int, int]] | None:
    """Hours and minutes; None if no time is next."""
    if not (words.take("at") or words.take(",", "at")):
        return None
    times = [_time(words)]
    while words.take_separator(_is_time):
        words.take("at")
        times.append(_time(words))
    return times


def _is_time(word: str) -> bool:
    return word in ("noon", "midnight") or _TIME.fullmatch(word) is not None


def _time(words: _Words) -> tuple[int, int]:
    word = words.next()
    if word in ("noon", "midnight"):
        return (12, 0) if word == "noon" else (0, 0)
    found = _TIME.fullmatch(word)
    if found is None:
        raise words.refuse(word, "is not a time of day")
    half = found[3] or next((half for half in ("am", "pm") if words.take(half)), None)
    hour, minute = int(found[1]), int(found[2] or 0)
    if half is None and found[2] is None:
        raise words.refuse(word, f"has no minutes: write '{word}:00', or add am or pm")
    if minute > 59 or not (hour <= 23 if half is None else 1 <= hour <= 12):
        raise words.refuse(word, "is not a time of day")
    return hour if half is None else hour % 12 + (12 if half == "pm" else 0), minute


def _clock(words: _Words, times: list[tuple[int, int]]) -> tuple[str, str]:
    """The minute and the hour field."""
    hours, minutes = sorted({hour for hour, _ in times}), sorted({minute for _, minute in times})
    if set(times) != set(product(hours, minutes)):
        hour, minute = times[-1]
        raise words.refuse(f"{hour}:{minute:02}", "has other minutes than the other times: use two schedules")
    return ",".join(map(str, minutes)), ",".join(map(str, hours))


# Days.


def _part_of_the_day(words: _Words) -> str | None:
    """The part of "every night" or "nightly"; None if the sentence has days."""
    if words.take("nightly"):
        return "night"
    return next((part for part in _PARTS_OF_A_DAY if words.take("every", part)), None)


def _check_part(words: _Words, part: str, times: Iterable[tuple[int, int]]) -> None:
    """Reject times outside of the part of the day, such as "every evening at 8:00"."""
    if not times:
        raise words.refuse(part, "does not say when: add 'at' and a time")
    for hour, minute in times:
        if hour not in _PARTS_OF_A_DAY[part]:
            later = f"'{hour + 12}:{minute:02}', or " if hour + 12 in _PARTS_OF_A_DAY[part] else ""
            raise words.refuse(f"{hour}:{minute:02}", f"is no time of the {part}: write {later}'daily' for '{part}'")


def _days(words: _Words) -> _Days | None:
    """The days; None if none are next."""
    if words.peek() in ("", "at"):
        return None
    if words.take("daily") or words.take("every", "day"):
        return _Days()
    if _takes_period(words, "weekly", "week"):
        return _weekdays(words, repeats=True)
    if _takes_period(words, "monthly", "month"):
        return _month_days(words, repeats=True)
    if _takes_period(words, "yearly", "year") or _takes_period(words, "annually", "year"):
        return _date(words)
    is_every = words.take("every")
    if not is_every:
        words.take("on")
    if _is_month_day(words.peek()):
        return _month_days(words, repeats=False)
    return _weekdays(words, repeats=is_every)


def _takes_period(words: _Words, adverb: str, noun: str) -> bool:
    """Read "weekly on" or "every week on"; returns whether it was there. "on" is required."""
    if words.take(adverb):
        period = adverb
    elif words.take("every", noun):
        period = noun
    else:
        return False
    if not words.take("on"):
        raise words.refuse(period, f"does not say on which day: write '{_ON_A_DAY[noun]}'")
    return True


def _weekdays(words: _Words, *, repeats: bool) -> _Days:
    """A list of weekdays and ranges. A singular needs "every" before it."""
    first = words.peek()
    found: set[int] = set()
    while not found or words.take_separator(_WEEKDAYS.__contains__):
        word = words.next()
        if word not in _WEEKDAYS:
            raise words.refuse(word)
        found |= _WEEKDAYS[word]
        repeats = repeats or word.endswith("days") or word == "weekends"
        if any(words.take(to) for to in ("to", "through", "-")):
            found |= _weekdays_between(words, word, words.next())
            repeats = True
    if not repeats:
        raise words.refuse(first, f"may be one day or every one: write 'every {first}'")
    return _Days(weekday=_weekday_field(found))


def _weekdays_between(words: _Words, first: str, last: str) -> set[int]:
    for word in (first, last):
        if word not in _ONE_WEEKDAY:
            raise words.refuse(word, "is not one day of the week")
    start, length = _ONE_WEEKDAY[first], (_ONE_WEEKDAY[last] - _ONE_WEEKDAY[first]) % 7
    return {(start + step - 1) % 7 + 1 for step in range(length + 1)}


def _weekday_field(days: set[int]) -> str:
    """The days as a list, or as one range, which may wrap around the end of the week."""
    if len(days) == 7:
        return "*"
    ordered = sorted(days)
    starts = [day for day in ordered if (day - 2) % 7 + 1 not in days]
    if len(starts) == 1 and len(days) > 2:
        return f"{starts[0] % 7}-{(starts[0] + len(days) - 1) % 7}"
    return ",".join(str(day % 7) for day in ordered)


def _month_days(words: _Words, *, repeats: bool) -> _Days:
    """A list of days of the month; without "monthly" before it, "of the month" must follow."""
    days: list[str] = []
    weekdays: list[str] = []
    last = words.peek()
    while not (days or weekdays) or words.take_separator(_is_month_day):
        words.take("the")
        last = words.peek()
        day, weekday = _month_day(words)
        days += [] if day is None else [day]
        weekdays += [] if weekday is None else [weekday]
    if words.take("of"):
        _read_month(words)
        repeats = True
    if days and weekdays:
        raise words.refuse(last, "mixes dates and weekdays: use two schedules")
    if not repeats:
        raise words.refuse(last, "is incomplete: add 'of the month'")
    return _Days(day=",".join(days) or "*", weekday=",".join(weekdays) or "*")


def _is_month_day(word: str) -> bool:
    return word in ("the", "last") or word in _ORDINALS


def _read_month(words: _Words) -> None:
    """Read "the month" after "of"."""
    word = words.next()
    if word in _MONTHS:
        raise words.refuse(word, "may be one year or every year: begin with 'yearly on'")
    if word in ("the", "every", "each"):
        word = words.next()
    if word != "month":
        raise words.refuse(word)


def _month_day(words: _Words) -> tuple[str | None, str | None]:
    """One day of the month as a cron field: a day of the month, or a day of the week."""
    word = words.next()
    number = _ORDINALS.get(word)
    if number is None and word != "last":
        raise words.refuse(word)
    weekday = _ONE_WEEKDAY.get(words.peek())
    if weekday is not None:
        if number is not None and number > _WEEKS_OF_A_MONTH:
            raise words.refuse(word, f"is too large: no month has more than {_WEEKS_OF_A_MONTH} of a weekday")
        words.next()
        return None, f"{weekday % 7}L" if number is None else f"{weekday % 7}#{number}"
    if words.peek() == "weekday" and number in (None, 1):
        words.next()
        return "LW" if number is None else "1W", None
    if words.take("day") or number is not None:
        return "L" if number is None else str(number), None
    raise words.refuse(words.peek() or word)


def _date(words: _Words) -> _Days:
    """A day of the year: "1 january", "january 1", "the 1st of january"."""
    words.take("the")
    first = words.next()
    if first in _MONTHS:
        return _Days(day=_date_day(words, words.next()), month=str(_MONTHS[first]))
    day = _date_day(words, first)
    words.take("of")
    month = words.next()
    if month not in _MONTHS:
        raise words.refuse(month, "is not a month")
    return _Days(day=day, month=str(_MONTHS[month]))


def _date_day(words: _Words, word: str) -> str:
    number = _ORDINALS.get(word) or (int(word) if _NUMBER.fullmatch(word) else 0)
    if not 1 <= number <= 31:
        raise words.refuse(word, "is not a day of a month")
    return str(number)
