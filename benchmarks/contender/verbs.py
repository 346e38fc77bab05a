"""How a contender's program is called: `program VERB [JSON ...]`, the answer as JSON on the last line.

A program answers to those verbs that it has a function for:

- `fill(count, singles)`: put runs 0 to count - 1 into the empty store in bulk, and `singles` more one by one; answers
  how long both took.
- `enqueue(first, count, is_bulk, at)`: put as many runs, numbered from `first` on, into the store from that moment on,
  in bulk or one by one; answers when that began and ended, and the processor time of this process between the two.
- `fill_due(first, count)`: put schedules into the store that are due once, and at once; `first` is the number of the
  first, for those before it are there still.
- `work(schedules)`: execute what there is until TERM. `schedules` is 0, or how many `plan` has made.
- `send(count, per_second)`: enqueue runs at a steady pace, each with the moment at which it was sent.
- `alone(count, per_second, settle)`: work, and send from the same process, so many seconds after it has begun.
- `plan(count, period, ahead)`: as many schedules, each once in `period` seconds, in the second that its number falls
  on; none before so many seconds from now. Answers from when on they are due.
- `plan_evenly`: the same, but as far apart from one another as the period allows.
- `plan_herd(count, ahead)`: all due at one instant.
- `left()`: how many runs are not done.
- `next_fires(counts, seconds)`: work out so many moments of each cron expression, again and again for at least so long;
  answers how many that were, how long they took, and which was the last.

Runs in the environments of other schedulers, so it imports nothing but the standard library.
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

from benchmarks import loop
from benchmarks.tally import Tally

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

# Where the store is, and how the contender is set up.
URL = os.environ.get("BENCH_URL", "")
FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
OPTIONS: dict[str, Any] = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))
BULK = 1_000
# A run that is held waits until this file is gone.
HOLD = "hold"

# Not of the contender itself, but of how it is run.
_MAY_BE_UVLOOP: bool = OPTIONS.pop("may_be_uvloop", True)

tally = Tally(FOLDER)


def main(*verbs: Callable[..., object]) -> None:
    """The program: call the verb that was asked for."""
    name, *values = sys.argv[1:]
    verb = {each.__name__: each for each in verbs}[name]
    answer = verb(*map(json.loads, values))
    if inspect.iscoroutine(answer):
        answer = loop.run(answer, may_be_uvloop=_MAY_BE_UVLOOP)
    print(json.dumps(answer), flush=True)


def ready() -> None:
    """All is imported and set up; comes back when it shall begin."""
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
    """A starting line for several processes. Answers when it was crossed."""
    time.sleep(max(moment - time.time(), 0))
    return time.time()


def bulks(count: int) -> list[range]:
    return [range(first, min(first + BULK, count)) for first in range(0, count, BULK)]


async def pace(count: int, per_second: float, send: Callable[[int, float], Awaitable[object]]) -> None:
    """Send number after number, each at its moment; one that takes long delays no later one for good."""
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
    """The next full second so many seconds from now, or the beginning of a longer period, in seconds since 1970."""
    return math.ceil((time.time() + ahead) / period) * float(period)


def cron_seconds(second: int, period: int) -> str:
    """The seconds of a minute that are so many into the period, as a list in a cron expression."""
    return ",".join(str(each) for each in range(second, 60, period))


def last_moment(second: int, period: int = 60) -> float:
    """The latest moment so many seconds into the period: for schedulers that do not tell a job what it was due."""
    now = time.time()
    return float(round(now - (now - second) % period))


def walked(fires: int, seconds: float, start: Callable[[], Callable[[int], datetime]]) -> list[float]:
    """`start` answers a new rule, as a function that goes on by so many moments and answers the last.

    How many moments, how long they took, and the last of each walk.
    """
    moments, took, last = 0, 0.0, 0.0
    while took < seconds:
        walk = start()
        walk(1)  # the first question takes longer
        began = time.perf_counter()
        at = walk(fires)
        took += time.perf_counter() - began
        moments, last = moments + fires, at.timestamp()
    return [moments, took, last]
