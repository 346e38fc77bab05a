"""How an intent gets to a connection and back: a transaction around it, a deadline, and another try where it must wait.

An intent is a coroutine function of a `Statements`. After a deadlock or a serialization failure the whole transaction
is tried again. Every other failure of server or network has an unknown outcome: `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from evertick.clock import Clock
from evertick.store.base import News
from evertick.store.postgres.connection import BEGIN, CONFLICTS, PLAIN_PLANS, Connection, Speaks, limits_of, translated
from evertick.store.postgres.location import Location
from evertick.store.postgres.pool import Pools
from evertick.store.postgres.queries import statements_for
from evertick.store.postgres.wakeup import Notifier, add_news
from evertick.store.rows import Row

__all__ = ["Act", "Statements", "StoreSession", "columns_of", "once_if_alike", "unless_all"]

log = logging.getLogger("evertick.store")

T = TypeVar("T")

_TRIES_MOST = 8
# Times the number of tries, and a random share of it.
_PAUSE_SECONDS = 0.01
# On how many connections a node does first for nothing what must be quick later: it claims, ends runs, enqueues and
# records fires at the same time.
_WARM_MOST = 4


class Statements:
    """A connection, and the statements of the store by name."""

    __slots__ = ("_connection", "_sql", "bell", "clock", "has_feed", "is_careful", "is_in_gate", "is_ours", "woken")

    def __init__(self, connection: Speaks, sql: Mapping[str, str], clock: Clock, bell: Notifier | None = None) -> None:
        self._connection = connection
        self._sql = sql
        # Only to guess where something may be; what is due is the store's to say.
        self.clock = clock
        # Of a statement that is a transaction by itself, and so may say with its commit what it has to say.
        self.bell = bell
        # Apps whose nodes are woken after the commit, and by what.
        self.woken: dict[str, News] = {}
        # Whether the app has a feed, where a statement has told; None: ask the server, by telling it.
        self.has_feed: bool | None = None
        # Whether the transaction holds the gate of the limits.
        self.is_in_gate = False
        # Whether runs that somebody else is inserting at this very moment are left out; else that is an error, which is
        # cheaper for those who can begin again.
        self.is_careful = True
        # Whether the transaction is one that we began, and end as soon as we can; not a user's.
        self.is_ours = False

    def wake(self, app: str, news: News = "anything") -> None:
        """Something of this app has become due, or somebody is to hear of a cancel."""
        add_news(self.woken, app, news)

    async def rows(self, name: str, *values: object) -> list[Row]:
        return await self._connection.fetch(self._sql[name], *values)

    async def row(self, name: str, *values: object) -> Row | None:
        return await self._connection.fetchrow(self._sql[name], *values)

    async def only_row(self, name: str, *values: object) -> Row:
        """Of a statement that always answers one."""
        row = await self._connection.fetchrow(self._sql[name], *values)
        assert row is not None, f"{name} answered nothing"
        return row

    async def count(self, name: str, *values: object) -> int:
        """How many rows a statement has written."""
        status = await self._connection.execute(self._sql[name], *values)
        return int(status.rpartition(" ")[2])

    async def select(self, text: str, *values: object) -> list[Row]:
        """A statement that was put together from the parts of a named one."""
        return await self._connection.fetch(text, *values)

    def text(self, name: str) -> str:
        return self._sql[name]

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        was_in_gate = self.is_in_gate
        await self._connection.execute("SAVEPOINT part")
        try:
            yield
        except Exception:
            await self._connection.execute("ROLLBACK TO part; RELEASE part")
            self.is_in_gate = was_in_gate
            raise
        await self._connection.execute("RELEASE part")


Act = Callable[[Statements], Awaitable[T]]


class StoreSession:
    """The way to the database."""

    def __init__(self, where: Location, clock: Clock, pools: Pools, bell: Notifier) -> None:
        self._where = where
        self._clock = clock
        self._pools = pools
        self._bell = bell
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

        Once for each event loop. Nobody depends on it: what fails, or is not ready in time, is opened and planned at
        its first use, as connections are that are opened later.
        """
        pool = await self._pools.here()
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
        # Who does not get to the rollback leaves an open transaction, and the pool gives such a connection up.
        await connection.execute(self._begin_writing)
        await act(Statements(connection, self._sql, self._clock))
        await connection.execute("ROLLBACK")

    async def _perform(self, perform: Callable[[Connection], Awaitable[T]]) -> T:
        tries = 0
        with translated(self._where):
            while True:
                tries += 1
                try:
                    pool = await self._pools.here()
                    return await pool.lend(self._where.timeout, perform)
                except CONFLICTS:
                    if tries == _TRIES_MOST:
                        raise
                await asyncio.sleep(_PAUSE_SECONDS * tries * (1 + self._clock.uniform()))

    async def _at_once(self, connection: Connection, act: Act[T]) -> T:
        session = Statements(connection, self._sql, self._clock, self._bell)
        answer = await act(session)
        await self._bell.ring(connection, session.woken)
        return answer

    async def _in_transaction(self, connection: Connection, begin: str, act: Act[T]) -> T:
        session = Statements(connection, self._sql, self._clock)
        session.is_ours = True
        await connection.execute(begin)
        try:
            answer = await act(session)
            await _commit(connection)
        except Exception:
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
        await self._bell.ring(connection, session.woken)
        return answer


def columns_of(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as statements take them: an array for each column.

    A column of nothing but None is sent as an empty array, which `unnest` fills up with NULL: asyncpg looks at every
    element of an array before it sends it, and most columns of most runs are empty.
    """
    return [[] if all(value is None for value in column) else list(column) for column in zip(*rows, strict=True)]


def unless_all(usual: Any, values: list[T]) -> list[T]:
    """What is as usual for all of them is not sent. `unnest` fills it up with NULL, for which the statement has it."""
    return [] if values.count(usual) == len(values) else values


def once_if_alike(values: list[T]) -> list[T]:
    """Of columns that are never empty. What `unnest` fills up is the first for the statement."""
    return values[:1] if values.count(values[0]) == len(values) else values


async def _commit(connection: Connection) -> None:
    status = await connection.execute("COMMIT")
    # A transaction in which an error was overlooked ends like this, without a word.
    assert status == "COMMIT", f"the transaction was ended by {status}"
