"""Processes long lists without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["TURN", "in_turns"]

T = TypeVar("T")
R = TypeVar("R")

# Items between two yields to the event loop; one item may take some tenths of a millisecond.
TURN = 50


async def in_turns(items: Iterable[T], make: Callable[[T], R]) -> list[R]:
    """The results of `make`, in the order of the items."""
    results: list[R] = []
    for number, each in enumerate(items, 1):
        results.append(make(each))
        if number % TURN == 0:
            await asyncio.sleep(0)
    return results
