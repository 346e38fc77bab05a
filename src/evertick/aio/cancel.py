"""Ending tasks for certain.

A cancellation can get lost: `asyncio.wait_for` of Python 3.11 forgets one that comes when what it waits for is just
done, and a task inside a library that uses it goes on as if it had not been cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ["cancel_until_over"]

# Longer than an orderly end takes.
_AGAIN_SECONDS = 0.5


async def cancel_until_over(tasks: Iterable[asyncio.Task[Any]], *, seconds: float) -> None:
    """Cancel these until they are over, for so long at most."""
    left = {task for task in tasks if not task.done()}
    until = asyncio.get_running_loop().time() + seconds
    while left and (rest := until - asyncio.get_running_loop().time()) > 0:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=min(_AGAIN_SECONDS, rest))
