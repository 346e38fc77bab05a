"""What has ended is run again: as a new run, for the same moment, by the rules of its schedule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evertick import (
    Cause,
    Context,
    Cron,
    Every,
    InvalidArguments,
    InvalidInput,
    NotFound,
    Refused,
    Run,
    Scheduler,
    Skip,
    State,
    Verdict,
)
from evertick.testing import Kit, virtual_time

START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """Jobs that fail until they are repaired."""

    def __init__(self) -> None:
        self.scheduler = Scheduler("sqlite://", app="shop")
        self.is_broken = True
        self.did: list[tuple[datetime, int]] = []
        scheduler = self.scheduler

        @scheduler.task
        async def job(amount: int = 1) -> int:
            self.did.append((self.kit.now, amount))
            if self.is_broken:
                raise ValueError("out of order")
            return amount

        @scheduler.task
        async def other() -> None:
            raise ValueError("out of order")

        self.job, self.other = job, other
        self.kit: Kit

    async def add(self, key: str = "k", **options: Any) -> None:
        await self.scheduler.add(key=key, when=Cron("0 * * * *"), task="job", **options)

    async def ended(self, run: Run) -> Run:
        await self.kit.run_until_idle()
        return await self.scheduler.get_run(run.id)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with virtual_time(made.scheduler, start=START) as made.kit:
        yield made


# --- one run


async def test_a_failed_run_is_run_again_for_its_moment_with_its_arguments(world: World) -> None:
    await world.add(args={"amount": 7}, queue="default", priority=3, labels={"team": "ops"}, expires="10m")
    await world.kit.advance("1h30m")
    [old] = world.kit.runs("k")
    world.is_broken = False
    again = await world.scheduler.rerun(old)
    assert again.id != old.id
    assert (again.cause, again.caused_by, again.schedule_key) == (Cause.RERUN, old.id, "k")
    assert (again.task, again.queue, again.priority, again.labels) == ("job", "default", 3, {"team": "ops"})
    assert (again.fire_at, again.due_at) == (START + timedelta(hours=1), START + timedelta(minutes=90))
    assert again.expires_at == START + timedelta(minutes=100)
    ended = await world.ended(again)
    assert (ended.verdict, ended.result, ended.started_at) == (Verdict.SUCCEEDED, 7, START + timedelta(minutes=90))
    assert [run.id for run in world.kit.runs("k")] == [old.id, again.id]
    assert await world.scheduler.get_run(old.id) == old


async def test_a_rerun_has_the_arguments_that_the_old_run_had_whatever_the_schedule_says_now(world: World) -> None:
    await world.add(args={"amount": 7})
    await world.kit.advance("1h")
    await world.scheduler.update("k", args={"amount": 8}, priority=5)
    again = await world.scheduler.rerun(world.kit.runs("k")[0].id)
    assert (again.args, again.priority) == ({"amount": 7}, 0)
    await world.ended(again)
    assert world.did[-1][1] == 7


async def test_a_rerun_may_be_given_other_arguments_which_must_fit(world: World) -> None:
    old = await world.ended(await world.job.enqueue(amount=2))
    with pytest.raises(InvalidArguments, match="price"):
        await world.scheduler.rerun(old, args={"price": 3})
    with pytest.raises(InvalidInput):
        await world.scheduler.rerun(old, args=[3])  # type: ignore[arg-type]
    again = await world.scheduler.rerun(old, args={"amount": 3})
    assert (again.args, again.schedule_key, again.caused_by) == ({"amount": 3}, None, old.id)
    await world.ended(again)
    assert [amount for _, amount in world.did] == [2, 3]


async def test_whatever_has_ended_can_be_rerun(world: World) -> None:
    async def rerun_of(run: Run, verdict: Verdict) -> None:
        old = await world.scheduler.get_run(run.id)
        assert old.verdict is verdict
        assert (await world.ended(await world.scheduler.rerun(old))).verdict is Verdict.SUCCEEDED

    cancelled = await world.job.options(delay="1h").enqueue()
    await world.scheduler.cancel(cancelled)
    world.is_broken = False
    await rerun_of(cancelled, Verdict.CANCELLED)
    succeeded = await world.ended(await world.job.enqueue())
    await rerun_of(succeeded, Verdict.SUCCEEDED)
    await world.kit.advance("1h")
    missed = await world.ended(await world.job.options(at=START, expires="1m").enqueue())
    await rerun_of(missed, Verdict.MISSED)


async def test_what_a_job_has_skipped_can_be_rerun() -> None:
    scheduler, is_ready = Scheduler("sqlite://"), False

    @scheduler.task
    async def load() -> None:
        if not is_ready:
            raise Skip("no file")

    async with virtual_time(scheduler) as kit:
        old = await load.enqueue()
        await kit.run_until_idle()
        is_ready = True
        again = await scheduler.rerun(old)
        await kit.run_until_idle()
        assert [run.verdict for run in kit.runs()] == [Verdict.SKIPPED, Verdict.SUCCEEDED]
        assert kit.runs()[1].id == again.id


async def test_what_was_lost_is_rerun_with_what_failed() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task(on_lost="fail")
    async def pay() -> None:
        await asyncio.sleep(3600)

    async with virtual_time(scheduler) as kit:
        old = await pay.enqueue()
        await kit.advance("1m")
        await kit.downtime("10m")
        assert kit.runs()[0].verdict is Verdict.LOST
        [again] = await scheduler.rerun_many()
        await kit.run_until_idle()
        assert (again.caused_by, kit.runs()[1].verdict) == (old.id, Verdict.SUCCEEDED)


async def test_a_live_run_is_refused_with_its_state(world: World) -> None:
    waiting = await world.job.options(delay="1h").enqueue()
    with pytest.raises(Refused, match=f"run '{waiting.id}' has not ended, it is waiting"):
        await world.scheduler.rerun(waiting)


async def test_the_state_that_counts_is_that_of_now(world: World) -> None:
    old = await world.job.enqueue()
    assert old.is_live
    await world.kit.run_until_idle()
    assert (await world.scheduler.rerun(old)).caused_by == old.id


async def test_an_unknown_run_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="there is no run 'nope' in app 'shop'"):
        await world.scheduler.rerun("nope")
    with pytest.raises(InvalidInput, match="is not a run; pass a Run or the id of one"):
        await world.scheduler.rerun(7)  # type: ignore[arg-type]


async def test_a_rerun_can_be_rerun(world: World) -> None:
    first = await world.ended(await world.job.enqueue())
    second = await world.ended(await world.scheduler.rerun(first))
    third = await world.scheduler.rerun(second)
    assert (third.caused_by, third.fire_at) == (second.id, first.fire_at)


# --- the schedule


async def test_a_rerun_moves_no_cursor_and_counts_as_no_fire(world: World) -> None:
    await world.add()
    await world.kit.advance("1h30m")
    before = await world.scheduler.schedule("k")
    await world.ended(await world.scheduler.rerun(before.last_run_id or ""))
    after = await world.scheduler.schedule("k")
    assert (after.next_fire_at, after.fires) == (before.next_fire_at, before.fires)
    await world.kit.advance("1h")
    world.kit.assert_fired("k", times=2)


async def test_a_paused_schedule_lets_a_rerun_in(world: World) -> None:
    await world.add()
    await world.kit.advance("1h")
    await world.scheduler.pause("k")
    world.is_broken = False
    again = await world.scheduler.rerun(world.kit.runs("k")[0])
    assert (await world.ended(again)).verdict is Verdict.SUCCEEDED


async def test_the_run_of_a_schedule_that_is_gone_stands_by_itself(world: World) -> None:
    await world.add(args={"amount": 4})
    await world.kit.advance("1h")
    [old] = world.kit.runs("k")
    await world.scheduler.remove("k")
    again = await world.scheduler.rerun(old)
    assert (again.schedule_key, again.caused_by, again.args) == (None, old.id, {"amount": 4})
    assert (again.fire_at, again.due_at) == (old.fire_at, world.kit.now)
    assert [run.id for run in await world.scheduler.runs(was_rerun=True)] == [old.id]


async def two_failed_and_one_live(world: World, overlap: str) -> tuple[Run, Run, Run]:
    """The live one waits for a node of another queue, so that it stays."""
    await world.add(overlap=overlap)
    await world.kit.advance("2h")
    first, second = world.kit.runs("k")
    await world.scheduler.update("k", queue="elsewhere")
    return first, second, await world.scheduler.trigger("k")


async def test_overlap_skip_refuses_a_rerun_beside_a_live_run(world: World) -> None:
    first, _, live = await two_failed_and_one_live(world, "skip")
    with pytest.raises(Refused, match="'k' has a live run, and its overlap is 'skip'; pass overlap='queue'"):
        await world.scheduler.rerun(first)
    await world.scheduler.cancel(live)
    await world.scheduler.rerun(first)


async def test_overlap_queue_lets_one_rerun_wait_for_the_live_run(world: World) -> None:
    first, second, live = await two_failed_and_one_live(world, "queue")
    again = await world.scheduler.rerun(first)
    assert (again.state, again.blocked_on) == (State.BLOCKED, live.id)
    with pytest.raises(Refused, match="its overlap is 'queue'"):
        await world.scheduler.rerun(second)
    world.is_broken = False
    await world.scheduler.cancel(live)
    assert (await world.ended(again)).verdict is Verdict.SUCCEEDED


async def test_overlap_replace_puts_the_rerun_in_the_place_of_the_live_run(world: World) -> None:
    first, _, live = await two_failed_and_one_live(world, "replace")
    again = await world.scheduler.rerun(first)
    replaced = await world.scheduler.get_run(live.id)
    assert (replaced.verdict, replaced.reason, again.state) == (Verdict.CANCELLED, "replaced", State.WAITING)


async def test_overlap_allow_lets_every_rerun_in(world: World) -> None:
    first, second, _ = await two_failed_and_one_live(world, "allow")
    assert {(await world.scheduler.rerun(each)).state for each in (first, second, first)} == {State.WAITING}


async def test_a_live_rerun_counts_for_the_overlap_of_a_fire(world: World) -> None:
    await world.add()
    await world.kit.advance("1h")
    await world.scheduler.update("k", queue="elsewhere")
    [old] = world.kit.runs("k")
    await world.scheduler.cancel(await world.scheduler.trigger("k"))
    elsewhere = world.kit.runs("k")[-1]
    assert (await world.scheduler.rerun(elsewhere)).queue == "elsewhere"
    await world.kit.advance("1h")
    world.kit.assert_skipped("k", reason="overlap", times=1)
    assert old.verdict is Verdict.FAILED


async def test_what_counts_from_the_end_of_a_run_counts_from_the_end_of_its_rerun(world: World) -> None:
    await world.scheduler.add(key="k", when=Every("1h", after="end"), task="job")
    await world.kit.advance("1h30m")
    again = await world.ended(await world.scheduler.rerun(world.kit.runs("k")[0]))
    assert again.finished_at is not None
    assert (await world.scheduler.schedule("k")).next_fire_at == again.finished_at + timedelta(hours=1)


# --- many runs


async def test_what_failed_is_rerun_oldest_first_and_only_once(world: World) -> None:
    await world.add(overlap="allow")
    await world.kit.advance("3h")
    old = world.kit.runs("k")
    world.is_broken = False
    again = await world.scheduler.rerun_many()
    assert [run.caused_by for run in again] == [run.id for run in old]
    assert await world.scheduler.rerun_many() == []
    await world.kit.run_until_idle()
    assert await world.scheduler.rerun_many() == []
    assert await world.scheduler.runs(verdicts=["failed"], was_rerun=False) == []
    assert len(await world.scheduler.runs(verdicts=["failed"], was_rerun=True)) == 3


async def test_a_rerun_that_failed_in_its_turn_is_rerun_in_place_of_the_first(world: World) -> None:
    first = await world.ended(await world.job.enqueue())
    [second] = await world.scheduler.rerun_many()
    await world.kit.run_until_idle()
    [third] = await world.scheduler.rerun_many()
    assert (second.caused_by, third.caused_by) == (first.id, second.id)


async def test_many_are_chosen_by_schedule_task_verdict_time_and_limit(world: World) -> None:
    await world.add("a", overlap="allow")
    await world.add("b", overlap="allow", labels={"team": "b"})
    await world.kit.advance("3h")
    by_hand = await world.ended(await world.job.enqueue())
    world.is_broken = False
    fine = await world.ended(await world.job.enqueue())
    hours = [START + timedelta(hours=number) for number in range(4)]

    async def chosen(**wanted: Any) -> list[tuple[str | None, datetime]]:
        return [(run.schedule_key, run.fire_at) for run in await world.scheduler.rerun_many(**wanted)]

    assert await chosen(task="other") == []
    assert await chosen(verdicts=["lost", "missed"]) == []
    assert await chosen(verdicts=[]) == []
    assert await chosen(schedule_key="a", since=hours[2], limit=1) == [("a", hours[2])]
    assert await chosen(schedule_key="a", until=hours[1]) == [("a", hours[1])]
    assert await chosen(labels={"team": "none"}) == []
    assert await chosen(labels={"team": "b"}, until=hours[2]) == [("b", hours[1]), ("b", hours[2])]
    assert await chosen(schedule_key="a") == [("a", hours[3])]
    assert await chosen(verdicts=["succeeded"], task="job", limit=1) == [(None, fine.fire_at)]
    assert await chosen() == [("b", hours[3]), (None, by_hand.fire_at)]
    assert await chosen() == []


class Machine:
    """A schedule that fires every hour and fails, until it is repaired; then each run takes ten minutes."""

    def __init__(self, **options: Any) -> None:
        self.scheduler = Scheduler("sqlite://", app="shop")
        self.is_broken = True
        self.began: list[datetime] = []
        self.at_work = self.at_work_most = 0
        self.options = {"when": Cron("0 * * * *"), "task": "job", **options}
        self.kit: Kit

        @self.scheduler.task
        async def job(ctx: Context, amount: int = 1) -> int:
            if self.is_broken:
                raise ValueError("out of order")
            self.began.append(ctx.fire_at)
            self.at_work += 1
            self.at_work_most = max(self.at_work_most, self.at_work)
            try:
                await asyncio.sleep(600)
            finally:
                self.at_work -= 1
            return amount

    @asynccontextmanager
    async def after_failures(self, count: int, *keys: str) -> AsyncIterator[list[Run]]:
        """Ten minutes after so many failed fires, repaired."""
        async with virtual_time(self.scheduler, start=START) as self.kit:
            for key in keys or ("k",):
                await self.scheduler.add(key=key, **self.options)
            await self.kit.advance(timedelta(hours=count, minutes=10))
            self.is_broken = False
            yield self.kit.runs()

    async def verdicts_of(self, runs: list[Run]) -> list[Verdict | None]:
        return [(await self.scheduler.get_run(run.id)).verdict for run in runs]


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_many_of_one_schedule_run_one_after_the_other_and_nobody_waits_for_them(overlap: str) -> None:
    machine = Machine(overlap=overlap)
    async with machine.after_failures(4) as old:
        again = await machine.scheduler.rerun_many(schedule_key="k")
        assert [run.caused_by for run in again] == [run.id for run in old]
        assert [run.state for run in again] == [State.WAITING, *[State.BLOCKED] * 3]
        assert [run.blocked_on for run in again] == [None, *(run.id for run in again[:-1])]
        assert machine.kit.now == START + timedelta(hours=4, minutes=10)
        await machine.kit.advance("45m")
        assert machine.began == [run.fire_at for run in old]
        assert machine.at_work_most == 1
        assert await machine.verdicts_of(again) == [Verdict.SUCCEEDED] * 4


async def test_many_wait_for_the_run_that_is_live() -> None:
    machine = Machine()
    async with machine.after_failures(3) as old:
        by_hand = await machine.scheduler.trigger("k")
        await machine.kit.advance("1m")
        again = await machine.scheduler.rerun_many()
        assert [run.blocked_on for run in again] == [by_hand.id, again[0].id, again[1].id]
        await machine.kit.advance("45m")
        assert machine.began[1:] == [run.fire_at for run in old]
        assert machine.at_work_most == 1


async def test_a_fire_obeys_overlap_while_reruns_stand_in_line() -> None:
    machine = Machine()
    async with machine.after_failures(8) as old:
        again = await machine.scheduler.rerun_many()
        await machine.kit.advance("1h30m")
        machine.kit.assert_skipped("k", reason="overlap", times=1)
        assert machine.began == [run.fire_at for run in old]
        assert await machine.verdicts_of(again) == [Verdict.SUCCEEDED] * 8


@pytest.mark.parametrize("place", [0, 1, 2, 3])
async def test_one_of_the_line_can_be_cancelled_and_the_others_keep_their_order(place: int) -> None:
    machine = Machine()
    async with machine.after_failures(4) as old:
        again = await machine.scheduler.rerun_many()
        await machine.kit.advance("1m")
        await machine.scheduler.cancel(again[place])
        await machine.kit.advance("45m")
        stayed = [run for number, run in enumerate(old) if number != place]
        assert [moment for moment in machine.began if moment != old[place].fire_at] == [run.fire_at for run in stayed]
        assert machine.at_work_most == 1
        verdicts = await machine.verdicts_of(again)
        assert verdicts.pop(place) is Verdict.CANCELLED
        assert verdicts == [Verdict.SUCCEEDED] * 3


async def test_two_lines_become_one() -> None:
    machine = Machine()
    async with machine.after_failures(4) as old:
        late = await machine.scheduler.rerun_many(since=old[2].fire_at)
        early = await machine.scheduler.rerun_many()
        assert [run.blocked_on for run in [*late, *early]] == [None, late[0].id, late[1].id, early[0].id]
        await machine.kit.advance("45m")
        assert machine.began == [run.fire_at for run in (*old[2:], *old[:2])]
        assert machine.at_work_most == 1


async def test_schedules_do_not_wait_for_each_other() -> None:
    machine = Machine()
    async with machine.after_failures(2, "a", "b"):
        again = await machine.scheduler.rerun_many()
        assert sorted((run.schedule_key, run.state) for run in again) == [
            ("a", State.BLOCKED),
            ("a", State.WAITING),
            ("b", State.BLOCKED),
            ("b", State.WAITING),
        ]
        await machine.kit.advance("25m")
        assert machine.at_work_most == 2
        assert len(machine.began) == 4


async def test_many_may_be_started_at_once() -> None:
    machine = Machine()
    async with machine.after_failures(3):
        again = await machine.scheduler.rerun_many(overlap="allow")
        assert {run.state for run in again} == {State.WAITING}
        await machine.kit.advance("1m")
        assert machine.at_work == 3


async def test_one_rerun_may_wait_for_what_is_live_or_run_beside_it() -> None:
    machine = Machine()
    async with machine.after_failures(2) as old:
        live = await machine.scheduler.trigger("k")
        behind = await machine.scheduler.rerun(old[0], overlap="queue")
        beside = await machine.scheduler.rerun(old[1], overlap="allow")
        assert (behind.state, behind.blocked_on) == (State.BLOCKED, live.id)
        assert (beside.state, beside.blocked_on) == (State.WAITING, None)


async def test_the_line_ends_with_its_schedule() -> None:
    machine = Machine()
    async with machine.after_failures(3):
        again = await machine.scheduler.rerun_many()
        await machine.kit.advance("1m")
        await machine.scheduler.remove("k")
        await machine.kit.advance("1h")
        assert await machine.verdicts_of(again) == [Verdict.SUCCEEDED, Verdict.CANCELLED, Verdict.CANCELLED]


async def test_a_line_of_a_schedule_that_counts_from_the_end_counts_from_the_end_of_its_last() -> None:
    machine = Machine(when=Every("1h", after="end"))
    async with machine.after_failures(3):
        again = await machine.scheduler.rerun_many()
        await machine.kit.advance("31m")
        last = await machine.scheduler.get_run(again[-1].id)
        assert (last.verdict, machine.at_work_most) == (Verdict.SUCCEEDED, 1)
        assert last.finished_at is not None
        assert (await machine.scheduler.schedule("k")).next_fire_at == last.finished_at + timedelta(hours=1)


async def test_what_a_unique_key_forbids_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(unique="one")
    async with machine.after_failures(3) as old:
        again = await machine.scheduler.rerun_many(schedule_key="k")
        assert [run.caused_by for run in again] == [old[0].id]
        why = "another run has the unique key 'one' of 'k'"
        assert f"app {machine.scheduler.app!r}: 2 of 3 runs not rerun: {why}" in caplog.messages
        await machine.kit.advance("30m")
        assert [run.caused_by for run in await machine.scheduler.rerun_many()] == [old[1].id]


async def test_many_may_be_given_other_arguments_if_they_are_of_one_task(world: World) -> None:
    await world.add()
    await world.kit.advance("2h")
    await world.ended(await world.other.enqueue())
    with pytest.raises(InvalidInput, match=r"these runs are of 2 tasks \(job, other\); select runs of one task"):
        await world.scheduler.rerun_many(args={"amount": 5})
    with pytest.raises(InvalidArguments):
        await world.scheduler.rerun_many(task="job", args={"price": 5})
    assert await world.scheduler.runs(was_rerun=True) == []
    again = await world.scheduler.rerun_many(task="job", args={"amount": 5})
    assert [run.args for run in again] == [{"amount": 5}] * 2


@pytest.mark.parametrize(
    "wrong",
    [{"verdicts": "failed"}, {"verdicts": ["bad"]}, {"limit": 0}, {"since": "yesterday"}, {"overlap": "skip"}],
    ids=str,
)
async def test_a_question_that_cannot_be_is_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await world.scheduler.rerun_many(**wrong)
    with pytest.raises(InvalidInput, match="overlap: 'skip' is unknown; pass one of None, 'queue', 'allow'"):
        await world.scheduler.rerun("x", overlap="skip")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="was_rerun: 'no' must be True, False or None"):
        await world.scheduler.runs(was_rerun="no")  # type: ignore[arg-type]


def test_the_plain_forms_rerun_as_well() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)

    @scheduler.task
    def job() -> None: ...

    old = job.sync.enqueue()
    scheduler.sync.cancel(old)
    assert scheduler.sync.rerun(old).caused_by == old.id
    assert scheduler.sync.rerun_many(verdicts=["cancelled"]) == []
    assert [run.id for run in scheduler.sync.runs(was_rerun=True)] == [old.id]
    scheduler.sync.close()
