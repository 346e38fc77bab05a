"""Moments of the past that got no run get one: each once, in order, without disturbing what the schedule owes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evertick import Cause, Cron, Every, InvalidInput, NotFound, Once, Refused, Run, Scheduler, State, current
from evertick.model import Gap
from evertick.operations.backfills import Backfill, Backfilled, Backfiller, BackfillStep
from evertick.testing import Kit, virtual_time

START = datetime(2026, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


class World:
    """A job that takes a while, and fails for the moments it is told to."""

    def __init__(self) -> None:
        self.scheduler = Scheduler("sqlite://", app="shop")
        self.seconds = 0.0
        self.broken: set[datetime] = set()
        self.did: list[tuple[datetime, int]] = []
        self.at_work = self.at_work_most = 0
        self.kit: Kit

        @self.scheduler.task
        async def job(amount: int = 1) -> None:
            self.at_work += 1
            self.at_work_most = max(self.at_work, self.at_work_most)
            await asyncio.sleep(self.seconds)
            self.at_work -= 1
            self.did.append((current().fire_at, amount))
            if current().fire_at in self.broken:
                raise ValueError("out of order")

    async def add(self, when: Any = "0 * * * *", key: str = "k", **options: Any) -> None:
        await self.scheduler.add(key=key, when=when, task="job", **options)

    async def ended(self, backfill: Backfill) -> tuple[BackfillStep, list[BackfillStep]]:
        """The last step and all of them, however much time they take."""
        steps: list[BackfillStep] = []
        task = asyncio.ensure_future(backfill.to_the_end(steps.append))
        while not task.done():
            await self.kit.advance("1s")
        return task.result(), steps

    async def runs(self, key: str = "k") -> list[Run]:
        return (await self.scheduler.runs(key, limit=1000))[::-1]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with virtual_time(made.scheduler, start=START) as made.kit:
        yield made


# --- what is made


async def test_every_moment_without_a_run_gets_one_in_order(world: World) -> None:
    await world.add(priority=3, labels={"team": "ops"}, expires="5m")
    last, steps = await world.ended(world.scheduler.backfill("k", START - 5 * HOUR, START))
    expected = [START - hours * HOUR for hours in (5, 4, 3, 2, 1, 0)]
    assert [at for at, _ in world.did] == expected
    assert (last.moments, last.left_out, last.made, last.live, last.done, last.failed) == (6, 0, 6, 0, 6, 0)
    assert last.is_over
    assert last.fire_at == START
    assert [step.is_over for step in steps] == [False] * (len(steps) - 1) + [True]
    assert sorted({step.made for step in steps}) == [1, 2, 3, 4, 5, 6]
    runs = await world.runs()
    assert [(run.fire_at, run.cause, run.priority, run.labels) for run in runs] == [
        (at, Cause.BACKFILL, 3, {"team": "ops"}) for at in expected
    ]
    assert all(run.due_at >= START for run in runs), "due when it was made, or it would have expired long ago"


async def test_both_ends_belong_to_the_stretch(world: World) -> None:
    await world.add()
    inner = world.scheduler.backfill("k", START - 2 * HOUR + timedelta(seconds=1), START - timedelta(seconds=1))
    assert (await world.ended(inner))[0].moments == 1
    assert (await world.ended(world.scheduler.backfill("k", START - 2 * HOUR, START)))[0].moments == 3


async def test_a_moment_that_has_a_run_is_left_out_however_it_was_made(world: World) -> None:
    await world.add()
    await world.kit.advance("2h30m")
    await world.scheduler.trigger("k")
    await world.kit.run_until_idle()
    last, _ = await world.ended(world.scheduler.backfill("k", START, START + 2 * HOUR))
    assert (last.moments, last.left_out, last.made) == (3, 2, 1)
    again, _ = await world.ended(world.scheduler.backfill("k", START, START + 2 * HOUR))
    assert (again.moments, again.left_out, again.made) == (3, 3, 0)
    assert Counter(run.cause for run in await world.runs()) == {Cause.FIRE: 2, Cause.TRIGGER: 1, Cause.BACKFILL: 1}


async def test_the_cursor_and_the_count_of_fires_stay_as_they_are(world: World) -> None:
    await world.add(Every("1h", max_fires=3))
    before = await world.scheduler.schedule("k")
    await world.ended(world.scheduler.backfill("k", START - 9 * HOUR, START))
    after = await world.scheduler.schedule("k")
    assert (after.next_fire_at, after.next_due_at, after.fires, after.version) == (
        before.next_fire_at,
        before.next_due_at,
        0,
        before.version,
    )
    await world.kit.advance("10h")
    fired = [run.fire_at for run in await world.runs() if run.cause is Cause.FIRE]
    assert fired == [START + hours * HOUR for hours in (1, 2, 3)]


async def test_a_run_overrides_the_gap_it_lies_in_and_both_are_shown(world: World) -> None:
    await world.add()
    await world.scheduler.pause("k")
    await world.kit.advance("4h30m")
    await world.scheduler.resume("k")
    [gap] = await world.scheduler.gaps("k")
    assert gap.count == 4
    await world.ended(world.scheduler.backfill("k", START + HOUR, START + 2 * HOUR))
    assert await world.scheduler.gaps("k") == [gap]
    history = await world.scheduler.history("k")
    assert [type(row) for row in history] == [Gap, Run, Run]
    assert "4 moments" in (await world.scheduler.why("k")).last
    assert "2 of them have been backfilled since" in (await world.scheduler.why("k")).last


async def test_why_tells_that_a_single_skipped_moment_was_made_up_for(world: World) -> None:
    await world.add()
    await world.scheduler.pause("k")
    await world.kit.advance("1h30m")
    await world.scheduler.resume("k")
    await world.ended(world.scheduler.backfill("k", START + HOUR, START + HOUR))
    assert (
        "was skipped: the schedule was paused, and has been backfilled since" in (await world.scheduler.why("k")).last
    )


async def test_a_paused_schedule_can_be_backfilled_and_stays_paused(world: World) -> None:
    await world.add()
    await world.scheduler.pause("k")
    await world.kit.advance("3h30m")
    last, _ = await world.ended(world.scheduler.backfill("k", START + HOUR, START + 3 * HOUR))
    assert last.made == 3
    assert (await world.scheduler.schedule("k")).is_paused
    await world.scheduler.resume("k")
    await world.kit.advance("1h")
    assert Counter(run.fire_at for run in await world.runs()).most_common(1)[0][1] == 1


async def test_arguments_may_be_others_than_those_of_the_schedule(world: World) -> None:
    await world.add(args={"amount": 2})
    await world.ended(world.scheduler.backfill("k", START - HOUR, START - HOUR))
    await world.ended(world.scheduler.backfill("k", START, START, args={"amount": 7}))
    assert [amount for _, amount in world.did] == [2, 7]
    with pytest.raises(InvalidInput, match="amount"):
        await world.scheduler.backfill("k", START - 2 * HOUR, START - 2 * HOUR, args={"amount": "much"})


async def test_what_fails_is_counted_and_the_rest_goes_on(world: World) -> None:
    await world.add()
    world.broken = {START - HOUR}
    last, _ = await world.ended(world.scheduler.backfill("k", START - 2 * HOUR, START))
    assert (last.made, last.done, last.failed) == (3, 3, 1)


async def test_a_dry_run_counts_and_writes_nothing(world: World) -> None:
    await world.add()
    await world.ended(world.scheduler.backfill("k", START, START))
    step = await world.scheduler.backfill("k", START - 3 * HOUR, START, dry_run=True)
    assert (step.moments, step.left_out, step.made, step.to_make) == (4, 1, 0, 3)
    assert step.is_dry_run
    assert step.is_over
    assert len(await world.runs()) == 1


async def test_the_moments_are_those_of_the_zone_on_the_night_the_clock_goes_back() -> None:
    world = World()
    async with virtual_time(world.scheduler, start=datetime(2026, 10, 26, 12, tzinfo=UTC)) as world.kit:
        await world.add(Cron("*/30 * * * *", tz="Europe/Berlin"))
        # The hour from 2 to 3 is shown twice: six moments of the wall clock, eight of time.
        night = datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
        last, _ = await world.ended(world.scheduler.backfill("k", night, night + 3.5 * HOUR))
        assert last.made == 8


# --- one at a time, or side by side


async def test_the_next_run_is_made_when_the_one_before_has_ended(world: World) -> None:
    await world.add(overlap="allow")
    world.seconds = 600
    await world.ended(world.scheduler.backfill("k", START - 4 * HOUR, START))
    assert world.at_work_most == 1
    assert [at for at, _ in world.did if at <= START] == [START - hours * HOUR for hours in (4, 3, 2, 1, 0)]


async def test_a_live_run_of_the_schedule_goes_first(world: World) -> None:
    await world.add()
    world.seconds = 60
    await world.scheduler.trigger("k")
    await world.ended(world.scheduler.backfill("k", START, START))
    assert world.at_work_most == 1
    assert len(world.did) == 2


async def test_a_fire_that_is_due_goes_first(world: World) -> None:
    await world.add()
    await world.kit.advance("30m")
    store = await world.scheduler.runtime.store()
    when = (await world.scheduler.schedule("k")).when
    maker = Backfiller(store, "shop", world.scheduler.runtime.clock, key="k", when=when)
    world.kit._clock.move(3_600_000_000)  # an hour passes before any tick comes by
    wish = [int(START.timestamp() * 1e6)]
    assert await maker.make(wish, args=None, is_alone=True) == Backfilled(waiting=tuple(wish))
    assert len((await maker.make(wish, args=None, is_alone=False)).runs) == 1


async def test_side_by_side_all_are_made_at_once(world: World) -> None:
    await world.add()
    world.seconds = 5
    last, steps = await world.ended(world.scheduler.backfill("k", START - 250 * HOUR, START, overlap="allow"))
    assert [step.made for step in steps][:3] == [100, 200, 251]
    assert (last.made, last.done) == (251, 251)
    assert world.at_work_most == 50, "as many as the node has slots"


async def test_a_pace_keeps_them_apart(world: World) -> None:
    await world.add()
    await world.ended(world.scheduler.backfill("k", START - 3 * HOUR, START, overlap="allow", pace="10m"))
    made = [run.created_at for run in await world.runs() if run.cause is Cause.BACKFILL]
    assert all(later - earlier >= timedelta(minutes=10) for earlier, later in pairwise(made))
    assert made[-1] - made[0] < timedelta(minutes=31)


async def test_a_pace_holds_for_one_at_a_time_too(world: World) -> None:
    await world.add(overlap="allow")
    world.seconds = 200
    await world.ended(world.scheduler.backfill("k", START - 2 * HOUR, START, pace="5m"))
    made = [run.created_at for run in await world.runs() if run.cause is Cause.BACKFILL]
    assert all(later - earlier >= timedelta(minutes=5) for earlier, later in pairwise(made))


async def test_runs_with_a_unique_key_wait_for_each_other_even_side_by_side(world: World) -> None:
    await world.add(unique="report")
    world.seconds = 30
    last, _ = await world.ended(world.scheduler.backfill("k", START - 3 * HOUR, START, overlap="allow"))
    assert (last.made, last.done) == (4, 4)
    assert world.at_work_most == 1


# --- several callers, and callers that die


async def test_two_callers_make_each_run_once(world: World) -> None:
    await world.add()
    both = [
        asyncio.ensure_future(world.scheduler.backfill("k", START - 9 * HOUR, START).to_the_end()) for _ in range(2)
    ]
    while not all(task.done() for task in both):
        await world.kit.advance("1s")
    first, second = (task.result() for task in both)
    assert first.made + second.made == 10
    assert (first.left_out + first.made, second.left_out + second.made) == (10, 10)
    assert len(await world.runs()) == 10


async def test_who_leaves_the_loop_leaves_what_was_made_and_may_ask_again(world: World) -> None:
    await world.add(overlap="allow")

    async def begin() -> None:
        async for step in world.scheduler.backfill("k", START - 5 * HOUR, START):
            if step.made == 2:
                return

    task = asyncio.ensure_future(begin())
    while not task.done():
        await world.kit.advance("1s")
    assert len(await world.runs()) == 2
    last, _ = await world.ended(world.scheduler.backfill("k", START - 5 * HOUR, START))
    assert (last.left_out, last.made) == (2, 4)
    assert [at for at, _ in world.did] == [START - hours * HOUR for hours in (5, 4, 3, 2, 1, 0)]


PROGRAM = """
import asyncio, sys
from datetime import datetime
from evertick import Scheduler, current

