"""The event loop: uvloop where it is installed, for everybody, as a node of Evertick has it in production.

Runs in the environments of other schedulers, so it imports nothing but the standard library.
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


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if has_uvloop():
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)
