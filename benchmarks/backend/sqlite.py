"""A SQLite file for one trial."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.backend.protocol import HISTORY_DAYS, check_history
from benchmarks.errors import NotDurable
from evertick.clock import system_clock
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.connection import connect
from evertick.store.sqlite.location import location_of
from evertick.when.moment import DAY

__all__ = ["SqliteBackend"]

# SQLite itself writes the rows; ids are ordered by time, like those of Evertick.
_FILL = """
WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < :count)
INSERT INTO evertick_history (app, id, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
    priority, state, verdict, attempts, losses, node, fence, created_at, started_at, finished_at, at_most_once,
    is_cancel_requested, format)
SELECT 'default', printf('%012x-7000-a000-%012x', at / 1000, n), n % 10000 + 1000000, 'old' || n % 10000, 1, 'count',
    'fire', at, at, 'default', 0, 'done', 'succeeded', 1, 0, 'node', n, at, at, at, 0, 0, 1
FROM (SELECT n, :first + n * (:length / :count) AS at FROM n)
"""
_OUTSTANDING = """
SELECT (SELECT coalesce(sum((:end - max(fire_at, :first) + :period - 1) / :period), 0)
        FROM evertick_due WHERE fire_at < :end)
    + (SELECT count(*) FROM evertick_runs WHERE fire_at >= :first AND fire_at < :end)
    + (SELECT coalesce(sum((min(last_at + 1, :end) - max(first_at, :first) + :period - 1) / :period), 0)
        FROM evertick_gaps WHERE first_at < :end AND last_at >= :first)
"""
# Of PRAGMA synchronous.
_FULL = 2
# The counter of write transactions in the WAL index, which all processes share (sqlite.org/walformat.html, 2.1).
_COMMITS = slice(8, 12)


@dataclass(frozen=True)
class SqliteBackend:
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder.resolve() / "ledger.db"

    @property
    def url(self) -> str:
        """With `synchronous=full` spelled out, so that a new default changes no result."""
        return f"sqlite:///{self.path}?synchronous=full"

    def settle(self) -> None: ...

    def server_seconds(self) -> float:
        return 0.0

    def check_durable(self) -> None:
        """Checks a connection that is opened as Evertick opens all of its own; peers check theirs."""
        with closing(connect(location_of(self.url), mode="rwc")) as db:
            level = db.execute("PRAGMA synchronous").fetchone()[0]
        if level != _FULL:
            raise NotDurable(f"commits to {self.path} do not reach the disk: synchronous is {level}")

    def commits(self) -> int:
        """Write transactions since the file was first opened; 0 if no process has it open."""
        index = self.path.with_name(f"{self.path.name}-shm")
        return int.from_bytes(index.read_bytes()[_COMMITS], sys.byteorder) if index.exists() else 0

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def check(self, count: int) -> None:
        with self._open() as db:
            live = db.execute("SELECT count(*) FROM evertick_runs").fetchone()[0]
            verdicts = "SELECT verdict, count(*) FROM evertick_history WHERE node IS NOT 'node' GROUP BY verdict"
            check_history(count, live, dict(db.execute(verdicts).fetchall()))

    def waiting(self) -> list[int]:
        query = "SELECT json_extract(args, '$.number') FROM evertick_runs WHERE state = 'waiting'"
        with self._open() as db:
            return [number for (number,) in db.execute(query)]

    def last_written(self, since_us: int) -> float:
        query = "SELECT max(finished_at) FROM evertick_history WHERE app = 'default' AND fire_at >= ?"
        with self._open() as db:
            return float(db.execute(query, (since_us,)).fetchone()[0]) / 1e6

    def succeeded(self, first_us: int, end_us: int) -> int:
        query = "SELECT count(*) FROM evertick_history WHERE verdict = 'succeeded' AND fire_at >= ? AND fire_at < ?"
        with self._open() as db:
            count: int = db.execute(query, (first_us, end_us)).fetchone()[0]
            return count

    def outstanding(self, first_us: int, end_us: int, period_us: int) -> int:
        with self._open() as db:
            values = {"first": first_us, "end": end_us, "period": period_us}
            count: int = db.execute(_OUTSTANDING, values).fetchone()[0]
            return count

    def add_history(self, count: int) -> None:
        length = HISTORY_DAYS * DAY
        first = time.time_ns() // 1000 - length
        with self._open() as db, db:
            db.execute(_FILL, {"count": count, "first": first, "length": length})

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(self.url, clock=system_clock)
        await store.open(migrate="auto")
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[None]:
        with self._open() as db:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM evertick_due").fetchone()
            yield

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as db:
            yield db
