"""What the server itself has counted: statements, transactions, bytes of its log, processor time of its processes.

The statements of whoever asks here are left out (their text says `pg_stat_`), and so are those that only frame a
transaction.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Meter", "Reading"]

_STATEMENTS = """
    SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
    WHERE query NOT LIKE '%pg_stat_%' AND query !~ '^(BEGIN|COMMIT|ROLLBACK|SET|RESET)'
"""
_TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
_NODES = "SELECT pid FROM pg_stat_activity WHERE application_name = 'evertick'"
# How long the server takes to end the processes of connections that were closed.
_LEAVE_SECONDS = 10


@dataclass(frozen=True)
class Reading:
    statements: int
    transactions: int
    wal_bytes: int

    def since(self, before: Reading) -> Reading:
        return Reading(
            self.statements - before.statements,
            self.transactions - before.transactions,
            self.wal_bytes - before.wal_bytes,
        )


class Meter:
    """On a connection of its own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def read(self) -> Reading:
        await self._connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return Reading(
            await self._connection.fetchval(_STATEMENTS),
            await self._connection.fetchval(_TRANSACTIONS),
            await self._connection.fetchval(_WAL),
        )

    async def read_when_all_have_left(self) -> Reading:
        """The server learns of some transactions only when their connection is closed."""
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
