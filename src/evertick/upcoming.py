"""The fires to come of many schedules, in the order in which they will run. Pure and lazy.

Each schedule is asked for its next fire only when the one before it was taken. What people decided about single moments
and what a blackout does to others is told with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import takewhile
from typing import Literal, NamedTuple

import msgspec

from evertick.model import BlackoutFate, Occurrence
from evertick.occurrence import pending, time_of, without_decided
from evertick.when.base import When
from evertick.when.calendar import Calendar

__all__ = ["Expected", "Foreseen", "Prospect", "upcoming_fires"]

# What becomes of a moment that does not just run: skipped or moved by somebody; held by a blackout until that opens, or
# dropped by it.
Prospect = Literal["skipped", "moved", "held", "dropped"]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be looked at; `left`: how often it may still fire."""

    key: str
    rule: When
    occurrences: tuple[Occurrence, ...] = ()
    blackout: Calendar | None = None
    blackout_fate: BlackoutFate = "drop"
    left: int | None = None


class Foreseen(NamedTuple):
    """A moment and when it is to run; where it does not run `at` is its own time."""

    at: int
    key: str
    fire_at: int
    prospect: Prospect | None


def upcoming_fires(schedules: Iterable[Expected], after: int, until: int) -> Iterator[Foreseen]:
    """What is to come after `after` and up to `until`, in order; equal times are in the order of the keys."""
    return takewhile(lambda each: each.at <= until, merge(*(_of_one(each, after) for each in schedules)))


def _of_one(expected: Expected, after: int) -> Iterator[Foreseen]:
    return merge(_decided(expected, after), _by_rule(expected, after))


def _decided(expected: Expected, after: int) -> Iterator[Foreseen]:
    for each in pending(expected.occurrences):
        if time_of(each) > after:
            yield Foreseen(time_of(each), expected.key, each.fire_at, "skipped" if each.kind == "skip" else "moved")


def _by_rule(expected: Expected, after: int) -> Iterator[Foreseen]:
    promised = sum(each.kind == "move" for each in expected.occurrences)
    left = None if expected.left is None else expected.left - promised
    rule, moment = without_decided(expected.rule, expected.occurrences), after
    while left is None or left > 0:
        found = rule.next_us(moment)
        if found is None:
            return
        at, prospect = _prospect(expected, found)
        yield Foreseen(at, expected.key, found, prospect)
        left = None if left is None else left - (prospect != "dropped")
        moment = found


def _prospect(expected: Expected, moment: int) -> tuple[int, Prospect | None]:
    blackout = expected.blackout
    if blackout is None or blackout.permits(moment):
        return moment, None
    opens = None if expected.blackout_fate == "drop" else blackout.next_open(moment)
    return (moment, "dropped") if opens is None else (opens, "held")
