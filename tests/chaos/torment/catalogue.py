"""What the tormented fleet has to do: some hundred schedules, and how the jobs behind them behave.

Shared by the nodes, which declare it, and by the checker, which works the expected moments out from it by itself. All
moments lie on a grid of whole seconds since 1970, whether the rule says so as an interval or as a cron expression.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["AT_ONCE", "ENTRIES", "LEASE_SECONDS", "NODES", "RATE_MOST", "RATE_SECONDS", "Entry", "Kind"]

Kind = Literal[
    "quick",  # a coroutine that is soon done
    "threaded",  # the same as a plain function
    "long",  # at work for a while, so that a killed node always leaves some behind
    "failing",  # raises, and that is that
    "flaky",  # raises at first, and is tried again
    "hanging",  # never comes back; ended by its timeout
    "once",  # at most once: never again after a loss
    "guarded",  # writes to a resource that asks for the fence
    "child",  # in a process of its own, which has a child itself
    "placed",  # a few at once in the whole fleet
    "rated",  # a few in a period in the whole fleet
]
Overlap = Literal["skip", "queue", "replace", "allow"]
CatchUp = Literal["latest", "all", "skip"]

NODES = 5
LEASE_SECONDS = 3.0
# The limits of the fleet, as tasks declare and the checker counts them.
AT_ONCE = 3
RATE_MOST, RATE_SECONDS = 6, 2.0


class Entry(NamedTuple):
    """One schedule."""

    key: str
    kind: Kind
    seconds: int
    overlap: Overlap = "skip"
    catch_up: CatchUp = "latest"
    is_cron: bool = False


def _entries() -> tuple[Entry, ...]:
    entries: list[Entry] = []

    def add(kind: Kind, seconds: int, count: int, overlap: Overlap = "skip", catch_up: CatchUp = "latest") -> None:
        for number in range(count):
            is_cron = number % 4 == 3
            key = f"{kind}-{seconds}s-{overlap}-{catch_up}-{number}"
            entries.append(Entry(key, kind, seconds, overlap, catch_up, is_cron))

    add("quick", 1, 30, "allow", "all")
    add("quick", 1, 10, "skip", "latest")
    add("quick", 2, 20, "skip", "all")
    add("quick", 5, 20, "queue", "skip")
    add("quick", 10, 16, "replace", "all")
    add("quick", 15, 10)
    add("quick", 30, 10)
    add("quick", 60, 10, "skip", "all")
    add("threaded", 1, 10, "allow", "all")
    add("threaded", 3, 10)
    add("long", 2, 4, "queue")
    add("long", 2, 4, "replace")
    add("long", 2, 4, "allow", "all")
    add("long", 5, 12, "skip", "all")
    add("failing", 2, 8)
    add("failing", 10, 6, "allow", "all")
    add("flaky", 3, 10, "skip", "all")
    add("hanging", 6, 6)
    add("once", 1, 8, "allow", "all")
    add("once", 2, 8)
    add("guarded", 1, 8)
    add("guarded", 2, 8, "queue")
    add("guarded", 3, 6, "skip", "all")
    add("child", 15, 3)
    add("child", 30, 3, "skip", "all")
    add("placed", 1, 2, "allow", "all")
    add("placed", 2, 4, "allow", "all")
    add("rated", 2, 4)
    return tuple(entries)


ENTRIES = _entries()
