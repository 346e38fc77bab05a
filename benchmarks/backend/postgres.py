"""A database for one trial, on the server of the benchmarks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from benchmarks.backend.protocol import HISTORY_DAYS, check_history
from benchmarks.errors import NotDurable
from benchmarks.processes import family_seconds, parent
from evertick.clock import system_clock
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import PLANNER_SETTINGS
from evertick.when.moment import DAY, HOUR, from_us

__all__ = ["PostgresBackend"]

# A separate table until it is full: building an index is faster than growing it.
_MAKE_DAY = "CREATE TABLE evertick.{name} (LIKE evertick.history INCLUDING DEFAULTS)"
_FILL_DAY = """
INSERT INTO evertick.{name} (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority,
    verdict, attempts, losses, node, fence, created_at, started_at, finished_at, is_cancel_requested)
SELECT (lpad(to_hex(at / 1000), 12, '0') || '7' || substr(md5(n::text), 1, 3) || 'a'
        || substr(md5(n::text), 5, 15))::uuid,
    'default', n % 10000 + 1000000, 'old' || n % 10000, 1, 'count', 'fire', at, at, 'default', 0, 'succeeded', 1, 0,
    'node', n, at, at, at, false
FROM (SELECT n, {first}::bigint + n * ({length}::bigint / {count}) AS at FROM generate_series(0, {count} - 1) n) m
"""
_ATTACH_DAY = "ALTER TABLE evertick.history ATTACH PARTITION evertick.{name} FOR VALUES FROM ({first}) TO ({end})"
_DROP_DAY = "ALTER TABLE evertick.history DETACH PARTITION evertick.{name}; DROP TABLE evertick.{name}"
_OUTSTANDING = """
SELECT (SELECT coalesce(sum(($2 - greatest(fire_at, $1) + $3 - 1) / $3), 0)
        FROM evertick.due WHERE fire_at < $2)::bigint
    + (SELECT count(*) FROM evertick.runs WHERE fire_at >= $1 AND fire_at < $2)
    + (SELECT coalesce(sum((least(last_at + 1, $2) - greatest(first_at, $1) + $3 - 1) / $3), 0)
        FROM evertick.gaps WHERE first_at < $2 AND last_at >= $1)::bigint
