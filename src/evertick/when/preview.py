"""The moments of many rules, merged in order.

Pure and lazy: the next moment of a rule is computed only when the previous one was used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from heapq import heapify, heappop, heapreplace

from evertick.errors import InvalidWhen
from evertick.text.values import shown
from evertick.when.base import UPCOMING_LIMIT, When
from evertick.when.moment import LATEST, from_us, to_us

__all__ = ["upcoming_over"]


def upcoming_over(
    rules: Mapping[str, When],
    after: datetime,
    *,
    count: int | None = None,
    until: datetime | None = None,
    most: Mapping[str, int] | None = None,
) -> list[tuple[datetime, str]]:
    """The moments of all rules strictly after `after`, in order, each in its rule's zone, with the key of its rule.

    At most `count` of them (and 10,000), none after `until`. `most` limits the moments of single rules, for example to
    `max_fires` minus the fires so far. Equal moments are in the order of the keys.
    """
    if count is None and until is None:
        raise InvalidWhen("upcoming_over has no end", fix="pass count or until")
    limit = UPCOMING_LIMIT if count is None else count
    if type(limit) is not int or not 0 <= limit <= UPCOMING_LIMIT:
        problem = f"count: {shown(count)} is not a whole number from 0 to {UPCOMING_LIMIT}"
        raise InvalidWhen(problem, setting="count", value=shown(count))
    last = LATEST if until is None else to_us(until)
    found: list[tuple[datetime, str]] = []
    left = dict(most or {})
    for at, key in _merged(rules, to_us(after)):
        if at > last or len(found) == limit:
            break
        if left.get(key, 1) <= 0:
            continue
        if key in left:
            left[key] -= 1
        found.append((from_us(at, rules[key].zone), key))
    return found


def _merged(rules: Mapping[str, When], after: int) -> Iterator[tuple[int, str]]:
    firsts = ((rule.next_us(after), key) for key, rule in rules.items())
    heap = [(at, key) for at, key in firsts if at is not None]
    heapify(heap)
    while heap:
        at, key = heap[0]
        yield at, key
        following = rules[key].next_us(at)
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (following, key))
