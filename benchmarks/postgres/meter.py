"""What the server itself has counted: statements, commits that wrote, bytes of its log, processor time.

Statements are those that name the schema of the ledger, and wake-ups; BEGIN and COMMIT do no work of their own. Those
of whoever asks here are left out (their text says `pg_stat_`).
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.postgres.ledger import PostgresLedger
from evertick.store.postgres.queries import quoted

__all__ = ["Meter", "Reading"]

_COUNTED = """
    SELECT
        coalesce(sum(calls) FILTER (WHERE position($1 IN query) > 0 OR query LIKE '%pg_notify%'), 0)::bigint
            AS statements,
        -- The one writing statement that is a transaction by itself is the end of runs.
        coalesce(sum(calls) FILTER (WHERE query LIKE 'COMMIT%'
            OR (position($1 IN query) > 0 AND query LIKE 'WITH gone AS%given_attempts%')), 0)::bigint AS commits,
        pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes
    FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_%'
"""
_NODES = "SELECT pid FROM pg_stat_activity WHERE application_name = 'evertick'"
# How long the server takes to end the processes of connections that were closed.
_LEAVE_SECONDS = 10


@dataclass(frozen=True)
class Reading:
    statements: int = 0
    commits: int = 0
    wal_bytes: int = 0

    def since(self, before: Reading) -> Reading:
        return Reading(
            self.statements - before.statements, self.commits - before.commits, self.wal_bytes - before.wal_bytes
        )

    def and_also(self, other: Reading) -> Reading:
        return Reading(
            self.statements + other.statements, self.commits + other.commits, self.wal_bytes + other.wal_bytes
        )


class Meter:
    """On a connection of its own."""

    def __init__(self, ledger: PostgresLedger, connection: Any) -> None:
        self._name = f"{quoted(ledger.schema)}."
        self._connection = connection

    async def read(self) -> Reading:
        await self._connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return Reading(**await self._connection.fetchrow(_COUNTED, self._name))

    async def read_when_all_have_left(self) -> Reading:
        """When no node has a connection any more, nothing is on its way."""
        async with asyncio.timeout(_LEAVE_SECONDS):
            while await self._connection.fetch(_NODES):
                await asyncio.sleep(0.01)
        return await self.read()

    async def processor_seconds(self) -> float:
        """What the processes that serve nodes have used so far; the server must be on this machine."""
        ticks = 0
        for row in await self._connection.fetch(_NODES):
            fields = Path(f"/proc/{row['pid']}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")
