"""Which rules a scheduler takes at all: none that fires too often, none that is not on its list, none that its other
options contradict. Pure.

What counts is the real time between two nominal moments. Jitter only delays, so it neither makes a rule slow enough nor
too fast. A rule that only crowds where a clock is turned is refused in summer as it is in March: see when/spacing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from evertick.errors import EvertickError, InvalidSetting, Refused
from evertick.model import Definition
from evertick.model.every_node import check_every_node_rule
from evertick.text.values import shown
from evertick.when.base import When
from evertick.when.duration import duration_text
from evertick.when.every import Every
from evertick.when.moment import MILLISECOND, moment_text
from evertick.when.once import Once
from evertick.when.spacing import nearest_moments
from evertick.when.text import parse_when

__all__ = ["ANY_ONCE", "ScheduleLimits", "check_allowed", "check_rule"]

# On an allow-list: every one-shot, whatever its moment.
ANY_ONCE = "once"

# Catching up takes one moment per look, and two looks per interval; a look and its commit take some milliseconds.
_SHORTEST_TO_CATCH_UP = 100 * MILLISECOND
_MOMENTS = 100
_ALLOWED_MOST = 1_000
_SHOWN = 10
# They take moments away or delay them: what may fire at a time may also not fire then.
_NARROWING = ("start=", "end=", "max_fires=", "jitter=", "jitter_mode=", "calendar=", "key=")


class ScheduleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a scheduler. None: no limit. `allowed` holds texts of rules, `tz` is the zone of those without."""

    min_interval: int | None = None
    allowed: tuple[str, ...] | None = None
    tz: str = "UTC"

    @property
    def are_none(self) -> bool:
        return self.min_interval is None and self.allowed is None

    def check(self, key: str, rule: When, now: int) -> None:
        """Refuse the bound rule of a schedule that is made or changed at `now`."""
        if self.allowed is not None and not self._is_allowed(self.allowed, rule, now):
            listed = ", ".join(repr(text) for text in self.allowed[:_SHOWN])
            more = f" and {len(self.allowed) - _SHOWN} more" if len(self.allowed) > _SHOWN else ""
            raise Refused(
                f"schedule {key!r}: the rule {rule.text!r} is not among allow_schedules ({listed or 'none'}{more}); "
                "choose one of them, or add it there"
            )
        if self.min_interval is not None and (nearest := _nearest_of(rule, now)) is not None:
            self._check_distance(key, rule, nearest, self.min_interval)

    def _check_distance(self, key: str, rule: When, nearest: tuple[int, int], least: int) -> None:
        first, second = nearest
        if second - first < least:
            raise Refused(
                f"schedule {key!r}: the rule {rule.text!r} fires {duration_text(second - first)} apart "
                f"({moment_text(first)} and {moment_text(second)}), and min_interval is {duration_text(least)}; "
                "choose a longer interval, or lower min_interval"
            )

    def _is_allowed(self, allowed: Sequence[str], rule: When, now: int) -> bool:
        if isinstance(rule, Once) and ANY_ONCE in allowed:
            return True
        bare = _bare(rule.text)
        return any(_bare_as_bound(text, now, self.tz) == bare for text in allowed if text != ANY_ONCE)


def check_rule(definition: Definition, rule: When) -> None:
    """Refuse a rule that contradicts the other options of its schedule."""
    check_every_node_rule(definition, rule)
    if not isinstance(rule, Every) or rule.is_after_end or rule.interval_us >= _SHORTEST_TO_CATCH_UP:
        return
    for option, value in (("catch_up", definition.catch_up), ("blackout_fate", definition.blackout_fate)):
        if value == "all" and (option == "catch_up" or definition.blackout is not None):
            raise InvalidSetting(
                f"{option}: 'all' does not go with {rule.text!r}: moments that come faster than every "
                f"{duration_text(_SHORTEST_TO_CATCH_UP)} are never caught up; choose 'latest', or a longer interval",
                setting=option,
            )


def check_allowed(texts: object) -> tuple[str, ...]:
    """The allow-list as somebody wrote it, each rule in its canonical text."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidSetting(
            f"allow_schedules: {shown(texts)} is no list of rules; pass e.g. ['0 * * * *', 'every 15m']",
            setting="allow_schedules",
        )
    if len(texts) > _ALLOWED_MOST:
        problem = f"allow_schedules: {len(texts)} rules are too many; list at most {_ALLOWED_MOST}"
        raise InvalidSetting(problem, setting="allow_schedules")
    return tuple(ANY_ONCE if text == ANY_ONCE else _canonical(text) for text in texts)


def _canonical(text: object) -> str:
    try:
        rule = parse_when(text)  # type: ignore[arg-type]
    except EvertickError as error:
        raise InvalidSetting(f"allow_schedules: {error}", setting="allow_schedules") from None
    if rule.bounds.calendar is not None:
        raise InvalidSetting(
            f"allow_schedules: {rule.text!r} names a calendar; leave it out: a rule may have any, which only takes "
            "moments away",
            setting="allow_schedules",
        )
    return rule.text


def _bare(text: str) -> str:
    head, *options = text.split("; ")
    return "; ".join([head, *(option for option in options if not option.startswith(_NARROWING))])


@lru_cache(maxsize=_ALLOWED_MOST)
def _bare_as_bound(text: str, created: int, tz: str) -> str:
    """Bound like the rule itself: "0 9 * * *" on the list means the zone that it would mean in a schedule.

    Remembered, since ten thousand schedules may be added at one moment.
    """
    return _bare(parse_when(text).bind(key="any", created=created, tz=tz).text)


def _nearest_of(rule: When, now: int) -> tuple[int, int] | None:
    return _nearest(rule, "" if rule.calendar is None else rule.calendar.version, now)


@lru_cache(maxsize=256)
def _nearest(rule: When, calendar: str, now: int) -> tuple[int, int] | None:
    """The two moments that are closest to each other, among the next ones and around the next clock changes.

    Remembered for the many schedules with the same rule that may be added at one moment: to look takes milliseconds. A
    rule is known by its text, which does not tell what is in its calendar.
    """
    return nearest_moments(rule, now, _MOMENTS)
