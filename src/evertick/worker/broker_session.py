"""A worker's session with its broker: the protocol, and the retries while the broker is away.

The node's end is `Broker` in `driver/queue/driver.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from evertick.clock import Clock
from evertick.driver.queue.contract import DispatchMessage, Kill, WorkerReport
from evertick.errors import BrokerUnavailable

__all__ = ["BrokerRetry", "BrokerSession", "QueueMessage", "Take"]

log = logging.getLogger("evertick.worker")

T = TypeVar("T")

_AGAIN_FIRST, _AGAIN_MOST = 0.1, 5.0

# taken: it is ours. duplicate: another worker has it, or had it. killed: it is not wanted any more.
Take = Literal["taken", "duplicate", "killed"]


class QueueMessage(msgspec.Struct, frozen=True):
    """A message out of the queue. It is taken, dropped or given back."""

    data: bytes
    # Names it to the broker.
    token: Any = None
    # Unique, and taken with: a second try to take it shows whether the first went through.
    mark: str = ""


class BrokerSession(Protocol):
    """One worker's access to its queue. An operation that fails raises `BrokerUnavailable`, and may be tried again."""

    # Called for each dispatch of any worker that is not wanted any more; perhaps late, or not at all.
    on_kill: Callable[[Kill], None]

    @property
    def shown(self) -> str:
        """Its queue for people, without a password."""
        ...

    async def open(self) -> None: ...

    async def fetch(self, most: int, seconds: float) -> list[QueueMessage]:
        """At most so many messages. Waits so long for the first."""
        ...

    async def take(self, message: QueueMessage, dispatched: DispatchMessage) -> Take:
        """Make the dispatch ours, once among all workers. Whatever the answer, the queue has it no more."""
        ...

    async def drop(self, message: QueueMessage) -> None:
        """It is unreadable, or too late."""
        ...

    async def give_back(self, message: QueueMessage) -> None:
        """It is for another worker."""
        ...

    async def report(self, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        """Send it. Answers whether the dispatch is still wanted, as far as the broker knows."""
        ...

    async def close(self) -> None: ...


class BrokerRetry:
    """Retries of one worker's session; an outage is logged at its start and at its end."""

    def __init__(self, shown: str, clock: Clock) -> None:
        self._shown, self._clock = shown, clock
        self._since: float | None = None

    async def until_done(
        self,
        act: Callable[[], Awaitable[T]],
        is_worth_it: Callable[[], bool],
        hurry: asyncio.Event | None = None,
        *,
        most_seconds: float = math.inf,
    ) -> T | None:
        """Until it works; None where it is not worth another try. `hurry` ends the pause between two tries, which is
        about `most_seconds` at most."""
        again = _AGAIN_FIRST
        while True:
            try:
                answer = await act()
            except BrokerUnavailable as error:
                self._failed(error)
            else:
                self._worked()
                return answer
            if not is_worth_it():
                return None
            # Many lose a broker at one moment; they must not come back at one moment.
            await _wait(again * (0.5 + self._clock.uniform()), hurry)
            again = min(again * 2, most_seconds, _AGAIN_MOST)
            if not is_worth_it():
                return None

    def _failed(self, error: BrokerUnavailable) -> None:
        if self._since is None:
            self._since = self._clock.elapsed()
            log.warning(
                "%s cannot be used: %s; everything is tried again until it can", self._shown, self._words(error)
            )
        else:
            log.debug("%s", error)

    def _worked(self) -> None:
        if self._since is not None:
            log.info("%s can be used again after %.1f s", self._shown, self._clock.elapsed() - self._since)
            self._since = None

    def _words(self, error: BrokerUnavailable) -> str:
        """The error without the name of the broker, where the log line has that already."""
        broker, _, what = str(error).partition(": ")
        return what if what and self._shown.endswith(broker) else str(error)


async def _wait(seconds: float, hurry: asyncio.Event | None) -> None:
    if hurry is None:
        await asyncio.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await hurry.wait()
