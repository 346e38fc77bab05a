"""A worker's session with its broker: the protocol, and the retries during an outage.

The node's side is `Broker` in `driver/queue/driver.py`.
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

# taken: by this worker. duplicate: another worker has taken it. killed: it was cancelled.
Take = Literal["taken", "duplicate", "killed"]


class QueueMessage(msgspec.Struct, frozen=True):
    """A message from the queue. It is taken, dropped or returned."""

    data: bytes
    # The broker's handle of the message.
    token: Any = None
    # Unique per fetch; a repeated take recognises by it that the first one succeeded.
    mark: str = ""


class BrokerSession(Protocol):
    """One worker's access to its queue. Operations that fail raise `BrokerUnavailable` and may be repeated."""

    # Called for each cancelled dispatch of any worker; perhaps late, or not at all.
    on_kill: Callable[[Kill], None]

    @property
    def shown(self) -> str:
        """The queue for log lines, without a password."""
        ...

    async def open(self) -> None: ...

    async def fetch(self, most: int, seconds: float) -> list[QueueMessage]:
        """At most `most` messages. Waits up to `seconds` for the first."""
        ...

    async def take(self, message: QueueMessage, dispatched: DispatchMessage) -> Take:
        """Take the dispatch, which one worker can do once. In any case the message leaves the queue."""
        ...

    async def drop(self, message: QueueMessage) -> None:
        """Remove an unreadable or late message."""
        ...

    async def give_back(self, message: QueueMessage) -> None:
        """Return the message to the queue."""
        ...

    async def report(self, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        """Send a report. Returns whether the dispatch is still wanted, as far as the broker knows."""
        ...

    async def close(self) -> None: ...


class BrokerRetry:
    """Retries operations of one session, and logs the start and the end of an outage."""

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
        """Repeat `act` until it succeeds; None if it is not worth another try. `hurry` ends the pause between two
        tries, which is at most about `most_seconds`."""
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
            # Many workers lose a broker at the same moment; their retries must not coincide.
            await _wait(again * (0.5 + self._clock.uniform()), hurry)
            again = min(again * 2, most_seconds, _AGAIN_MOST)
            if not is_worth_it():
                return None

    def _failed(self, error: BrokerUnavailable) -> None:
        if self._since is None:
            self._since = self._clock.elapsed()
            # The error names the broker.
            log.warning("queue unavailable, retrying: %s", error)
        else:
            log.debug("queue unavailable: %s", error)

    def _worked(self) -> None:
        if self._since is not None:
            log.info("queue %s: available again after %.1f s", self._shown, self._clock.elapsed() - self._since)
            self._since = None


async def _wait(seconds: float, hurry: asyncio.Event | None) -> None:
    if hurry is None:
        await asyncio.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await hurry.wait()
