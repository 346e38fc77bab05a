"""Huey: SqliteHuey with fsync and without results.

A queue of no-op jobs gets one thread, the default, which executes a quarter more of them than four do. Schedules,
which are all due at once, get four. Huey checks its periodic tasks once in sixty seconds from its start, so it is
started when a minute begins: the best case for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import huey

from benchmarks.contender import verbs

_MINUTE = 60
# Late enough that no check falls into the minute before.
_INTO_MINUTE_SECONDS = 0.05
_path = verbs.URL.removeprefix("sqlite:///").partition("?")[0]
queue = huey.SqliteHuey("bench", filename=_path or ":memory:", fsync=True, results=False)


@queue.task(name="count")
def count(number: int, sent_at: float = 0.0) -> None:
    verbs.tally.count(number, sent_at)


def _firing(number: int) -> Callable[[], None]:
    def fire() -> None:
        verbs.tally.count(number, verbs.last_moment(0))

    return fire


def plan(schedules: int, period: int, ahead: float) -> float:
    """Its periodic tasks are in its code, so nothing is added."""
    assert period == _MINUTE
    return verbs.beginning(0)


def fill(runs: int, singles: int) -> dict[str, float]:
    """It cannot enqueue in bulk."""
    began = time.perf_counter()
    for number in range(runs + singles):
        count(number)
    return {"single_seconds": (time.perf_counter() - began) / (runs + singles) * singles}


def work(schedules: int) -> None:
    logging.getLogger("huey").setLevel(logging.ERROR)
    level = queue.storage.conn.execute("PRAGMA synchronous").fetchone()[0]
    assert level == 2, f"commits do not reach the disk: synchronous is {level}"
    for number in range(schedules):
        queue.periodic_task(huey.crontab(), name=f"s{number}")(_firing(number))
    verbs.ready()
    if schedules:
        time.sleep(verbs.beginning(0, _MINUTE) + _INTO_MINUTE_SECONDS - time.time())
    consumer = queue.create_consumer(workers=4 if schedules else 1, worker_type="thread", periodic=schedules > 0)
    consumer.start()
    verbs.wait_until_stopped()
    consumer.stop(graceful=True)


def send(runs: int, per_second: float) -> None:
    verbs.pace_in_thread(runs, per_second, count)


def remaining() -> int:
    return len(queue)


if __name__ == "__main__":
    verbs.main(fill, work, send, plan, remaining)
