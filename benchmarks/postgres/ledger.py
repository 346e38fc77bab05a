"""A ledger in a schema of its own for one measurement, and the check afterwards that it tells what has happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from benchmarks.ledger import compare, compare_waiting
from evertick.clock import system_clock
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import PLAIN_PLANS
from evertick.store.postgres.queries import in_schema, quoted

__all__ = ["PostgresLedger"]


_OURS = "SELECT nspname AS name FROM pg_namespace WHERE nspname = $1 OR starts_with(nspname, $1 || '_')"


@dataclass(frozen=True)
class PostgresLedger:
    """In a schema."""

    dsn: str
    schema: str

    def beside(self, name: str) -> PostgresLedger:
        """Another one, which goes with this one."""
        return PostgresLedger(self.dsn, f"{self.schema}_{name}")

    @property
    def url(self) -> str:
        return f"{self.dsn}?schema={self.schema}"

    def sql(self, text: str) -> str:
        """With our schema in place of `evertick`."""
        return in_schema(text, self.schema)

    @asynccontextmanager
    async def connection(self, *, has_plans: bool = False) -> AsyncIterator[Any]:
        """Of asyncpg, and nothing between; with plans as the store has them."""
        connection = await asyncpg.connect(self.dsn, server_settings=PLAIN_PLANS if has_plans else {})
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(self.url, clock=system_clock)
        await store.open(migrate="auto")
        try:
            yield store
        finally:
            await store.close()

    async def drop(self) -> None:
        async with self.connection() as connection:
            for row in await connection.fetch(_OURS, self.schema):
                await connection.execute(f"DROP SCHEMA {quoted(row['name'])} CASCADE")

    async def check(self, executed: Sequence[int]) -> None:
        live = (await self._asked("SELECT 'live', count(*) FROM evertick.runs"))["live"]
        compare(executed, live, await self._asked("SELECT verdict, count(*) FROM evertick.history GROUP BY verdict"))

    async def check_waiting(self, count: int) -> None:
        compare_waiting(count, await self._asked("SELECT state, count(*) FROM evertick.runs GROUP BY state"))

    async def _asked(self, question: str) -> dict[str, int]:
        async with self.connection() as connection:
            return {row[0]: row[1] for row in await connection.fetch(self.sql(question))}
