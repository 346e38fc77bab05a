"""The interface between the benchmarks and a contender: `program VERB [JSON ...]` prints its answer as JSON on the last
line. A program has a function for each verb that it supports:

- `fill(count, singles)`: enqueue runs 0 to count - 1 in bulk and `singles` more one by one; return the seconds of both.
- `enqueue(first, count, is_bulk, at)`: from the moment `at` on, enqueue runs numbered from `first`, in bulk or one by
  one; return the beginning, the end, and the processor time between them.
- `fill_due(first, count)`: add schedules that are due once, immediately; `first` is the number of the first.
- `work(schedules)`: execute runs until TERM. `schedules` is the number that `plan` added, or 0.
- `send(count, per_second)`: enqueue runs at a steady pace, each with the moment of its call.
- `alone(count, per_second, settle)`: work, and after `settle` seconds send from the same process.
- `plan(count, period, ahead)`: add schedules that fire once in `period` seconds, in the second of their number, none
  before `ahead` seconds from now; return the first moment.
- `plan_evenly`: the same, spread as evenly as the period allows.
- `plan_herd(count, ahead)`: add schedules that are all due at one instant.
- `remaining()`: return the number of runs that have not ended.
- `next_fires(counts, seconds)`: calculate that many moments of each cron expression, repeatedly for at least `seconds`;
  return the number of moments, the duration, and the last moment.

Peers import this module in their own environments, so it needs only the standard library.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.contender import event_loop
from benchmarks.contender.tally import Tally

__all__ = [
    "BULK",
    "FOLDER",
    "HOLD",
    "OPTIONS",
    "URL",
    "beginning",
    "bulks",
    "cron_seconds",
    "last_moment",
    "main",
    "pace",
    "pace_in_thread",
    "ready",
    "tally",
    "until_stopped",
    "wait_until",
    "wait_until_stopped",
    "walked",
]

# The address of the store, and the options of the contender.
URL = os.environ.get("BENCH_URL", "")
FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
OPTIONS: dict[str, Any] = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))
BULK = 1_000
# Runs of `fill_held` wait in their job until this file is gone.
HOLD = "hold"

# An option of the event loop, not of the contender itself.
_MAY_BE_UVLOOP: bool = OPTIONS.pop("may_be_uvloop", True)

tally = Tally(FOLDER)


def main(*verbs: Callable[..., object]) -> None:
    """Call the verb that the command line names."""
    name, *values = sys.argv[1:]
    verb = {each.__name__: each for each in verbs}[name]
    answer = verb(*map(json.loads, values))
    if inspect.iscoroutine(answer):
        answer = event_loop.run(answer, may_be_uvloop=_MAY_BE_UVLOOP)
    print(json.dumps(answer), flush=True)


def ready() -> None:
    """Report that everything is imported and set up; return when the work may begin."""
    (FOLDER / f"{os.getpid()}.ready").touch()
    while not (FOLDER / f"{os.getpid()}.go").exists():
        time.sleep(0.001)


async def until_stopped() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def wait_until_stopped() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()


def wait_until(moment: float) -> float:
    """Several processes begin at that moment. Returns the actual time."""
    time.sleep(max(moment - time.time(), 0))
    return time.time()


def bulks(count: int) -> list[range]:
    return [range(first, min(first + BULK, count)) for first in range(0, count, BULK)]


async def pace(count: int, per_second: float, send: Callable[[int, float], Awaitable[object]]) -> None:
    """Send each number at its moment; a slow call does not shift the later moments."""
    began = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(began + number / per_second - time.perf_counter(), 0))
        await send(number, time.time())


def pace_in_thread(count: int, per_second: float, send: Callable[[int, float], object]) -> None:
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(began + number / per_second - time.perf_counter(), 0))
        send(number, time.time())


def beginning(ahead: float, period: int = 1) -> float:
    """The first beginning of a period that is at least `ahead` seconds from now, in seconds since 1970."""
    return math.ceil((time.time() + ahead) / period) * float(period)


def cron_seconds(second: int, period: int) -> str:
    """The seconds field of a cron expression for that second of each period of the minute."""
    return ",".join(str(each) for each in range(second, 60, period))


def last_moment(second: int, period: int = 60) -> float:
    """The latest moment in that second of the period, for schedulers that do not pass the moment to the job."""
    now = time.time()
    return float(round(now - (now - second) % period))


def walked(fires: int, seconds: float, start: Callable[[], Callable[[int], datetime]]) -> list[float]:
    """`start` returns a new rule as a function that advances by a number of moments and returns the last.

    Returns the number of moments, the duration, and the last moment of a walk.
    """
    moments, took, last = 0, 0.0, 0.0
    while took < seconds:
        walk = start()
        walk(1)  # the first call prepares the rule
        began = time.perf_counter()
        at = walk(fires)
        took += time.perf_counter() - began
        moments, last = moments + fires, at.timestamp()
    return [moments, took, last]
