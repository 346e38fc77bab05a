"""What the options of the tables are good for: the fire path for some minutes, as migrated and as a server has it.

Without the options means their reset before the first row: fillfactor 100, and autovacuum by a share of the table.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.postgres.fires import StoreLoop, add_schedules, fire, join
from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.postgres.size import FleetSize

__all__ = ["measure"]

_OPTIONS = """
SELECT c.relname AS name,
    array_to_string(ARRAY(SELECT split_part(o, '=', 1) FROM unnest(c.reloptions) o), ', ') AS options
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname IN ('due', 'runs') AND c.reloptions IS NOT NULL
"""
_STATE = """
SELECT relname AS name, n_dead_tup AS dead, n_tup_upd AS updated, n_tup_hot_upd AS hot, autovacuum_count AS vacuums,
    pg_total_relation_size(relid) AS bytes
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname IN ('due', 'runs')
"""


def measure(ledger: PostgresLedger, size: FleetSize, *, has_options: bool) -> dict[str, float]:
    return asyncio.run(_measure(ledger, size, has_options))


async def _measure(ledger: PostgresLedger, size: FleetSize, has_options: bool) -> dict[str, float]:
    async with ledger.store():
        pass
    if not has_options:
        await _reset(ledger)
    async with ledger.store() as store:
        await add_schedules(store, size.vacuum_schedules)
        await join(store)
        before = await _state(ledger)
        turns, began = 0, time.perf_counter()
        while time.perf_counter() - began < size.vacuum_seconds:
            await fire(StoreLoop(store), size.vacuum_turn)
            turns += 1
        seconds = time.perf_counter() - began
    after = await _state(ledger)
    name = "options" if has_options else "defaults"
    updated = max(after["due"]["updated"] - before["due"]["updated"], 1)
    return {
        f"{name}_fires": turns * size.vacuum_turn / seconds,
        f"{name}_due_dead": float(after["due"]["dead"]),
        f"{name}_due_hot": (after["due"]["hot"] - before["due"]["hot"]) / updated * 100,
        f"{name}_due_megabytes": after["due"]["bytes"] / 1e6,
        f"{name}_runs_dead": float(after["runs"]["dead"]),
        f"{name}_runs_megabytes": after["runs"]["bytes"] / 1e6,
        f"{name}_vacuums": float(after["due"]["vacuums"] + after["runs"]["vacuums"]),
    }


async def _reset(ledger: PostgresLedger) -> None:
    async with ledger.connection() as connection:
        for row in await connection.fetch(_OPTIONS, ledger.schema):
            await connection.execute(ledger.sql(f"ALTER TABLE evertick.{row['name']} RESET ({row['options']})"))


async def _state(ledger: PostgresLedger) -> dict[str, dict[str, int]]:
    async with ledger.connection() as connection:
        rows = await connection.fetch(_STATE, ledger.schema)
    return {row["name"]: dict(row) for row in rows}
