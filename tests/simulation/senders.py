"""The sender of a simulation. Its behaviour for a message depends on the message's key.

Most messages are delivered at once, some slowly, some at the second attempt, some never; some hang, and some kill their
node at the first attempt. Each start and end is recorded outside of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal
from zlib import crc32

from evertick.driver.base import Sender
from evertick.errors import Retry
from evertick.model import Message
from evertick.model.retry import Constant

__all__ = ["CHANNEL", "TRIES", "Deliveries", "DeliveryStep"]

CHANNEL = "out"
TRIES = 5
_KINDS = ("at once", "at once", "at once", "slow", "second try", "asks", "never", "hangs", "deadly")

DeliveryStep = Literal["begun", "delivered", "failed", "cut off"]


class Deliveries:
    """The sender of one machine. `record` records each step, `die` kills the machine."""

    def __init__(self, record: Callable[[DeliveryStep, Message], None], die: Callable[[], None]) -> None:
        self._record = record
        self._die = die

    def sender(self) -> Sender:
        retry = Constant("1s", attempts=TRIES)
        return Sender(channel=CHANNEL, deliver=self._deliver, retry=retry, timeout=3_000_000, concurrency=2)

    async def _deliver(self, message: Message) -> None:
        self._record("begun", message)
        try:
            await self._behave(message)
        except asyncio.CancelledError:
            self._record("cut off", message)
            raise
        except Exception:
            self._record("failed", message)
            raise
        self._record("delivered", message)

    async def _behave(self, message: Message) -> None:
        is_first = message.attempts == 0
        match _KINDS[crc32(message.key.encode()) % len(_KINDS)]:
            case "slow":
                await asyncio.sleep(2)
            case "second try" if is_first:
                raise ConnectionError("fails at first")
            case "asks" if is_first:
                raise Retry("once more", after=2)
            case "never":
                await asyncio.sleep(0.1)
                raise ConnectionError("fails every time")
            case "hangs" if is_first:
                await asyncio.sleep(3600)
            case "deadly" if is_first:
                self._die()
                await asyncio.sleep(1)
            case _:
                await asyncio.sleep(0)
