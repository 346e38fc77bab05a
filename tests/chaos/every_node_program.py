"""A node of the chaos test of schedules for every node. Its job testifies outside of the database: one line per act."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from evertick import Context, Scheduler

url, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
testimony = os.open(folder / "testimony", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
scheduler = Scheduler(url, lease="2s", stop_timeout="5s", node_name=name)


@scheduler.every("250ms", mode="every-node", key="act")
async def act(ctx: Context) -> None:
    os.write(testimony, f"{name} {ctx.run_id} {ctx.fence}\n".encode())
    # Long enough to be killed in the middle now and then, and short enough to be done by the next moment.
    await asyncio.sleep(0.1)


logging.basicConfig(level="INFO")
scheduler.run()
