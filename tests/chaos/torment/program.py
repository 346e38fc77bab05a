"""A node of the tormented fleet: `python program.py URL FOLDER SLOT`.

Its wall clock can be set wrong while it runs: SIGUSR1 makes it read from the file `clock-SLOT` by how many seconds it
is off. Only what Evertick asks its clock for is wrong then; the witness goes by the clock of the machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

# Also in a child, which loads this file on its own.
sys.path.insert(0, str(Path(__file__).parent.parent))
from evertick import Constant, Context, Cron, Every, Process, Scheduler, Task
from evertick.clock import system_clock
from torment.catalogue import AT_ONCE, ENTRIES, LEASE_SECONDS, RATE_MOST, RATE_SECONDS, Entry, Kind
from torment.witness import NODE_VARIABLE, Witness

# Far away: it is there to tell when a run was claimed.
HOUR = timedelta(hours=1)
HANGS_FOR = timedelta(seconds=1)

url, folder, slot = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
os.environ.setdefault(NODE_VARIABLE, str(os.getpid()))
witness = Witness(folder)
scheduler = Scheduler(
    url,
    lease=LEASE_SECONDS,
    stop_timeout="4s",
    poll_interval="2s",
    concurrency=60,
    node_name=f"node-{slot}-{os.getpid()}",
)


async def work(ctx: Context, seconds: float) -> None:
    """Start, some work, an end; and a word of its own for whoever is stopped on the way."""
    witness.say("start", ctx, HOUR)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        witness.say("stopped", ctx, HOUR)
        raise
    witness.say("end", ctx, HOUR)


@scheduler.task(timeout=HOUR)
async def quick(ctx: Context) -> None:
    await work(ctx, 0.02)


@scheduler.task(timeout=HOUR)
def threaded(ctx: Context) -> None:
    witness.say("start", ctx, HOUR)
    time.sleep(0.02)  # the work
    witness.say("end", ctx, HOUR)


@scheduler.task(timeout=HOUR)
async def long(ctx: Context) -> None:
    await work(ctx, 2.5)


@scheduler.task(timeout=HOUR)
async def failing(ctx: Context) -> None:
    witness.say("start", ctx, HOUR)
    witness.say("failed", ctx, HOUR)
    raise RuntimeError("this one always fails")


@scheduler.task(timeout=HOUR, retry=Constant("200ms", attempts=3))
async def flaky(ctx: Context) -> None:
    if ctx.attempt == 1:
        witness.say("start", ctx, HOUR)
        witness.say("failed", ctx, HOUR)
        raise RuntimeError("this one fails at first")
    await work(ctx, 0.02)


@scheduler.task(timeout=HANGS_FOR)
async def hanging(ctx: Context) -> None:
    witness.say("start", ctx, HANGS_FOR)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        witness.say("stopped", ctx, HANGS_FOR)
        raise


@scheduler.task(timeout=HOUR, on_lost="fail")
async def once(ctx: Context) -> None:
    await work(ctx, 0.1)


@scheduler.task(timeout=HOUR)
def guarded(ctx: Context) -> None:
    """In a thread, which nobody can stop: after a freeze it goes on writing, and only its fence is in the way."""
    witness.say("start", ctx, HOUR)
    for number in range(8):
        witness.write(ctx.schedule_key or "", ctx, is_first=number == 0)
        time.sleep(0.1)  # the work; it looks at nothing else
    witness.say("end", ctx, HOUR)


@scheduler.task(timeout=HOUR, process=Process(kill_after="500ms"))
def child(ctx: Context) -> None:
    witness.say("start", ctx, HOUR)
    grandchild = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    for _ in range(40):
        witness.say("alive", ctx, HOUR)
        time.sleep(0.05)  # the work; it looks at nothing else
    grandchild.kill()
    grandchild.wait()
    witness.say("end", ctx, HOUR)


@scheduler.task(timeout=HOUR, concurrency=AT_ONCE)
async def placed(ctx: Context) -> None:
    witness.say("start", ctx, HOUR)
    place = witness.take_place()
    if place is None:
        witness.say("full", ctx, HOUR)
    else:
        witness.say("placed", ctx, HOUR)
        await asyncio.sleep(0.08)
        os.close(place)
    witness.say("end", ctx, HOUR)


@scheduler.task(timeout=HOUR, rate=f"{RATE_MOST}/{RATE_SECONDS:g}s")
async def rated(ctx: Context) -> None:
    await work(ctx, 0.02)


TASKS: dict[Kind, Task[[], Any]] = {
    "quick": quick,
    "threaded": threaded,
    "long": long,
    "failing": failing,
    "flaky": flaky,
    "hanging": hanging,
    "once": once,
    "guarded": guarded,
    "child": child,
    "placed": placed,
    "rated": rated,
}


def declare(entry: Entry) -> None:
    rule = Cron(cron_text(entry.seconds)) if entry.is_cron else Every(f"{entry.seconds}s")
    scheduler.when(rule, key=entry.key, overlap=entry.overlap, catch_up=entry.catch_up, pace="100ms")(TASKS[entry.kind])


def cron_text(seconds: int) -> str:
    return "0 * * * * *" if seconds == 60 else f"*/{seconds} * * * * *"


def set_clock_wrong(*_: object) -> None:
    off_us = int(float((folder / f"clock-{slot}").read_text()) * 1e6)
    right = type(system_clock).now_us
    system_clock.now_us = lambda: right(system_clock) + off_us  # type: ignore[method-assign]


for each in ENTRIES:
    declare(each)

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, set_clock_wrong)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    scheduler.run()
