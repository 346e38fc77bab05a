"""What the server itself has counted for one database: statements, and transactions that wrote.

BEGIN and COMMIT do no work of their own and are not counted as statements. A transaction has written if it was given a
number, so their count is the distance of two numbers: of all databases, but only one is at work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import asyncpg

from benchmarks.store.postgres import PostgresPlace

__all__ = ["Reading", "read", "read_here"]

_COUNTED = """
SELECT coalesce(sum(s.calls), 0)::bigint AS statements,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS commits,
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS log_bytes, ({checkpoints})::bigint AS checkpoints
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = $1 AND s.query !~* '^(BEGIN|COMMIT|ROLLBACK)'
"""
# Those that have begun.
_CHECKPOINTS = "SELECT num_timed + num_requested FROM pg_stat_checkpointer"
_CHECKPOINTS_BEFORE_17 = "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter"


@dataclass(frozen=True)
class Reading:
    statements: int
    commits: int
    log_bytes: int
    checkpoints: int

    def since(self, before: Reading) -> Reading:
        return Reading(
            self.statements - before.statements,
            self.commits - before.commits,
            self.log_bytes - before.log_bytes,
            self.checkpoints - before.checkpoints,
        )


def read(place: PostgresPlace) -> Reading:
    return asyncio.run(read_here(place))


async def read_here(place: PostgresPlace) -> Reading:
    """The same where a loop runs."""
    # From another database, so that asking is not counted.
    connection: Any = await asyncpg.connect(place.admin)
    try:
        # Of two that make it at one moment, the later one hears of the other's when that is there.
        with suppress(asyncpg.UniqueViolationError):
            await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        checkpoints = _CHECKPOINTS if connection.get_server_version().major >= 17 else _CHECKPOINTS_BEFORE_17
        return Reading(**await connection.fetchrow(_COUNTED.format(checkpoints=checkpoints), place.database))
    finally:
        await connection.close()
