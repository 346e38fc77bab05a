"""A node of the test of duties: a loop and a periodic function, and a witness file that the database knows nothing of.

Every act appends one line with one write: when, what, under which term, by which process.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from evertick import DutyContext, Scheduler

url, witness_path, lease = sys.argv[1:]
witness = os.open(witness_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
scheduler = Scheduler(url, lease=lease, stop_timeout="5s", node_name="duty")


def testify(ctx: DutyContext) -> None:
    # Of a clock that all processes share.
    os.write(witness, f"{time.monotonic()} {ctx.name} {ctx.term} {os.getpid()}\n".encode())


@scheduler.duty("follow")
async def follow(ctx: DutyContext) -> None:
    while True:
        ctx.check()
        testify(ctx)
        await ctx.sleep(0.05)


@scheduler.duty("tick", every="200ms")
def tick(ctx: DutyContext) -> None:
    testify(ctx)


logging.basicConfig(level="INFO")
scheduler.run()
