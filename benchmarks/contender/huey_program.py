"""Huey: SqliteHuey with fsync, no results, four threads, which its documents suggest for work that waits."""

from __future__ import annotations

import logging
import time

import huey

from benchmarks.contender import verbs

_path = verbs.URL.removeprefix("sqlite:///").partition("?")[0]
queue = huey.SqliteHuey("bench", filename=_path or ":memory:", fsync=True, results=False)


@queue.task(name="count")
def count(number: int, sent_at: float = 0.0) -> None:
    verbs.tally.count(number, sent_at)


def fill(runs: int, singles: int) -> dict[str, float]:
    """It has no bulk."""
    began = time.perf_counter()
    for number in range(runs + singles):
        count(number)
    return {"single_seconds": (time.perf_counter() - began) / (runs + singles) * singles}


def work(schedules: int) -> None:
    logging.getLogger("huey").setLevel(logging.ERROR)
    level = queue.storage.conn.execute("PRAGMA synchronous").fetchone()[0]
    assert level == 2, f"its commits do not reach the disk: synchronous is {level}"
    consumer = queue.create_consumer(workers=4, worker_type="thread", periodic=False)
    verbs.ready()
    consumer.start()
    verbs.wait_until_stopped()
    consumer.stop(graceful=True)


def send(runs: int, per_second: float) -> None:
    verbs.pace_in_thread(runs, per_second, count)


def left() -> int:
    return len(queue)


if __name__ == "__main__":
    verbs.main(fill, work, send, left)
