"""Forecasts: fires per hour, the busiest minutes, and instants that many schedules share.

Pure and bounded: the fires of a rule with few in the window are listed. Those of a rule with many are counted hour by
hour, and only the first `SAMPLE` are checked for collisions.

A fire with jitter counts at its nominal moment, and never as a collision.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise

import msgspec

from evertick.when.base import When
from evertick.when.every import Every
from evertick.when.moment import HOUR, MINUTE, SECOND

__all__ = ["DAYS_MAX", "Collision", "Day", "Expected", "Forecast", "Minute", "collisions_of", "forecast"]

DAYS_MAX = 92
# Limits of listed moments: for all rules, and for one.
_LISTED = 200_000
_LISTED_OF_ONE = 5_000
_LISTED_LEAST = 50
# The moments of a counted rule that are checked for collisions.
SAMPLE = 60
_COUNT_MOST = 10**12
# Minutes and instants at which counted rules are checked too.
_CANDIDATES = 200
_HOURS_LOOKED_INTO = 24

# A moment in the caller's zone.
Wall = Callable[[int], datetime]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A bound rule. `left`: its remaining fires if `max_fires` limits them.

    `part`: the rule without moments that a blackout or an override removes. `moved`: the new times of moved moments.
    """

    rule: When
    part: When | None = None
    left: int | None = None
    moved: tuple[int, ...] = ()

    @property
    def firing(self) -> When:
        return self.rule if self.part is None else self.part


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """A local day: fires in each of its 24 hours; None for an hour that is over or does not exist."""

    date: date
    hours: tuple[int | None, ...]
    fires: int


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    fires: int


