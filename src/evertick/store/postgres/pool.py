"""Connections for the event loops of a process: a few for each, opened when they are needed, or before a node starts.

A connection belongs to the loop that opened it, and the store is used from several: the engine's, the one behind
`.sync`, those of users. Whatever happened to a connection that nobody can be sure of (a deadline, a cancelled caller, a
broken line) ends it; the next caller gets a new one. A loop that ends by itself closes its connections with it.

A network that was away for a while leaves lines on which nothing will ever be heard, and a deadline may be longer than
a lease. So all of them are given up once it is known that the server answers on a new one (`renew`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from evertick.errors import StoreUnavailable
from evertick.store.postgres.connection import CLOSE_SECONDS, Connection, part_from
from evertick.store.postgres.wakeup import Listener

__all__ = ["Pool", "Pools"]

T = TypeVar("T")
Connect = Callable[[], Awaitable[Connection]]


class Pool:
    """The connections of one event loop."""

    def __init__(self, connect: Connect, size: int, description: str) -> None:
        self._connect = connect
        self._description = description
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(size)
        self._deadlines: set[asyncio.Timeout] = set()
        self._is_closed = False
        # Whether some connections have done already what must be quick.
        self.is_warm = False
        # Whoever waits for wake-ups on this loop does so together.
        self.ear: Listener | None = None
        self._ends_with_loop = self._until_closed()

    async def start(self) -> None:
        await anext(self._ends_with_loop)

    async def lend(self, seconds: float, use: Callable[[Connection], Awaitable[T]]) -> T:
        """A connection for all that one caller does with it, the wait for one included. No context managers made of
        generators: every statement comes through here."""
        async with asyncio.timeout(seconds) as deadline:
            self._deadlines.add(deadline)
            try:
                async with self._slots:
                    return await self._use(use)
            finally:
                self._deadlines.discard(deadline)

    async def _use(self, use: Callable[[Connection], Awaitable[T]]) -> T:
        if self._is_closed:
            raise StoreUnavailable(f"the {self._description} is closed; open it before using it")
        connection = self._newest_idle() or await self._connect()
        is_sure = False
        try:
            answer = await use(connection)
            is_sure = True
            return answer
        except Exception:
            # An error that the server has answered leaves the line as it was, once the transaction is rolled back.
            is_sure = not connection.is_closed() and not connection.is_in_transaction()
            raise
        finally:
            if is_sure and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.terminate()

    def renew(self) -> None:
        """Nobody waits any longer on a line that is there now."""
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()
        if self.ear is not None:
            self.ear.renew()

    async def close(self) -> None:
        await self._ends_with_loop.aclose()

    def _newest_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        # The end of a loop closes its asynchronous generators, and that is all it tells anybody about its end.
        try:
            yield
        finally:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for connection in idle:
                await part_from(connection)
            if self.ear is not None:
                await self.ear.close()


class Pools:
    """A pool for each event loop."""

    def __init__(self, connect: Connect, size: int, description: str) -> None:
        self._connect = connect
        self._size = size
        self._description = description
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._lock = threading.Lock()

    async def here(self) -> Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is not None:
            return pool
        with self._lock:
            # Loops that came, asked and went; their connections have gone with them.
            self._pools = {known: pool for known, pool in self._pools.items() if not known.is_closed()}
            pool = self._pools[loop] = Pool(self._connect, self._size, self._description)
        await pool.start()
        return pool

    def renew(self) -> None:
        """From any thread: give up every line that is there."""
        with self._lock:
            pools = dict(self._pools)
        for loop, pool in pools.items():
            with suppress(RuntimeError):  # a loop that has ended
                loop.call_soon_threadsafe(pool.renew)

    async def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            if loop is asyncio.get_running_loop():
                await pool.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(pool.close(), loop)
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(closing), CLOSE_SECONDS)
