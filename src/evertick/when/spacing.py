"""The smallest distance between two moments of a rule. Pure.

It checks the next moments and those around the clock changes of the coming year, so that the result does not depend on
the season.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from evertick.when.moment import DAY, SECOND
from evertick.when.zone import changes

if TYPE_CHECKING:
    from evertick.when.base import When

__all__ = ["nearest_moments"]

_YEAR = 366 * DAY


def nearest_moments(rule: When, after: int, count: int) -> tuple[int, int] | None:
    """The two consecutive moments with the smallest distance, of the next `count` and around the next clock changes.

    None if there are fewer than two.
    """
    most = count if rule.bounds.max_fires is None else min(count, rule.bounds.max_fires)
    found: tuple[int, int] | None = None
    for since, until in ((after, None), *_around_clock_changes(rule, after)):
        for pair in pairwise(islice(_moments(rule, since, until), most)):
            if found is None or pair[1] - pair[0] < found[1] - found[0]:
                found = pair
    return found


def _around_clock_changes(rule: When, now: int) -> Iterator[tuple[int, int]]:
    """From the moment before a clock change to one size of the change after it: the range of shifted times."""
    all_changes = changes(rule.zone)
    for change in all_changes[bisect_left(all_changes, now // SECOND, key=lambda each: each.at) :]:
        at, width = change.at * SECOND, abs(change.after - change.before) * SECOND
        if at > now + _YEAR:
            return
        before = rule.previous_us(at - width)
        if before is not None and before > now:
            yield before - 1, at + width


def _moments(rule: When, since: int, until: int | None) -> Iterator[int]:
    """Up to the first one after `until`."""
    at = rule.next_us(since)
    while at is not None:
        yield at
        if until is not None and at > until:
            return
        at = rule.next_us(at)
