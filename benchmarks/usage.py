"""Resources used between two points in time: processor time, memory, statements, commits and bytes.

PostgreSQL counts for itself. SQLite has no server: there each process counts its statements if the trial asks for it
(`counting`), commits are read from the index of the write-ahead log, and bytes are all that the processes wrote to the
disk, because the size of the log says nothing after a checkpoint. BEGIN and COMMIT do no work of their own and are not
counted as statements.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import asyncpg

from benchmarks.backend.postgres import PostgresBackend
from benchmarks.backend.protocol import Backend
from benchmarks.backend.sqlite import SqliteBackend
from benchmarks.contender import sqlite_statements
from benchmarks.measurement import Metric
from benchmarks.processes import Workers
from benchmarks.trial import Trial

__all__ = ["SHARES", "Counters", "CpuTime", "UsageMonitor", "counting", "read_counters"]

SHARES = (
    Metric("node", "node CPU", "% of a core", better="less"),
    Metric("server", "server CPU", "% of a core", better="less"),
)
_LOOK_SECONDS = 0.5
# A transaction that writes gets a number, so the commits are the distance of two numbers. They count all databases of
# the server, but only one is in use.
_COUNTERS = """
SELECT coalesce(sum(s.calls), 0)::bigint AS statements,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS commits,
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS bytes, ({checkpoints})::bigint AS checkpoints
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = $1 AND s.query !~* '^(BEGIN|COMMIT|ROLLBACK)'
"""
# Checkpoints that have begun.
_CHECKPOINTS = "SELECT num_timed + num_requested FROM pg_stat_checkpointer"
_CHECKPOINTS_BEFORE_17 = "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter"


@dataclass(frozen=True)
class CpuTime:
    """Processor time of nodes and server in seconds, up to the moment of reading."""

    node: float
    server: float

    @classmethod
    def of_workers(cls, workers: Workers, backend: Backend) -> CpuTime:
        return cls(workers.seconds(), backend.server_seconds())

    @classmethod
    def of_this_process(cls, backend: Backend) -> CpuTime:
        return cls(time.process_time(), backend.server_seconds())

    def since(self, before: CpuTime) -> CpuTime:
        return CpuTime(self.node - before.node, self.server - before.server)

    def each(self, count: int) -> dict[str, float]:
        """The metrics of `CPU`."""
        return {"node_us": self.node / count * 1e6, "server_us": self.server / count * 1e6}


class UsageMonitor:
    """The share of a core that workers and server use within the block, and the memory of the workers."""

    def __init__(self, trial: Trial, workers: Workers) -> None:
        self._backend, self._workers = trial.backend, workers
        self.shares: dict[str, float] = {}
        # The maximum, and the value at the end of the block.
        self.megabytes = 0.0
        self.last_megabytes = 0.0

    def __enter__(self) -> Self:
        self._began = self._next = time.perf_counter()
        self._before = CpuTime.of_workers(self._workers, self._backend)
        return self

    def watch_until(self, moment: float) -> None:
        """Until that time (seconds since 1970), check that all workers live, and record their memory."""
        while (left := moment - time.time()) > 0:
            self._workers.check_alive()
            self._record_memory()
            time.sleep(min(left, _LOOK_SECONDS))

    def poll(self) -> None:
        """Record the memory, for callers with a wait loop of their own; frequent calls cost nothing."""
        if time.perf_counter() >= self._next:
            self._record_memory()

    def _record_memory(self) -> None:
        self.megabytes = max(self.megabytes, self._workers.megabytes())
        self._next = time.perf_counter() + _LOOK_SECONDS

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            took = time.perf_counter() - self._began
            used = CpuTime.of_workers(self._workers, self._backend).since(self._before)
            self.shares = {"node": used.node / took * 100, "server": used.server / took * 100}
            self.last_megabytes = self._workers.megabytes()
            self.megabytes = max(self.megabytes, self.last_megabytes)


@dataclass(frozen=True)
class Counters:
    """Counted up to the moment of reading. `bytes` are of the write-ahead log, or on SQLite of all files."""

    statements: int
    commits: int
    bytes: int
    checkpoints: int = 0

    @classmethod
    def of_workers(cls, workers: Workers, trial: Trial) -> Counters:
        backend = trial.backend
        if isinstance(backend, PostgresBackend):
            return asyncio.run(read_counters(backend))
        assert isinstance(backend, SqliteBackend)
        return cls(sqlite_statements.total(backend.folder), backend.commits(), workers.bytes_written())

    @classmethod
    def of_server(cls, trial: Trial) -> Counters | None:
        """None if the trial has no PostgreSQL server."""
        backend = trial.backend
        return asyncio.run(read_counters(backend)) if isinstance(backend, PostgresBackend) else None

    def since(self, before: Counters) -> Counters:
        return Counters(
            self.statements - before.statements,
            self.commits - before.commits,
            self.bytes - before.bytes,
            self.checkpoints - before.checkpoints,
        )


def counting(trial: Trial) -> Trial:
    """The same trial with programs that count their statements to SQLite."""
    if not isinstance(trial.backend, SqliteBackend):
        return trial
    return dataclasses.replace(trial, options={**trial.options, "is_counting": True})


async def read_counters(backend: PostgresBackend) -> Counters:
    # From another database, so that this query is not counted.
    connection: Any = await asyncpg.connect(backend.admin)
    try:
        # If two sessions create it at the same time, the later one fails after it exists.
        with suppress(asyncpg.UniqueViolationError):
            await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        checkpoints = _CHECKPOINTS if connection.get_server_version().major >= 17 else _CHECKPOINTS_BEFORE_17
        return Counters(**await connection.fetchrow(_COUNTERS.format(checkpoints=checkpoints), backend.database))
    finally:
        await connection.close()
