"""Rules with a subset of another rule's moments: those that a calendar permits, or all but a few.

They are made for a plan and not stored; their text is that of the whole rule. The jitter of a fire stays that of the
whole rule, so that it does not change if a neighbour is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evertick.when.base import When
from evertick.when.calendar import Calendar

__all__ = ["Within", "Without"]


class _Part(When):
    __slots__ = ("_whole",)

    _whole: When

    def _fill_part(self, whole: When, calendar: Calendar | None) -> None:
        # The whole rule applies its own calendar.
        bounds = msgspec.structs.replace(whole.bounds, calendar=None)
        self._fill(zone=whole.zone, is_zone_given=True, bounds=bounds, calendar=calendar, _next=None, _whole=whole)

    def jitter_cap_us(self, fire_at: int) -> int:
        """That of the whole rule."""
        return self._whole.jitter_cap_us(fire_at)

    def _raw_next(self, after: int) -> int | None:
        return self._whole.next_us(after)

    def _raw_previous(self, before: int) -> int | None:
        return self._whole.previous_us(before)

    def _raw_count(self, first: int, last: int, limit: int) -> int:
        return self._whole.count_us(first, last, limit)

    @property
    def text(self) -> str:
        """That of the whole rule."""
        return self._whole.text

    @property
    def fingerprint(self) -> str:
        """That of the whole rule."""
        return self._whole.fingerprint

    def _rule_text(self) -> str:
        return self._whole._rule_text()

    def _words(self) -> str:
        return self._whole._words()


class Within(_Part):
    """The moments at which a calendar is open (with `Calendar.inverse`: at which it is closed)."""

    __slots__ = ()

    def __init__(self, whole: When, calendar: Calendar) -> None:
        self._fill_part(whole, calendar)


class Without(_Part):
    """All moments but these."""

    __slots__ = ("_left_out",)

    _left_out: frozenset[int]

    def __init__(self, whole: When, moments: Iterable[int]) -> None:
        self._fill_part(whole, None)
        self._fill(_left_out=frozenset(moment for moment in moments if whole.next_us(moment - 1) == moment))

    def _raw_next(self, after: int) -> int | None:
        found = self._whole.next_us(after)
        while found in self._left_out:
            found = self._whole.next_us(found)
        return found

    def _raw_previous(self, before: int) -> int | None:
        found = self._whole.previous_us(before)
        while found in self._left_out:
            found = self._whole.previous_us(found)
        return found

    def _raw_count(self, first: int, last: int, limit: int) -> int:
        left_out = sum(first <= moment <= last for moment in self._left_out)
        return self._whole.count_us(first, last, limit + left_out) - left_out
