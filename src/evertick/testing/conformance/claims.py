"""Promises about waiting runs: enqueue, claim, cancel."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from evertick.model import Cause, NewRun, Reason, State, Verdict
from evertick.store.base import Store, TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    SECOND,
    SHORT_LEASE,
    TASK,
    TERMS,
    Bench,
    a_run,
    an_outcome,
    us,
)
from evertick.testing.conformance.finishing import ENDINGS, Ending, end_waiting_run, expires_for

__all__ = ["Claims"]


class Claims:
    # --- enqueue

    async def test_enqueue_returns_the_run_as_it_is_stored(self, bench: Bench) -> None:
        before = await bench.now()
        run = await bench.enqueue(
            args=b'{"x":[1,null]}', queue="slow", priority=3, labels={"a": "b"}, caused_by="another", expires=HOUR
        )
        assert run.is_new
        assert (run.app, run.task, run.cause, run.schedule_key) == (APP, TASK, Cause.ENQUEUE, None)
        assert (run.args, run.queue, run.priority) == ({"x": [1, None]}, "slow", 3)
        assert (run.labels, run.caused_by) == ({"a": "b"}, "another")
        assert (run.state, run.verdict, run.node) == (State.WAITING, None, None)
        assert us(run.expires_at) == us(run.due_at) + HOUR
        assert before <= us(run.created_at) <= await bench.now()
        assert await bench.run(run.id) == run

    async def test_an_enqueued_run_is_due_by_the_clock_of_the_store(self, bench: Bench) -> None:
        before = await bench.now()
        at_once, later = await bench.store.enqueue(APP, [a_run(), a_run(delay=HOUR)])
        after = await bench.now()
        assert before <= us(at_once.due_at) <= after
        assert before + HOUR <= us(later.due_at) <= after + HOUR
        assert us(later.fire_at) == us(later.due_at)

    async def test_an_enqueue_sent_again_returns_the_existing_run(self, bench: Bench) -> None:
        new = a_run()
        [first] = await bench.store.enqueue(APP, [new])
        [again] = await bench.store.enqueue(APP, [new])
        assert (first.is_new, again.is_new) == (True, False)
        assert msgspec.structs.replace(again, is_new=True) == first
        assert len(await bench.runs()) == 1

    async def test_an_enqueue_sent_again_after_the_verdict_returns_the_finished_run(self, bench: Bench) -> None:
        node = await bench.node()
        new = a_run()
        await bench.store.enqueue(APP, [new])
        await bench.end(node, await bench.hold(node, new.id))
        [again] = await bench.store.enqueue(APP, [new])
        assert (again.is_new, again.verdict) == (False, Verdict.SUCCEEDED)
        assert (await bench.claim(node)).runs == []

    async def test_enqueueing_the_unique_key_of_a_live_run_returns_that_run(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.enqueue(unique_key="k")
        second = await bench.enqueue(unique_key="k")
        assert (second.id, second.is_new) == (first.id, False)
        await bench.hold(node, first.id)
        third = await bench.enqueue(unique_key="k")
        assert (third.id, third.is_new, third.state) == (first.id, False, State.RUNNING)
        assert (await bench.enqueue(unique_key="other")).is_new

    async def test_a_run_that_waits_for_its_retry_keeps_its_unique_key(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.enqueue(unique_key="k")
        await bench.end(node, await bench.hold(node, first.id), kind="retry", delay=HOUR)
        assert (await bench.enqueue(unique_key="k")).id == first.id

    @pytest.mark.parametrize("way", ENDINGS)
    async def test_a_unique_key_is_free_after_the_verdict(self, bench: Bench, way: Ending) -> None:
        ago = await bench.now() - MINUTE
        first = await bench.enqueue(unique_key="k", fire_at=ago, due_at=ago, expires=expires_for(way))
        await end_waiting_run(bench, first.id, way)
        second = await bench.enqueue(unique_key="k")
        assert second.is_new
        assert second.id != first.id

    async def test_the_same_unique_key_twice_in_a_batch_is_one_run(self, bench: Bench) -> None:
        first, second = await bench.store.enqueue(APP, [a_run(unique_key="k"), a_run(unique_key="k")])
        assert (first.is_new, second.is_new) == (True, False)
        assert first.id == second.id
        assert len(await bench.runs()) == 1

    async def test_answers_of_enqueue_are_in_the_order_of_the_batch(self, bench: Bench) -> None:
        known = await bench.enqueue(unique_key="k")
        batch = [a_run(), a_run(unique_key="k"), a_run()]
        answers = await bench.store.enqueue(APP, batch)
        assert [run.id for run in answers] == [batch[0].id, known.id, batch[2].id]

    async def test_a_batch_is_enqueued_completely_or_not_at_all(self, bench: Bench) -> None:
        # Half a surrogate pair is text in Python and in no database.
        batch = [a_run(), a_run(task="\ud800"), a_run()]
        with contextlib.suppress(Exception):
            await bench.store.enqueue(APP, batch)
        assert len(await bench.runs(task=TASK)) in (0, 2)
        assert len(await bench.runs(ids=(batch[0].id, batch[2].id))) in (0, 2)
        assert (await bench.enqueue()).is_new

    async def test_of_concurrent_enqueues_of_one_key_one_is_new(self, bench: Bench) -> None:
        second = await bench.stores.open()
        answers = await asyncio.gather(
            *(store.enqueue(APP, [a_run(unique_key="k")]) for store in (bench.store, second) * 3)
        )
        runs = [run for [run] in answers]
        assert len({run.id for run in runs}) == 1
        assert sum(run.is_new for run in runs) == 1

    # --- claim

    async def test_a_claim_returns_the_fields_that_its_node_needs(self, bench: Bench) -> None:
        node = await bench.node()
        ago = await bench.now() - MINUTE
        run = await bench.enqueue(
            fire_at=ago, due_at=ago + 1, args=b'{"x":1}', priority=2, labels={"a": "b"}, traceparent="00-1-2-03"
        )
        before = await bench.now()
        answer = await bench.claim(node)
        [held] = answer.runs
        assert (held.id, held.task, held.fence) == (run.id, TASK, answer.fence)
        assert msgspec.json.decode(held.args) == {"x": 1}
        assert (held.fire_at, held.due_at) == (ago, ago + 1)
        assert (held.attempts, held.losses, held.cause) == (0, 0, Cause.ENQUEUE)
        assert (held.queue, held.priority, held.labels) == ("default", 2, {"a": "b"})
        assert held.traceparent == "00-1-2-03"
        assert (held.schedule_id, held.schedule_key) == (None, None)
        assert before <= held.claimed_at <= await bench.now()
        assert before <= answer.now <= await bench.now()

    async def test_a_claimed_run_is_running_on_its_node_under_its_fence(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        run = await bench.run(held.id)
        assert (run.state, run.node, run.fence) == (State.RUNNING, node, held.fence)
        assert us(run.started_at) == held.claimed_at

    async def test_a_claimed_fire_names_its_schedule(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(args={"x": 1})
        held = await bench.hold(node, await bench.fire(schedule))
        assert (held.schedule_id, held.schedule_key, held.cause) == (schedule.id, "nightly", Cause.FIRE)
        assert msgspec.json.decode(held.args) == {"x": 1}
        assert held.fire_at == schedule.fire_at

    async def test_higher_priority_is_claimed_first_then_the_longest_due(self, bench: Bench) -> None:
        node = await bench.node()
        now = await bench.now()
        wanted = [(5, 10), (5, 5), (0, 30), (0, 20), (-1, 99)]
        made = {
            (priority, ago): await bench.enqueue(priority=priority, fire_at=now - ago, due_at=now - ago)
            for priority, ago in sorted(wanted)
        }
        claimed = [(await bench.claim(node, limit=1)).runs[0].id for _ in wanted]
        assert claimed == [made[key].id for key in wanted]

    async def test_one_claim_takes_the_first_runs_of_that_order(self, bench: Bench) -> None:
        node = await bench.node()
        now = await bench.now()
        low = await bench.enqueue(fire_at=now - 99, due_at=now - 99)
        high = await bench.enqueue(priority=1, fire_at=now - 1, due_at=now - 1)
        middle = await bench.enqueue(fire_at=now - 100, due_at=now - 100)
        answer = await bench.claim(node, limit=2)
        assert {run.id for run in answer.runs} == {high.id, middle.id}
        assert await bench.state(low.id) is State.WAITING

    async def test_no_more_than_the_limit_is_claimed(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(5)])
        assert (await bench.claim(node, limit=0)).runs == []
        assert len((await bench.claim(node, limit=3)).runs) == 3
        assert len((await bench.claim(node, limit=3)).runs) == 2

    async def test_a_run_is_not_claimed_before_it_is_due(self, bench: Bench) -> None:
        node = await bench.node()
        later = await bench.enqueue(delay=HOUR)
        answer = await bench.claim(node)
        assert answer.runs == []
        assert answer.next_due_at == us(later.due_at)

    async def test_a_run_is_claimed_when_it_is_due_by_the_clock_of_the_store(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.enqueue(delay=SHORT_LEASE)
        await bench.pass_time(2 * SHORT_LEASE)
        assert [held.id for held in (await bench.claim(node)).runs] == [run.id]

    async def test_runs_of_other_queues_and_unknown_tasks_are_left_for_other_nodes(self, bench: Bench) -> None:
        node = await bench.node()
        slow = await bench.enqueue(queue="slow")
        unknown = await bench.enqueue(task="unknown")
        own = await bench.enqueue()
        assert [run.id for run in (await bench.claim(node)).runs] == [own.id]
        answer = await bench.claim(node)
        assert (answer.runs, answer.next_due_at) == ([], None)
        assert await bench.state(slow.id) is State.WAITING
        assert await bench.state(unknown.id) is State.WAITING
        both = await bench.claim(node, queues=["default", "slow"], tasks={**TERMS, "unknown": TaskTerms()})
        assert {run.id for run in both.runs} == {slow.id, unknown.id}

    async def test_a_node_can_know_thousands_of_tasks(self, bench: Bench) -> None:
        tasks = {f"task {number}": TaskTerms(timeout=number) for number in range(3000)}
        queues = tuple(f"queue {number}" for number in range(50))
        node = await bench.node(tasks=tasks, queues=queues)
        run = await bench.enqueue(task="task 2999", queue="queue 49")
        assert [held.id for held in (await bench.claim(node, tasks=tasks, queues=queues)).runs] == [run.id]
        await bench.store.leave(node)
        other = await bench.node(tasks=tasks, queues=queues)
        assert [held.id for held in (await bench.rehome(other, tasks=tasks, queues=queues)).claimed] == [run.id]

    async def test_a_claim_for_no_queue_or_no_task_gets_nothing(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.enqueue()
        assert (await bench.claim(node, queues=[])).runs == []
        assert (await bench.claim(node, tasks={})).runs == []

    async def test_no_run_is_claimed_twice(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await bench.hold(first)
        answer = await bench.claim(second)
        assert (answer.runs, answer.next_due_at) == ([], None)

    async def test_nodes_that_claim_at_the_same_time_take_different_runs(self, bench: Bench) -> None:
        other = await bench.stores.open()
        nodes = [(store, await bench.node()) for store in (bench.store, other) * 4]
        batch = [a_run() for _ in range(40)]
        await bench.store.enqueue(APP, batch)
        answers = await asyncio.gather(*(store.claim(APP, node, ["default"], TERMS, 10) for store, node in nodes))
        taken = [run.id for answer in answers for run in answer.runs]
        assert len(set(taken)) == len(taken)
        rest = await bench.claim(nodes[0][1])
        assert sorted([*taken, *(run.id for run in rest.runs)]) == sorted(run.id for run in batch)
        fences = [answer.fence for answer in answers if answer.runs]
        assert len(set(fences)) == len(fences)

    async def test_many_workers_on_two_stores_end_every_run_once(self, bench: Bench) -> None:
        other = await bench.stores.open()
        batch = [a_run() for _ in range(60)]
        claims: list[tuple[int, str]] = []
        answers: list[str] = []

        async def work(store: Store, node: str, runs: list[NewRun]) -> None:
            for new in runs:
                await store.enqueue(APP, [new])
                taken = await store.claim(APP, node, ["default"], TERMS, 3)
                claims.extend((taken.fence, run.id) for run in taken.runs)
                answers.extend((await store.finish(APP, node, [an_outcome(run) for run in taken.runs])).answers)

        workers = [(store, await bench.node()) for store in (bench.store, other) * 3]
        await asyncio.gather(*(work(store, node, batch[number::6]) for number, (store, node) in enumerate(workers)))
        rest = (await bench.claim(workers[0][1])).runs
        assert sorted([*(run for _, run in claims), *(held.id for held in rest)]) == sorted(run.id for run in batch)
        assert answers == ["done"] * len(claims)
        done = await bench.runs(verdicts=(Verdict.SUCCEEDED,), limit=100)
        assert {run.id for run in done} == {run for _, run in claims}

    async def test_a_later_claim_has_a_greater_fence_across_runs_and_nodes(self, bench: Bench) -> None:
        nodes = [await bench.node(), await bench.node()]
        fences = [(await bench.hold(nodes[number % 2])).fence for number in range(6)]
        assert fences == sorted(set(fences))
        held = await bench.hold(nodes[0])
        await bench.end(nodes[0], held, kind="release")
        assert (await bench.hold(nodes[1], held.id)).fence > held.fence

    async def test_another_store_object_draws_from_the_same_fences(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.hold(node)
        await bench.enqueue()
        second = await (await bench.stores.open()).claim(APP, node, ["default"], TERMS, 10)
        assert second.fence > first.fence
        assert (await bench.hold(node)).fence > second.fence

    async def test_a_node_that_left_or_never_joined_gets_nothing(self, bench: Bench) -> None:
        await bench.enqueue()
        for node in (await bench.dead_node(), "never joined"):
            assert (await bench.claim(node)).runs == []
        assert (await bench.store.pulse(APP)).waiting == 1

    async def test_a_node_that_was_declared_dead_gets_nothing(self, bench: Bench) -> None:
        node = await bench.node(lease=SHORT_LEASE)
        await bench.pass_time(2 * SHORT_LEASE)
        assert await bench.store.judge() == [node]
        await bench.enqueue()
        assert (await bench.claim(node)).runs == []

    async def test_next_due_at_shows_that_more_runs_are_waiting(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(3)])
        answer = await bench.claim(node, limit=2)
        assert answer.next_due_at is not None
        assert answer.next_due_at <= answer.now

    async def test_next_due_at_is_never_later_than_the_next_run_that_can_be_claimed(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.enqueue(delay=MINUTE, queue="slow")
        await bench.enqueue(delay=MINUTE, task="unknown")
        urgent = await bench.enqueue(delay=3 * HOUR, priority=9)
        soonest = await bench.enqueue(delay=HOUR, priority=-9)
        answer = await bench.claim(node)
        assert answer.next_due_at == us(soonest.due_at)
        await bench.cancel(soonest.id)
        assert (await bench.claim(node)).next_due_at == us(urgent.due_at)
        await bench.cancel(urgent.id)
        assert (await bench.claim(node)).next_due_at is None

    async def test_an_expired_run_ends_as_missed(self, bench: Bench) -> None:
        node = await bench.node()
        ago = await bench.now() - MINUTE
        old = await bench.enqueue(fire_at=ago, due_at=ago, expires=SECOND)
        answer = await bench.claim(node)
        assert (answer.runs, answer.expired) == ([], [old.id])
        run = await bench.run(old.id)
        assert (run.state, run.verdict, run.reason) == (State.DONE, Verdict.MISSED, Reason.EXPIRED)
        assert (await bench.claim(node)).expired == []

    async def test_expired_runs_do_not_keep_others_from_starting(self, bench: Bench) -> None:
        node = await bench.node()
        ago = await bench.now() - MINUTE
        await bench.store.enqueue(APP, [a_run(fire_at=ago, due_at=ago, expires=SECOND, priority=9) for _ in range(5)])
        young = await bench.enqueue(fire_at=ago, due_at=ago, expires=HOUR)
        claimed: list[str] = []
        expired: list[str] = []
        for _ in range(10):
            answer = await bench.claim(node, limit=2)
            claimed += [run.id for run in answer.runs]
            expired += answer.expired
            if answer.next_due_at is None or answer.next_due_at > answer.now:
                break
        assert claimed == [young.id]
        assert len(expired) == len(set(expired)) == 5

    # --- cancel

    async def test_runs_that_are_not_running_are_cancelled_at_once(self, bench: Bench) -> None:
        node = await bench.node()
        parked = await bench.hold(node)
        await bench.end(node, parked, kind="park")
        running = await bench.hold(node, await bench.fire(await bench.add()))
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        waiting = await bench.enqueue(delay=HOUR)
        ids = (parked.id, blocked, waiting.id)
        assert await bench.cancel(*ids, reason="not needed") == ["ended"] * 3
        for run in await bench.runs(ids=ids):
            assert (run.state, run.verdict, run.reason) == (State.DONE, Verdict.CANCELLED, "not needed")
        assert await bench.state(running.id) is State.RUNNING

    @pytest.mark.parametrize("is_blocked_first", [False, True])
    async def test_a_run_cancelled_together_with_the_run_it_is_blocked_on_stays_cancelled(
        self, bench: Bench, is_blocked_first: bool
    ) -> None:
        waiting = await bench.fire(await bench.add())
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        ids = (blocked, waiting) if is_blocked_first else (waiting, blocked)
        assert await bench.cancel(*ids) == ["ended", "ended"]
        assert [run.verdict for run in await bench.runs()] == [Verdict.CANCELLED] * 2

    async def test_the_heartbeat_tells_the_node_of_a_running_run_about_its_cancel(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        assert await bench.cancel(held.id) == ["asked"]
        run = await bench.run(held.id)
        assert (run.state, run.is_cancel_requested) == (State.RUNNING, True)
        async with bench.heartbeat() as heartbeat:
            assert (await heartbeat.beat(node, HOUR)).cancels == [held.id]
            assert (await heartbeat.beat(other, HOUR)).cancels == []
            assert (await heartbeat.beat(node, HOUR)).cancels == [held.id]
        await bench.end(node, held, verdict=Verdict.CANCELLED, reason="requested")
        async with bench.heartbeat() as heartbeat:
            assert (await heartbeat.beat(node, HOUR)).cancels == []

    async def test_a_cancel_after_the_verdict_changes_nothing(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        ended = await bench.end(node, held)
        assert await bench.cancel(held.id) == ["done"]
        assert await bench.run(held.id) == ended

    async def test_cancel_answers_for_each_run(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        waiting = await bench.enqueue()
        unknown = a_run().id
        assert await bench.cancel(waiting.id, unknown, held.id) == ["ended", "unknown", "asked"]
        assert await bench.cancel(waiting.id, unknown, held.id) == ["done", "unknown", "asked"]

    async def test_a_cancelled_run_has_the_reason_of_the_request_unless_its_node_gives_one(self, bench: Bench) -> None:
        node = await bench.node()
        for given, kept in ((None, "not needed"), ("gave up", "gave up")):
            held = await bench.hold(node)
            await bench.cancel(held.id, reason="not needed")
            assert (await bench.end(node, held, verdict=Verdict.CANCELLED, reason=given)).reason == kept

    async def test_a_job_that_succeeds_despite_a_cancel_has_succeeded(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.cancel(held.id)
        assert (await bench.end(node, held)).verdict is Verdict.SUCCEEDED

    @pytest.mark.parametrize("kind", ["retry", "release", "park"])
    async def test_a_run_with_a_requested_cancel_ends_instead_of_waiting_again(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.cancel(held.id, reason="not needed")
        assert await bench.finish(node, an_outcome(held, kind)) == ["done"]
        run = await bench.run(held.id)
        assert (run.state, run.verdict) == (State.DONE, Verdict.CANCELLED)
        assert (await bench.claim(node)).runs == []
