"""Huey: SqliteHuey with fsync, four threads, no results. Arguments: database file, number of runs. Prints JSON.

Runs in the peers' environment, so it imports nothing of Evertick.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import huey

path, count = sys.argv[1], int(sys.argv[2])
queue = huey.SqliteHuey("bench", filename=path, fsync=True, results=False)
assert queue.storage.conn.execute("PRAGMA synchronous").fetchone()[0] == 2, "its commits do not reach the disk"
executed = [0] * count
began_at: list[float] = []
all_executed = threading.Event()


@queue.task()
def work(number: int) -> None:
    began_at.append(time.perf_counter())
    executed[number] += 1
    if len(began_at) >= count:
        all_executed.set()


began = time.perf_counter()
for number in range(count):
    work(number)
enqueue_seconds = time.perf_counter() - began

consumer = queue.create_consumer(workers=4, worker_type="thread", periodic=False)
consumer.start()
assert all_executed.wait(timeout=300), f"{len(began_at)} of {count} were executed"
consumer.stop(graceful=True)
assert executed == [1] * count, "a run was not executed once"
assert len(queue) == 0, "the queue is not empty"
seconds = max(began_at) - min(began_at)
print(json.dumps({"enqueue": count / enqueue_seconds, "execute": count / seconds}))
