"""A node whose jobs are at work until they are let go, and that says so: `python patient_program.py URL FOLDER SLOT`.

`EVERTICK_TEST_LEASE` gives it another lease than the default. It waits for nobody when it is stopped: what it has at
work is dispatched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

from evertick import Context, Scheduler

url, folder, slot = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
testimony = os.open(folder / "testimony", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
scheduler = Scheduler(
    url, lease=os.environ.get("EVERTICK_TEST_LEASE", "15s"), stop_timeout="0s", concurrency=50, node_name=f"node-{slot}"
)


def say(what: str, ctx: Context) -> None:
    about = f"{what} {ctx.run_id} {ctx.fence} {os.getpid()} {time.monotonic():.6f} {ctx.fire_at.timestamp():.0f}"
    os.write(testimony, f"{about} {ctx.task}\n".encode())


@scheduler.task
async def wait(ctx: Context) -> None:
    say("start", ctx)
    try:
        while not (folder / "go").exists():
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        say("stopped", ctx)
        raise
    say("end", ctx)


# On a busy machine one may take longer than a second; that is no reason to leave out the next.
@scheduler.every("1s", catch_up="all", pace="50ms", overlap="allow")
async def tick(ctx: Context) -> None:
    say("start", ctx)
    say("end", ctx)


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    scheduler.run()
