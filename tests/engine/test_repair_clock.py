"""A clock that was ahead for some seconds: what it leaves behind is reported, and one operation puts it right."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evertick import Constant, Every, Once, Run, Scheduler, State
from evertick.clock import Clock
from evertick.doctor import examine
from evertick.operations.clock import ClockRepair, repair_clock
from evertick.scheduler.scheduler import Parts
from evertick.store.base import Store
from evertick.store.sqlite import SqliteStore
from evertick.store.url import open_store
from evertick.when.moment import DAY, HOUR, SECOND

YEARS = 76 * 365 * DAY
PATIENCE = 30.0
# The store's time of a test, some way ahead of the server's.
TOLD_TIME = """
    CREATE TABLE IF NOT EXISTS "{schema}".told_time (us bigint NOT NULL);
    DELETE FROM "{schema}".told_time;
    INSERT INTO "{schema}".told_time VALUES ({us});
    CREATE OR REPLACE FUNCTION "{schema}".now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
        $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + us FROM "{schema}".told_time $$
"""


class SteppingClock(Clock):
    """The wall time is set, forth or back; nothing else passes."""

    def __init__(self) -> None:
        super().__init__()
        self.step_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.step_us


class World:
    """A store whose clock can be set: on SQLite that of the machine, on PostgreSQL that of the server."""

    def __init__(self, url: str, dsn: str | None) -> None:
        self.url, self._dsn = url, dsn
        self.clock = SteppingClock()

    def open(self, url: str) -> Store:
        return SqliteStore(url, clock=self.clock) if self._dsn is None else open_store(url, clock=self.clock)

    def scheduler(self, **settings: Any) -> Scheduler:
        scheduler = Scheduler(self.url, lease="3s", node_name="shop@host", **settings)
        scheduler.runtime.parts = Parts(clock=self.clock, open_store=self.open)
        return scheduler

    def set_ahead(self, us: int) -> None:
        if self._dsn is None:
            self.clock.step_us = us
            return
        schema = self.url.partition("schema=")[2]
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(TOLD_TIME.format(schema=schema, us=us))


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "sqlite":
        return World(f"sqlite:///{tmp_path}/jobs.db", None)
    return World(request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_dsn"))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.05)


async def repaired(scheduler: Scheduler, *, dry_run: bool = False) -> ClockRepair:
    return await repair_clock(await scheduler.runtime.context(), dry_run=dry_run)


class Trip:
    """A node with jobs of several kinds, whose store was ahead for some seconds and is right again."""

    def __init__(self, world: World, *, ahead: int = YEARS) -> None:
        self.world, self.ahead = world, ahead
        self.scheduler = scheduler = world.scheduler()
        self.fired = dict[str, int]()
        scheduler.every("1s", key="quick")(self._job("quick"))
        scheduler.cron("0 * * * *", key="hourly")(self._job("hourly"))
        scheduler.every("1s", after="end", key="after")(self._job("after"))
        scheduler.every("20m", since="start", key="far")(self._job("far"))

        @scheduler.task(retry=Constant("20s", attempts=4), name="fails")
        async def fails() -> None:
            self.fired["fails"] = self.fired.get("fails", 0) + 1
            raise ValueError("no paper left")

        @scheduler.task(name="works")
        async def works() -> None:
            return None

        self.fails, self.works = fails, works
        self.failing: Run

    def _job(self, key: str) -> Callable[[], Awaitable[None]]:
        async def job() -> None:
            self.fired[key] = self.fired.get(key, 0) + 1

        job.__name__ = f"{key}_job"
        return job

    async def has_fired(self, key: str) -> None:
        before = self.fired.get(key, 0)

        async def is_fired() -> bool:
            return self.fired.get(key, 0) > before

        await until(is_fired)

    async def __aenter__(self) -> Trip:
        await self.scheduler.__aenter__()
        await self.has_fired("quick")
        self.world.set_ahead(self.ahead)
        await self.has_fired("quick")
        await self.has_fired("after")
        self.failing = await self.fails.enqueue()
        await self.scheduler.pause("hourly", until=datetime.now(UTC) + timedelta(microseconds=self.ahead + HOUR))

        async def is_put_off() -> bool:
            run = await self.scheduler.get_run(self.failing.id)
            return run.state is State.WAITING and run.attempts > 0

        await until(is_put_off)
        self.world.set_ahead(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scheduler.__aexit__(None, None, None)
        await self.scheduler.close()


@pytest.fixture
async def trip(world: World) -> AsyncIterator[Trip]:
    async with Trip(world) as made:
        yield made


async def test_schedules_fire_again_and_runs_that_wait_run_again_after_one_operation(trip: Trip) -> None:
    found = await repaired(trip.scheduler, dry_run=True)
    assert not found.is_repaired
    assert {each.key for each in found.schedules} >= {"quick", "after", "hourly"}
    assert found.rows["runs"] == 1
    assert found.wrong_from is not None
    assert found.wrong_from.year > datetime.now(UTC).year + 70
    before = trip.fired["fails"]
    done = await repaired(trip.scheduler)
    assert done.is_repaired
    assert {each.key for each in done.schedules} == {each.key for each in found.schedules}
    trip.scheduler.runtime.engine.wake_fires()
    await trip.has_fired("quick")
    await trip.has_fired("after")

    async def is_tried_again() -> bool:
        return trip.fired["fails"] > before

    await until(is_tried_again)
    assert (await repaired(trip.scheduler, dry_run=True)).is_empty


async def test_after_a_repair_nothing_in_the_ledger_lies_in_the_future_but_what_is_to_come(trip: Trip) -> None:
    await repaired(trip.scheduler)
    soon = datetime.now(UTC) + timedelta(hours=2)
    for run in await trip.scheduler.runs(limit=1000):
        times = (run.fire_at, run.due_at, run.created_at, run.started_at, run.finished_at)
        assert all(at is None or at < soon for at in times), run
    for gap in await trip.scheduler.gaps():
        assert gap.last_at < soon
        assert gap.recorded_at < soon
    for schedule in await trip.scheduler.schedules():
        at = schedule.paused_until or schedule.next_fire_at
        assert at is None or at < soon, schedule
    paused = await trip.scheduler.schedule("hourly")
    assert paused.paused_until is not None
    assert paused.paused_until > datetime.now(UTC) + timedelta(minutes=30)


async def test_moments_that_passed_while_a_schedule_stood_still_are_in_the_ledger(trip: Trip) -> None:
    trip.world.set_ahead(3 * SECOND)
    await repaired(trip.scheduler)
    cut = [gap for gap in await trip.scheduler.gaps("quick") if gap.reason == "clock"]
    assert len(cut) == 1
    assert 2 <= cut[0].count < 60
    assert cut[0].is_exact


async def test_the_doctor_why_and_the_log_name_the_schedules_and_the_command(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with Trip(world) as trip:

        async def is_told() -> bool:
            return "repair-clock" in caplog.text and "jumped back" in caplog.text

        await until(is_told)
        store = await trip.scheduler.runtime.store()
        findings = {each.check: each for each in await examine(store, trip.scheduler.app, datetime.now(UTC))}
        why = await trip.scheduler.why("quick")
    forward, back = [
        each for each in caplog.records if "jumped" in each.getMessage() and each.levelno == logging.ERROR
    ][:2]
    assert "jumped forward by 27740 d" in forward.getMessage()
    assert "jumped back by 27740 d" in back.getMessage()
    assert "quick" in findings["clock_left_behind"].about
    assert "evertick db repair-clock" in findings["clock_left_behind"].fix
    assert findings["clock_was_ahead"].severity == "warning"
    assert "evertick db repair-clock" in str(why)


async def test_a_rule_whose_next_moment_is_years_away_is_no_finding_and_is_left_alone(world: World) -> None:
    scheduler = world.scheduler(concurrency=0)
    far = datetime.now(UTC) + timedelta(days=365 * 70)
    await scheduler.add(key="once", when=Once(far), task="works")
    await scheduler.add(key="leap", when="0 0 29 2 *", task="works")
    await scheduler.add(key="later", when=Every("1h", start=far), task="works")
    found = await repaired(scheduler, dry_run=True)
    await scheduler.close()
    assert found.is_empty


async def test_schedules_and_keys_that_were_made_meanwhile_count_from_now(world: World) -> None:
    scheduler = world.scheduler(concurrency=0)
    task = scheduler.task(lambda: None, name="works")
    await scheduler.schedules()
    world.set_ahead(YEARS)
    await scheduler.add(key="new", when=Every("20m", since="start"), task="works")
    await scheduler.add(key="soon", when=Once(after="30m"), task="works")
    delayed = await task.options(delay="10m", unique="key", unique_for="1h").enqueue()
    world.set_ahead(0)
    found = await repaired(scheduler)
    assert {each.key for each in found.schedules} == {"new", "soon"}
    assert found.rows["keys"] == 1
    now = datetime.now(UTC)
    for schedule in await scheduler.schedules():
        assert schedule.next_fire_at is not None
        assert now < schedule.next_fire_at < now + timedelta(minutes=31)
    assert (await scheduler.get_run(delayed.id)).due_at < now + timedelta(minutes=11)
    assert (await repaired(scheduler, dry_run=True)).is_empty
    await scheduler.close()


async def test_a_clock_that_was_two_hours_ahead_is_repaired_as_well(world: World) -> None:
    async with Trip(world, ahead=2 * HOUR) as trip:
        found = await repaired(trip.scheduler)
        assert "quick" in {each.key for each in found.schedules}
        trip.scheduler.runtime.engine.wake_fires()
        await trip.has_fired("quick")
        assert (await repaired(trip.scheduler, dry_run=True)).is_empty
