"""Runs coroutines that never wait, without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["at_once", "is_on_event_loop"]

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as with a blocking connection or an in-process store."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    work.close()
    raise AssertionError("the coroutine waits for an event loop")


def is_on_event_loop() -> bool:
    """Whether this thread runs an event loop, which a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
