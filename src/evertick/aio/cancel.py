"""Cancels tasks reliably.

A cancellation can get lost: `asyncio.wait_for` of Python 3.11 drops one that arrives when its future has just finished,
so a task in a library that uses it continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ["cancel_reliably"]

# Longer than a normal end takes.
_AGAIN_SECONDS = 0.5


async def cancel_reliably(tasks: Iterable[asyncio.Task[Any]], *, seconds: float) -> None:
    """Cancel tasks, repeatedly, until they have ended or the time is over."""
    pending = {task for task in tasks if not task.done()}
    until = asyncio.get_running_loop().time() + seconds
    while pending and (left := until - asyncio.get_running_loop().time()) > 0:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=min(_AGAIN_SECONDS, left))
