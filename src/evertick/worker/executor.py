"""How a worker finds out what to do for a message. Doing it is the business of a driver, as it is on a node."""

from __future__ import annotations

from typing import Protocol

from evertick.driver.base import Driver
from evertick.driver.queue.contract import DispatchMessage

__all__ = ["Executor"]


class Executor(Protocol):
    """What a worker can do."""

    def driver_for(self, dispatched: DispatchMessage) -> Driver:
        """What carries it out. Raises `NotFound` where this worker cannot do it."""
        ...

    async def close(self) -> None: ...
