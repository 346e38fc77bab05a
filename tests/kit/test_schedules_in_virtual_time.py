"""Tests that users write with the kit: hours and days of their schedules in milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from evertick import Constant, Context, Exponential, Retry, Scheduler, Skip
from evertick.engine import duty
from evertick.testing import virtual_time

BERLIN = ZoneInfo("Europe/Berlin")
# There is no such directory: opening the file would fail.
NOWHERE = "sqlite:////no/such/directory/jobs.db"


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(NOWHERE, tz="Europe/Berlin")


async def test_a_report_is_sent_every_weekday(scheduler: Scheduler) -> None:
    sent = []

    @scheduler.cron("0 9 * * mon-fri", key="report")
    async def report(ctx: Context) -> None:
        sent.append(ctx.fire_at.astimezone(BERLIN).strftime("%a %H:%M"))

    async with virtual_time(scheduler, start="2026-03-27T00:00:00+01:00") as kit:
        await kit.advance("1d")
        kit.assert_fired("report", times=1)
        await kit.advance("6d")
        kit.assert_fired("report", times=5)
        kit.assert_succeeded("report", times=5)
    assert sent == ["Fri 09:00", "Mon 09:00", "Tue 09:00", "Wed 09:00", "Thu 09:00"]


async def test_an_hourly_job_runs_23_times_on_the_day_the_clocks_go_forward(scheduler: Scheduler) -> None:
    @scheduler.cron("0 * * * *", key="hourly")
    async def hourly() -> None: ...

    @scheduler.cron("30 2 * * *", key="at-half-past-two")
    async def nightly() -> None: ...

    async with virtual_time(scheduler, start=datetime(2026, 3, 28, 23, 30, tzinfo=BERLIN)) as kit:
        await kit.advance_to(datetime(2026, 3, 29, 23, 30, tzinfo=BERLIN))
        kit.assert_fired("hourly", times=23)
        # Half past two does not exist on that day; it runs at three.
        kit.assert_fired("at-half-past-two", at="2026-03-29T03:00:00+02:00")
        assert kit.now == datetime(2026, 3, 29, 21, 30, tzinfo=UTC)


async def test_every_run_starts_at_its_nominal_moment(scheduler: Scheduler) -> None:
    @scheduler.every("7s", key="often")
    async def often() -> None: ...

    @scheduler.cron("*/5 * * * *", key="cron")
    async def cron() -> None: ...

    async with virtual_time(scheduler, start="2026-01-01T00:00:00.123456Z") as kit:
        await kit.advance("1h")
        assert len(kit.fired("often")) in (514, 515)
        for run in kit.runs():
            assert run.created_at == run.started_at == run.finished_at == run.fire_at


async def test_a_job_that_sleeps_for_an_hour_takes_an_hour_of_virtual_time(scheduler: Scheduler) -> None:
    @scheduler.cron("0 9 * * *", key="long")
    async def long() -> str:
        await asyncio.sleep(3600)
        return "done"

    async with virtual_time(scheduler, start="2026-01-05T00:00:00+01:00") as kit:
        await kit.advance("9h30m")
        assert [run.state for run in kit.runs("long")] == ["running"]
        await kit.advance("30m")
        (run,) = kit.runs("long")
        assert run.finished_at is not None
        assert run.finished_at - run.fire_at == timedelta(hours=1)
        assert run.result == "done"


async def test_retries_back_off_over_virtual_hours(scheduler: Scheduler) -> None:
    tries: list[datetime] = []

    @scheduler.cron("0 9 * * *", key="import", retry=Exponential("10m", 3.0, limit="6h", attempts=5))
    async def fetch(ctx: Context) -> None:
        tries.append(ctx.due_at)
        if ctx.attempt < 4:
            raise OSError("the source is away")

    async with virtual_time(scheduler, start="2026-01-05T08:00:00+01:00") as kit:
        await kit.advance("1h")
        assert len(tries) == 1
        await kit.run_until_idle()
        kit.assert_succeeded("import", times=1)
        assert [later - earlier for earlier, later in itertools.pairwise(tries)] == [
            timedelta(minutes=10),
            timedelta(minutes=30),
            timedelta(minutes=90),
        ]
        assert kit.now == tries[-1]
        assert len(await scheduler.attempts(kit.runs("import")[0])) == 3


async def test_a_job_can_ask_for_its_own_retry(scheduler: Scheduler) -> None:
    @scheduler.task
    async def poll(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("not there yet", after="2h")

    async with virtual_time(scheduler) as kit:
        begin = kit.now
        await poll.enqueue()
        await kit.run_until_idle()
        assert kit.now - begin == timedelta(hours=2)
        assert [run.verdict for run in kit.runs(task="poll")] == ["succeeded"]


async def test_a_timeout_happens_exactly_when_it_is_due(scheduler: Scheduler) -> None:
    @scheduler.cron("0 9 * * *", key="stuck", timeout="5m")
    async def stuck() -> None:
        await asyncio.Event().wait()

    async with virtual_time(scheduler, start="2026-01-05T08:59:00+01:00") as kit:
        await kit.advance("1d")
        kit.assert_failed("stuck", reason="timeout", times=1)
        (run,) = kit.runs("stuck")
        assert run.finished_at is not None
        assert run.finished_at - run.fire_at == timedelta(minutes=5)


async def test_a_moment_during_the_previous_run_is_skipped(scheduler: Scheduler) -> None:
    @scheduler.cron("*/10 * * * *", key="slow")
    async def slow() -> None:
        await asyncio.sleep(25 * 60)

    async with virtual_time(scheduler) as kit:
        await kit.advance("1h")
        kit.assert_fired("slow", at=["2026-01-01T00:10:00Z", "2026-01-01T00:40:00Z"])
        kit.assert_skipped("slow", reason="overlap", times=4)


async def test_a_job_that_outlasts_its_interval_does_not_delay_the_next_moment(scheduler: Scheduler) -> None:
    @scheduler.every("5s", key="overlapping", overlap="allow")
    async def overlapping() -> None:
        await asyncio.sleep(60)

    async with virtual_time(scheduler) as kit:
        await kit.advance("1m")
        kit.assert_fired("overlapping", times=12)
        assert all(run.started_at == run.fire_at for run in kit.runs("overlapping"))


async def test_a_queued_moment_runs_after_the_previous_run(scheduler: Scheduler) -> None:
    @scheduler.cron("*/10 * * * *", key="slow", overlap="queue")
    async def slow() -> None:
        await asyncio.sleep(12 * 60)

    async with virtual_time(scheduler) as kit:
        await kit.advance("25m")
        assert [run.started_at for run in kit.runs("slow")] == [
            datetime(2026, 1, 1, 0, 10, tzinfo=UTC),
            datetime(2026, 1, 1, 0, 22, tzinfo=UTC),
        ]


async def test_a_timed_pause_ends_automatically(scheduler: Scheduler) -> None:
    @scheduler.cron("0 * * * *", key="hourly")
    async def hourly() -> None: ...

    async with virtual_time(scheduler) as kit:
        await kit.advance("30m")
        await scheduler.pause("hourly", note="maintenance", until=kit.now + timedelta(hours=3))
        await kit.advance("3h")
        kit.assert_not_fired("hourly")
        kit.assert_skipped("hourly", reason="paused", times=3)
        await kit.advance("1h")
        kit.assert_fired("hourly", at="2026-01-01T04:00:00Z")


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [("latest", ["04:00"]), ("all", ["02:00", "03:00", "04:00"]), ("skip", [])],
)
async def test_downtime_is_caught_up_by_the_policy_of_the_schedule(
    scheduler: Scheduler, catch_up: str, fired: list[str]
) -> None:
    @scheduler.cron("0 * * * *", key="hourly", catch_up=catch_up)  # type: ignore[call-arg]
    async def hourly() -> None: ...

    async with virtual_time(scheduler, start="2026-01-01T00:30:00Z") as kit:
        await kit.advance("1h")
        kit.assert_fired("hourly", times=1)
        await kit.downtime("3h")
        assert kit.now == datetime(2026, 1, 1, 4, 30, tzinfo=UTC)
        await kit.advance("10s")
        assert [f"{moment:%H:%M}" for moment in kit.fired("hourly")[1:]] == fired
        if catch_up == "skip":
            kit.assert_missed("hourly", reason="downtime", times=3)


async def test_a_run_interrupted_by_downtime_runs_again(scheduler: Scheduler) -> None:
    starts = []

    @scheduler.cron("0 9 * * *", key="long")
    async def long(ctx: Context) -> None:
        starts.append(ctx.attempt)
        await asyncio.sleep(600)

    async with virtual_time(scheduler, start="2026-01-05T08:59:00+01:00") as kit:
        await kit.advance("2m")
        await kit.downtime("1h")
        await kit.run_until_idle()
        kit.assert_succeeded("long", times=1)
    assert starts == [1, 1]


async def test_sync_functions_run_in_threads_and_time_waits_for_them(scheduler: Scheduler) -> None:
    seen = []

    @scheduler.every("10m", key="plain")
    def plain(ctx: Context) -> None:
        scheduler.sync.runs("plain")
        seen.append(ctx.fire_at)

    async with virtual_time(scheduler) as kit:
        await kit.advance("1d")
        kit.assert_succeeded("plain", times=144)
        assert seen == kit.fired("plain")
        assert all(run.finished_at == run.fire_at for run in kit.runs("plain"))


async def test_time_waits_for_functions_that_a_job_runs_in_a_thread(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="mixed")
    async def mixed() -> int:
        return await asyncio.to_thread(lambda: sum(range(100_000)))

    async with virtual_time(scheduler) as kit:
        await kit.advance("5h")
        kit.assert_succeeded("mixed", times=5)
        assert all(run.finished_at == run.fire_at for run in kit.runs("mixed"))


async def test_hooks_are_called_in_virtual_time(scheduler: Scheduler) -> None:
    received: list[tuple[str, str | None]] = []

    @scheduler.on("failed")
    async def complain(event: object) -> None:
        received.append(("async", event.schedule_key))  # type: ignore[attr-defined]

    @scheduler.on("failed")
    def write_down(event: object) -> None:
        received.append(("plain", event.schedule_key))  # type: ignore[attr-defined]

    @scheduler.every("1h", key="bad")
    async def bad() -> None:
        raise ValueError("no")

    async with virtual_time(scheduler) as kit:
        await kit.advance("1h")
        assert received == [("async", "bad"), ("plain", "bad")]
        kit.assert_failed("bad", reason="error")


async def test_progress_and_logs_of_a_running_job_are_readable(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="talker")
    async def talk(ctx: Context) -> None:
        ctx.log("begun")
        ctx.progress(0.5, "half")
        await asyncio.sleep(60)

    async with virtual_time(scheduler) as kit:
        await kit.advance("1h")
        (run,) = kit.runs("talker")
        assert run.progress == 0.5
        assert [line.text for line in await scheduler.log(run)] == ["begun"]


async def test_a_skip_by_the_job_counts_as_skipped(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="picky")
    async def picky() -> None:
        raise Skip("nothing new")

    async with virtual_time(scheduler) as kit:
        await kit.advance("2h")
        kit.assert_skipped("picky", reason="nothing new", times=2)


async def test_schedules_and_runs_added_in_the_test_run_too(scheduler: Scheduler) -> None:
    from evertick import Cron

    @scheduler.task(retry=Constant("1m", attempts=2))
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with virtual_time(scheduler) as kit:
        await scheduler.add(key="added", when=Cron("0 12 * * *"), task=greet, args={"name": "you"})
        await greet.options(delay="2h").enqueue("me")
        await kit.advance("1d")
        assert [run.result for run in kit.runs(task="greet")] == ["hello me", "hello you"]
        triggered = await scheduler.trigger("added")
        await kit.run_until_idle()
        assert (await scheduler.get_run(triggered.id)).verdict == "succeeded"
        kit.assert_fired("added", times=1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_same_seed_gives_the_same_ledger(seed: int) -> None:
    async def ledger(seed: int) -> list[object]:
        scheduler = Scheduler(NOWHERE)

        @scheduler.every("1h", key="spread", jitter="30m", jitter_mode="fresh")
        async def spread() -> None: ...

        async with virtual_time(scheduler, seed=seed) as kit:
            await kit.advance("1d")
            return [(run.id, run.due_at, run.node) for run in kit.runs()]

    first = await ledger(seed)
    assert await ledger(seed) == first
    assert await ledger(seed + 1) != first


async def test_time_is_exact_after_a_year(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half a million steps of a duty that looks at the clock every minute add nothing.
    monkeypatch.setattr(duty, "_SLEEP_MOST", 86_400.0)

    @scheduler.cron("59 59 23 31 12 *", key="new-year")
    async def new_year() -> None: ...

    async with virtual_time(scheduler, start="2026-01-01T00:00:00+01:00") as kit:
        await kit.advance("365d")
        kit.assert_fired("new-year", at="2026-12-31T23:59:59+01:00")
        assert kit.runs("new-year")[0].started_at == datetime(2026, 12, 31, 22, 59, 59, tzinfo=UTC)


async def test_a_day_of_an_every_minute_schedule_takes_little_real_time(scheduler: Scheduler) -> None:
    @scheduler.every("1m", key="minutely")
    async def minutely() -> None: ...

    began = time.process_time()
    async with virtual_time(scheduler) as kit:
        await kit.advance("1d")
        kit.assert_succeeded("minutely", times=1440)
    # It takes some 0.6 s of processor time; the rest is room for a slow machine.
    assert time.process_time() - began < 5


async def test_a_job_that_sleeps_for_days_takes_little_real_time(scheduler: Scheduler) -> None:
    @scheduler.once(after="1h", key="patient")
    async def patient() -> None:
        await asyncio.sleep(30 * 86_400)

    began = time.process_time()
    async with virtual_time(scheduler) as kit:
        await kit.advance("31d")
        kit.assert_succeeded("patient", times=1)
    assert time.process_time() - began < 5
