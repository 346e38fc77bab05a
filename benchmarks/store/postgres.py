"""A database of its own for one measurement, on the server of the benchmarks."""

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

from benchmarks.store.place import HISTORY_DAYS, NotDurable, compare
from benchmarks.store.processor import family_seconds, parent
from evertick.clock import system_clock
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import PLANNER_SETTINGS
from evertick.when.moment import DAY, HOUR, from_us

__all__ = ["PostgresPlace"]

# A table of its own until it is full: an index is built faster than it grows.
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
# What a crash empties: tables and sequences that are not in the log.
_UNLOGGED = "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class WHERE relpersistence = 'u'"
# The counts of all databases share one table of statements, which forgets the rarest when it is full.
_HAS_STATEMENTS = "SELECT to_regclass('pg_stat_statements') IS NOT NULL"
_FORGET_STATEMENTS = "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = $1"


@dataclass(frozen=True)
class PostgresPlace:
    """`admin` is the DSN of a database that stays; `database` is made when the place is, and dropped with it."""

    folder: Path
    admin: str
    database: str
    # The server's first process, parent of all others.
    server: int

    @classmethod
    def make(cls, folder: Path, admin: str) -> PostgresPlace:
        return asyncio.run(cls._make(folder, admin))

    @classmethod
    async def _make(cls, folder: Path, admin: str) -> PostgresPlace:
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
        """Autovacuum would come within a minute; some claim by a bad plan until then."""
        asyncio.run(self._settle())

    async def _settle(self) -> None:
        async with self.connection() as connection:
            await connection.execute("VACUUM ANALYZE")

    def server_seconds(self) -> float:
        """Of all its processes: those that serve, write the log, vacuum, and those that have ended."""
        return family_seconds(self.server)

    def check_durable(self) -> None:
        """Of whoever was here: no table without a log, and no database that commits less safely than its server."""
        asyncio.run(self._check_durable())

    async def _check_durable(self) -> None:
        async with self.connection() as connection:
            unlogged = await connection.fetchval(_UNLOGGED)
            if unlogged:
                raise NotDurable(f"what is in {', '.join(unlogged)} would not survive a crash: it is unlogged")
            if await connection.fetchval("SHOW synchronous_commit") == "off":
                raise NotDurable("a commit does not reach the disk: the database has synchronous_commit = off")

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
            compare(count, live, dict(await connection.fetch(verdicts)))

    def waiting(self) -> list[int]:
        question = "SELECT array_agg((args::json ->> 'number')::int) FROM evertick.runs WHERE state = 'waiting'"
        return asyncio.run(self._fetch(question)) or []

    def last_written(self, since_us: int) -> float:
        question = "SELECT max(finished_at) FROM evertick.history WHERE fire_at >= $1"
        return asyncio.run(self._fetch(question, since_us)) / 1e6

    def succeeded(self, first_us: int, end_us: int) -> int:
        question = (
            "SELECT count(*) FROM evertick.history WHERE verdict = 'succeeded' AND fire_at >= $1 AND fire_at < $2"
        )
        return asyncio.run(self._fetch(question, first_us, end_us))

    def outstanding(self, first_us: int, end_us: int, period_us: int) -> int:
        return asyncio.run(self._fetch(_OUTSTANDING, first_us, end_us, period_us))

    def add_history(self, count: int) -> None:
        asyncio.run(self._add_history(count))

    async def _add_history(self, count: int) -> None:
        now = system_clock.now_us()
        today = now // DAY
        async with self.connection() as connection:
            await connection.execute("SET maintenance_work_mem = '256MB'")
            for day in range(today - HISTORY_DAYS + 1, today + 1):
                # Today only up to two hours ago: what is measured has its moments after that.
                length = DAY if day < today else max(now - 2 * HOUR - today * DAY, HOUR)
                await _fill_day(connection, day, max(count // HISTORY_DAYS, 1), length)
            await connection.execute("VACUUM ANALYZE")

    @asynccontextmanager
    async def connection(self, *, has_plans: bool = False) -> AsyncIterator[Any]:
        """Of asyncpg, and nothing between; with plans as the store has them."""
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
    async def held_open(self) -> AsyncIterator[None]:
        """With a snapshot, so that no row which dies from now on can be cleaned away."""
        async with self.connection() as connection, connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM evertick.due")
            yield

    async def _fetch(self, question: str, *values: object) -> int:
        async with self.connection() as connection:
            answer: int = await connection.fetchval(question, *values)
            return answer


async def _fill_day(connection: Any, day: int, count: int, length: int) -> None:
    name = f"history_{from_us(day * DAY):%Y%m%d}"
    values = {"name": name, "first": day * DAY, "end": (day + 1) * DAY, "length": length, "count": count}
    if await connection.fetchval("SELECT to_regclass($1)", f"evertick.{name}"):
        await connection.execute(_DROP_DAY.format(**values))
    for statement in (_MAKE_DAY, _FILL_DAY, _ATTACH_DAY):
        await connection.execute(statement.format(**values))
