"""Whole nodes: how fast a node gets through many fires of one moment, and what idle ones ask of the server."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from benchmarks import idle
from benchmarks.fresh import in_fresh_process
from benchmarks.ledger import BULK
from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.postgres.meter import Meter
from benchmarks.postgres.size import FleetSize
from benchmarks.size import Size
from evertick import Every, Scheduler

__all__ = ["IDLE_NODES", "idle_node", "measure_fires", "measure_idle"]

# How many nodes idle together.
IDLE_NODES = (1, 5)
# Slots of the node: two batches, so that one can be recorded while the other is at work.
_SLOTS = 2_000


def measure_fires(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    return asyncio.run(_measure_fires(ledger, size))


async def _measure_fires(ledger: PostgresLedger, size: FleetSize) -> dict[str, float]:
    scheduler = Scheduler(ledger.url, concurrency=_SLOTS)
    left = size.engine_schedules
    all_began = asyncio.Event()

    @scheduler.task
    async def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            all_began.set()

    # Time to add them all, before the one moment at which all are due.
    moment = datetime.now(UTC) + timedelta(seconds=3 + size.engine_schedules / 1_000)
    rule = Every("1d", since="start", start=moment)
    for start in range(0, size.engine_schedules, BULK):
        numbers = range(start, min(start + BULK, size.engine_schedules))
        await scheduler.add_many({"key": f"s{number}", "when": rule, "task": count} for number in numbers)
    assert datetime.now(UTC) < moment, "adding the schedules took longer than the time before their moment"
    async with ledger.connection() as connection, scheduler:
        meter = Meter(ledger, connection)
        await asyncio.sleep((moment - datetime.now(UTC)).total_seconds() - 0.1)
        before, used_before = await meter.read(), time.process_time()
        async with asyncio.timeout(120):
            await all_began.wait()
            while (await scheduler.health()).running:
                await asyncio.sleep(0)
        seconds = (datetime.now(UTC) - moment).total_seconds()
        share = (time.process_time() - used_before) / seconds
        used = (await meter.read()).since(before)
    await ledger.check([1] * size.engine_schedules)
    return {
        "fires_engine": size.engine_schedules / seconds,
        "fires_engine_statements": used.statements / size.engine_schedules,
        "fires_engine_wal": used.wal_bytes / size.engine_schedules,
        "fires_engine_cpu": share * 100,
    }


def measure_idle(ledger: PostgresLedger, size: Size, nodes: int) -> dict[str, float]:
    """Nodes that have schedules and nothing to do, each in a process of its own."""
    in_fresh_process(idle.fill, ledger, size.idle_schedules)
    with ThreadPoolExecutor(nodes) as pool:
        idling = [pool.submit(in_fresh_process, idle_node, ledger, size.idle_seconds + 3) for _ in range(nodes)]
        used = asyncio.run(_watch(ledger, nodes, size.idle_seconds))
        shares = [each.result() for each in idling]
    return {
        f"idle_{nodes}_statements": used[0],
        f"idle_{nodes}_cpu": sum(shares) * 100,
        f"idle_{nodes}_server_cpu": used[1] * 100,
    }


async def _watch(ledger: PostgresLedger, nodes: int, seconds: float) -> tuple[float, float]:
    """Statements a second, and the share of a core that the server spends on the nodes."""
    async with ledger.connection() as connection:
        question = ledger.sql("SELECT count(*) AS pg_stat_nodes FROM evertick.nodes WHERE died_at IS NULL")
        async with asyncio.timeout(60):
            while await connection.fetchval(question) < nodes:
                await asyncio.sleep(0.05)
        meter = Meter(ledger, connection)
        await asyncio.sleep(min(1.5, seconds))  # what belongs to the start is over
        before, used, began = await meter.read(), await meter.processor_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        after, used_after = await meter.read(), await meter.processor_seconds()
    return after.since(before).statements / took, (used_after - used) / took


def idle_node(ledger: PostgresLedger, seconds: float) -> float:
    return asyncio.run(_idle_node(ledger, seconds))


async def _idle_node(ledger: PostgresLedger, seconds: float) -> float:
    scheduler = Scheduler(ledger.url)

    @scheduler.task
    async def never() -> None:
        raise AssertionError("none of these schedules is due")

    async with scheduler:
        await asyncio.sleep(min(1.5, seconds))
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        return (time.process_time() - used) / (time.perf_counter() - began)
