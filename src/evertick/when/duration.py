"""Durations: a timedelta, a number of seconds, or text like "1h30m", as whole microseconds.

Pure. Text is a run of number-unit pairs, each unit once, largest first: w d h m s ms us.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache

from evertick.errors import InvalidDuration
from evertick.text.values import shown
from evertick.when.moment import DAY, HOUR, MILLISECOND, MINUTE, SECOND

__all__ = ["Duration", "duration_rounded", "duration_text", "duration_us", "duration_words"]

_FIX = "pass a timedelta, a number of seconds, or text like '90s' or '1h30m'"

Duration = timedelta | float | int | str

_UNITS = {"w": 7 * DAY, "d": DAY, "h": HOUR, "m": MINUTE, "s": SECOND, "ms": MILLISECOND, "us": 1}
_WORDS = {
    "day": DAY,
    "hour": HOUR,
    "minute": MINUTE,
    "second": SECOND,
    "millisecond": MILLISECOND,
    "microsecond": 1,
}
_PAIR = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?(ms|us|[wdhms])", re.ASCII)
# Other common forms; the error shows the right one.
_PAIR_IN_WORDS = re.compile(
    r"(?:every )?(\d{1,9}) ?(seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?)", re.ASCII | re.IGNORECASE
)
_LONGEST = 64
# From this number on, hours, minutes and seconds are easier to read than one unit.
_MOST_OF_ONE = 1_000
# A thousand years, which fits a datetime.
_MOST = 366_000 * DAY


def duration_us(value: Duration, *, what: str = "duration") -> int:
    """The duration in microseconds, at least 0. `what` names the option in the error."""
    match value:
        case bool():
            raise _no_duration(value, what)
        case timedelta():
            us = value // timedelta(microseconds=1)
        case int():
            us = value * SECOND
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise _no_duration(value, what)
            us = round(value * SECOND)
        case str():
            us = _parse(value, what)
        case _:
            raise _no_duration(value, what)
    if abs(us) > _MOST * 1000:
        raise InvalidDuration(f"{what}: the number is too large", setting=what, fix=_FIX)
    if us < 0:
        raise InvalidDuration(f"{what}: {shown(value)} is negative", setting=what)
    if us > _MOST:
        raise InvalidDuration(f"{what}: {shown(value)} is longer than a thousand years", setting=what)
    return us


def _no_duration(value: object, what: str) -> InvalidDuration:
    text = shown(value)
    return InvalidDuration(f"{what}: {text} is not a duration", setting=what, value=text, fix=_FIX)


# Many rules share a few intervals.
@lru_cache(maxsize=1024)
def _parse(text: str, what: str) -> int:
    compact = text.strip().replace(" ", "") if len(text) <= _LONGEST else ""
    total, at, last_unit = 0, 0, max(_UNITS.values()) + 1
    while at < len(compact):
        pair = _PAIR.match(compact, at)
        if pair is None or _UNITS[pair[3]] >= last_unit:
            break
        last_unit = _UNITS[pair[3]]
        total += int(pair[1]) * last_unit
        if pair[2]:
            total += int(pair[2]) * last_unit // 10 ** len(pair[2])
        at = pair.end()
    if not compact or at < len(compact):
        shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
        problem = f"{what}: {shown!r} is not a duration; write it {_right_form(shown.strip())}"
        raise InvalidDuration(problem, setting=what)
    return total


def _right_form(text: str) -> str:
    worded = _PAIR_IN_WORDS.fullmatch(text)
    if worded is not None:
        return f"as '{worded[1]}{worded[2][0].lower()}'"
    if text.isascii() and text.isdigit():
        return f"with its unit, like '{text}s'"
    return "like '90s', '1h30m' or '250ms'"


def duration_text(us: int) -> str:
    """A short text that parses back to the same duration: "90s" and "36h", but "16m40s" and "1h1s"."""
    if us == 0:
        return "0s"
    units = {unit: size for unit, size in _UNITS.items() if unit != "w"}  # "14d" is clearer than "2w"
    count, unit = next((us // size, unit) for unit, size in units.items() if us % size == 0)
    if count < _MOST_OF_ONE:
        return f"{count}{unit}"
    parts = []
    for unit, size in units.items():
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def duration_rounded(us: int) -> str:
    """A short text for a log, exact to some hundredths of the whole: "850ms", "5.5s", "80s", "185m"."""
    if us < SECOND:
        return duration_text(round(us / MILLISECOND) * MILLISECOND)
    if us < 10 * SECOND:
        return f"{us / SECOND:.1f}".removesuffix(".0") + "s"
    step = SECOND if us < HOUR else MINUTE
    return duration_text(round(us / step) * step)


def duration_words(us: int) -> str:
    """The duration in words, e.g. "1 hour 30 minutes"."""
    parts = []
    for word, size in _WORDS.items():
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count} {word}" if count == 1 else f"{count} {word}s")
    return " ".join(parts) or "0 seconds"
