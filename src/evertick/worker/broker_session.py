"""What a worker wants of a broker, whatever its kind. The other end of `driver/queue/broker.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from evertick.driver.queue.contract import DispatchMessage, Kill, WorkerReport

__all__ = ["BrokerSession", "Fetched", "Take"]

# taken: it is ours. duplicate: somebody has it, or had it. killed: nobody wants it any more.
Take = Literal["taken", "duplicate", "killed"]


class Fetched(msgspec.Struct, frozen=True):
    """A message that this worker got out of the queue. It is taken, dropped or given back."""

    data: bytes
    # What the broker knows it by.
    token: Any = None
    # What it is taken with: no other message has it, so a second try to take it shows whether the first went through.
    mark: str = ""


class BrokerSession(Protocol):
    """One worker's line to its queue. Whatever cannot be done raises `BrokerUnavailable`, and may be tried again."""

    # Called for every dispatch that is not wanted any more, of whichever worker. It may be told late, or not at all.
    on_kill: Callable[[Kill], None]

    @property
    def shown(self) -> str:
        """Where it leads, for people: without a password."""
        ...

    async def open(self) -> None: ...

    async def fetch(self, most: int, seconds: float) -> list[Fetched]:
        """At most so many messages. Waits so long for the first."""
        ...

    async def take(self, fetched: Fetched, dispatched: DispatchMessage) -> Take:
        """Make the dispatch ours, once among all workers. Whatever the answer, the queue has it no more."""
        ...

    async def drop(self, fetched: Fetched) -> None:
        """It is for nobody: no message, or too late."""
        ...

    async def give_back(self, fetched: Fetched) -> None:
        """It is for another worker."""
        ...

    async def report(self, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        """Send the report on its way. Answers whether the dispatch is still wanted, as far as the broker knows."""
        ...

    async def close(self) -> None: ...
