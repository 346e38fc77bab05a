"""Cron: the moments at which the wall clock of a zone matches an expression.

    Cron("0 9 * * mon-fri", tz="Europe/Berlin")
    Cron("H H(1-5) * * *", key="report")          a time between 1:00 and 5:59, always the same for this key
    Cron("@daily", anchored=True)                 daily, at the time of day at which the schedule was created

`dst` chooses one of four rules for clock changes:

- `cron`, as in Debian's cron. A *fixed* expression (second, minute and hour do not begin with `*`) in the skipped hour
  fires once, at the first instant after it; in the repeated hour it fires only the first time. Any other expression
  follows the wall clock literally: skipped times do not fire, repeated times fire twice.
- `skip`: the same, but a fixed expression in the skipped hour does not fire.
- `shift`: the same, but it fires later by the size of the change.
- `wall`: literal for every expression.

Moments are in the years 1970 to 2099 of the wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast
from zoneinfo import ZoneInfo

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.text.values import shown
from evertick.when.base import Bounds, JitterMode, When
from evertick.when.cron_day import DaysRule
from evertick.when.cron_search import Search
from evertick.when.cron_text import NICKNAMES, Expression, check_text, parse_expression
from evertick.when.cron_warnings import about_steps, warnings_of
from evertick.when.cron_words import anchored_words, words
from evertick.when.duration import Duration, duration_us
from evertick.when.every import Every
from evertick.when.moment import SECOND, from_us, moment_of, moment_text, to_us
from evertick.when.zone import GapRule, zone_named

if TYPE_CHECKING:
    from evertick.when.calendar import Calendar

__all__ = ["Cron", "CronOptions", "DaysRule", "DstRule", "rule", "warnings_of_steps"]

DstRule = Literal["cron", "skip", "shift", "wall"]

_LONGEST_KEY = 200
_DST_WORDS: dict[DstRule, str] = {
    "cron": "",
    "skip": "; not at times that a clock change leaves out",
    "shift": "; times that a clock change leaves out are moved by the size of the gap",
    "wall": "; as often as the wall clock shows it",
}


class CronOptions(TypedDict, total=False):
    """The options of `Cron`."""

    tz: str | ZoneInfo | None
    dst: DstRule
    days: DaysRule
    key: str | None
    anchored: bool | str | datetime | None
    start: datetime | None
    end: datetime | None
    max_fires: int | None
    jitter: Duration | None
    jitter_mode: JitterMode
    calendar: str | Calendar | None


class Cron(When):
    """The moments of a cron expression. `expression` is its canonical text."""

    __slots__ = ("_anchor", "_fields", "_missing_part", "_nickname", "_search", "days", "dst", "key")

    dst: DstRule
    days: DaysRule
    key: str | None
    # None for an anchored nickname without its anchor.
    _fields: Expression | None
    # An anchored nickname that lacks its anchor or its zone.
    _nickname: str | None
    _anchor: int | None
    _missing_part: str | None
    # Made at the first use: a process uses few rules of a large store.
    _search: Search | None

    def __new__(cls, text: str = "", **options: Any) -> Self:
        """`Cron("@every 90s")` makes an `Every`."""
        if _is_interval(text):
            return cast("Self", rule(text, **options))
        return super().__new__(cls)

    def __init__(
        self,
        text: str,
        *,
        tz: str | ZoneInfo | None = None,
        dst: DstRule = "cron",
        days: DaysRule = "or",
        key: str | None = None,
        anchored: bool | str | datetime | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        max_fires: int | None = None,
        jitter: Duration | None = None,
        jitter_mode: JitterMode = "stable",
        calendar: str | Calendar | None = None,
    ) -> None:
        if dst not in ("cron", "skip", "shift", "wall"):
            problem = f"dst: {shown(dst)} is none of 'cron', 'skip', 'shift', 'wall'"
            raise InvalidWhen(problem, setting="dst", value=shown(dst))
        if days not in ("or", "and"):
            raise InvalidWhen(f"days: {shown(days)} is neither 'or' nor 'and'", setting="days", value=shown(days))
        bounds = Bounds.make(
            start=start, end=end, max_fires=max_fires, jitter=jitter, jitter_mode=jitter_mode, calendar=calendar
        )
        zone = zone_named("UTC" if tz is None else tz)
        self._fill_common(zone=zone, is_zone_given=tz is not None, bounds=bounds, calendar=calendar)
        self._fill(dst=dst, key=None if key is None else _checked_key(key))
        text = check_text(text)
        nickname = _nickname(text) if text.startswith("@") else None
        if anchored is not None and anchored is not False:
            self._fill(days=days, _nickname=_anchorable(text, nickname), _anchor=_anchor(anchored))
            self._settle(None)
            return
        fields, days_in_text = parse_expression(text if nickname is None else NICKNAMES[nickname])
        self._fill(days=days_in_text or days, _nickname=None, _anchor=None)
        self._settle(fields)

    def _settle(self, fields: Expression | None) -> None:
        """Set the slots that follow from the others, and reject days that never come."""
        if self._nickname is not None and self._anchor is not None:
            fields, _ = parse_expression(_anchored_text(self._nickname, from_us(self._anchor, self.zone)))
            if self.is_zone_given:
                self._fill(_nickname=None, _anchor=None)
        # A key has no effect without H, so it is dropped.
        missing = None
        if fields is None:
            missing = "the creation that it is anchored to (or pass anchored= a datetime)"
            self._fill(key=None)
        elif fields.is_spread and self.key is None:
            missing = "the key that H is spread by (or pass key=)"
        elif fields.is_spread and self.key is not None:
            fields.settled(self.key).check_possible(self.days)
        else:
            fields.check_possible(self.days)
            self._fill(key=None)
        self._fill(_fields=fields, _missing_part=missing, _search=None)

    def bind(self, *, key: str, created: int, tz: str = "UTC", calendars: Mapping[str, Calendar] | None = None) -> Self:
        """See `When.bind`. The key settles `H`; the creation time settles an anchored nickname."""
        bound = super().bind(key=key, created=created, tz=zone_named(tz).key, calendars=calendars)
        bound._fill(key=_checked_key(key) if self.key is None and self._is_spread else self.key)
        if self._nickname is not None and self._anchor is None:
            bound._fill(_anchor=created)
        bound._settle(self._fields)
        return bound

    def starting_at(self, start: int) -> Self:
        """See `When.starting_at`. All rules made from this one share its search."""
        if self._missing_part is None:
            self._searching()
        return super().starting_at(start)

    @property
    def expression(self) -> str:
        """The canonical expression: five fields, six with seconds, seven with a year; a nickname while unanchored."""
        if self._nickname is not None:
            return self._nickname
        assert self._fields is not None
        return self._fields.text

    @property
    def is_fixed(self) -> bool:
        """Whether it has fixed times of day: second, minute and hour do not begin with `*`."""
        return self._nickname != "@hourly" if self._fields is None else self._fields.is_fixed

    @property
    def _is_spread(self) -> bool:
        return self._fields is not None and self._fields.is_spread

    def _settled_fields(self) -> Expression:
        self._check_complete()
        assert self._fields is not None
        return self._fields if self.key is None else self._fields.settled(self.key)

    def _missing(self) -> str | None:
        return self._missing_part

    def _gap_rule(self, fields: Expression) -> GapRule:
        return "literal" if self.dst == "wall" or not fields.is_fixed else self.dst

    def _searching(self) -> Search:
        if self._search is None:
            fields = self._settled_fields()
            self._fill(_search=Search(fields.clock(), fields.days(self.days), self.zone, self._gap_rule(fields)))
        assert self._search is not None
        return self._search

    def _raw_next(self, after: int) -> int | None:
        found = (self._search or self._searching()).next(after // SECOND + 1)
        return None if found is None else found * SECOND

    def _raw_previous(self, before: int) -> int | None:
        found = (self._search or self._searching()).previous(-(-before // SECOND) - 1)
        return None if found is None else found * SECOND

    def _raw_count(self, first: int, last: int, limit: int) -> int:
        return (self._search or self._searching()).count(-(-first // SECOND), last // SECOND, limit)

    def _rule_text(self) -> str:
        parts = [f"cron {self.expression}"]
        if self.is_zone_given:
            parts.append(f"tz={self.zone.key}")
        if self.dst != "cron":
            parts.append(f"dst={self.dst}")
        if self.days != "or":
            parts.append(f"days={self.days}")
        if self.key is not None:
            parts.append(f"key={self.key}")
        if self._nickname is not None:
            parts.append(f"anchored={'true' if self._anchor is None else moment_text(self._anchor)}")
        return "; ".join(parts)

    def _words(self) -> str:
        """The rule in words: "At 09:00, Monday to Friday, in Europe/Berlin"."""
        zone = f", in {self.zone.key}" if self.is_zone_given else ""
        if self._fields is None:
            return f"{anchored_words(self._nickname or '')}{zone}"
        fields = self._fields if self.key is None else self._fields.settled(self.key)
        clock_changes = _DST_WORDS[self.dst] if fields.is_fixed and self.zone.key != "UTC" else ""
        return f"{words(fields, self.days).removesuffix(',')}{zone}{clock_changes}"

    def warnings(self, after: datetime) -> list[str]:
        """Warnings about short months, uneven steps, the day rule, and clock changes in the year after the moment."""
        fields = self._settled_fields()
        return warnings_of(fields, self.days, self.zone, self._gap_rule(fields), to_us(after) // SECOND)


def warnings_of_steps(cron: Cron) -> list[str]:
    """The warnings about steps, which do not depend on a moment."""
    return [] if cron._fields is None else list(about_steps(cron._fields))


def _is_interval(text: object) -> bool:
    return isinstance(text, str) and text.strip().partition(" ")[0].lower() == "@every"


def rule(text: str, **options: Unpack[CronOptions]) -> Cron | Every:
    """The rule of a cron text: `Cron`, or `Every` for `@every 90s`."""
    if not _is_interval(text):
        return Cron(text, **options)
    head, _, interval = text.strip().partition(" ")
    foreign = [name for name in ("dst", "days", "key", "anchored") if options.get(name) is not None]
    if foreign:
        problem = f"{foreign[0]}: {text[:60]!r} is an interval and does not take it"
        raise InvalidWhen(problem, setting=foreign[0], fix="leave it out")
    try:
        interval_us = duration_us(interval.strip(), what=head)
    except InvalidDuration as error:
        raise InvalidWhen(error.problem, value=error.value, fix=error.fix) from None
    return Every(
        timedelta(microseconds=interval_us),
        tz=options.get("tz"),
        start=options.get("start"),
        end=options.get("end"),
        max_fires=options.get("max_fires"),
        jitter=options.get("jitter"),
        jitter_mode=options.get("jitter_mode", "stable"),
        calendar=options.get("calendar"),
    )


def _checked_key(key: object) -> str:
    """Check that the key can be part of the text of a rule."""
    if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST_KEY:
        fix = f"pass a string of 1 to {_LONGEST_KEY} characters"
        raise InvalidWhen(f"key: {shown(key)} is not a key", value=shown(key), fix=fix)
    if not key.isprintable() or ";" in key or key != key.strip():
        problem = f"key: {shown(key)} must be printable, without ';' and without space around it"
        raise InvalidWhen(problem, value=shown(key))
    return key


def _nickname(text: str) -> str:
    name = text.lower()
    if name in NICKNAMES:
        return name
    if name == "@reboot":
        fix = "run the task when your program starts"
        raise InvalidWhen("cron '@reboot' is not a moment", setting="cron", value="'@reboot'", fix=fix)
    raise InvalidWhen(
        f"cron {text[:60]!r}: no such nickname", value=shown(text), fix=f"use {', '.join(NICKNAMES)} or @every"
    )


def _anchorable(text: str, nickname: str | None) -> str:
    if nickname is None:
        problem = f"anchored: {text[:60]!r} already has a time of day"
        raise InvalidWhen(problem, setting="anchored", fix="only nicknames like '@daily' can be anchored")
    if nickname == "@midnight":
        raise InvalidWhen("anchored: '@midnight' already has a time of day", setting="anchored", fix="write '@daily'")
    return nickname


def _anchor(anchored: bool | str | datetime) -> int | None:
    """The anchor; None for the creation time, which `bind` gets."""
    match anchored:
        case True | "true":
            return None
        case str():
            return moment_of(anchored, what="anchored")
        case datetime():
            return to_us(anchored)
        case _:
            problem = f"anchored: {shown(anchored)} is neither True nor a datetime"
            raise InvalidWhen(problem, setting="anchored", value=shown(anchored))


def _anchored_text(nickname: str, wall: datetime) -> str:
    """The expression that repeats a wall time. Days after the 28th become the 28th, which every month has."""
    time, day = f"{wall.minute} {wall.hour}", min(wall.day, 28)
    match nickname:
        case "@hourly":
            return f"{wall.minute} * * * *"
        case "@daily":
            return f"{time} * * *"
        case "@weekly":
            return f"{time} * * {wall.isoweekday() % 7}"
        case "@monthly":
            return f"{time} {day} * *"
        case _:
            return f"{time} {day} {wall.month} *"