scheduler = Scheduler(sys.argv[1], lease="1s", poll_interval="100ms", concurrency=20)

@scheduler.task
async def job():
    print(current().fire_at.isoformat(), flush=True)

async def main():
    async with scheduler:
        step = await scheduler.backfill("k", datetime.fromisoformat(sys.argv[2]), datetime.fromisoformat(sys.argv[3]))
        print("over", step.made, step.left_out, flush=True)

asyncio.run(main())
"""


def test_a_backfill_whose_process_is_killed_is_finished_by_the_next_one(tmp_path: Path) -> None:
    url, end = f"sqlite:///{tmp_path}/jobs.db", datetime.now(UTC)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), url, (end - 300 * HOUR).isoformat(), end.isoformat()]
    manager = Scheduler(url, concurrency=0)
    manager.sync.add(key="k", when="0 * * * *", task="job", overlap="allow")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for _ in range(20):
            assert first.stdout.readline()
        os.kill(first.pid, signal.SIGKILL)
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    *_, over = answer.stdout.splitlines()
    word, made, left_out = over.split()
    assert (word, int(made) + int(left_out)) == ("over", 300)
    assert int(left_out) >= 20
    deadline = time.monotonic() + 60
    while live := [run for run in manager.sync.runs("k", limit=1000) if run.state is not State.DONE]:
        assert time.monotonic() < deadline, live
        time.sleep(0.05)
    moments = Counter(run.fire_at for run in manager.sync.runs("k", limit=1000) if run.cause is Cause.BACKFILL)
    assert len(moments) == 300
    assert set(moments.values()) == {1}
    manager.sync.close()


# --- what is refused


async def test_moments_to_come_are_refused(world: World) -> None:
    await world.add()
    with pytest.raises(InvalidInput, match=r"end: 2026-01-10T01:00:00Z is in the future.*pass a past moment, or now"):
        await world.scheduler.backfill("k", START, START + HOUR)


async def test_a_stretch_that_ends_before_it_begins_is_refused_where_it_is_written(world: World) -> None:
    with pytest.raises(InvalidInput, match="swap them"):
        world.scheduler.backfill("k", START, START - HOUR)
    with pytest.raises(InvalidInput, match="has no time zone"):
        world.scheduler.backfill("k", START.replace(tzinfo=None), START)
    with pytest.raises(InvalidInput, match=r"overlap: 'queue' must be None \(one at a time\) or 'allow'"):
        world.scheduler.backfill("k", START, START, overlap="queue")  # type: ignore[arg-type]


async def test_too_many_moments_are_refused_with_their_exact_number(world: World) -> None:
    await world.add("* * * * *")
    with pytest.raises(InvalidInput, match=r"has 10,001 moments from .*, more than the limit of 10,000"):
        await world.scheduler.backfill("k", START - timedelta(minutes=10_000), START)
    with pytest.raises(InvalidInput, match=r"has 4 moments .* more than the limit of 3;"):
        await world.scheduler.backfill("k", START - timedelta(minutes=3), START, limit=3)
    step = await world.scheduler.backfill("k", START - timedelta(minutes=10_000), START, limit=10_001, dry_run=True)
    assert step.to_make == 10_001


async def test_a_rule_that_counts_from_the_end_has_no_moments_to_backfill(world: World) -> None:
    await world.add(Every("1h", after="end"))
    with pytest.raises(Refused, match="no fixed moments to backfill; trigger it instead"):
        await world.scheduler.backfill("k", START - HOUR, START)


async def test_what_history_would_forget_at_once_is_refused() -> None:
    scheduler = Scheduler("sqlite://", retention="7d", concurrency=0)
    await scheduler.add(key="k", when="0 * * * *", task="job")
    now = datetime.now(UTC)
    with pytest.raises(InvalidInput, match=r"older than the retention of history \(7d\).*or raise retention"):
        await scheduler.backfill("k", now - timedelta(days=8), now)
    await scheduler.close()


async def test_a_schedule_that_is_not_there_cannot_be_backfilled(world: World) -> None:
    with pytest.raises(NotFound, match="no schedule 'gone'"):
        await world.scheduler.backfill("gone", START, START)


async def test_a_rule_that_is_changed_meanwhile_ends_the_backfill(world: World) -> None:
    await world.add(overlap="allow")
    steps = aiter(world.scheduler.backfill("k", START - 5 * HOUR, START))
    await anext(steps)
    await world.scheduler.update("k", when="30 * * * *")
    following = asyncio.ensure_future(_rest(steps))
    while not following.done():
        await world.kit.advance("1s")
    with pytest.raises(Refused, match="was changed while it was backfilled"):
        following.result()


async def _rest(steps: AsyncIterator[BackfillStep]) -> None:
    async for _ in steps:
        pass


async def test_a_one_shot_of_the_past_can_be_made_up_for(world: World) -> None:
    await world.add(Once(START - HOUR))
    assert (await world.ended(world.scheduler.backfill("k", START - 2 * HOUR, START)))[0].made == 1


async def test_a_backfill_that_nobody_awaits_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.scheduler.backfill("k", START, START)
    assert "scheduler.backfill(...) was not awaited and did nothing; write `await scheduler.backfill" in caplog.text


# --- the blocking form


def test_plain_code_waits_for_the_end_and_hears_of_the_steps() -> None:
    scheduler, steps = Scheduler("sqlite://"), list[BackfillStep]()

    @scheduler.task
    def job() -> None: ...

    now = datetime.now(UTC)
    with scheduler:
        scheduler.sync.add(key="k", when="0 * * * *", task=job)
        last = scheduler.sync.backfill("k", now - 5 * HOUR, now, on_step=steps.append)
    assert (last.made, last.done, last.is_over) == (5, 5, True)
    assert steps[-1] == last
    assert len(steps) > 5
