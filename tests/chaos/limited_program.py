"""A node of the chaos test of limits. Its jobs testify outside of the database.

Places are files under an exclusive lock, as many as may be taken at once: the kernel gives them back when a process
dies, and a job that finds none free has seen one too many. Every start is one line, written by one write, with the time
of a clock that all processes share and with how long ago the store had claimed it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from evertick import Constant, Context, Scheduler

AT_ONCE, RATE = 3, "6/2s"
HOUR = timedelta(hours=1)

url, folder = sys.argv[1], Path(sys.argv[2])
testimony = os.open(folder / "testimony", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
scheduler = Scheduler(url, lease="2s", stop_timeout="5s", concurrency=10, node_name="limited")


def testify(what: str, ctx: Context) -> None:
    assert ctx.deadline is not None
    claimed_ago = (datetime.now(UTC) - (ctx.deadline - HOUR)).total_seconds()
    os.write(testimony, f"{what} {time.monotonic():.6f} {claimed_ago:.6f} {ctx.run_id} {ctx.fence}\n".encode())


def take_place() -> int | None:
    for number in range(AT_ONCE):
        place = os.open(folder / f"place-{number}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(place)
        else:
            return place
    return None


async def work_in_a_place(ctx: Context) -> None:
    place = take_place()
    testify("full" if place is None else "placed", ctx)
    if place is not None:
        await asyncio.sleep(0.08)
        os.close(place)


@scheduler.task(concurrency=AT_ONCE, concurrency_key="places", timeout="1h", retry=Constant("100ms", attempts=2))
async def press(ctx: Context) -> None:
    await work_in_a_place(ctx)
    if ctx.attempt == 1 and int(ctx.run_id[-1], 16) % 4 == 0:
        raise RuntimeError("every fourth fails at first")


@scheduler.task(concurrency=AT_ONCE, concurrency_key="places", timeout="1h")
async def bind(ctx: Context) -> None:
    await work_in_a_place(ctx)


@scheduler.task(rate=RATE, timeout="1h", retry=Constant("100ms", attempts=2))
async def mail(ctx: Context) -> None:
    testify("mailed", ctx)
    if ctx.attempt == 1 and int(ctx.run_id[-1], 16) % 4 == 0:
        raise RuntimeError("every fourth fails at first")


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    scheduler.run()
