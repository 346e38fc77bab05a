"""The queue by bare statements: what enqueue and execute cost in SQL alone, through the same tables and indexes.

Claim a batch, end the one before, one commit each, on one connection. Nothing recovers, retries, or has a limit.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.ledger import BULK
from benchmarks.postgres.fires import FINISH
from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.size import Size
from evertick.clock import system_clock

__all__ = ["measure_enqueue", "measure_execution"]

_ENQUEUE = """
INSERT INTO evertick.runs (id, app, task, cause, fire_at, due_at, queue, priority, state, args, created_at)
SELECT n.id, 'default', 'count', 'enqueue', c.now, c.now, 'default', 0, 'waiting', n.args, c.now
FROM unnest($1::uuid[], $2::text[]) AS n(id, args) CROSS JOIN (SELECT evertick.now_us() AS now) c
"""
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM evertick.runs
    WHERE state = 'waiting' AND app = 'default' AND queue = 'default' AND priority = 0
        AND due_at <= (SELECT evertick.now_us()) AND task = 'count'
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED),
drawn AS MATERIALIZED (SELECT nextval('evertick.fence') AS fence)
UPDATE evertick.runs SET state = 'running', node = 'node', fence = (SELECT fence FROM drawn),
    started_at = (SELECT evertick.now_us())
WHERE id = ANY(ARRAY(SELECT id FROM picked)) RETURNING id, args, fence
"""


def measure_execution(ledger: PostgresLedger, size: Size, batch: int) -> dict[str, float]:
    return {f"raw_execute_{batch}": asyncio.run(_execution(ledger, size, batch))}


def measure_enqueue(ledger: PostgresLedger, size: Size) -> dict[str, float]:
    return asyncio.run(_enqueue(ledger, size))


async def _execution(ledger: PostgresLedger, size: Size, batch: int) -> float:
    async with ledger.store():
        pass
    claim, finish = ledger.sql(_CLAIM), ledger.sql(FINISH)
    async with ledger.connection(has_plans=True) as connection:
        await _insert(ledger, connection, size.runs, BULK)
        executed: dict[str, int] = {}
        began = time.perf_counter()
        while taken := await connection.fetch(claim, batch):
            ids = [row["id"] for row in taken]
            for id_ in ids:
                executed[id_] = executed.get(id_, 0) + 1
            await connection.execute(finish, ids, taken[0]["fence"], "node")
        seconds = time.perf_counter() - began
    assert len(executed) == size.runs, f"{len(executed)} of {size.runs} runs were executed"
    await ledger.check(list(executed.values()))
    return size.runs / seconds


async def _enqueue(ledger: PostgresLedger, size: Size) -> dict[str, float]:
    async with ledger.store():
        pass
    async with ledger.connection(has_plans=True) as connection:
        in_bulk = size.runs / await _insert(ledger, connection, size.runs, BULK)
        one_by_one = size.single_runs / await _insert(ledger, connection, size.single_runs, 1)
    await ledger.check_waiting(size.runs + size.single_runs)
    return {"raw_enqueue_bulk": in_bulk, "raw_enqueue_single": one_by_one}


async def _insert(ledger: PostgresLedger, connection: Any, count: int, batch: int) -> float:
    """Seconds to insert so many runs, one commit per batch."""
    statement = ledger.sql(_ENQUEUE)
    began = time.perf_counter()
    for first in range(0, count, batch):
        numbers = range(first, min(first + batch, count))
        args = [f'{{"number":{number}}}' for number in numbers]
        await connection.execute(statement, [system_clock.new_id() for _ in numbers], args)
    return time.perf_counter() - began
