"""Which rules a scheduler accepts: `min_interval`, `allow_schedules`, and conflicts with other options. Pure.

`min_interval` limits the real time between two nominal moments, without jitter. Moments around clock changes count too,
so that the result does not depend on the season: see when/spacing.py.
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

# On an allow-list: every one-shot, at any moment.
ANY_ONCE = "once"

# Catch-up plans one moment at a time, and twice per interval; a plan and its commit take some milliseconds.
_SHORTEST_TO_CATCH_UP = 100 * MILLISECOND
_MOMENTS = 100
_ALLOWED_MOST = 1_000
_SHOWN = 10
# Options that only remove or delay moments, so they do not matter for the allow-list.
_NARROWING = ("start=", "end=", "max_fires=", "jitter=", "jitter_mode=", "calendar=", "key=")


class ScheduleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a scheduler. None: no limit. `allowed`: texts of rules; `tz`: the zone of those without."""

    min_interval: int | None = None
    allowed: tuple[str, ...] | None = None
    tz: str = "UTC"

    @property
    def are_none(self) -> bool:
        return self.min_interval is None and self.allowed is None

    def check(self, key: str, rule: When, now: int) -> None:
        """Reject the bound rule of a schedule that is added or changed at `now`."""
        if self.allowed is not None and not self._is_allowed(self.allowed, rule, now):
            listed = ", ".join(repr(text) for text in self.allowed[:_SHOWN])
            more = f" and {len(self.allowed) - _SHOWN} more" if len(self.allowed) > _SHOWN else ""
            raise Refused(
                f"schedule {key!r}: the rule {rule.text!r} is not among allow_schedules ({listed or 'none'}{more})",
                setting="allow_schedules",
                value=repr(rule.text),
                fix="choose one of them, or add it there",
            )
        if self.min_interval is not None and (nearest := _nearest_of(rule, now)) is not None:
            self._check_distance(key, rule, nearest, self.min_interval)

    def _check_distance(self, key: str, rule: When, nearest: tuple[int, int], least: int) -> None:
        first, second = nearest
        if second - first < least:
            raise Refused(
                f"schedule {key!r}: the rule {rule.text!r} fires {duration_text(second - first)} apart "
                f"({moment_text(first)} and {moment_text(second)}), and min_interval is {duration_text(least)}",
                setting="min_interval",
                value=repr(rule.text),
                fix="choose a longer interval, or lower min_interval",
            )

    def _is_allowed(self, allowed: Sequence[str], rule: When, now: int) -> bool:
        if isinstance(rule, Once) and ANY_ONCE in allowed:
            return True
        bare = _bare(rule.text)
        return any(_bare_as_bound(text, now, self.tz) == bare for text in allowed if text != ANY_ONCE)


def check_rule(definition: Definition, rule: When) -> None:
    """Reject a rule that conflicts with other options of its schedule."""
    check_every_node_rule(definition, rule)
    if not isinstance(rule, Every) or rule.is_after_end or rule.interval_us >= _SHORTEST_TO_CATCH_UP:
        return
    for option, value in (("catch_up", definition.catch_up), ("blackout_fate", definition.blackout_fate)):
        if value == "all" and (option == "catch_up" or definition.blackout is not None):
            raise InvalidSetting(
                f"{option}: 'all' is not possible with {rule.text!r}: an interval below "
                f"{duration_text(_SHORTEST_TO_CATCH_UP)} can never catch up; choose 'latest', or a longer interval",
                setting=option,
            )


def check_allowed(texts: object) -> tuple[str, ...]:
    """Check the allow-list; returns each rule in its canonical text."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidSetting(
            f"allow_schedules: {shown(texts)} is not a list of rules",
            setting="allow_schedules",
            value=shown(texts),
            fix="pass e.g. ['0 * * * *', 'every 15m']",
        )
    if len(texts) > _ALLOWED_MOST:
        raise InvalidSetting(
            f"allow_schedules: {len(texts)} rules are too many",
            setting="allow_schedules",
            fix=f"list at most {_ALLOWED_MOST}",
        )
    return tuple(ANY_ONCE if text == ANY_ONCE else _canonical(text) for text in texts)


def _canonical(text: object) -> str:
    try:
        rule = parse_when(text)  # type: ignore[arg-type]
    except EvertickError as error:
        raise InvalidSetting(
            f"allow_schedules: {error.problem}", setting="allow_schedules", value=error.value, fix=error.fix
        ) from None
    if rule.bounds.calendar is not None:
        raise InvalidSetting(
            f"allow_schedules: {rule.text!r} names a calendar",
            setting="allow_schedules",
            value=repr(rule.text),
            fix="leave it out: an allowed rule may have any calendar",
        )
    return rule.text


def _bare(text: str) -> str:
    head, *options = text.split("; ")
    return "; ".join([head, *(option for option in options if not option.startswith(_NARROWING))])


@lru_cache(maxsize=_ALLOWED_MOST)
def _bare_as_bound(text: str, created: int, tz: str) -> str:
    """Bound like the rule itself, so that "0 9 * * *" on the list has the zone that it has in a schedule.

    Cached, since ten thousand schedules may be added at once.
    """
    return _bare(parse_when(text).bind(key="any", created=created, tz=tz).text)


def _nearest_of(rule: When, now: int) -> tuple[int, int] | None:
    return _nearest(rule, "" if rule.calendar is None else rule.calendar.version, now)


@lru_cache(maxsize=256)
def _nearest(rule: When, calendar: str, now: int) -> tuple[int, int] | None:
    """The two moments with the smallest distance, of the next ones and around the next clock changes.

    Cached, since it takes milliseconds and many schedules with the same rule may be added at once. `calendar` is part
    of the cache key, since the text of a rule has only the name of its calendar.
    """
    return nearest_moments(rule, now, _MOMENTS)
