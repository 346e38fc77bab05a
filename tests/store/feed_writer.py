"""A program that enqueues runs, some of them in transactions that stay open for a while, and prints their ids."""

from __future__ import annotations

import asyncio
import random
import sys

import asyncpg

from evertick import Scheduler


async def main(url: str, dsn: str, seed: int, count: int) -> None:
    order = random.Random(seed)
    scheduler = Scheduler(url, app="app", concurrency=0)

    @scheduler.task
    def job(n: int) -> None: ...

    connection = await asyncpg.connect(dsn)
    ids: list[str] = []

    async def held_open(n: int) -> None:
        async with connection.transaction():
            ids.append((await job.options(connection=connection).enqueue(n=n)).id)
            await asyncio.sleep(order.random() / 50)

    for n in range(0, count, 2):
        late = asyncio.create_task(held_open(n))
        ids.append((await job.enqueue(n=n + 1)).id)
        await late
    await connection.close()
    await scheduler.close()
    print("\n".join(ids), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
