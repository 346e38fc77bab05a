"""The future fires of many schedules, in the order in which they will run, with overrides and blackouts. Pure.

Lazy: the next fire of a schedule is computed only when the previous one was used.
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

# The moments of a blackout are counted up to this limit.
COUNT_MOST = 100_000

# The outcome of a moment that does not just run: skipped or moved by a user; held by a blackout until its end, or
# dropped by it.
Prospect = Literal["skipped", "moved", "held", "dropped"]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. `left`: its remaining fires if `max_fires` limits them."""

    key: str
    rule: When
    occurrences: tuple[Occurrence, ...] = ()
    blackout: Calendar | None = None
    blackout_fate: BlackoutFate = "drop"
    left: int | None = None


class Foreseen(NamedTuple):
    """A moment and its time `at`: when it runs, or the moment itself if it does not run.

    `moments` is more than one if it stands for all moments of a blackout: the newest one if they are held for one run,
    the first one if they are dropped.
    """

    at: int
    key: str
    fire_at: int
    prospect: Prospect | None
    moments: int = 1


def upcoming_fires(
    schedules: Iterable[Expected], after: int, until: int, *, is_folded: bool = False
) -> Iterator[Foreseen]:
    """The fires after `after` and up to `until`, in order; equal times are in the order of the keys.

    Folded: the moments of a blackout that give one run, or none, are one entry.
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
    """The blackout that begins with this moment as one entry, and its last moment."""
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
