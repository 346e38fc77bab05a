"""Long lists, gone through without holding the event loop: fires, claims and timeouts have their turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["TURN", "in_turns"]

T = TypeVar("T")
R = TypeVar("R")

# So many at once. Making a task or comparing the fires of a schedule takes some tenths of a millisecond.
TURN = 50


async def in_turns(items: Iterable[T], make: Callable[[T], R]) -> list[R]:
    """The results, in the order of the items."""
    made: list[R] = []
    for number, each in enumerate(items, 1):
        made.append(make(each))
        if number % TURN == 0:
            await asyncio.sleep(0)
    return made
