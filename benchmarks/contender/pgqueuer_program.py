"""PgQueuer: asyncpg pool, uvloop, its own schedules, and batches of 500 as its documentation recommends."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.models import Job, Schedule

from benchmarks.contender import verbs

_BATCH, _MINUTE = 500, 60
_PAYLOAD = struct.Struct("<qd")


async def fill(runs: int, singles: int) -> dict[str, float]:
    connection = await asyncpg.connect(verbs.URL)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    began = time.perf_counter()
    for numbers in verbs.bulks(runs):
        payloads = [_PAYLOAD.pack(number, 0.0) for number in numbers]
        await queries.enqueue(["count"] * len(payloads), payloads, [0] * len(payloads))
    filled = time.perf_counter()
    for number in range(runs, runs + singles):
        await queries.enqueue("count", _PAYLOAD.pack(number, 0.0))
    done = time.perf_counter()
    await connection.close()
    return {"bulk_seconds": filled - began, "single_seconds": done - filled}


async def plan(schedules: int, period: int, ahead: float) -> float:
    """Its schedules are in its code, and it writes them to its table at the start, so nothing is added."""
    assert period == _MINUTE
    connection = await asyncpg.connect(verbs.URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()
    return verbs.beginning(0)


def _firing(number: int) -> Callable[[Schedule], Awaitable[None]]:
    """The job gets a row with the next moment, not with its own."""

    async def fire(schedule: Schedule) -> None:
        verbs.tally.count(number, verbs.last_moment(number % _MINUTE))

    return fire


async def work(schedules: int) -> None:
    async with asyncpg.create_pool(verbs.URL, min_size=2, max_size=10) as pool:
        program = PgQueuer(AsyncpgPoolDriver(pool))

        @program.entrypoint("count")
        async def count(job: Job) -> None:
            assert job.payload is not None
            verbs.tally.count(*_PAYLOAD.unpack(job.payload))

        for number in range(schedules):
            program.schedule(f"s{number}", f"* * * * * {number % _MINUTE}")(_firing(number))
        verbs.ready()
        running = asyncio.create_task(program.run(batch_size=_BATCH))
        await verbs.until_stopped()
        program.shutdown.set()
        await running


async def send(runs: int, per_second: float) -> None:
    connection = await asyncpg.connect(verbs.URL)
    queries = Queries(AsyncpgDriver(connection))
    await verbs.pace(runs, per_second, lambda *args: queries.enqueue("count", _PAYLOAD.pack(*args)))
    await connection.close()


async def remaining() -> int:
    connection = await asyncpg.connect(verbs.URL)
    count: int = await connection.fetchval("SELECT count(*) FROM pgqueuer")
    await connection.close()
    return count


if __name__ == "__main__":
    verbs.main(fill, work, send, plan, remaining)
