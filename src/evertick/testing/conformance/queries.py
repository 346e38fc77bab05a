"""Promises about lists: filters, order and limits of runs, gaps and schedules; and rows that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from evertick.model import Cause, MessageState, Pause, Reason, Run, State, Verdict
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import DeclaredBy, ScheduleFilter, TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    SECOND,
    TASK,
    TERMS,
    Bench,
    a_definition,
    a_fire,
    a_gap,
    a_run,
    an_advance,
    us,
)
from evertick.testing.conformance.outbox import a_message, claim, one

__all__ = ["Queries", "UnreadableRows"]


async def _five_runs(bench: Bench) -> list[Run]:
    """Enqueued runs, oldest first, a minute apart, long due."""
    start = await bench.now() - HOUR
    return [
        await bench.enqueue(fire_at=start + number * MINUTE, due_at=start + number * MINUTE, labels={"n": str(number)})
        for number in range(5)
    ]


class Queries:
    # --- runs

    async def test_runs_are_listed_newest_first_up_to_the_limit(self, bench: Bench) -> None:
        made = [run.id for run in await _five_runs(bench)]
        assert [run.id for run in await bench.runs()] == made[::-1]
        assert [run.id for run in await bench.runs(limit=2)] == made[:2:-1]

    async def test_runs_are_listed_oldest_first_on_request(self, bench: Bench) -> None:
        node = await bench.node()
        made = [run.id for run in await _five_runs(bench)]
        for held in (await bench.claim(node, limit=2)).runs:
            await bench.end(node, held)
        assert [run.id for run in await bench.runs(is_oldest_first=True)] == made
        assert [run.id for run in await bench.runs(is_oldest_first=True, limit=3)] == made[:3]

    async def test_live_and_finished_runs_are_listed_in_one_order(self, bench: Bench) -> None:
        node = await bench.node()
        made = await _five_runs(bench)
        for held in (await bench.claim(node)).runs:
            if held.id in (made[1].id, made[4].id):
                await bench.end(node, held)
        assert [run.id for run in await bench.runs()] == [run.id for run in made[::-1]]
        assert [run.id for run in await bench.runs(limit=3)] == [run.id for run in made[:1:-1]]

    async def test_runs_are_found_by_id(self, bench: Bench) -> None:
        made = [run.id for run in await _five_runs(bench)]
        found = await bench.runs(ids=(made[3], made[1], a_run().id))
        assert [run.id for run in found] == [made[3], made[1]]
        assert await bench.runs(ids=()) == []

    async def test_runs_are_found_by_a_prefix_of_their_id(self, bench: Bench) -> None:
        ids = [f"019b76da-a8{digits}-7000-8000-000000000000" for digits in ("7f", "70", "80")]
        live, ended, _ = [await bench.enqueue(id=id_) for id_ in ids]
        await bench.cancel(ended.id)
        assert {run.id for run in await bench.runs(id_prefix="019b76da-a87")} == {live.id, ended.id}
        assert [run.id for run in await bench.runs(id_prefix="019b76da-a87f-")] == [live.id]
        assert [run.id for run in await bench.runs(id_prefix=live.id)] == [live.id]
        for other in ("019b76da-a9", "019b76daa87", "019B76DA", "run-", f"{live.id}0"):
            assert await bench.runs(id_prefix=other) == []

    async def test_runs_are_found_by_schedule(self, bench: Bench) -> None:
        await bench.enqueue()
        await bench.fire(await bench.add("other"))
        run = await bench.fire(await bench.add())
        assert [found.id for found in await bench.runs(schedule_key="nightly")] == [run]
        assert await bench.runs(schedule_key="no such") == []

    async def test_runs_are_found_by_task(self, bench: Bench) -> None:
        await bench.enqueue()
        mail = await bench.enqueue(task="mail")
        assert [run.id for run in await bench.runs(task="mail")] == [mail.id]

    async def test_runs_are_found_by_state_and_by_verdict(self, bench: Bench) -> None:
        node = await bench.node()
        failed, succeeded, running = [await bench.hold(node) for _ in range(3)]
        await bench.end(node, failed, verdict=Verdict.FAILED)
        await bench.end(node, succeeded)
        waiting = await bench.enqueue()

        async def found(**wanted: Any) -> set[str]:
            return {run.id for run in await bench.runs(**wanted)}

        assert await found(states=(State.WAITING,)) == {waiting.id}
        assert await found(states=(State.RUNNING, State.WAITING)) == {running.id, waiting.id}
        assert await found(states=(State.DONE,)) == {failed.id, succeeded.id}
        assert await found(states=(State.DONE, State.RUNNING)) == {failed.id, succeeded.id, running.id}
        assert await found(verdicts=(Verdict.FAILED,)) == {failed.id}
        assert await found(verdicts=(Verdict.FAILED, Verdict.SUCCEEDED)) == {failed.id, succeeded.id}
        assert await found(verdicts=(Verdict.LOST,)) == set()
        assert await found(states=(State.RUNNING,), verdicts=(Verdict.FAILED,)) == set()

    async def test_runs_are_found_only_if_all_labels_match(self, bench: Bench) -> None:
        both = await bench.enqueue(labels={"a": "1", "b": "2"})
        await bench.enqueue(labels={"a": "1"})
        await bench.enqueue(labels={"a": "2", "b": "1"})
        assert len(await bench.runs(labels={"a": "1"})) == 2
        assert [run.id for run in await bench.runs(labels={"a": "1", "b": "2"})] == [both.id]
        assert await bench.runs(labels={"c": "1"}) == []

    async def test_runs_are_found_by_whether_they_were_rerun(self, bench: Bench) -> None:
        node = await bench.node()
        alone, other, repeated = [await bench.end(node, await bench.hold(node)) for _ in range(3)]
        rerun = await bench.enqueue(cause=Cause.RERUN, fire_at=us(repeated.fire_at), caused_by=repeated.id)
        # Only cause RERUN makes a rerun, `caused_by` alone does not.
        child = await bench.enqueue(fire_at=us(other.fire_at), caused_by=other.id)

        async def found(**wanted: Any) -> set[str]:
            return {run.id for run in await bench.runs(**wanted)}

        for _ in range(2):  # While the rerun is live, and after its end.
            assert await found(was_rerun=True) == {repeated.id}
            assert await found(was_rerun=False) == {alone.id, other.id, rerun.id, child.id}
            assert await found(was_rerun=False, ids=(repeated.id, alone.id)) == {alone.id}
            await bench.cancel(rerun.id)

    async def test_a_rerun_of_a_moment_is_a_second_run_beside_the_first(self, bench: Bench) -> None:
        schedule = await bench.add()
        fired = await bench.fire(schedule)
        moment = us((await bench.run(fired)).fire_at)
        await bench.cancel(fired)
        rerun = a_run(cause=Cause.RERUN, fire_at=moment, caused_by=fired, schedule_id=schedule.id)
        recorded = await bench.record(an_advance(await bench.stored(), runs=(rerun,)))
        assert (recorded.taken, recorded.left_out) == ([True], [])
        assert [run.id for run in await bench.runs(schedule_key=schedule.key)] == [rerun.id, fired]

    async def test_runs_are_filtered_by_moment_with_both_ends_included(self, bench: Bench) -> None:
        made = await _five_runs(bench)
        since, until = us(made[1].fire_at), us(made[3].fire_at)
        found = await bench.runs(since=since, until=until)
        assert [run.id for run in found] == [run.id for run in made[3:0:-1]]
        assert len(await bench.runs(since=since + 1, until=until - 1)) == 1
        assert len(await bench.runs(since=until)) == 2
        assert len(await bench.runs(until=since)) == 2

    async def test_several_filters_apply_together(self, bench: Bench) -> None:
        made = await _five_runs(bench)
        found = await bench.runs(since=us(made[1].fire_at), labels={"n": "2"}, states=(State.WAITING,), limit=1)
        assert [run.id for run in found] == [made[2].id]

    # --- gaps

    async def test_gaps_that_overlap_the_time_range_are_listed_newest_first(self, bench: Bench) -> None:
        schedule = await bench.add(fire_at=1000 * SECOND)
        stretches = [(100, 200), (300, 400), (500, 600)]
        await bench.record(an_advance(schedule, gaps=tuple(a_gap(first, last) for first, last in stretches)))

        async def found(**wanted: Any) -> list[int]:
            return [us(gap.first_at) for gap in await bench.gaps(**wanted)]

        assert await found() == [500, 300, 100]
        assert await found(limit=2) == [500, 300]
        assert await found(since=200, until=300) == [300, 100]
        assert await found(since=201, until=299) == []
        assert await found(since=350, until=360) == [300]
        assert await found(since=600) == [500]
        assert await found(until=100) == [100]

    async def test_gaps_are_found_by_schedule_and_verdict(self, bench: Bench) -> None:
        first, second = await bench.add("first"), await bench.add("second")
        await bench.record(an_advance(first, gaps=(a_gap(1, 2),)))
        await bench.record(an_advance(second, gaps=(a_gap(1, 2, verdict=Verdict.MISSED, reason="grace"),)))
        assert [gap.schedule_key for gap in await bench.gaps(schedule_key="first")] == ["first"]
        [missed] = await bench.gaps(verdicts=(Verdict.MISSED,))
        assert (missed.schedule_key, missed.reason) == ("second", "grace")

    @pytest.mark.parametrize(
        "wanted",
        [{"ids": ("x",)}, {"states": (State.WAITING,)}, {"labels": {"a": "b"}}, {"was_rerun": False}],
        ids=lambda wanted: next(iter(wanted)),
    )
    async def test_filters_that_apply_only_to_runs_match_no_gap(self, bench: Bench, wanted: dict[str, Any]) -> None:
        await bench.record(an_advance(await bench.add(), gaps=(a_gap(1, 2),)))
        assert await bench.gaps(**wanted) == []

    # --- schedules

    async def test_a_listed_schedule_has_the_fields_it_was_written_with(self, bench: Bench) -> None:
        now = await bench.now()
        await bench.add(
            fire_at=now + HOUR,
            at=now + HOUR + 5,
            args={"x": 1},
            queue="slow",
            priority=2,
            labels={"a": "b"},
            catch_up="all",
            catch_up_limit=7,
            grace=90 * SECOND,
            overlap="replace",
        )
        schedule = await bench.schedule()
        assert (schedule.key, schedule.app, schedule.task, schedule.when) == ("nightly", APP, "tidy", "every 1m")
        assert (schedule.args, schedule.queue, schedule.priority) == ({"x": 1}, "slow", 2)
        assert (schedule.labels, schedule.catch_up, schedule.catch_up_limit) == ({"a": "b"}, "all", 7)
        assert (schedule.grace_seconds, schedule.overlap) == (90.0, "replace")
        assert (us(schedule.next_fire_at), us(schedule.next_due_at)) == (now + HOUR, now + HOUR + 5)
        assert us(schedule.created_at) == now + HOUR
        assert schedule.version == (await bench.stored()).version
        assert (schedule.is_paused, schedule.paused_at, schedule.pause_note) == (False, None, "")
        assert (schedule.is_declared, schedule.overrides, schedule.fires) == (False, (), 0)
        assert (schedule.last_run_id, schedule.last_fire_at, schedule.last_state) == (None, None, None)
        assert (schedule.last_verdict, schedule.last_reason) == (None, None)
        assert (schedule.counts, schedule.error) == ({}, None)

    async def test_a_paused_schedule_shows_the_start_note_and_end_of_its_pause(self, bench: Bench) -> None:
        await bench.pause(await bench.add(), pause=Pause(at=5, note="holiday", until=99))
        schedule = await bench.schedule()
        assert schedule.is_paused
        assert (us(schedule.paused_at), schedule.pause_note, us(schedule.paused_until)) == (5, "holiday", 99)

    async def test_schedules_are_listed_by_key_in_pages(self, bench: Bench) -> None:
        for key in ("delta", "alpha", "charlie", "bravo"):
            await bench.add(key)

        async def found(**wanted: Any) -> list[str]:
            return [schedule.key for schedule in await bench.store.schedules(APP, ScheduleFilter(**wanted))]

        assert await found() == ["alpha", "bravo", "charlie", "delta"]
        assert await found(limit=2) == ["alpha", "bravo"]
        assert await found(limit=2, after_key="bravo") == ["charlie", "delta"]
        assert await found(after_key="delta") == []
        assert await found(keys=("delta", "alpha", "no such")) == ["alpha", "delta"]
        assert await found(keys=()) == []

    async def test_schedules_can_be_listed_in_due_order(self, bench: Bench) -> None:
        start = await bench.now()
        for key, minutes in (("late", 30), ("early", 10), ("middle", 20)):
            await bench.add(key, fire_at=start + minutes * MINUTE, at=start + minutes * MINUTE)
        await bench.pause(await bench.add("paused"), pause=Pause(at=5))

        async def found(**wanted: Any) -> list[str]:
            filter_ = ScheduleFilter(is_by_due=True, **wanted)
            return [schedule.key for schedule in await bench.store.schedules(APP, filter_)]

        assert await found() == ["early", "middle", "late"]
        assert await found(limit=2) == ["early", "middle"]
        assert await found(keys=("late", "early", "paused")) == ["early", "late"]

    async def test_schedules_are_found_by_label_and_by_pause(self, bench: Bench) -> None:
        await bench.add("plain", labels={"a": "1"})
        await bench.pause(await bench.add("paused", labels={"a": "1", "b": "2"}), pause=Pause(at=5))

        async def found(**wanted: Any) -> list[str]:
            return [schedule.key for schedule in await bench.store.schedules(APP, ScheduleFilter(**wanted))]

        assert await found(labels={"a": "1"}) == ["paused", "plain"]
        assert await found(labels={"a": "1", "b": "2"}) == ["paused"]
        assert await found(is_paused=True) == ["paused"]
        assert await found(is_paused=False) == ["plain"]

    async def test_a_schedule_shows_its_last_run_and_counts_its_verdicts(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.add()
        verdicts = [Verdict.SUCCEEDED, Verdict.FAILED, Verdict.SUCCEEDED, Verdict.SKIPPED]
        for verdict in verdicts:
            stored = await bench.stored()
            held = await bench.hold(node, await bench.fire(stored))
            await bench.end(node, held, verdict=verdict, reason="why")
            schedule = await bench.schedule()
            assert (schedule.last_run_id, us(schedule.last_fire_at)) == (held.id, stored.fire_at)
            assert (schedule.last_state, schedule.last_verdict) == (State.DONE, verdict)
            assert schedule.last_reason == "why"
        counted = {name: count for name, count in (await bench.schedule()).counts.items() if count}
        assert counted == {"succeeded": 2, "failed": 1, "skipped": 1}
        stored = await bench.stored()
        live = await bench.fire(stored)
        schedule = await bench.schedule()
        assert (schedule.last_run_id, schedule.last_state, schedule.last_verdict) == (live, State.WAITING, None)
        assert (schedule.fires, us(schedule.last_fire_at)) == (5, stored.fire_at)
        assert not (await bench.schedule(with_counts=False)).counts

    async def test_a_run_of_an_earlier_moment_is_not_the_last_run(self, bench: Bench) -> None:
        schedule = await bench.add()
        newest = await bench.fire(schedule)
        again = await bench.stored()
        assert schedule.fire_at is not None
        earlier = a_fire(again, cause=Cause.BACKFILL, fire_at=schedule.fire_at - HOUR)
        await bench.record(an_advance(again, earlier))
        assert (await bench.schedule()).last_run_id == newest

    async def test_a_declared_schedule_shows_its_overrides_of_run_time(self, bench: Bench) -> None:
        declared = DeclaredBy(
            node_name="web", hash="h", rule="daily", definition=a_definition(priority=1, labels={"a": "b"})
        )
        await bench.add(declared=declared, priority=1, labels={"a": "b"})
        schedule = await bench.schedule()
        assert (schedule.is_declared, schedule.overrides) == (True, ())
        edited = a_definition(priority=5, labels={"a": "b"}, args={"x": 1})
        assert await bench.change("edit", await bench.stored(), definition=edited)
        schedule = await bench.schedule()
        assert (schedule.is_declared, set(schedule.overrides)) == (True, {"priority", "args"})


# --- unreadable rows -------------------------------------------------------------------------------------------------


# A format that only a later release may write.
_NEWER = a_run().format + 1
_LIMITED = {TASK: TaskTerms(concurrency=Concurrency(most=9, of=Subject(task=TASK)))}

both_ways = pytest.mark.parametrize("tasks", [TERMS, _LIMITED], ids=["free", "limited"])


class _Cause(StrEnum):
    """A cause that no release knows, in a row whose format all releases read."""

    UNKNOWN = "unheard-of"


class UnreadableRows:
    # --- runs

    @both_ways
    async def test_a_run_in_a_newer_format_is_left_for_newer_nodes(
        self, bench: Bench, tasks: Mapping[str, TaskTerms]
    ) -> None:
        node = await bench.node(tasks=tasks)
        # First in the queue and expired: an older node must not even end it as expired.
        newer = await bench.enqueue(format=_NEWER, priority=9, expires=1)
        assert (newer.state, newer.reason) == (State.WAITING, Reason.NEWER_FORMAT)
        readable = await bench.enqueue()
        answer = await bench.claim(node, tasks=tasks, limit=1)
        assert ([run.id for run in answer.runs], answer.expired) == ([readable.id], [])
        # Otherwise the node would ask for it again and again.
        assert (await bench.claim(node, tasks=tasks)).next_due_at is None
        assert await bench.run(newer.id) == newer
        assert await bench.cancel(newer.id) == ["ended"]

    async def test_a_run_in_a_newer_format_of_a_dead_node_waits_for_a_newer_node(self, bench: Bench) -> None:
        schedule = await bench.add()
        newer, older = await bench.node(), await bench.node()
        fire = a_fire(schedule, is_claimed=True, format=_NEWER)
        assert (await bench.record(an_advance(schedule, fire), node=newer)).taken == [True]
        assert await bench.state(fire.id) is State.RUNNING
        await bench.store.leave(newer)
        answer = await bench.rehome(older)
        assert (answer.claimed, len(answer.released)) == ([], 1)
        assert (await bench.run(fire.id)).reason == Reason.NEWER_FORMAT

    @both_ways
    async def test_an_unreadable_run_is_parked_and_does_not_stop_other_runs(
        self, bench: Bench, tasks: Mapping[str, TaskTerms]
    ) -> None:
        node = await bench.node(tasks=tasks)
        odd = await bench.enqueue(cause=_Cause.UNKNOWN, priority=9)
        others = [await bench.enqueue() for _ in range(3)]
        answer = await bench.claim(node, tasks=tasks)
        assert [run.id for run in answer.runs] == [run.id for run in others]
        parked = await bench.run(odd.id)
        assert (parked.state, parked.reason, parked.cause) == (State.PARKED, Reason.UNREADABLE, "unheard-of")
        assert parked.error is not None
        assert "unheard-of" in parked.error
        assert [held.id for held in await bench.store.owned(APP, node)] == sorted(run.id for run in others)
        assert await bench.cancel(odd.id) == ["ended"]

    async def test_an_unreadable_run_of_a_dead_node_is_parked_when_it_would_be_reassigned(self, bench: Bench) -> None:
        dying, living = await bench.node(), await bench.node()
        schedule = await bench.add()
        odd = a_fire(schedule, is_claimed=True, cause=_Cause.UNKNOWN)
        await bench.record(an_advance(schedule, odd), node=dying)
        held = await bench.hold(dying)
        await bench.store.leave(dying)
        answer = await bench.rehome(living)
        assert [run.id for run in answer.claimed] == [held.id]
        assert (await bench.run(odd.id)).reason == Reason.UNREADABLE

    # --- messages

    async def test_a_message_in_a_newer_format_is_left_for_newer_nodes(self, bench: Bench) -> None:
        node = await bench.node()
        newer, readable = a_message(format=_NEWER), a_message()
        await bench.store.send(APP, [newer, readable])
        answer = await claim(bench, node, room=1)
        assert [message.id for message in answer.messages] == [readable.id]
        assert answer.next_due_at is None
        assert (await one(bench, newer.id)).state is MessageState.WAITING

    async def test_an_unreadable_message_is_dead_and_does_not_stop_other_messages(self, bench: Bench) -> None:
        node = await bench.node()
        headers: Any = {"text": ["where", "a", "list", "is"]}
        odd, readable = a_message(headers=headers), a_message()
        await bench.store.send(APP, [odd, readable])
        answer = await claim(bench, node)
        assert [message.id for message in answer.messages] == [readable.id]
        dead = await one(bench, odd.id)
        assert (dead.state, dead.attempts) == (MessageState.DEAD, 0)
        assert dead.error is not None
        assert "unreadable row" in dead.error
        assert await bench.store.drop_messages(APP, [odd.id]) == [odd.id]
