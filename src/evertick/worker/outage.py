"""A broker that is away, as a worker bears it: everything is tried again; it is told once, and once when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from evertick.clock import Clock
from evertick.errors import BrokerUnavailable

__all__ = ["Outage"]

log = logging.getLogger("evertick.worker")

T = TypeVar("T")

_AGAIN_FIRST, _AGAIN_MOST = 0.1, 5.0


class Outage:
    """Shared by all that one worker does over one line."""

    def __init__(self, shown: str, clock: Clock) -> None:
        self._shown, self._clock = shown, clock
        self._since: float | None = None

    async def outlast(
        self,
        act: Callable[[], Awaitable[T]],
        is_worth_it: Callable[[], bool],
        hurry: asyncio.Event | None = None,
        *,
        most_seconds: float = math.inf,
    ) -> T | None:
        """Until it works; None where it is not worth another try. `hurry` cuts the wait between two tries short, which
        is about `most_seconds` at most."""
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
        """An error names its broker by itself; here the line does so already."""
        broker, _, what = str(error).partition(": ")
        return what if what and self._shown.endswith(broker) else str(error)


async def _wait(seconds: float, hurry: asyncio.Event | None) -> None:
    if hurry is None:
        await asyncio.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await hurry.wait()
