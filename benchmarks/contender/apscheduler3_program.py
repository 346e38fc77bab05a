"""APScheduler 3: SQLAlchemy job store, twenty threads, missed runs are caught up.

It notices only jobs that its own process adds, so it sends to itself.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from benchmarks.contender import apscheduler_jobs, verbs

_BERLIN, _NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
# Rows copied a second: half of the observed rate.
_COPIES_PER_SECOND = 1_000
_URL = verbs.URL.partition("?")[0].replace("postgresql://", "postgresql+psycopg://")


def _scheduler() -> BackgroundScheduler:
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
    return BackgroundScheduler(
        timezone=_BERLIN,
        jobstores={"default": SQLAlchemyJobStore(url=_URL)},
        executors={"default": ThreadPoolExecutor(20)},
        job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 10},
    )


def fill(runs: int, singles: int) -> dict[str, float]:
    """It cannot enqueue in bulk."""
    scheduler = _scheduler()
    scheduler.start(paused=True)
    began = time.perf_counter()
    for number in range(runs + singles):
        scheduler.add_job(apscheduler_jobs.count, args=[number])
    seconds = time.perf_counter() - began
    scheduler.shutdown()
    return {"single_seconds": seconds / (runs + singles) * singles}


def work(schedules: int) -> None:
    scheduler = _scheduler()
    _check_durable(scheduler)
    verbs.ready()
    scheduler.start()
    verbs.wait_until_stopped()
    scheduler.shutdown()


def _check_durable(scheduler: BackgroundScheduler) -> None:
    """It opens a SQLite file with default settings."""
    engine = scheduler._jobstores["default"].engine
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            level = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        assert level == 2, f"commits do not reach the disk: synchronous is {level}"


def alone(runs: int, per_second: float, settle: float) -> None:
    scheduler = _scheduler()
    _check_durable(scheduler)
    verbs.ready()
    scheduler.start()
    time.sleep(settle)
    verbs.pace_in_thread(runs, per_second, lambda *args: scheduler.add_job(apscheduler_jobs.count, args=args))
    verbs.wait_until_stopped()
    scheduler.shutdown()


def plan(schedules: int, period: int, ahead: float) -> float:
    """`add_job` adds the first schedule of each second; the others are copied rows, because adding takes minutes."""
    scheduler = _scheduler()
    scheduler.start(paused=True)
    first = verbs.beginning(ahead + schedules / _COPIES_PER_SECOND)
    start = datetime.fromtimestamp(first, _BERLIN)
    models = [
        scheduler.add_job(
            apscheduler_jobs.fire,
            CronTrigger(second=verbs.cron_seconds(second, period), timezone=_BERLIN, start_date=start),
            args=[second, second, period],
            id=f"s{second}",
        )
        for second in range(min(period, schedules))
    ]
    store = scheduler._jobstores["default"]
    with store.engine.begin() as connection:
        for numbers in verbs.bulks(schedules):
            rows = [_copy(models[number % period], number) for number in numbers if number >= period]
            if rows:
                connection.execute(store.jobs_t.insert(), rows)
    scheduler.shutdown()
    return first


def _copy(model: object, number: int) -> dict[str, object]:
    state = model.__getstate__()
    assert isinstance(state, dict)
    state |= {"id": f"s{number}", "args": (number, *state["args"][1:])}
    at = state["next_run_time"].timestamp()
    return {"id": state["id"], "next_run_time": at, "job_state": pickle.dumps(state, pickle.HIGHEST_PROTOCOL)}


def remaining() -> int:
    store = SQLAlchemyJobStore(url=_URL)
    with store.engine.connect() as connection:
        return len(connection.execute(store.jobs_t.select()).fetchall())


def next_fires(counts: dict[str, int], seconds: float) -> dict[str, list[float]]:
    return {text: verbs.walked(fires, seconds, partial(_walk, text)) for text, fires in counts.items()}


def _walk(expression: str) -> Callable[[int], datetime]:
    # It numbers the days of the week differently from cron; names mean the same.
    trigger = CronTrigger.from_crontab(expression.replace("1-5", "mon-fri"), timezone=_NEW_YORK)
    start = datetime(2026, 3, 7, 12, tzinfo=_NEW_YORK)

    def walk(fires: int) -> datetime:
        nonlocal start
        at = start
        for _ in range(fires):
            at = trigger.get_next_fire_time(at, at)
        start = at
        return at

    return walk


if __name__ == "__main__":
    verbs.main(fill, work, alone, plan, remaining, next_fires)
