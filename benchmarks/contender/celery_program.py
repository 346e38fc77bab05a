"""Celery: beat and a worker with one child, as two processes, which its documentation recommends for production."""

from __future__ import annotations

import subprocess
import sys

from celery import Celery
from celery.schedules import crontab

from benchmarks.contender import verbs

app = Celery("benchmarks.contender.celery_program", broker=verbs.URL)
app.conf.update(
    task_ignore_result=True,
    timezone="Europe/Berlin",
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="fire")
def fire(number: int) -> None:
    """Its crontab has no seconds, so all are due when the minute begins."""
    verbs.tally.count(number, verbs.last_moment(0))


def plan(schedules: int, period: int, ahead: float) -> float:
    """Its schedules are in its settings, so nothing is added."""
    assert period == 60
    return verbs.beginning(0)


def work(schedules: int) -> None:
    options = ["--concurrency", "1", "--loglevel", "CRITICAL", "--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "celery", "--app", "benchmarks.contender.celery_program", "worker", *options]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as worker:
        app.conf.beat_schedule = {
            f"s{number}": {"task": "fire", "schedule": crontab(), "args": [number]} for number in range(schedules)
        }
        verbs.ready()
        try:
            app.Beat(loglevel="CRITICAL", schedule=str(verbs.FOLDER / "beat")).run()
        finally:
            worker.terminate()


if __name__ == "__main__":
    verbs.main(plan, work)
