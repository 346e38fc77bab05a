"""The heartbeat's own connection: no pool and no other statement can hold it up. Used by one thread, its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from evertick.clock import Clock
from evertick.errors import StoreUnavailable
from evertick.store.base import NO_TICKS, Beat, Ticks
from evertick.store.postgres.connection import Connection, connect, part_from, translated
from evertick.store.postgres.duties import resign
from evertick.store.postgres.location import Location
from evertick.store.postgres.nodes import beat, die
from evertick.store.postgres.session import Statements

__all__ = ["OwnBeatLine"]

T = TypeVar("T")

# A beat that cannot get through must fail while there is still time for others.
_WAITS_PER_LEASE = 4
_LEAST_SECONDS = 0.5
_MICROSECONDS = 1_000_000


class OwnBeatLine:
    """Opened by the first beat, and opened anew by the beat after one that failed.

    `on_return`: the server answers again after it had not. What others asked it before may never be answered.
    """

    def __init__(self, where: Location, sql: Mapping[str, str], clock: Clock, on_return: Callable[[], None]) -> None:
        self._where = where
        self._sql = sql
        self._clock = clock
        self._on_return = on_return
        self._connection: Connection | None = None
        self._was_silent = False

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        seconds = max(_LEAST_SECONDS, lease / _MICROSECONDS / _WAITS_PER_LEASE)
        try:
            answer = await self._perform(seconds, lambda db: beat(db, node, lease, ticks))
        except StoreUnavailable as error:
            # Where it was refused or cut off, the others have heard that, too.
            self._was_silent = self._was_silent or isinstance(error.__cause__, TimeoutError)
            raise
        if self._was_silent:
            self._was_silent = False
            self._on_return()
        return answer

    async def die(self, node: str) -> None:
        await self._perform(self._where.timeout, lambda db: die(db, node, "node.died"))

    async def resign(self, node: str) -> None:
        await self._perform(self._where.timeout, lambda db: resign(db, node))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await part_from(connection)

    async def _perform(self, seconds: float, act: Callable[[Statements], Awaitable[T]]) -> T:
        with translated(self._where):
            try:
                async with asyncio.timeout(min(seconds, self._where.timeout)):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await connect(self._where)
                    return await act(Statements(self._connection, self._sql, self._clock))
            except BaseException:
                # Whatever it was: the next beat must not wait for the rest of this one.
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.terminate()
                raise