class Collision(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules that fire at the same instant: when first, and how often in the window.

    `is_exact` False: at least that often, since not all moments were listed.
    """

    at: datetime
    keys: tuple[str, ...]
    times: int
    is_exact: bool = True


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    since: datetime
    until: datetime
    fires: int
    days: tuple[Day, ...]
    # Most first, then by time.
    busiest: tuple[Minute, ...]
    collisions: tuple[Collision, ...]


def forecast(
    expected: Mapping[str, Expected],
    since: int,
    days: int,
    wall: Wall,
    *,
    busiest_most: int = 10,
    collisions_most: int = 20,
) -> Forecast:
    """The fires from `since` to the end of the last of `days` days, with today as the first."""
    assert 1 <= days <= DAYS_MAX
    borders = _hours(since, days, wall)
    until = borders[-1]
    listed, dense = _listed(expected, since, until)
    per_hour = _per_hour(listed, dense, borders)
    rows = _rows(borders, per_hour, wall)
    return Forecast(
        since=wall(since),
        until=wall(until),
        fires=sum(per_hour),
        days=rows,
        busiest=tuple(_busiest(listed, dense, borders, per_hour, wall)[:busiest_most]),
        collisions=tuple(_collisions(listed, dense, since, until, wall)[:collisions_most]),
    )


def collisions_of(expected: Mapping[str, Expected], since: int, until: int, wall: Wall) -> list[Collision]:
    """Instants in [since, until) that several schedules share, those with most schedules first."""
    listed, dense = _listed(expected, since, until)
    return _collisions(listed, dense, since, until, wall)


# --- the window ------------------------------------------------------------------------------------------------------


def _hours(since: int, days: int, wall: Wall) -> list[int]:
    """The starts of the local hours: `since`, then each full hour up to the midnight that ends the window.

    Found step by step, since a clock change may shorten, skip or repeat an hour.
    """
    borders, dates = [since], {wall(since).date()}
    while True:
        shown = wall(borders[-1])
        into = (shown.minute * 60 + shown.second) * SECOND + shown.microsecond
        border = borders[-1] + HOUR - into
        borders.append(border)
        dates.add(wall(border).date())
        if len(dates) > days:
            return borders


def _rows(borders: Sequence[int], per_hour: Sequence[int], wall: Wall) -> tuple[Day, ...]:
    cells: dict[date, list[int | None]] = {}
    for start, count in zip(borders, per_hour, strict=False):
        shown = wall(start)
        hours = cells.setdefault(shown.date(), [None] * 24)
        hours[shown.hour] = (hours[shown.hour] or 0) + count
    return tuple(
        Day(date=day, hours=tuple(hours), fires=sum(count or 0 for count in hours)) for day, hours in cells.items()
    )


# --- counting --------------------------------------------------------------------------------------------------------


def _listed(
    expected: Mapping[str, Expected], since: int, until: int
) -> tuple[dict[str, tuple[When, list[int]]], dict[str, Expected]]:
    """The moments of rules with few, and the rules with many (in both, if they have moved moments)."""
    most = max(_LISTED_LEAST, min(_LISTED_OF_ONE, _LISTED // max(1, len(expected))))
    listed: dict[str, tuple[When, list[int]]] = {}
    dense: dict[str, Expected] = {}
    for key, each in expected.items():
        count = _count(each, since, until)
        if count > most:
            dense[key] = each
        moments = list(_moments(each.firing, since, until, count)) if count <= most else []
        moments += [at for at in each.moved if since <= at < until]
        if moments:
            listed[key] = each.firing, sorted(moments)
    return listed, dense


def _count(expected: Expected, since: int, until: int) -> int:
    count = expected.firing.count_us(since, until - 1, _COUNT_MOST)
    return count if expected.left is None else min(count, max(0, expected.left))


def _moments(rule: When, since: int, until: int, most: int) -> Iterator[int]:
    # A rule that counts from the end of a run has at most one known moment.
    at: int | None = since - (rule.interval_us if isinstance(rule, Every) and rule.is_after_end else 1)
    for _ in range(most):
        assert at is not None
        at = rule.next_us(at)
        if at is None or at >= until:
            return
        yield at


def _per_hour(
    listed: Mapping[str, tuple[When, list[int]]], dense: Mapping[str, Expected], borders: Sequence[int]
) -> list[int]:
    counts = [0] * (len(borders) - 1)
    for _, moments in listed.values():
        for at in moments:
            counts[bisect_right(borders, at) - 1] += 1
    for each in dense.values():
        left = _COUNT_MOST if each.left is None else each.left
        for place, (start, end) in enumerate(pairwise(borders)):
            count = each.firing.count_us(start, end - 1, left)
            counts[place] += count
            left -= count
            if left <= 0:
                break
    return counts


def _busiest(
    listed: Mapping[str, tuple[When, list[int]]],
    dense: Mapping[str, Expected],
    borders: Sequence[int],
    per_hour: Sequence[int],
    wall: Wall,
) -> list[Minute]:
    """The minutes with most fires. Counted rules are added for the candidate minutes."""
    counts = Counter(at - at % MINUTE for _, moments in listed.values() for at in moments)
    candidates = dict(counts.most_common(_CANDIDATES))
    if dense:
        for minute in _first_minutes_of_busy_hours(borders, per_hour):
            candidates.setdefault(minute, counts[minute])
        for minute in candidates:
            candidates[minute] += sum(
                each.firing.count_us(minute, minute + MINUTE - 1, _COUNT_MOST) for each in dense.values()
            )
    ranked = sorted(candidates.items(), key=lambda pair: (-pair[1], pair[0]))
    return [Minute(at=wall(minute), fires=count) for minute, count in ranked if count]


def _first_minutes_of_busy_hours(borders: Sequence[int], per_hour: Sequence[int]) -> Iterator[int]:
    busy = sorted(range(len(per_hour)), key=lambda place: (-per_hour[place], place))[:_HOURS_LOOKED_INTO]
    for place in busy:
        if per_hour[place]:
            first = -(-borders[place] // MINUTE) * MINUTE
            yield from (first, first + MINUTE)


# --- collisions ------------------------------------------------------------------------------------------------------


def _collisions(
    listed: Mapping[str, tuple[When, list[int]]], dense: Mapping[str, Expected], since: int, until: int, wall: Wall
) -> list[Collision]:
    crowded = {key: each.firing for key, each in dense.items() if not each.rule.bounds.jitter}
    samples: Iterable[tuple[str, Iterable[int]]] = [
        *((key, moments) for key, (rule, moments) in listed.items() if not rule.bounds.jitter),
        *((key, _moments(rule, since, until, SAMPLE)) for key, rule in crowded.items()),
    ]
    at_instant: dict[int, set[str]] = defaultdict(set)
    for key, moments in samples:
        for at in moments:
            at_instant[at].add(key)
    # Counted rules are sampled by their first moments; at the largest collisions they are checked.
    largest = sorted(at_instant, key=lambda at: (-len(at_instant[at]), at))[:_CANDIDATES]
    for at in largest:
        at_instant[at] |= {key for key, rule in crowded.items() if rule.next_us(at - 1) == at}
    return _grouped({at: keys for at, keys in at_instant.items() if len(keys) > 1}, set(crowded), wall)


def _grouped(shared: Mapping[int, set[str]], counted: set[str], wall: Wall) -> list[Collision]:
    """One collision per set of schedules."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, keys in shared.items():
        groups[tuple(sorted(keys))].append(at)
    found = [
        Collision(at=wall(min(instants)), keys=keys, times=len(instants), is_exact=counted.isdisjoint(keys))
        for keys, instants in groups.items()
    ]
    return sorted(found, key=lambda each: (-len(each.keys), each.at))