"""
# A crash empties unlogged tables and sequences.
_UNLOGGED = "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class WHERE relpersistence = 'u'"
# All databases share one table of statement counts, which drops the rarest when it is full.
_HAS_STATEMENTS = "SELECT to_regclass('pg_stat_statements') IS NOT NULL"
_FORGET_STATEMENTS = "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = $1"


@dataclass(frozen=True)
class PostgresBackend:
    """`admin` is the DSN of a permanent database; `database` is created and dropped with the backend."""

    folder: Path
    admin: str
    database: str
    # The postmaster, parent of all other processes of the server.
    server: int

    @classmethod
    def make(cls, folder: Path, admin: str) -> PostgresBackend:
        return asyncio.run(cls._make(folder, admin))

    @classmethod
    async def _make(cls, folder: Path, admin: str) -> PostgresBackend:
        database = f"bench_{system_clock.new_token()[:12]}"
        connection: Any = await asyncpg.connect(admin)
        try:
            await connection.execute(f"CREATE DATABASE {database}")
            return cls(folder, admin, database, parent(await connection.fetchval("SELECT pg_backend_pid()")))
        finally:
            await connection.close()

    @property
    def url(self) -> str:
        return urlsplit(self.admin)._replace(path=f"/{self.database}").geturl()

    def settle(self) -> None:
        """Autovacuum runs only after a minute; until then some contenders claim with a bad plan."""
        asyncio.run(self._settle())

    async def _settle(self) -> None:
        async with self.connection() as connection:
            await connection.execute("VACUUM ANALYZE")

    def server_seconds(self) -> float:
        """Of all its processes: sessions, WAL writer, autovacuum, and those that have ended."""
        return family_seconds(self.server)

    def check_durable(self) -> None:
        """No contender may have created an unlogged table or relaxed the commits of its database."""
        asyncio.run(self._check_durable())

    async def _check_durable(self) -> None:
        async with self.connection() as connection:
            unlogged = await connection.fetchval(_UNLOGGED)
            if unlogged:
                raise NotDurable(f"{', '.join(unlogged)}: unlogged, so a crash would empty it")
            if await connection.fetchval("SHOW synchronous_commit") == "off":
                raise NotDurable("commits do not reach the disk: the database has synchronous_commit = off")

    def close(self) -> None:
        asyncio.run(self._drop())
        shutil.rmtree(self.folder)

    async def _drop(self) -> None:
        connection: Any = await asyncpg.connect(self.admin)
        try:
            if await connection.fetchval(_HAS_STATEMENTS):
                await connection.execute(_FORGET_STATEMENTS, self.database)
            await connection.execute(f"DROP DATABASE {self.database} WITH (FORCE)")
        finally:
            await connection.close()

    def check(self, count: int) -> None:
        asyncio.run(self._check(count))

    async def _check(self, count: int) -> None:
        verdicts = "SELECT verdict, count(*) FROM evertick.history WHERE node IS DISTINCT FROM 'node' GROUP BY verdict"
        async with self.connection() as connection:
            live = await connection.fetchval("SELECT count(*) FROM evertick.runs")
            check_history(count, live, dict(await connection.fetch(verdicts)))

    def waiting(self) -> list[int]:
        query = "SELECT array_agg((args::json ->> 'number')::int) FROM evertick.runs WHERE state = 'waiting'"
        return asyncio.run(self._fetch(query)) or []

    def last_written(self, since_us: int) -> float:
        query = "SELECT max(finished_at) FROM evertick.history WHERE fire_at >= $1"
        written: int = asyncio.run(self._fetch(query, since_us))
        return written / 1e6

    def succeeded(self, first_us: int, end_us: int) -> int:
        query = "SELECT count(*) FROM evertick.history WHERE verdict = 'succeeded' AND fire_at >= $1 AND fire_at < $2"
        return int(asyncio.run(self._fetch(query, first_us, end_us)))

    def outstanding(self, first_us: int, end_us: int, period_us: int) -> int:
        return int(asyncio.run(self._fetch(_OUTSTANDING, first_us, end_us, period_us)))

    def add_history(self, count: int) -> None:
        asyncio.run(self._add_history(count))

    async def _add_history(self, count: int) -> None:
        now = system_clock.now_us()
        today = now // DAY
        async with self.connection() as connection:
            await connection.execute("SET maintenance_work_mem = '256MB'")
            for day in range(today - HISTORY_DAYS + 1, today + 1):
                # Today only up to two hours ago: the moments of the measurement are later.
                length = DAY if day < today else max(now - 2 * HOUR - today * DAY, HOUR)
                await _fill_day(connection, day, max(count // HISTORY_DAYS, 1), length)
            await connection.execute("VACUUM ANALYZE")

    @asynccontextmanager
    async def connection(self, *, has_plans: bool = False) -> AsyncIterator[Any]:
        """A bare asyncpg connection; with `has_plans` it plans as the store does."""
        connection = await asyncpg.connect(self.url, server_settings=PLANNER_SETTINGS if has_plans else {})
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

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[None]:
        """With a snapshot, so that vacuum cannot remove rows that die from now on."""
        async with self.connection() as connection, connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM evertick.due")
            yield

    async def _fetch(self, query: str, *values: object) -> Any:
        async with self.connection() as connection:
            return await connection.fetchval(query, *values)


async def _fill_day(connection: Any, day: int, count: int, length: int) -> None:
    name = f"history_{from_us(day * DAY):%Y%m%d}"
    values = {"name": name, "first": day * DAY, "end": (day + 1) * DAY, "length": length, "count": count}
    if await connection.fetchval("SELECT to_regclass($1)", f"evertick.{name}"):
        await connection.execute(_DROP_DAY.format(**values))
    for statement in (_MAKE_DAY, _FILL_DAY, _ATTACH_DAY):
        await connection.execute(statement.format(**values))
