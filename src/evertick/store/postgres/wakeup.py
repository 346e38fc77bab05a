"""Wake-ups: NOTIFY inside the transaction that made something due, LISTEN on a connection of its own.

A hint, never relied on: whoever misses one finds the work at the next poll. At most some ten a second are sent by one
store object, because transactions that notify are committed one after the other by the server. The last of a burst is
always sent, a little later, outside of its transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b

from evertick.clock import Clock
from evertick.errors import StoreError
from evertick.store.postgres.connection import Connection, Speaks, connect, part_from, translated
from evertick.store.postgres.location import Location

__all__ = ["Bell", "Ear", "channel_of"]

log = logging.getLogger("evertick.store")

_NOTIFY = "SELECT pg_notify($1, $2)"
_INTERVAL_SECONDS = 0.1
# How soon a lost line is looked for again.
_AGAIN_SECONDS = 1.0
_CHANNEL_LONGEST = 63


def channel_of(schema: str) -> str:
    channel = f"evertick:{schema}"
    if len(channel.encode()) <= _CHANNEL_LONGEST:
        return channel
    return f"evertick:{blake2b(schema.encode(), digest_size=16).hexdigest()}"


class Bell:
    """Wakes the others. `name` tells our own voice from theirs."""

    def __init__(self, channel: str, clock: Clock, send: Callable[[str, str, str], Awaitable[None]]) -> None:
        self._channel = channel
        self._clock = clock
        self._send = send
        self.name = clock.new_token()
        self._rung_at = -_INTERVAL_SECONDS
        self._later: asyncio.Task[None] | None = None

    async def ring(self, connection: Connection) -> None:
        """Inside a transaction: heard when it is committed."""
        wait = self._rung_at + _INTERVAL_SECONDS - self._clock.elapsed()
        if wait <= 0:
            self._rung_at = self._clock.elapsed()
            await connection.execute(_NOTIFY, self._channel, self.name)
        elif self._later is None or self._later.done():
            self._later = asyncio.get_running_loop().create_task(self._ring_later(wait), name="evertick wake-up")

    async def ring_in(self, connection: Speaks) -> None:
        """Inside a transaction of somebody else, who may commit it at any time: now or never."""
        await connection.execute(_NOTIFY, self._channel, self.name)

    async def close(self) -> None:
        if self._later is not None and self._later.get_loop() is asyncio.get_running_loop():
            self._later.cancel()
            with suppress(asyncio.CancelledError):
                await self._later

    async def _ring_later(self, wait: float) -> None:
        # What was committed during the wait is covered by this one, too.
        await asyncio.sleep(wait)
        self._rung_at = self._clock.elapsed()
        with suppress(StoreError):
            await self._send(_NOTIFY, self._channel, self.name)


class Ear:
    """Listens for the bells of others, on one event loop."""

    def __init__(self, where: Location, own_name: str) -> None:
        self._where = where
        self._channel = channel_of(where.schema)
        self._own_name = own_name
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, timeout: float) -> bool:
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="evertick wake-ups")
        try:
            async with asyncio.timeout(timeout):
                await self._heard.wait()
        except TimeoutError:
            return False
        self._heard.clear()
        return True

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self) -> None:
        while True:
            try:
                with translated(self._where):
                    await self._listen_once()
            except StoreError as error:
                log.info("no wake-ups for now: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen_once(self) -> None:
        """Until the line is lost."""
        connection = await connect(self._where)
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(self._channel, self._hear)
            # Whatever was said before there was a line was not heard.
            self._heard.set()
            await lost.wait()
        finally:
            await part_from(connection)

    def _hear(self, _connection: object, _pid: int, _channel: str, name: str) -> None:
        if name != self._own_name:
            self._heard.set()
