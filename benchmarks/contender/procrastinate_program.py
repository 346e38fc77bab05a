"""Procrastinate: psycopg pool, twenty jobs at once, uvloop, periodic tasks as schedules."""

from __future__ import annotations

import asyncio
import logging
import time

import procrastinate
import psycopg

from benchmarks.contender import verbs

logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=verbs.URL, min_size=4, max_size=20))


@app.task(name="count")
async def count(number: int, sent_at: float = 0.0) -> None:
    verbs.tally.count(number, sent_at)


@app.task(name="fire")
async def fire(timestamp: int, number: int) -> None:
    verbs.tally.count(number, float(timestamp))


async def fill(runs: int, singles: int) -> dict[str, float]:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for numbers in verbs.bulks(runs):
            await count.batch_defer_async(*({"number": number} for number in numbers))
        filled = time.perf_counter()
        for number in range(runs, runs + singles):
            await count.defer_async(number=number)
        done = time.perf_counter()
    return {"bulk_seconds": filled - began, "single_seconds": done - filled}


async def work(schedules: int) -> None:
    for number in range(schedules):
        app.periodic_registry.register_task(
            task=fire,
            cron=f"* * * * * {number % 60}",
            periodic_id=f"s{number}",
            configure_kwargs={"task_kwargs": {"number": number}},
        )
    async with app.open_async():
        verbs.ready()
        running = asyncio.create_task(app.run_worker_async(concurrency=20, install_signal_handlers=False))
        await verbs.until_stopped()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def send(runs: int, per_second: float) -> None:
    async with app.open_async():
        await verbs.pace(runs, per_second, lambda number, sent_at: count.defer_async(number=number, sent_at=sent_at))


async def plan(schedules: int, period: int, ahead: float) -> float:
    """Its schedules are in its code, so nothing is added."""
    assert period == 60
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    return verbs.beginning(0)


def remaining() -> int:
    with psycopg.connect(verbs.URL) as connection:
        query = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


if __name__ == "__main__":
    verbs.main(fill, work, send, plan, remaining)
