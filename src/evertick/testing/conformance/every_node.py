"""Promises about every-node schedules: one run per node and moment, which no other node ever gets."""

from __future__ import annotations

import pytest

from evertick.ledger.planning import fan_out
from evertick.model import Cause, Definition, Reason, State, Verdict
from evertick.model.every_node import own_queue
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import Advance, StoredSchedule, TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    TASK,
    TERMS,
    Bench,
    a_fire,
    a_run,
    an_advance,
    an_outcome,
)

__all__ = ["EveryNode"]


async def _for_all(bench: Bench, schedule: StoredSchedule, **fields: object) -> Advance:
    """The moment of the cursor, for every live node."""
    planned = an_advance(schedule, a_fire(schedule), **fields)
    return fan_out(planned, schedule.definition, await bench.store.nodes(APP))


async def _queues(bench: Bench) -> set[str]:
    return {run.queue for run in await bench.runs()}


class EveryNode:
    async def test_a_moment_has_a_run_for_each_live_node_that_knows_the_task(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await bench.dead_node()
        await bench.node(tasks={"mail": TaskTerms()})
        schedule = await bench.add(mode="every-node")
        answer = await bench.record(await _for_all(bench, schedule))
        assert (answer.taken, answer.left_out, answer.duplicates) == ([True], [], [])
        assert await _queues(bench) == {own_queue(first), own_queue(second)}
        runs = await bench.runs()
        assert {(run.cause, run.state, run.fire_at) for run in runs} == {
            (Cause.EVERY_NODE, State.WAITING, runs[0].fire_at)
        }

    async def test_a_moment_for_every_node_counts_as_one_fire(self, bench: Bench) -> None:
        for _ in range(3):
            await bench.node()
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        assert (await bench.stored()).fires == 1

    async def test_only_the_node_itself_claims_from_its_own_queue(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        [held] = (await bench.claim(first, queues=("default", own_queue(first)))).runs
        assert held.queue == own_queue(first)
        assert (await bench.claim(first, queues=("default", own_queue(first)))).runs == []
        [other] = (await bench.claim(second, queues=("default", own_queue(second)))).runs
        assert other.id != held.id

    async def test_a_moment_for_every_node_recorded_again_makes_no_run(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(mode="every-node")
        advance = await _for_all(bench, schedule)
        assert (await bench.record(advance)).taken == [True]
        assert (await bench.record(advance)).taken == [False]
        [held] = (await bench.claim(node, queues=(own_queue(node),))).runs
        await bench.end(node, held)
        # A second plan that passes the guard finds the moment in history.
        again = await bench.stored()
        same = an_advance(again, *advance.runs)
        assert (await bench.record(same)).left_out == [held.id]
        assert [run.id for run in await bench.runs()] == [held.id]

    async def test_only_a_node_that_is_still_running_skips_the_moment(self, bench: Bench) -> None:
        busy, free = await bench.node(name="busy"), await bench.node(name="free")
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        [held] = (await bench.claim(free, queues=(own_queue(free),))).runs
        await bench.end(free, held)
        later = await bench.stored()
        answer = await bench.record(await _for_all(bench, later))
        assert answer.taken == [True]
        assert len(answer.duplicates) == 1
        assert [run.queue for run in await bench.runs(states=(State.WAITING,))].count(own_queue(free)) == 1
        assert [run.queue for run in await bench.runs(states=(State.WAITING,))].count(own_queue(busy)) == 1
        [gap] = await bench.gaps()
        assert (gap.verdict, gap.reason, gap.count) == (Verdict.SKIPPED, "overlap on busy", 1)
        assert (await bench.stored()).fires == 2

    async def test_a_moment_that_all_nodes_skip_does_not_count_as_a_fire(self, bench: Bench) -> None:
        await bench.node(name="one")
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        await bench.record(await _for_all(bench, await bench.stored()))
        assert (await bench.stored()).fires == 1
        assert [gap.reason for gap in await bench.gaps()] == ["overlap on one"]

    async def test_with_overlap_allow_a_node_has_several_runs(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(mode="every-node", overlap="allow")
        await bench.record(await _for_all(bench, schedule))
        await bench.record(await _for_all(bench, await bench.stored()))
        assert len((await bench.claim(node, queues=(own_queue(node),))).runs) == 2

    async def test_a_moment_without_a_node_that_knows_the_task_is_missed(self, bench: Bench) -> None:
        await bench.node(tasks={"mail": TaskTerms()})
        schedule = await bench.add(mode="every-node")
        assert (await bench.record(await _for_all(bench, schedule))).taken == [True]
        assert await bench.runs() == []
        [gap] = await bench.gaps()
        assert (gap.verdict, gap.reason) == (Verdict.MISSED, Reason.NO_NODE)

    # --- death

    async def test_an_every_node_run_of_a_dead_node_ends_as_lost_and_is_never_reassigned(self, bench: Bench) -> None:
        dead, other = await bench.node(), await bench.node()
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        [held] = (await bench.claim(dead, queues=(own_queue(dead),))).runs
        await bench.store.leave(dead)
        answer = await bench.rehome(other, queues=("default", own_queue(other)))
        assert (answer.claimed, answer.released, answer.ended) == ([], [], [(held.id, Verdict.LOST)])
        run = await bench.run(held.id)
        assert (run.verdict, run.reason) == (Verdict.LOST, Reason.NODE_GONE)
        assert await bench.finish(dead, an_outcome(held)) == ["lost"]

    @pytest.mark.parametrize("how", ["waiting", "parked", "held back"])
    async def test_queued_runs_of_a_dead_node_end_as_lost(self, bench: Bench, how: str) -> None:
        one = {TASK: TaskTerms(concurrency=Concurrency(of=Subject(task=TASK), most=1))}
        terms = one if how == "held back" else TERMS
        dead, other = await bench.node(tasks=terms), await bench.node(tasks=terms)
        queue = own_queue(dead)
        if how == "held back":
            await bench.store.enqueue(APP, [a_run(queue=queue), a_run(queue=queue)])
            assert len((await bench.claim(dead, queues=(queue,), tasks=terms)).runs) == 1
        else:
            await bench.store.enqueue(APP, [a_run(queue=queue)])
        if how == "parked":
            [held] = (await bench.claim(dead, queues=(queue,))).runs
            assert await bench.finish(dead, an_outcome(held, "park")) == ["done"]
        await bench.store.leave(dead)
        ended = (await bench.rehome(other, tasks=terms)).ended
        assert {verdict for _, verdict in ended} == {Verdict.LOST}
        assert {(run.state, run.reason) for run in await bench.runs()} == {(State.DONE, Reason.NODE_GONE)}
        assert (await bench.rehome(other, tasks=terms)).ended == []

    async def test_runs_that_wait_for_a_live_node_stay(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        run = await bench.enqueue(queue=own_queue(node))
        assert (await bench.rehome(other)).ended == []
        assert await bench.state(run.id) is State.WAITING

    async def test_a_dead_node_does_not_end_runs_of_another_dead_node(self, bench: Bench) -> None:
        dead, asking = await bench.dead_node(), await bench.dead_node()
        run = await bench.enqueue(queue=own_queue(dead))
        assert (await bench.rehome(asking)).ended == []
        assert await bench.state(run.id) is State.WAITING

    async def test_a_run_in_the_own_queue_of_a_node_is_never_parked(self, bench: Bench) -> None:
        dead = await bench.dead_node()
        run = await bench.enqueue(queue=own_queue(dead), task="mail")
        common = await bench.enqueue(task="mail")
        await bench.node()
        assert await bench.store.park_unknown(APP, 100) == 1
        assert (await bench.state(run.id), await bench.state(common.id)) == (State.WAITING, State.PARKED)

    async def test_a_retry_stays_on_its_node(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        [held] = (await bench.claim(node, queues=(own_queue(node),))).runs
        assert await bench.finish(node, an_outcome(held, "retry")) == ["done"]
        others = (await bench.claim(other, queues=("default", own_queue(other)))).runs
        assert held.id not in {run.id for run in others}
        [again] = (await bench.claim(node, queues=(own_queue(node),))).runs
        assert (again.id, again.attempts) == (held.id, 1)

    async def test_an_overdue_run_in_the_own_queue_of_a_node_goes_back_to_that_node(self, bench: Bench) -> None:
        node, other = await bench.node(lease=24 * HOUR), await bench.node(lease=24 * HOUR)
        run = await bench.enqueue(queue=own_queue(node))
        terms = {TASK: TaskTerms(timeout=1)}
        await bench.claim(node, queues=(own_queue(node),), tasks=terms)
        await bench.pass_time(2 * MINUTE)
        assert (await bench.rehome(other, queues=("default", own_queue(other)))).claimed == []
        assert await bench.state(run.id) is State.WAITING
        assert [held.id for held in (await bench.claim(node, queues=(own_queue(node),))).runs] == [run.id]

    # --- triggers

    async def test_a_trigger_leaves_out_nodes_that_are_still_running(self, bench: Bench) -> None:
        await bench.node(name="busy")
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        free = await bench.node(name="free")
        answer = await bench.record(await _by_hand(bench))
        assert (answer.taken, len(answer.duplicates)) == ([True], 1)
        assert [run.queue for run in await bench.runs() if run.cause is Cause.TRIGGER] == [own_queue(free)]
        assert await bench.gaps() == []

    async def test_a_trigger_while_all_nodes_are_running_writes_nothing(self, bench: Bench) -> None:
        await bench.node()
        schedule = await bench.add(mode="every-node")
        await bench.record(await _for_all(bench, schedule))
        answer = await bench.record(await _by_hand(bench))
        assert (answer.taken, len(answer.duplicates)) == ([False], 1)
        assert [run.cause for run in await bench.runs()] == [Cause.EVERY_NODE]

    async def test_moments_for_every_node_are_recorded_moments(self, bench: Bench) -> None:
        for _ in range(2):
            await bench.node()
        schedule = await bench.add(mode="every-node")
        moment = schedule.fire_at
        assert moment is not None
        await bench.record(await _for_all(bench, schedule))
        found = await bench.store.recorded_moments(APP, schedule.id, first=moment, last=moment, limit=10)
        assert found == [moment]

    async def test_a_listed_schedule_shows_its_mode(self, bench: Bench) -> None:
        await bench.add(mode="every-node")
        assert (await bench.schedule()).mode == "every-node"
        assert (await bench.stored()).definition == Definition(task=TASK, when="every 1m", mode="every-node")

    # --- ticks

    async def test_a_heartbeat_stores_the_ticks_of_the_loops_of_its_node(self, bench: Bench) -> None:
        node = await bench.node()
        async with bench.heartbeat() as heartbeat:
            await heartbeat.beat(node, HOUR, {"fire": (MINUTE, 2 * MINUTE), "work": (None, None)})
        [listed] = await bench.store.nodes(APP)
        fire = listed.ticks["fire"]
        assert fire.last_at is not None
        assert fire.next_at is not None
        assert (listed.beat_at - fire.last_at).total_seconds() == 60
        assert (fire.next_at - listed.beat_at).total_seconds() == 120
        assert (listed.ticks["work"].last_at, listed.ticks["work"].next_at) == (None, None)


async def _by_hand(bench: Bench) -> Advance:
    stored = await bench.stored()
    by_hand = a_run(cause=Cause.TRIGGER, schedule_id=stored.id, version=stored.version)
    planned = an_advance(stored, by_hand, next_fire_at=stored.fire_at, next_at=stored.at)
    return fan_out(planned, stored.definition, await bench.store.nodes(APP))
