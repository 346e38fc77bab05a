"""Connections of users as our statements see them: asyncpg as it is, psycopg through an adapter.

Nothing is imported for it: whoever hands over a connection of psycopg has loaded psycopg. Wrappers (pools, SQLAlchemy,
Django) are taken off layer by layer. A plain connection is used in the caller's thread, and nothing waits for an event
loop: its coroutines come to their end without one.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import asyncpg

from evertick.errors import InvalidInput
from evertick.store.postgres.connection import Connection
from evertick.store.rows import Row
from evertick.store.wrappers import layers_of
from evertick.text.redact import shown_value

__all__ = ["AsyncPsycopg", "PlainPsycopg", "UserConnection", "connection_of"]

# States of a transaction in libpq: none is open.
_IDLE = 0


class _Psycopg:
    """What both kinds of psycopg have in common."""

    is_async: bool

    def __init__(self, connection: Any, psycopg: ModuleType) -> None:
        self._connection = connection
        self._psycopg = psycopg

    def is_closed(self) -> bool:
        return bool(self._connection.closed)

    def is_in_transaction(self) -> bool:
        """Also when the first statement begins one, as it does unless the user has turned that off."""
        return not self._connection.autocommit or int(self._connection.info.transaction_status) != _IDLE


class PlainPsycopg(_Psycopg):
    is_async = False

    async def fetch(self, query: str, *values: object) -> list[Row]:
        with self._cursor() as cursor:
            cursor.execute(query, values or None)
            rows: list[Row] = cursor.fetchall()
            return rows

    async def fetchrow(self, query: str, *values: object) -> Row | None:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

    async def execute(self, query: str, *values: object) -> str:
        with self._cursor() as cursor:
            cursor.execute(query, values or None)
            return str(cursor.statusmessage)

    def _cursor(self) -> Any:
        # With $1 for parameters, as all of our statements have it.
        return self._psycopg.RawCursor(self._connection, row_factory=self._psycopg.rows.dict_row)


class AsyncPsycopg(_Psycopg):
    is_async = True

    async def fetch(self, query: str, *values: object) -> list[Row]:
        async with self._cursor() as cursor:
            await cursor.execute(query, values or None)
            rows: list[Row] = await cursor.fetchall()
            return rows

    async def fetchrow(self, query: str, *values: object) -> Row | None:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

    async def execute(self, query: str, *values: object) -> str:
        async with self._cursor() as cursor:
            await cursor.execute(query, values or None)
            return str(cursor.statusmessage)

    def _cursor(self) -> Any:
        return self._psycopg.AsyncRawCursor(self._connection, row_factory=self._psycopg.rows.dict_row)


UserConnection = Connection | PlainPsycopg | AsyncPsycopg


def connection_of(given: object) -> UserConnection:
    """What our statements can be sent on, through the wrappers around it."""
    for found in layers_of(given):
        # Anew for each: Django loads its driver with the first connection.
        psycopg = sys.modules.get("psycopg")
        if isinstance(found, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            connection: Connection = found
            return connection
        if psycopg is not None and isinstance(found, psycopg.Connection):
            return PlainPsycopg(found, psycopg)
        if psycopg is not None and isinstance(found, psycopg.AsyncConnection):
            return AsyncPsycopg(found, psycopg)
        if type(found).__module__.startswith("psycopg2"):
            raise InvalidInput(
                "connection: this is one of psycopg2, which Evertick cannot use; install psycopg 3 with `pip install "
                "'psycopg[binary]'`: Django takes it by itself, SQLAlchemy by postgresql+psycopg:// in its URL"
            )
    raise InvalidInput(
        f"connection: {shown_value(given)} is no open connection to PostgreSQL that Evertick can use; pass one of "
        "asyncpg or psycopg 3, Django's, a Connection or Session of SQLAlchemy on one of them, or an AsyncConnection "
        "(of an AsyncSession: `await session.connection()`)"
    )
