"""The raw loop on PostgreSQL: the same rows in the same tables and indexes, without a scheduler.

One statement ends the batch before, moves it to history and claims the next, on one connection, with a task per run
and a notification that wakes an idle loop. It has no recovery, no retries and no limits: a yardstick, not a design.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from benchmarks.contender import verbs
from evertick import Scheduler
from evertick.clock import system_clock
from evertick.scheduler.interpreter_tuning import calm_collector
from evertick.store.postgres.connection import PLANNER_SETTINGS

_ENQUEUE = """
WITH added AS (
    INSERT INTO evertick.runs (id, app, task, cause, fire_at, due_at, queue, priority, state, args, created_at)
    SELECT n.id, 'default', 'count', 'enqueue', c.now, c.now, 'default', 0, 'waiting', n.args, c.now
    FROM unnest($1::uuid[], $2::text[]) AS n(id, args) CROSS JOIN (SELECT evertick.now_us() AS now) c)
SELECT pg_notify('bench_raw', '')
"""
_FINISH_AND_CLAIM = """
WITH gone AS (
    DELETE FROM evertick.runs WHERE id = ANY($1::uuid[]) AND fence = $2 AND node = $3 RETURNING *),
kept AS (
    INSERT INTO evertick.history (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, args,
        verdict, attempts, losses, node, fence, created_at, started_at, finished_at, is_cancel_requested)
    SELECT id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, args, 'succeeded', 1, losses,
        node, fence, created_at, started_at, (SELECT evertick.now_us()), false FROM gone),
picked AS MATERIALIZED (
    SELECT id FROM evertick.runs
    WHERE state = 'waiting' AND app = 'default' AND queue = 'default' AND priority = 0
        AND due_at <= (SELECT evertick.now_us()) AND task = 'count'
    ORDER BY due_at LIMIT $4 FOR UPDATE SKIP LOCKED),
drawn AS MATERIALIZED (SELECT nextval('evertick.fence') AS fence)
UPDATE evertick.runs SET state = 'running', node = $3, fence = (SELECT fence FROM drawn),
    started_at = (SELECT evertick.now_us())
WHERE id = ANY(ARRAY(SELECT id FROM picked)) RETURNING id, args, fence
"""
_BATCH = 1_000
# The format in which Evertick reads and writes arguments.
_args = msgspec.json.Decoder(dict[str, int | float])
_SHORT = (",", ":")
# A notification may be lost.
_POLL_SECONDS = 1.0


async def fill(runs: int, singles: int) -> dict[str, float]:
    connection = await _open()
    began = time.perf_counter()
    for numbers in verbs.bulks(runs):
        await _insert(connection, [{"number": number} for number in numbers])
    filled = time.perf_counter()
    for number in range(runs, runs + singles):
        await _insert(connection, [{"number": number}])
    done = time.perf_counter()
    await connection.close()
    return {"bulk_seconds": filled - began, "single_seconds": done - filled}


async def enqueue(first: int, runs: int, is_bulk: bool, at: float) -> tuple[float, float, float]:
    connection = await _open()
    began, before = verbs.wait_until(at), time.process_time()
    for numbers in verbs.bulks(runs) if is_bulk else ([number] for number in range(runs)):
        await _insert(connection, [{"number": first + number} for number in numbers])
    ended, used = time.time(), time.process_time() - before
    await connection.close()
    return began, ended, used


async def work(schedules: int) -> None:
    connection, listening = await _open(), await asyncpg.connect(verbs.URL)
    woken = asyncio.Event()
    await listening.add_listener("bench_raw", lambda *_: woken.set())
    calm_collector()
    verbs.ready()
    stopped = asyncio.create_task(verbs.until_stopped())
    node, fence = str(uuid.uuid4()), 0
    done: list[str] = []
    while not stopped.done():
        woken.clear()
        claimed = await connection.fetch(_FINISH_AND_CLAIM, done, fence, node, _BATCH)
        tasks = [asyncio.create_task(_count(args)) for _, args, _ in claimed]
        for task in tasks:
            await task
        if not claimed:
            await asyncio.wait([stopped, _wait(woken)], timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        done, fence = [id_ for id_, _, _ in claimed], claimed[0][2] if claimed else 0
    await connection.close()
    await listening.close()


def _wait(woken: asyncio.Event) -> asyncio.Task[bool]:
    return asyncio.create_task(woken.wait())


async def send(runs: int, per_second: float) -> None:
    connection = await _open()

    async def send_one(number: int, sent_at: float) -> None:
        await _insert(connection, [{"number": number, "sent_at": sent_at}])

    await verbs.pace(runs, per_second, send_one)
    await connection.close()


async def _count(args: str) -> None:
    wanted = _args.decode(args)
    verbs.tally.count(wanted["number"], wanted.get("sent_at", 0.0))


async def _insert(connection: Any, wanted: Sequence[dict[str, float]]) -> None:
    args = [json.dumps(each, separators=_SHORT) for each in wanted]
    await connection.execute(_ENQUEUE, [system_clock.new_id() for _ in wanted], args)


async def _open() -> Any:
    """A connection that plans as the store does, to tables that Evertick has created."""
    scheduler = Scheduler(verbs.URL)
    await scheduler.health()
    await scheduler.close()
    return await asyncpg.connect(verbs.URL, server_settings=PLANNER_SETTINGS)


if __name__ == "__main__":
    verbs.main(fill, enqueue, work, send)
