"""Sessions of a PostgreSQL store: pools of connections, transactions, deadlines, and repetition after conflicts.

An intent is a coroutine function of a `Statements`. After a deadlock or a serialization failure the whole transaction
is repeated. Any other failure of server or network has an unknown outcome: `StoreUnavailable`.

A connection belongs to the event loop that opened it, and the store is used from several loops: the engine's, the one
behind `.sync`, those of users. Each has a small pool. A connection that may be broken (deadline, cancelled caller, lost
network) is closed; the next caller gets a new one. A loop that ends closes its connections. After a network outage old
connections may never answer, and a deadline may be longer than a lease, so all of them are closed once the server
answers on a new one (`renew`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from evertick.clock import Clock
from evertick.errors import StoreUnavailable
from evertick.store.postgres.connection import (
    BEGIN,
    CLOSE_SECONDS,
    CONFLICTS,
    PLANNER_SETTINGS,
    Connection,
    Statements,
    disconnect,
    statements_for,
    timeouts_of,
    translated,
)
from evertick.store.postgres.location import Location
from evertick.store.postgres.wakeup import Listener, Notifier

__all__ = ["Pools", "StoreSession"]

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
        # Whether connections of this pool are prepared (`warm_up`).
        self.is_warm = False
        # Shared by all waiters on this loop.
        self.listener: Listener | None = None
        self._ends_with_loop = self._until_closed()

    async def start(self) -> None:
        await anext(self._ends_with_loop)

    async def lend(self, seconds: float, use: Callable[[Connection], Awaitable[T]]) -> T:
        """Use a connection, within a deadline that includes the wait for it. No generator-based context managers,
        because every statement passes here."""
        async with asyncio.timeout(seconds) as deadline:
            self._deadlines.add(deadline)
            try:
                async with self._slots:
                    return await self._use(use)
            finally:
                self._deadlines.discard(deadline)

    async def _use(self, use: Callable[[Connection], Awaitable[T]]) -> T:
        if self._is_closed:
            raise StoreUnavailable(f"the {self._description} is closed", fix="open it before using it")
        connection = self._newest_idle() or await self._connect()
        is_sure = False
        try:
            answer = await use(connection)
            is_sure = True
            return answer
        except Exception:
            # After an error of the server the connection is usable, once the transaction is rolled back.
            is_sure = not connection.is_closed() and not connection.is_in_transaction()
            raise
        finally:
            if is_sure and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.terminate()

    def renew(self) -> None:
        """Close the present connections, and end all waits for them."""
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()
        if self.listener is not None:
            self.listener.renew()

    async def close(self) -> None:
        await self._ends_with_loop.aclose()

    def _newest_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        # When a loop ends, it closes its asynchronous generators; there is no other notification.
        try:
            yield
        finally:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for connection in idle:
                await disconnect(connection)
            if self.listener is not None:
                await self.listener.close()


class Pools:
    """A pool for each event loop."""

    def __init__(self, connect: Connect, size: int, description: str) -> None:
        self._connect = connect
        self._size = size
        self._description = description
        self.pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._lock = threading.Lock()

    async def here(self) -> Pool:
        loop = asyncio.get_running_loop()
        pool = self.pools.get(loop)
        if pool is not None:
            return pool
        with self._lock:
            # Drop pools of closed loops; their connections are closed.
            self.pools = {known: pool for known, pool in self.pools.items() if not known.is_closed()}
            pool = self.pools[loop] = Pool(self._connect, self._size, self._description)
        await pool.start()
        return pool

    def renew(self) -> None:
        """Close all present connections. From any thread."""
        with self._lock:
            pools = dict(self.pools)
        for loop, pool in pools.items():
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(pool.renew)

    async def close(self) -> None:
        with self._lock:
            pools, self.pools = self.pools, {}
        for loop, pool in pools.items():
            if loop is asyncio.get_running_loop():
                await pool.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(pool.close(), loop)
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(closing), CLOSE_SECONDS)


# --- sessions ---------------------------------------------------------------------------------------------------------


log = logging.getLogger("evertick.store")


_TRIES_MOST = 8
# Multiplied by the number of tries, plus a random part.
_PAUSE_SECONDS = 0.01
# Connections that are prepared at the start: a node claims, ends runs, enqueues and records fires at the same time.
_WARM_MOST = 4


Act = Callable[[Statements], Awaitable[T]]


class StoreSession:
    """Executes intents on the database."""

    def __init__(self, where: Location, clock: Clock, pools: Pools, notifier: Notifier) -> None:
        self._where = where
        self._clock = clock
        self.pools = pools
        self.notifier = notifier
        self._sql = statements_for(where.schema)
        # Behind a pooler settings last for one transaction only.
        settings = PLANNER_SETTINGS | timeouts_of(where.timeout) if where.is_pooled else {}
        local = "".join(f"; SET LOCAL {name} = {value}" for name, value in settings.items())
        self._begin_writing = f"{BEGIN}{local}"
        self._begin_reading = f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY{local}"

    async def write(self, act: Act[T]) -> T:
        """One transaction, READ COMMITTED: each statement sees what was committed before it began."""
        return await self._perform(lambda connection: self._in_transaction(connection, self._begin_writing, act))

    async def read(self, act: Act[T]) -> T:
        """Several statements in one snapshot."""
        return await self._perform(lambda connection: self._in_transaction(connection, self._begin_reading, act))

    async def ask(self, act: Act[T]) -> T:
        """One statement in autocommit."""
        if self._where.is_pooled:
            return await self.write(act)
        return await self._perform(lambda connection: self._autocommit(connection, act))

    async def borrow(self, act: Callable[[Connection], Awaitable[T]]) -> T:
        """A connection for a caller that makes its own transactions."""
        return await self._perform(act)

    async def warm_up(self, act: Act[None], seconds: float) -> None:
        """Open connections, and let the server plan some statements on each. Rolled back.

        Once per event loop, and optional: connections that are not ready in time are opened and planned at their first
        use.
        """
        pool = await self.pools.here()
        if pool.is_warm or self._where.is_pooled:
            return
        pool.is_warm = True
        count = min(_WARM_MOST, self._where.pool_size)
        warming = [self.borrow(lambda connection: self._rehearse(connection, act)) for _ in range(count)]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for error in filter(None, await asyncio.gather(*warming, return_exceptions=True)):
                    log.info("store: a connection was not prepared before its first use: %s", error)

    async def _rehearse(self, connection: Connection, act: Act[None]) -> None:
        # Without the rollback the transaction would stay open, and the pool would close the connection.
        await connection.execute(self._begin_writing)
        await act(Statements(connection, self._sql, self._clock))
        await connection.execute("ROLLBACK")

    async def _perform(self, perform: Callable[[Connection], Awaitable[T]]) -> T:
        tries = 0
        with translated(self._where):
            while True:
                tries += 1
                try:
                    pool = await self.pools.here()
                    return await pool.lend(self._where.timeout, perform)
                except CONFLICTS:
                    if tries == _TRIES_MOST:
                        raise
                await asyncio.sleep(_PAUSE_SECONDS * tries * (1 + self._clock.uniform()))

    async def _autocommit(self, connection: Connection, act: Act[T]) -> T:
        db = Statements(connection, self._sql, self._clock, self.notifier)
        answer = await act(db)
        await self.notifier.notify(connection, db.woken)
        return answer

    async def _in_transaction(self, connection: Connection, begin: str, act: Act[T]) -> T:
        db = Statements(connection, self._sql, self._clock)
        db.is_ours = True
        await connection.execute(begin)
        try:
            answer = await act(db)
            await _commit(connection)
        except Exception:
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
        await self.notifier.notify(connection, db.woken)
        return answer


async def _commit(connection: Connection) -> None:
    status = await connection.execute("COMMIT")
    # The result of a COMMIT after an error that the intent ignored.
    assert status == "COMMIT", f"the transaction ended with {status}"
