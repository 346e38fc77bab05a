"""What the engine looks after by itself: undeclared schedules, changed zone rules, dead nodes' hooks, a lost store."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import preloaded
from evertick import Calendar, Cron, Event, Every, Once, Scheduler
from evertick.clock import system_clock
from evertick.engine.sweep import Sweeper
from evertick.ledger.atomic_edit import BatchEditor, Halt, ScheduleBatch
from evertick.scheduler.process import EXIT_STALLED
from evertick.store.base import NodeJoin
from evertick.testing import virtual_time
from evertick.when import base

START = "2026-03-02T00:00:00+00:00"


async def until(condition, seconds: float = 20.0):  # type: ignore[no-untyped-def]
    """Wait for something that another thread or process brings about."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
        return found


async def test_what_the_code_no_longer_declares_is_paused_at_the_next_start_and_resumed_with_the_declaration(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    def program(*keys: str) -> Scheduler:
        scheduler = Scheduler(url, node_name="shop@host")
        for key in keys:

            async def job() -> None: ...

            scheduler.every("1h", key=key, name=key)(job)
        return scheduler

    async with program("kept", "dropped"):
        pass
    async with program("kept") as after:

        async def paused():  # type: ignore[no-untyped-def]
            schedule = await after.schedule("dropped")
            return schedule if schedule.is_paused else None

        schedule = await until(paused)
        assert "no longer declared by shop" in schedule.pause_note
        assert not (await after.schedule("kept")).is_paused
    async with program("kept", "dropped") as again:
        assert not (await again.schedule("dropped")).is_paused


async def test_a_service_that_is_down_keeps_its_schedules(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    worker, web = Scheduler(url, node_name="worker@a"), Scheduler(url, node_name="web@a")

    @worker.every("1h")
    async def job() -> None: ...

    async with worker:
        pass
    async with web:
        store = await web.runtime.store()
        # The sweep's first step is over when it has parked, refreshed and looked at what is declared.
        await until(lambda: _swept(web))
        assert not (await web.schedule("job")).is_paused
        assert await store.declared_schedules(web.app)


async def test_a_new_schedule_that_an_old_node_pauses_before_its_own_has_joined_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    old, new = Scheduler(url, node_name="shop@a"), Scheduler(url, node_name="shop@b")

    @new.every("1h")
    async def job() -> None: ...

    async with old:
        store = await new.runtime.store()
        join = store.join

        async def join_late(node: NodeJoin) -> None:
            await _sweep(old)
            assert (await old.schedule("job")).is_paused, "it is stored, and nobody has said yet that he declares it"
            await join(node)

        monkeypatch.setattr(store, "join", join_late)
        async with new:
            await until(lambda: _swept(new))
            assert not (await new.schedule("job")).is_paused


async def test_what_was_paused_as_undeclared_is_resumed_by_a_live_node_that_declares_it_and_no_other_pause(
    tmp_path: Path,
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", node_name="shop")

    async def job() -> None: ...

    for key in ("overruled", "disabled", "by hand"):
        scheduler.every("1h", key=key, name=key)(job)
    async with scheduler:
        await until(lambda: _swept(scheduler))
        store = await scheduler.runtime.store()
        editor = BatchEditor(store, scheduler.app, system_clock, "UTC")
        await editor.pause_undeclared("overruled", "shop")
        await editor.pause("by hand")
        [stored] = await store.stored_schedules(scheduler.app, keys=["disabled"])
        halt = Halt(key="disabled", note="by another file", is_disabled=True)
        await editor.change_together(ScheduleBatch(halts=(halt,), versions={"disabled": (stored.id, stored.version)}))
        await _sweep(scheduler)
        paused = {each.key for each in await scheduler.schedules() if each.is_paused}
    assert paused == {"disabled", "by hand"}


async def _sweep(scheduler: Scheduler) -> None:
    assert scheduler.runtime.engine is not None
    await Sweeper(scheduler.runtime.engine._node, (await scheduler.runtime.context()).editor()).step()


async def _swept(scheduler: Scheduler) -> bool:
    assert scheduler.runtime.engine is not None
    health = {loop.name: loop for loop in scheduler.runtime.engine.health().loops}
    return health["sweep"].last_success_seconds_ago is not None


async def test_cursors_are_recomputed_when_the_zone_rules_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="berlin", when=Cron("0 9 * * *", tz="Europe/Berlin"), task="job")
    await scheduler.add(key="utc", when=Every("1h"), task="job")
    before = {each.key: each.version for each in await scheduler.schedules()}
    real = base.zone_fingerprint
    monkeypatch.setattr(base, "zone_fingerprint", lambda name: "new" if name == "Europe/Berlin" else real(name))
    editor = (await scheduler.runtime.context()).editor()
    assert await editor.refresh_cursors() == 1
    assert await editor.refresh_cursors() == 0
    after = {each.key: each.version for each in await scheduler.schedules()}
    assert after == {"berlin": before["berlin"] + 1, "utc": before["utc"]}
    await scheduler.close()


async def test_a_schedule_that_owes_something_is_not_settled_by_new_zone_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler("sqlite://", node_name="here")

    @scheduler.cron("0 3 * * *", tz="Europe/Berlin")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        real = base.zone_fingerprint

        def renew() -> None:
            monkeypatch.setattr(base, "zone_fingerprint", lambda name: f"new {real(name)}")

        asyncio.get_running_loop().call_later(3600, renew)
        await kit.downtime("5h")
        assert len(kit.fired("job")) == 1
        assert kit.gaps("job") == []


async def test_a_changed_calendar_moves_the_schedules_that_use_it() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.set_calendar(Calendar("open", include=["mon-fri"]))
        await scheduler.add(key="k", when=Cron("0 9 * * *", calendar="open"), task=job)
        await kit.advance("1d")
        await scheduler.set_calendar(Calendar("open", include=["fri"]))
        await kit.advance("7d")
        fired = [f"{moment:%a}" for moment in kit.fired("k")]
    assert fired == ["Mon", "Fri"]


async def test_a_refused_addition_changes_no_calendar() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    weekdays, sundays = Calendar("biz", include=["mon-fri"]), Calendar("biz", include=["sun"])
    await scheduler.add(key="k", when=Cron("0 9 * * *", calendar=weekdays), task="job")
    with pytest.raises(ValueError, match="exists already; nothing was added"):
        await scheduler.add(key="k", when=Cron("0 9 * * *", calendar=sundays), task="job")
    with pytest.raises(LookupError):
        await scheduler.update("unknown", when=Cron("0 9 * * *", calendar=sundays))
    assert [calendar.version for calendar in await scheduler.calendars()] == [weekdays.version]
    await scheduler.close()


def changed_code(url: str, **options: object) -> Scheduler:
    scheduler = Scheduler(url, node_name="shop", tz=str(options.pop("tz", "UTC")))

    async def job() -> None: ...

    scheduler.once(after="10m", key="once", name="once", **options)(job)  # type: ignore[arg-type]
    scheduler.every("1h", since="start", key="every", name="every", **options)(job)  # type: ignore[arg-type]
    calendar = Calendar("open", include=["mon-fri"])
    scheduler.cron("0 9 * * *", key="nine", name="nine", calendar=calendar, **options)(job)  # type: ignore[arg-type]
    return scheduler


async def stored_rules(scheduler: Scheduler) -> dict[str, str]:
    async with scheduler:
        return {schedule.key: schedule.when for schedule in await scheduler.schedules()}


async def test_changing_an_option_of_a_declaration_keeps_the_anchor_of_its_rule(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    before = await stored_rules(changed_code(url, priority=0))
    after = await stored_rules(changed_code(url, priority=1))
    assert after == before


async def test_changing_the_zone_of_the_scheduler_changes_the_schedules_that_name_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    await stored_rules(changed_code(url))
    after = await stored_rules(changed_code(url, tz="Europe/Berlin"))
    assert "tz=Europe/Berlin" in after["nine"]


async def test_changing_a_calendar_in_code_reaches_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    def program(days: str) -> Scheduler:
        scheduler = Scheduler(url, node_name="shop")

        async def job() -> None: ...

        scheduler.cron("0 9 * * *", name="job", calendar=Calendar("open", include=[days]))(job)
        return scheduler

    await stored_rules(program("mon-fri"))
    async with program("sun") as scheduler:
        [calendar] = await scheduler.calendars()
        schedule = await scheduler.schedule("job")
    assert calendar.version == Calendar("open", include=["sun"]).version
    assert schedule.next_fire_at is not None
    assert f"{schedule.next_fire_at:%a}" == "Sun"


async def test_hooks_hear_what_the_store_itself_has_ended() -> None:
    scheduler = Scheduler("sqlite://", concurrency=1)
    heard: list[Event] = []
    for kind in ("missed", "cancelled", "skipped"):
        scheduler.on(kind, heard.append)  # type: ignore[arg-type]

    @scheduler.task
    async def busy() -> None:
        await asyncio.sleep(3600)

    @scheduler.task
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await busy.enqueue()
        await kit.advance("1s")
        expired = await job.options(expires="10m").enqueue()
        waiting = await job.enqueue()
        await scheduler.cancel(waiting)
        await kit.advance("2h")
    told = {(event.kind, event.reason, event.run_id) for event in heard}
    assert ("missed", "expired", expired.id) in told
    assert ("cancelled", "requested", waiting.id) in told


DOOMED = """
import sys, time
from evertick import Scheduler
scheduler = Scheduler(sys.argv[1], lease="1s")

@scheduler.task(on_lost="fail")
def doomed() -> None:
    print("started", flush=True)
    time.sleep(600)

doomed.sync.enqueue()
scheduler.sync.close()
scheduler.run()
"""


async def test_the_hook_for_lost_runs_hears_of_a_node_that_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    node = preloaded.popen([sys.executable, "-c", DOOMED, url], stdout=subprocess.PIPE)
    assert node.stdout is not None
    assert await asyncio.to_thread(node.stdout.readline) == b"started\n"
    node.kill()
    node.wait()
    node.stdout.close()
    survivor = Scheduler(url, lease="1s")
    lost: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    survivor.on("lost", lambda event: loop.call_soon_threadsafe(lost.put_nowait, event))

    @survivor.task(on_lost="fail")
    def doomed() -> None:
        raise AssertionError("it must not run twice")

    async with survivor:
        event = await asyncio.wait_for(lost.get(), 20)
        run = await survivor.get_run(event.run_id or "")
    assert (run.verdict, run.reason, run.losses) == ("lost", "node_died", 1)


async def test_work_that_must_not_run_beside_its_re_run_is_stopped_when_the_store_is_away(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    scheduler = Scheduler(f"sqlite:///{path}?busy_timeout=100ms", lease="2s", stop_timeout="1s")
    started, stopped, went_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @scheduler.task(on_unreachable="stop")
    async def careful() -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    @scheduler.task
    async def easy() -> None:
        await stopped.wait()
        went_on.set()

    async with scheduler:
        await easy.enqueue()
        await careful.enqueue()
        await asyncio.wait_for(started.wait(), 10)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await asyncio.wait_for(stopped.wait(), 15)
        await asyncio.wait_for(went_on.wait(), 15)
        other.execute("ROLLBACK")
        other.close()
    assert careful.work.on_unreachable == "stop"
    assert easy.work.on_unreachable == "continue"


async def test_a_stop_is_bounded_though_the_store_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    scheduler = Scheduler(f"sqlite:///{path}?busy_timeout=200ms", stop_timeout="100ms")
    started = asyncio.Event()

    @scheduler.task
    async def job() -> None:
        started.set()
        await asyncio.sleep(600)

    await scheduler.__aenter__()
    await job.enqueue()
    await asyncio.wait_for(started.wait(), 10)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(15):
        await scheduler.__aexit__(None, None, None)
    other.execute("ROLLBACK")
    other.close()
    reader = Scheduler(f"sqlite:///{path}", concurrency=0)
    [run] = await reader.runs()
    await reader.close()
    assert run.state == "running", "nobody could write that it was released; its lease will run out"


async def test_work_of_another_process_is_noticed_by_looking_at_the_file_alone(tmp_path: Path) -> None:
    """No poll and no beat comes to help: both are an hour away."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url, poll_interval="1h", lease="5h")
    started = asyncio.Event()

    @scheduler.task
    async def job() -> None:
        started.set()

    program = (
        "import sys; from evertick import Once, Scheduler; s = Scheduler(sys.argv[1], concurrency=0);"
        "s.sync.add(key='k', when=Once(after='0s'), task='job'); s.sync.close()"
    )
    async with scheduler:
        await until(lambda: _swept(scheduler))
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url)
        await other.wait()
        await asyncio.wait_for(started.wait(), 20)
    assert other.returncode == 0


async def test_a_one_shot_in_the_past_of_a_new_program_is_kept_and_never_fires() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="past", when=Once(kit.now - timedelta(days=1)), task=job)
        await kit.advance("1d")
        assert kit.fired("past") == []


BLOCKED = """
import sys, time
from evertick import Scheduler
scheduler = Scheduler(sys.argv[1], lease="2s", stall_limit="10s")

@scheduler.every("100ms")
async def block() -> None:
    print("started", flush=True)
    time.sleep(600)

scheduler.run()
"""


async def test_a_node_whose_loop_stays_blocked_writes_its_own_death_and_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BLOCKED, url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert node.stdout is not None
    assert await node.stdout.readline() == b"started\n"
    _, said = await asyncio.wait_for(node.communicate(), 40)
    assert node.returncode == EXIT_STALLED, said
    assert b"this node ends itself" in said
    reader = Scheduler(url, concurrency=0)
    [dead] = await reader.nodes()
    await reader.close()
    assert dead.died_at is not None
    assert dead.died_at < dead.lease_until, "by its own hand, not because its lease ran out"
