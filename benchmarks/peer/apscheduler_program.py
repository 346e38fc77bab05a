"""APScheduler 3: SQLAlchemyJobStore on SQLite, twenty threads. Arguments: database file, number of runs. Prints JSON.

Runs in the peers' environment, so it imports nothing of Evertick.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

path, count = sys.argv[1], int(sys.argv[2])
executed = [0] * count
began_at: list[float] = []
all_executed = threading.Event()


def work(number: int) -> None:
    began_at.append(time.perf_counter())
    executed[number] += 1
    if len(began_at) >= count:
        all_executed.set()


scheduler = BackgroundScheduler(
    jobstores={"default": SQLAlchemyJobStore(url=f"sqlite:///{path}")},
    executors={"default": ThreadPoolExecutor(20)},
    job_defaults={"misfire_grace_time": None},
)
scheduler.start(paused=True)
began = time.perf_counter()
for number in range(count):
    scheduler.add_job(work, args=[number])
enqueue_seconds = time.perf_counter() - began

scheduler.resume()
assert all_executed.wait(timeout=300), f"{len(began_at)} of {count} were executed"
# The store deletes a job after it was handed to a thread.
while scheduler.get_jobs():
    time.sleep(0.05)
scheduler.shutdown()
assert executed == [1] * count, "a run was not executed once"
seconds = max(began_at) - min(began_at)
print(json.dumps({"enqueue": count / enqueue_seconds, "execute": count / seconds}))
