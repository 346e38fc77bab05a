"""Plain code, where no event loop answers: what may wait for one, and what may not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["at_once", "is_on_event_loop"]

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that waits for nothing, as on a plain connection or with a store in line."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    work.close()
    raise AssertionError("in plain code nothing waits for an event loop")


def is_on_event_loop() -> bool:
    """Whether this thread runs an event loop, which a plain call would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
