"""Runs coroutines on uvloop where it is installed, or on the event loop of asyncio if the contender must not use it.

Peers import this module in their own environments, so it needs only the standard library.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["has_uvloop", "run"]

R = TypeVar("R")


def has_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None


def run(coroutine: Coroutine[Any, Any, R], *, may_be_uvloop: bool = True) -> R:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if may_be_uvloop and has_uvloop():
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)
