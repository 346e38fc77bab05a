"""A connection through a pooler that hands its sessions on after every transaction (PgBouncer in transaction mode).

asyncpg has a statement prepared, and then executes it. Between the two, outside of a transaction, the pooler may go on
with another session of the server, which has never heard of that statement. So each statement with an answer is inside
of a transaction here, if need be of its own.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import asyncpg

__all__ = ["PooledConnection"]


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types of its own
    async def fetch(self, query: str, *values: object, **options: Any) -> Any:
        async with self._in_transaction():
            return await super().fetch(query, *values, **options)

    async def fetchrow(self, query: str, *values: object, **options: Any) -> Any:
        async with self._in_transaction():
            return await super().fetchrow(query, *values, **options)

    async def execute(self, query: str, *values: object, **options: Any) -> Any:
        if not values:
            # Sent as it is, in one message; also how transactions begin and end.
            return await super().execute(query, **options)
        async with self._in_transaction():
            return await super().execute(query, *values, **options)

    def _in_transaction(self) -> AbstractAsyncContextManager[Any]:
        if self.is_in_transaction():
            return nullcontext()
        begun: AbstractAsyncContextManager[Any] = self.transaction(isolation="read_committed")
        return begun
