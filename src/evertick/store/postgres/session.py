"""How an intent gets to a connection and back: a transaction around it, a deadline, and another try where it must wait.

An intent is a coroutine function of a `Statements`. After a deadlock or a serialization failure the whole transaction
is tried again. Every other failure of server or network has an unknown outcome: `StoreUnavailable`.

A connection belongs to the event loop that opened it, and the store is used from several: the engine's, the one behind
`.sync`, those of users; each has a pool of a few. A trouble that may have broken a connection (a deadline, a cancelled
caller, a lost network) ends it; the next caller gets a new one. A loop that ends by itself closes its connections with
it. After an outage of the network old connections may never answer, and a deadline may be longer than a lease. So all
of them are given up once the server answers on a new one (`renew`).
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
    PLAIN_PLANS,
    Connection,
    Statements,
    disconnect,
    limits_of,
    statements_for,
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
        # Whether some connections have done already what must be quick.
        self.is_warm = False
        # Shared by all that wait for wake-ups on this loop.
        self.listener: Listener | None = None
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
        """End all waits on the connections that are there now."""
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
        # The end of a loop closes its asynchronous generators, and that is all it tells anybody about its end.
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
            # Loops that came, asked and went; their connections have gone with them.
            self.pools = {known: pool for known, pool in self.pools.items() if not known.is_closed()}
            pool = self.pools[loop] = Pool(self._connect, self._size, self._description)
        await pool.start()
        return pool

    def renew(self) -> None:
        """From any thread: give up every line that is there."""
        with self._lock:
            pools = dict(self.pools)
        for loop, pool in pools.items():
            with suppress(RuntimeError):  # a loop that has ended
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
# Times the number of tries, and a random share of it.
_PAUSE_SECONDS = 0.01
# On how many connections a node does first for nothing what must be quick later: it claims, ends runs, enqueues and
# records fires at the same time.
_WARM_MOST = 4


Act = Callable[[Statements], Awaitable[T]]


class StoreSession:
    """The way to the database."""

    def __init__(self, where: Location, clock: Clock, pools: Pools, notifier: Notifier) -> None:
        self._where = where
        self._clock = clock
        self.pools = pools
        self.notifier = notifier
        self._sql = statements_for(where.schema)
        # Behind a pooler no setting outlives a transaction.
        settings = PLAIN_PLANS | limits_of(where.timeout) if where.is_pooled else {}
        local = "".join(f"; SET LOCAL {name} = {value}" for name, value in settings.items())
        self._begin_writing = f"{BEGIN}{local}"
        self._begin_reading = f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY{local}"

    async def write(self, act: Act[T]) -> T:
        """In one transaction, READ COMMITTED: each statement sees what was committed before it began."""
        return await self._perform(lambda connection: self._in_transaction(connection, self._begin_writing, act))

    async def read(self, act: Act[T]) -> T:
        """Several statements that see one and the same moment."""
        return await self._perform(lambda connection: self._in_transaction(connection, self._begin_reading, act))

    async def ask(self, act: Act[T]) -> T:
        """One statement, which is a transaction by itself."""
        if self._where.is_pooled:
            return await self.write(act)
        return await self._perform(lambda connection: self._at_once(connection, act))

    async def borrow(self, act: Callable[[Connection], Awaitable[T]]) -> T:
        """A connection for what makes its own transactions."""
        return await self._perform(act)

    async def warm_up(self, act: Act[None], seconds: float) -> None:
        """Open connections, and have the server make the plans of some statements on each. Nothing of it is kept.

        Once for each event loop. It is optional: what fails, or is not ready in time, is opened and planned at
        its first use, as connections are that are opened later.
        """
        pool = await self.pools.here()
        if pool.is_warm or self._where.is_pooled:
            return
        pool.is_warm = True
        count = min(_WARM_MOST, self._where.pool_size)
        warming = [self.borrow(lambda connection: self._in_vain(connection, act)) for _ in range(count)]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for trouble in filter(None, await asyncio.gather(*warming, return_exceptions=True)):
                    log.info("a connection was not made ready before its first use: %s", trouble)

    async def _in_vain(self, connection: Connection, act: Act[None]) -> None:
        # Without the rollback a transaction stays open, and the pool gives such a connection up.
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

    async def _at_once(self, connection: Connection, act: Act[T]) -> T:
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
    # A transaction in which an error was overlooked ends like this, without a word.
    assert status == "COMMIT", f"the transaction was ended by {status}"
