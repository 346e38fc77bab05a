"""A schedule with `pause_after` is paused when so many of its fires have failed in a row."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import preloaded
from evertick import Constant, Event, InvalidSetting, Scheduler, Skip, Verdict
from evertick.engine import auto_pause
from evertick.errors import StoreUnavailable
from evertick.store.base import Failing
from evertick.testing import Kit, virtual_time

START = datetime(2026, 6, 1, tzinfo=UTC)


class World:
    """A job that ends as it is told: one word per fire, the last one for all that follow."""

    def __init__(self) -> None:
        self.scheduler = Scheduler("sqlite://", app="shop")
        self.endings = ["fail"]
        self.heard: list[Event] = []
        self.kit: Kit

        @self.scheduler.task
        async def job() -> None:
            match self.endings.pop(0) if len(self.endings) > 1 else self.endings[0]:
                case "fail":
                    raise ValueError("first line\nthe disk is full")
                case "skip":
                    raise Skip("nothing to do")

        @self.scheduler.on("paused")
        async def hear(event: Event) -> None:
            self.heard.append(event)

    async def add(self, **options: Any) -> None:
        await self.scheduler.add(key="k", when="every 1h", task="job", **options)

    async def is_paused(self) -> bool:
        return (await self.scheduler.schedule("k")).is_paused

    async def fires_until_paused(self, most: int = 20) -> int:
        """How many fires it takes from now on."""
        for count in range(1, most + 1):
            await self.kit.advance("1h")
            if await self.is_paused():
                return count
        return 0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with virtual_time(made.scheduler, start=START) as made.kit:
        yield made


async def test_it_is_paused_after_so_many_failures_with_a_note_that_says_why(world: World) -> None:
    await world.add(pause_after=3)
    assert (await world.scheduler.schedule("k")).pause_after == 3
    assert await world.fires_until_paused() == 3
    note = (await world.scheduler.schedule("k")).pause_note
    assert note == "3 runs in a row have failed, the last error: ValueError: first line; mend it, then resume it"
    await world.kit.advance("5h")
    assert len(world.kit.runs("k")) == 3
    assert [(event.kind, event.schedule_key, event.note) for event in world.heard] == [("paused", "k", note)]
    assert world.heard[0].run_id == world.kit.runs("k")[-1].id
    assert note in (await world.scheduler.why("k")).next


async def test_a_success_resets_the_count(world: World) -> None:
    await world.add(pause_after=3)
    world.endings = ["fail", "fail", "succeed", "fail", "fail", "fail"]
    assert await world.fires_until_paused() == 6


async def test_what_is_skipped_or_cancelled_neither_counts_nor_resets(world: World) -> None:
    await world.add(pause_after=3)
    world.endings = ["fail", "skip", "fail", "skip", "skip", "fail"]
    assert await world.fires_until_paused() == 6


async def test_a_retry_counts_by_its_verdict() -> None:
    scheduler = Scheduler("sqlite://", app="retries")

    @scheduler.task(retry=Constant("1s", attempts=3))
    async def job() -> None:
        raise ValueError("no")

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="k", when="every 1h", task=job, pause_after=2)
        await kit.advance("1h30m")
        assert not (await scheduler.schedule("k")).is_paused, "one failed run of three attempts"
        await kit.advance("1h")
        assert (await scheduler.schedule("k")).is_paused


async def test_triggers_reruns_and_backfills_neither_count_nor_reset(world: World) -> None:
    await world.add(pause_after=3)
    for _ in range(5):
        await world.scheduler.trigger("k")
        await world.kit.run_until_idle()
    assert not await world.is_paused()
    await world.kit.advance("2h")
    world.endings = ["succeed", "fail"]
    await world.scheduler.trigger("k")
    await world.kit.run_until_idle()
    assert await world.fires_until_paused() == 1


async def test_without_the_option_nothing_is_paused(world: World) -> None:
    await world.add()
    assert await world.fires_until_paused() == 0


# --- where the count begins


async def test_the_count_restarts_after_a_resume(world: World) -> None:
    await world.add(pause_after=3)
    assert await world.fires_until_paused() == 3
    await world.scheduler.resume("k")
    assert await world.fires_until_paused() == 3


async def test_the_count_restarts_when_a_pause_ends_by_itself(world: World) -> None:
    await world.add(pause_after=3)
    await world.kit.advance("2h")
    await world.scheduler.pause("k", until=datetime(2026, 6, 1, 5, 30, tzinfo=UTC))
    await world.kit.advance_to("2026-06-01T05:30:00Z")
    assert await world.fires_until_paused() == 3


async def test_the_count_restarts_after_an_edit(world: World) -> None:
    await world.add(pause_after=3)
    await world.kit.advance("2h")
    await world.scheduler.update("k", priority=1)
    assert await world.fires_until_paused() == 3


async def test_an_edit_that_changes_nothing_does_not_reset_it(world: World) -> None:
    await world.add(pause_after=3)
    await world.kit.advance("2h")
    before = await world.scheduler.schedule("k")
    await world.scheduler.update("k", priority=0)
    assert (await world.scheduler.schedule("k")).version > before.version
    assert await world.fires_until_paused() == 1


async def test_a_decision_about_a_single_moment_does_not_reset_it(world: World) -> None:
    await world.add(pause_after=3)
    await world.kit.advance("2h")
    before = await world.scheduler.schedule("k")
    await world.scheduler.skip_next("k")
    assert (await world.scheduler.schedule("k")).version > before.version
    assert await world.fires_until_paused() == 2, "the skipped one, and the third failure"


async def test_the_option_can_be_given_later_and_taken_away(world: World) -> None:
    await world.add()
    await world.kit.advance("5h")
    await world.scheduler.update("k", pause_after=2)
    assert not await world.is_paused(), "what failed before does not count"
    assert await world.fires_until_paused() == 2
    await world.scheduler.update("k", pause_after=None)
    await world.scheduler.resume("k")
    assert await world.fires_until_paused(5) == 0


# --- trouble


async def _look_away(*_: object) -> None:
    """As if the node had died between the verdict and the look."""


async def test_a_failure_that_was_not_looked_at_is_found_by_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_pause, "pause_failing", _look_away)
    await world.add(pause_after=3)
    await world.kit.advance("3h30m")
    assert not await world.is_paused()
    await world.kit.downtime("1m")  # a start begins with a sweep
    await world.kit.advance("1m")
    assert await world.is_paused()
    assert len(world.heard) == 1


async def test_a_failure_that_was_not_looked_at_is_counted_with_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(auto_pause, "pause_failing", _look_away)
        await world.add(pause_after=2)
        await world.kit.advance("3h30m")
    assert not await world.is_paused()
    assert await world.fires_until_paused() == 1


async def test_a_look_that_the_store_refuses_is_taken_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.add(pause_after=1)
    engine = world.scheduler.runtime.engine
    assert engine is not None
    store, looks = engine._node.store, list[object]()
    look = store.failing

    async def away_once(app: str, **wanted: Any) -> Any:
        looks.append(wanted)
        if len(looks) == 1:
            raise StoreUnavailable("away")
        return await look(app, **wanted)

    monkeypatch.setattr(store, "failing", away_once)
    await world.kit.advance("1h")
    assert (len(looks), await world.is_paused()) == (1, False)
    await world.kit.advance("1s")
    assert (len(looks), await world.is_paused()) == (2, True)


async def test_however_many_fail_at_once_all_are_paused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_pause, "_BATCH", 2)
    for number in range(5):
        await world.scheduler.add(key=f"k{number}", when="every 1h", task="job", pause_after=1)
    await world.kit.advance("1h30m")
    assert all(schedule.is_paused for schedule in await world.scheduler.schedules())
    assert len(world.heard) == 5


async def test_failures_of_which_only_the_ledger_knows_are_looked_for_once_a_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.scheduler.runtime.engine
    assert engine is not None
    await world.kit.advance("1m")
    store, looks = engine._node.store, list[object]()
    look = store.failing

    async def counted(app: str, *, ids: Any = None, limit: int) -> Any:
        looks.append(ids)
        return await look(app, ids=ids, limit=limit)

    monkeypatch.setattr(store, "failing", counted)
    for _ in range(90):
        engine._reporter.on_failed()
        await world.kit.advance("10ms")
    assert looks == [None], "at once"
    await world.kit.advance("10s")
    assert looks == [None, None], "and once more for what came in between"


async def test_a_look_at_all_that_has_to_wait_delays_no_other(world: World) -> None:
    engine = world.scheduler.runtime.engine
    assert engine is not None
    await world.add(pause_after=1)
    await world.kit.advance("59m59s990ms")
    for _ in range(2):
        engine._reporter.on_failed()
        await world.kit.advance("5ms")
    await world.kit.advance("100ms")
    assert await world.is_paused()


async def test_a_resume_at_the_same_time_is_not_overruled(world: World) -> None:
    await world.add(pause_after=2)
    await world.kit.advance("1h")
    store = await world.scheduler.runtime.store()
    editor = (await world.scheduler.runtime.context()).editor()
    await world.kit.advance("1h")
    assert await world.is_paused()
    await world.scheduler.resume("k")
    await world.scheduler.update("k", pause_after=1)
    await world.kit.advance("59m")
    [] = await store.failing("shop")
    # Seen as failing, then edited by somebody: what was seen does not hold any more.
    [stored] = await store.stored_schedules("shop", keys=["k"])
    seen = Failing(
        schedule_id=stored.id,
        key="k",
        version=stored.version - 1,
        count=2,
        run="r",
        verdict=Verdict.FAILED,
        reason=None,
        error="no",
    )
    assert await editor.pause_failing(seen) is None
    assert not await world.is_paused()


async def test_of_two_nodes_one_pauses_and_tells(tmp_path: Path) -> None:
    url, heard = f"sqlite:///{tmp_path}/jobs.db", list[Event]()

    def node(name: str) -> Scheduler:
        scheduler = Scheduler(url, node_name=name, poll_interval="50ms")

        @scheduler.task
        async def job() -> None:
            raise ValueError("no")

        scheduler.on("paused", heard.append)
        return scheduler

    async with node("one@a") as one, node("two@a"):
        await one.add(key="k", when="every 20ms", task="job", pause_after=5, overlap="allow")
        async with asyncio.timeout(20):
            while not (await one.schedule("k")).is_paused:
                await asyncio.sleep(0.02)
        runs = [run for run in await one.runs("k", limit=1000) if run.verdict is Verdict.FAILED]
        assert len(runs) >= 5
    assert [event.schedule_key for event in heard] == ["k"]


def _lost_world(url: str) -> Scheduler:
    scheduler = Scheduler(url, lease="1s", poll_interval="100ms", node_name="finder@a")

    @scheduler.task(on_lost="fail")
    async def job() -> None: ...

    return scheduler


async def test_runs_that_were_lost_with_their_node_count(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "program.py").write_text(
        f"""
import time
from evertick import Scheduler

scheduler = Scheduler({url!r}, lease="1s", poll_interval="100ms", node_name="lost@a")

@scheduler.task(on_lost="fail")
def job():
    print("at work", flush=True)
    time.sleep(600)

scheduler.sync.add(key="k", when="every 50ms; max_fires=1", task=job, pause_after=1)
scheduler.run()
"""
    )
    with preloaded.popen([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "at work\n"
        os.kill(program.pid, signal.SIGKILL)
    async with _lost_world(url) as finder:
        async with asyncio.timeout(30):
            while not (schedule := await finder.schedule("k")).is_paused:
                await asyncio.sleep(0.05)
        [run] = await finder.runs("k")
        assert run.verdict is Verdict.LOST
        assert schedule.pause_note.startswith("its last run has failed, the last error: node_died")


@pytest.mark.parametrize("wrong", [0, 1001, 2.5, "3", True])
def test_a_number_that_cannot_be_is_refused(wrong: Any) -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(InvalidSetting, match=r"pause_after: .* must be a whole number from 1 to 1000, or None"):

        @scheduler.every("1h", pause_after=wrong)
        def job() -> None: ...
