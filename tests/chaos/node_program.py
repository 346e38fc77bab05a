"""A node of the chaos test: eleven schedules, and a witness file that the database knows nothing of.

Every start of a job appends one line with one write, so that a `kill -9` loses nothing that has happened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from evertick import Constant, Context, Scheduler

url, witness_path = sys.argv[1], sys.argv[2]
witness = os.open(witness_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
scheduler = Scheduler(url, lease="3s", stop_timeout="5s", concurrency=20, node_name="chaos")


def testify(ctx: Context, what: str) -> None:
    os.write(witness, f"{what} {ctx.schedule_key} {ctx.fire_at.timestamp():.0f} {ctx.run_id} {ctx.fence}\n".encode())


def declare(seconds: int) -> None:
    @scheduler.every(f"{seconds}s", key=f"every-{seconds}", name=f"job-{seconds}", retry=Constant("200ms", attempts=3))
    async def job(ctx: Context) -> None:
        testify(ctx, "start")
        await asyncio.sleep(0.05 * seconds)
        if seconds == 7 and ctx.attempt == 1:
            raise RuntimeError("the first attempt of this one always fails")
        testify(ctx, "end")


for seconds in range(1, 12):
    declare(seconds)

logging.basicConfig(level="INFO")
scheduler.run()
