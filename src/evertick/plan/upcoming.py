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
from evertick.plan.overrides import pending, time_of, without_decided
from evertick.when.base import When
from evertick.when.calendar import Calendar
from evertick.when.moment import LATEST

__all__ = ["COUNT_MOST", "Expected", "Foreseen", "Prospect", "upcoming_fires"]

# Beyond so many the moments of a closed stretch are not counted.
COUNT_MOST = 100_000

# What becomes of a moment that does not just run: skipped or moved by hand; held by a blackout until that opens, or
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
    """A moment and when it is to run; where it does not run `at` is its own time.

    `moments` is more than one where it stands for a closed stretch: the newest of those that a blackout holds for one
    run, the first of those that it drops.
    """

    at: int
    key: str
    fire_at: int
    prospect: Prospect | None
    moments: int = 1


def upcoming_fires(
    schedules: Iterable[Expected], after: int, until: int, *, is_folded: bool = False
) -> Iterator[Foreseen]:
    """What is to come after `after` and up to `until`, in order; equal times are in the order of the keys.

    Folded: moments that a blackout makes one run of, or none, are one.
    """
    return takewhile(
        lambda each: each.at <= until, merge(*(_of_one(each, after, is_folded=is_folded) for each in schedules))
    )


def _of_one(expected: Expected, after: int, *, is_folded: bool) -> Iterator[Foreseen]:
    return merge(_decided(expected, after), _by_rule(expected, after, is_folded=is_folded))


def _decided(expected: Expected, after: int) -> Iterator[Foreseen]:
    for each in pending(expected.occurrences):
        if time_of(each) > after:
            yield Foreseen(time_of(each), expected.key, each.fire_at, "skipped" if each.kind == "skip" else "moved")


def _by_rule(expected: Expected, after: int, *, is_folded: bool) -> Iterator[Foreseen]:
    promised = sum(each.kind == "move" for each in expected.occurrences)
    left = None if expected.left is None else expected.left - promised
    rule, moment = without_decided(expected.rule, expected.occurrences), after
    while left is None or left > 0:
        found = rule.next_us(moment)
        if found is None:
            return
        at, prospect = _prospect(expected, found)
        foreseen, moment = Foreseen(at, expected.key, found, prospect), found
        if is_folded and prospect is not None and expected.blackout_fate != "all":
            foreseen, moment = _folded(foreseen, rule, expected.blackout)
        yield foreseen
        left = None if left is None else left - (prospect != "dropped")


def _folded(first: Foreseen, rule: When, blackout: Calendar | None) -> tuple[Foreseen, int]:
    """The stretch that the moment begins as one, and the last moment of it."""
    assert blackout is not None
    opens = blackout.next_open(first.fire_at) or LATEST
    last = max(first.fire_at, rule.previous_us(opens) or first.fire_at)
    count = max(1, rule.count_us(first.fire_at, last, COUNT_MOST))
    return first._replace(fire_at=last if first.prospect == "held" else first.fire_at, moments=count), last


def _prospect(expected: Expected, moment: int) -> tuple[int, Prospect | None]:
    blackout = expected.blackout
    if blackout is None or blackout.permits(moment):
        return moment, None
    opens = None if expected.blackout_fate == "drop" else blackout.next_open(moment)
    return (moment, "dropped") if opens is None else (opens, "held")
