"""The texts of `why`, for every situation of a schedule."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec

from evertick import Calendar, Constant, Context, Cron, Every, Once, Scheduler, Skip
from evertick.explain.run import _able_words, live_words
from evertick.explain.schedule import _idle_words
from evertick.model import Node, State
from evertick.store.base import NodeJoin, TaskTerms
from evertick.testing import virtual_time

START = "2026-03-02T00:00:00+00:00"


def a_scheduler(**settings: object) -> Scheduler:
    return Scheduler("sqlite://", node_name="here", **settings)  # type: ignore[arg-type]


async def test_a_new_schedule_shows_its_first_fire_and_the_reason() -> None:
    scheduler = a_scheduler()

    @scheduler.cron("0 9 * * mon-fri", tz="Europe/Berlin")
    async def report() -> None: ...

    async with virtual_time(scheduler, start=START):
        why = await scheduler.why("report")
    assert why.next.startswith("2026-03-02 09:00:00 Europe/Berlin, because of its rule: ")
    assert "09:00" in why.next
    assert why.last == "it has not fired yet"
    assert why.now == "it waits for its next moment"
    assert why.notes == ()
    assert str(why).splitlines() == [f"Next: {why.next}", f"Last: {why.last}", f"Now:  {why.now}"]


async def test_a_pause_is_shown_with_its_note_and_its_end() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.pause("job", note="the printer is on fire", until=datetime(2026, 3, 2, 5, 30, tzinfo=UTC))
        why = await scheduler.why("job")
        await kit.advance("3h")
        await scheduler.resume("job")
        after = await scheduler.why("job")
    assert (
        "it is paused until 2026-03-02 05:30:00 UTC since 2026-03-02 00:00:00 UTC: the printer is on fire" in why.next
    )
    assert why.now == "it waits for nothing"
    assert after.last == (
        "3 moments from 2026-03-02 01:00:00 UTC to 2026-03-02 03:00:00 UTC were skipped: the schedule was paused"
    )


async def test_a_rule_without_further_moments_fires_never() -> None:
    scheduler = a_scheduler()

    @scheduler.once(after="10m")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("1h")
        why = await scheduler.why("job")
    assert why.next.startswith("never: its rule has no further moment")
    assert why.last == "the run of 2026-03-02 00:10:00 UTC succeeded"


async def test_a_running_run_is_shown_with_its_progress_and_the_after_end_rule() -> None:
    scheduler = a_scheduler()

    @scheduler.every("10m", after="end")
    async def job(ctx: Context) -> None:
        ctx.progress(0.25, "reading")
        await asyncio.sleep(3600)

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("20m")
        why = await scheduler.why("job")
        run = kit.runs("job")[0]
        await scheduler.cancel(run)
        await kit.advance("1m")
        cancelled = await scheduler.why("job")
    assert f"counted from the end of run {run.id}, which is running" in why.next
    assert why.now == f"run {run.id} (attempt 1) runs since 2026-03-02 00:10:00 UTC on here, at 25% reading"
    assert cancelled.last.endswith("ended as cancelled: it was requested")


async def test_a_run_of_a_silent_node_is_shown_with_its_recovery_time() -> None:
    scheduler = a_scheduler()

    @scheduler.every("10m")
    async def job() -> None:
        await asyncio.sleep(3600)

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("10m")
        [run], [node] = kit.runs("job"), await scheduler.nodes()
    assert run.state is State.RUNNING
    node = msgspec.structs.replace(node, lease_until=node.beat_at + timedelta(seconds=15))
    ends = live_words(run, [node], node.beat_at + timedelta(seconds=3), None)
    assert ends.endswith(" on here")
    silent = live_words(run, [node], node.beat_at + timedelta(seconds=6), None)
    fate = "if it does not return, the run is reassigned, or lost if on_lost='fail'"
    alone = "about 18 s after a node is started: it declares no death in its first 15 s"
    assert silent.endswith(f" on here, which is silent for 6 s ({fate}, {alone})")
    soon = live_words(run, [node], node.beat_at + timedelta(seconds=4), None)
    assert soon.endswith(f" on here, which is silent for 4 s ({fate}, {alone})"), "a beat is due every 3 s"
    late = live_words(run, [node], node.lease_until + timedelta(seconds=4), None)
    assert late.endswith(f" on here, which is silent for 19 s ({fate}, {alone})")
    assert live_words(run, [], node.lease_until, None).endswith(
        " on a dead node: it will be reassigned, or lost if on_lost='fail'"
    )
    bound = msgspec.structs.replace(run, queue=f"@{node.id}")
    assert live_words(bound, [], node.lease_until, None).endswith("will be lost, as it is for that node only")


async def test_another_node_declares_a_silent_node_dead_after_its_lease_and_one_own_lease() -> None:
    scheduler = a_scheduler()

    @scheduler.every("10m")
    async def job() -> None:
        await asyncio.sleep(3600)

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("10m")
        [run], [node] = kit.runs("job"), await scheduler.nodes()
    lease = timedelta(seconds=15)
    node = msgspec.structs.replace(node, lease_until=node.beat_at + lease)

    def words_at(seconds: float, *, other_started: float) -> str:
        """The answer this long after the last heartbeat, with a second node started then that has just sent one."""
        now, began = node.beat_at + timedelta(seconds=seconds), node.beat_at + timedelta(seconds=other_started)
        beaten = msgspec.structs.replace(node, beat_at=now, lease_until=now + lease)
        other = msgspec.structs.replace(beaten, id="2", name="there", started_at=began)
        return live_words(run, [node, other], now, Every("10m", tz="UTC")).partition("on_lost='fail', ")[2]

    assert words_at(6, other_started=-1000) == "in about 12 s, at 00:00:18 UTC)"
    assert words_at(19, other_started=-1000) == "at the next heartbeat of another node)"
    # The daemon was killed, and is back 20 s later.
    assert words_at(21, other_started=20) == "in about 17 s, at 00:00:38 UTC)"
    assert words_at(37, other_started=20) == "in about 1 s, at 00:00:38 UTC)"
    assert words_at(39, other_started=20) == "at the next heartbeat of another node)"


async def test_a_killed_node_is_not_counted_as_live_before_it_is_declared_dead() -> None:
    scheduler = a_scheduler()

    @scheduler.every("10m")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("1s")
        [node], schedule = await scheduler.nodes(), await scheduler.schedule("job")
    beat, lease = node.beat_at, timedelta(seconds=15)
    node = msgspec.structs.replace(node, lease_until=beat + lease)

    def words_after(seconds: float, *others: Node) -> str:
        return _idle_words(schedule, [node, *others], beat + timedelta(seconds=seconds))

    assert words_after(3) == "it waits for its next moment"
    assert words_after(7) == "it waits for its next moment (here is silent for 7 s)"
    gone = "nothing will fire until one is started"
    assert words_after(35) == f"no node is alive (here is silent for 35 s): {gone}"
    before = msgspec.structs.replace(node, id="2", name="there", beat_at=beat - lease, lease_until=beat)
    assert words_after(35, before) == f"no node is alive (here is silent for 35 s, and 1 more for longer): {gone}"
    live = msgspec.structs.replace(node, id="3", beat_at=beat + timedelta(seconds=34), lease_until=beat + 3 * lease)
    assert words_after(35, live) == "it waits for its next moment"
    other = msgspec.structs.replace(live, tasks=())
    assert words_after(35, other) == "it waits; no live node knows task 'job'"


async def test_a_waiting_run_without_a_live_node_waits_for_another_node() -> None:
    scheduler = a_scheduler(concurrency=1)

    @scheduler.every("10m", overlap="queue")
    async def job() -> None:
        await asyncio.sleep(3600)

    @scheduler.task
    async def other() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("10m")
        run = await scheduler.get_run((await other.enqueue()).id)
        [node] = await scheduler.nodes()
    assert run.state is State.WAITING
    beat = run.due_at
    node = msgspec.structs.replace(node, beat_at=beat, lease_until=beat + timedelta(seconds=15))
    assert " waits for a free slot since " in live_words(run, [node], beat + timedelta(seconds=6), None)
    late = live_words(run, [node], beat + timedelta(seconds=35), None)
    assert late.endswith(": no node is alive (here is silent for 35 s); it needs one that knows task 'other'")


async def test_a_silent_node_does_not_count_as_able_to_run() -> None:
    scheduler = a_scheduler()

    @scheduler.every("10m")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("1s")
        [node] = await scheduler.nodes()
    node = msgspec.structs.replace(node, lease_until=node.beat_at + timedelta(seconds=15))
    now = node.beat_at + timedelta(seconds=6)
    heard = msgspec.structs.replace(node, id="2", name="there", beat_at=now, lease_until=now + timedelta(seconds=15))
    assert _able_words([node], "job", node.beat_at) == "here can run it"
    assert _able_words([node], "job", now) == "here (silent for 6 s) can run it, when its heartbeats return"
    assert _able_words([node, heard], "job", now) == "there, here (silent for 6 s) can run it"


async def test_a_failure_is_shown_with_its_error_and_a_retry_with_its_time() -> None:
    scheduler = a_scheduler()

    @scheduler.cron("0 1 * * *", retry=Constant("1h", attempts=2))
    async def job() -> None:
        raise RuntimeError("no paper")

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance_to(datetime(2026, 3, 2, 1, 30, tzinfo=UTC))
        waiting = await scheduler.why("job")
        await kit.advance("2h")
        failed = await scheduler.why("job")
    assert waiting.now.endswith(
        " waits for its retry at 2026-03-02 02:00:00 UTC; attempt 1 failed: RuntimeError: no paper"
    )
    assert waiting.last == "none of its runs has ended yet"
    assert failed.last == (
        "the run of 2026-03-02 01:00:00 UTC ended as failed: the job raised an error "
        "(RuntimeError: no paper), after 2 attempts"
    )


async def test_the_reason_of_a_job_that_skipped_is_shown() -> None:
    scheduler = a_scheduler()

    @scheduler.cron("0 1 * * *")
    async def job() -> None:
        raise Skip("nothing new today")

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("2h")
        why = await scheduler.why("job")
    assert why.last.endswith("ended as skipped: nothing new today")


async def test_downtime_is_shown_as_a_late_run_and_a_gap() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await kit.downtime("3h30m")
        why = await scheduler.why("job")
    assert "the run of 2026-03-02 03:00:00 UTC succeeded: it ran late" in why.last
    assert "(started 2026-03-02 03:30:00 UTC)" in why.last
    assert "before it, 2 moments from 2026-03-02 01:00:00 UTC to 2026-03-02 02:00:00 UTC were skipped" in why.last


async def test_an_overlap_is_shown_with_the_live_run() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h")
    async def job() -> None:
        await asyncio.sleep(5400)

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("2h45m")
        why = await scheduler.why("job")
    assert why.last == (
        "the moment 2026-03-02 02:00:00 UTC was skipped: an earlier run of the schedule was still live; "
        "the run before, of 2026-03-02 01:00:00 UTC, succeeded"
    )


async def test_a_queued_run_names_the_run_it_waits_for() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h", overlap="queue")
    async def job() -> None:
        await asyncio.sleep(7200)

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("2h15m")
        why = await scheduler.why("job")
        running = next(run for run in kit.runs("job") if run.state == "running")
    assert f"waits for the end of run {running.id}" in why.now


async def test_a_run_that_no_node_can_run_names_what_is_missing() -> None:
    scheduler = a_scheduler()

    @scheduler.task
    async def other() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="orphan", when=Every("1h"), task="gone")
        idle = await scheduler.why("orphan")
        await kit.advance("1h1s")
        waiting = await scheduler.why("orphan")
        store = await scheduler.runtime.store()
        await store.park_unknown(scheduler.app, 10)
        parked = await scheduler.why("orphan")
    assert idle.now == "it waits; no live node knows task 'gone'"
    assert "waits for a node that knows task 'gone' since " in waiting.now
    assert "is parked: no live node knows task 'gone'; start one that does" in parked.now


async def test_a_run_of_a_queue_without_a_node_shows_that_and_the_fix() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h", key="train", queue="gpu")
    async def train() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="orphan", when=Every("1h"), task="gone", queue="gpu")
        await kit.advance("1h1s")
        known, unknown = await scheduler.why("train"), await scheduler.why("orphan")
        [node] = await scheduler.nodes()
    assert "waits for a node that knows task 'train' to work on queue 'gpu' since " in known.now
    taught = "knows the task, and works on 'default' only: add 'gpu' to its node.queues, and restart it"
    assert known.now.endswith(f"; node {node.name} {taught}")
    assert "waits for a node that knows task 'gone' and works on queue 'gpu' since " in unknown.now


async def test_why_shows_that_nothing_fires_without_a_node() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="k", when=Every("1h"), task="job")
    why = await scheduler.why("k")
    await scheduler.close()
    assert why.now == "no node is alive: nothing will fire until one is started"


async def test_a_run_waits_for_a_free_slot() -> None:
    scheduler = a_scheduler(concurrency=1)

    @scheduler.task
    async def busy() -> None:
        await asyncio.sleep(86400)

    @scheduler.every("1h")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await busy.enqueue()
        await kit.advance("1h1m")
        why = await scheduler.why("job")
    assert "waits for a free slot since 2026-03-02 01:00:00 UTC" in why.now


async def test_a_moment_delayed_by_jitter_is_shown_as_such() -> None:
    scheduler = a_scheduler()
    when = Cron("0 1 * * *", jitter="30m")
    async with virtual_time(scheduler, start=START):
        await scheduler.add(key="k", when=when, task="job")
        delay = when.jitter_us(int(datetime(2026, 3, 2, 1, tzinfo=UTC).timestamp()) * 1_000_000, "k") / 1e6
        why = await scheduler.why("k")
    assert f"2026-03-02 01:00:00 UTC, delayed by {delay:.1f} s (jitter" in why.next


async def test_overrides_and_differing_declarations_are_shown() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START):
        await scheduler.update("job", priority=7)
        store = await scheduler.runtime.store()
        other = NodeJoin(
            id="other",
            name="there",
            app=scheduler.app,
            version="0",
            lease=10**12,
            queues=("default",),
            tasks={"job": TaskTerms()},
            declares={"job": "another hash"},
        )
        await store.join(other)
        why = await scheduler.why("job")
    assert why.notes == (
        "edited at run time, so it differs from the code: priority",
        "live nodes declare it differently; the declaration of the last one started is in force",
    )


async def test_a_schedule_that_cannot_be_planned_shows_the_reason() -> None:
    scheduler = a_scheduler()

    @scheduler.task
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        open_hours = Calendar("open", include=["mon-fri"])
        await scheduler.add(key="k", when=Cron("0 * * * *", calendar=open_hours), task=job)
        store = await scheduler.runtime.store()
        [stored] = await store.stored_schedules(scheduler.app, keys=["k"])
        broken = msgspec.structs.replace(stored.definition, when="cron 0 * * * *; calendar=gone")
        editor = (await scheduler.runtime.context()).editor()
        current = await editor._current("k")
        change = editor._settle(current, "edited")  # type: ignore[arg-type]
        from evertick.store.base import Change

        assert await store.change_schedules(
            scheduler.app, [Change(key="k", kind="edit", settle=change, definition=broken)]
        ) == [True]
        await kit.advance("2h")
        why = await scheduler.why("k")
        schedule = await scheduler.schedule("k")
    assert "'gone'" in (schedule.error or "")
    assert any("could not be planned" in note and "'gone'" in note for note in why.notes)
    assert any("its rule cannot be read" in note for note in why.notes)
    assert "its rule cannot be read" in why.next


async def test_a_once_in_the_future_waits_for_its_time() -> None:
    scheduler = a_scheduler()

    @scheduler.task
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="k", when=Once(kit.now + timedelta(hours=1)), task=job)
        await scheduler.trigger("k")
        await kit.run_until_idle()
        why = await scheduler.why("k")
    assert why.last == "the run of 2026-03-02 00:00:00 UTC succeeded"
