"""APScheduler 4 (pre-release): SQLAlchemy data store, asyncpg event broker, a hundred jobs at once."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

from apscheduler import AsyncScheduler
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker
from apscheduler.triggers.cron import CronTrigger
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.contender import apscheduler_jobs, verbs

_BERLIN = ZoneInfo("Europe/Berlin")
# Rows copied a second: half of the observed rate.
_COPIES_PER_SECOND = 1_000
_engine = create_async_engine(verbs.URL.replace("postgresql://", "postgresql+asyncpg://"), pool_size=20)


@asynccontextmanager
async def _scheduler() -> AsyncIterator[AsyncScheduler]:
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
    store, broker = SQLAlchemyDataStore(_engine), AsyncpgEventBroker(verbs.URL)
    async with AsyncScheduler(store, broker, max_concurrent_jobs=100) as scheduler:
        yield scheduler
    await _engine.dispose()


async def fill(runs: int, singles: int) -> dict[str, float]:
    """It cannot enqueue in bulk."""
    async with _scheduler() as scheduler:
        began = time.perf_counter()
        for number in range(runs + singles):
            await scheduler.add_job(apscheduler_jobs.count_async, args=[number])
        seconds = time.perf_counter() - began
    return {"single_seconds": seconds / (runs + singles) * singles}


async def work(schedules: int) -> None:
    verbs.ready()
    async with _scheduler() as scheduler:
        await scheduler.start_in_background()
        await verbs.until_stopped()


async def send(runs: int, per_second: float) -> None:
    async with _scheduler() as scheduler:
        await verbs.pace(
            runs, per_second, lambda *args: scheduler.add_job(apscheduler_jobs.count_async, args=list(args))
        )


async def plan(schedules: int, period: int, ahead: float) -> float:
    """`add_schedule` adds the first of each second; the others are copied rows, which share its number."""
    first = verbs.beginning(ahead + schedules / _COPIES_PER_SECOND)
    start = datetime.fromtimestamp(first, _BERLIN)
    async with _scheduler() as scheduler:
        for second in range(min(period, schedules)):
            trigger = CronTrigger(second=verbs.cron_seconds(second, period), timezone=_BERLIN, start_time=start)
            args = [second, second, period]
            await scheduler.add_schedule(apscheduler_jobs.fire_async, trigger, args=args, id=f"s{second}")
        async with _engine.begin() as connection:
            columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'schedules'"
            names = [f'"{row[0]}"' for row in await connection.execute(text(columns))]
            chosen = ", ".join("'c' || g || id" if name == '"id"' else name for name in names)
            copies = (
                f"INSERT INTO schedules ({', '.join(names)}) SELECT {chosen} FROM schedules, "
                f"generate_series(1, {schedules // period}) g LIMIT {max(schedules - period, 0)}"
            )
            await connection.execute(text(copies))
    return first


async def remaining() -> int:
    async with _engine.connect() as connection:
        count: int = (await connection.execute(text("SELECT count(*) FROM jobs"))).scalar_one()
    await _engine.dispose()
    return count


if __name__ == "__main__":
    verbs.main(fill, work, send, plan, remaining)
