"""Suggests rules for schedules that fire at the same instant: with `H` for the minute, or with jitter. Pure.

A suggestion is the text of a whole rule that differs only in the minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from evertick.errors import EvertickError
from evertick.plan.forecast import Collision, Expected
from evertick.when.base import When
from evertick.when.calendar import Calendar
from evertick.when.cron import Cron
from evertick.when.duration import duration_text
from evertick.when.moment import MINUTE, SECOND
from evertick.when.text import parse_when

__all__ = ["Suggestion", "spread_rule", "suggestions"]

_JITTER_MOST = 5 * MINUTE
_FIELDS_WITHOUT_SECONDS = 5
_SUGGESTED_MOST = 10


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that avoids a collision."""

    key: str
    when: str
    instead: str


def suggestions(collisions: Iterable[Collision], expected: Mapping[str, Expected], since: int) -> list[Suggestion]:
    """Rules that avoid the largest collisions; one schedule of each may keep its rule."""
    found: dict[str, Suggestion] = {}
    for collision in collisions:
        movable = {
            key: text
            for key in collision.keys
            if key not in found and (text := spread_rule(expected[key].rule, key, since)) is not None
        }
        stays = 1 if len(movable) == len(collision.keys) else 0
        # A minute of its own is better than jitter: it is visible and the same every day.
        for key, text in sorted(movable.items(), key=lambda pair: "jitter=" in pair[1])[stays:]:
            if len(found) == _SUGGESTED_MOST:
                return list(found.values())
            found[key] = Suggestion(key=key, when=expected[key].rule.text, instead=text)
    return list(found.values())


def spread_rule(rule: When, key: str, after: int) -> str | None:
    """The text of a rule that fires as often, but at another minute; None if there is none."""
    if rule.bounds.jitter:
        return None
    text = _with_hash(rule) if isinstance(rule, Cron) else None
    text = text or _with_jitter(rule, after)
    if text is None:
        return None
    try:
        parse_when(text).bind(key=key, created=after, calendars=_calendars(rule))
    except EvertickError:  # not a valid rule
        return None
    return text


def _with_hash(rule: Cron) -> str | None:
    """The rule with `H` in place of one minute or an even step; None for other minutes."""
    fields = rule.expression.split()
    place = 0 if len(fields) == _FIELDS_WITHOUT_SECONDS else 1
    minute = fields[place] if len(fields) >= _FIELDS_WITHOUT_SECONDS else ""
    hashed = _hashed(minute)
    if hashed is None or (place and not fields[0].isdigit()):
        return None
    fields[place] = hashed
    _, semicolon, options = rule.text.partition(";")
    return f"{' '.join(fields)}{semicolon}{options}"


def _hashed(minute: str) -> str | None:
    if minute.isdigit():
        return "H"
    start, slash, step = minute.partition("/")
    is_even = slash and step.isdigit() and 1 < int(step) <= 30 and 60 % int(step) == 0
    return f"H/{step}" if is_even and (start == "*" or start.isdigit()) else None


def _with_jitter(rule: When, after: int) -> str | None:
    """The rule with a jitter of half the interval, up to five minutes; None if that is less than a second."""
    first = rule.next_us(after)
    second = None if first is None else rule.next_us(first)
    room = _JITTER_MOST if first is None or second is None else min(_JITTER_MOST, (second - first) // 2)
    whole = room // SECOND * SECOND
    return f"{rule.text}; jitter={duration_text(whole)}" if whole else None


def _calendars(rule: When) -> dict[str, Calendar]:
    return {} if rule.calendar is None else {rule.calendar.name: rule.calendar}
