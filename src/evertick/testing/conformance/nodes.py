"""Promises about nodes: a heartbeat extends the lease, a node dies once, and live nodes recover its runs."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from evertick.errors import EvertickError
from evertick.model import LOSSES_MAX, Node, Phase, Reason, State, Verdict
from evertick.model.every_node import own_queue
from evertick.store.base import END_OF_TIME, NodeJoin, RunFilter, TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    DAY,
    HOUR,
    MINUTE,
    OTHER_APP,
    SECOND,
    SHORT_LEASE,
    TASK,
    TERMS,
    Bench,
    a_run,
    an_outcome,
    us,
)

__all__ = ["Nodes"]


async def _listed(bench: Bench, node: str) -> Node:
    [found] = [found for found in await bench.store.nodes(APP) if found.id == node]
    return found


class Nodes:
    # --- join, leave, list

    async def test_a_node_is_listed_with_the_fields_it_joined_with(self, bench: Bench) -> None:
        before = await bench.now()
        joined = await bench.store.join(
            NodeJoin(
                id="n1",
                name="web-1",
                app=APP,
                version="1.2",
                lease=HOUR,
                queues=("default", "slow"),
                tasks={TASK: TaskTerms(hash="h"), "mail": TaskTerms()},
                declares={"nightly": "hash"},
            )
        )
        assert before <= joined <= await bench.now()
        node = await _listed(bench, "n1")
        assert (node.id, node.name, node.app, node.version) == ("n1", "web-1", APP, "1.2")
        assert (set(node.queues), set(node.tasks)) == ({"default", "slow"}, {TASK, "mail"})
        assert node.declares == {"nightly": "hash"}
        assert us(node.started_at) == us(node.beat_at) == joined
        assert us(node.lease_until) == joined + HOUR
        assert (node.died_at, node.running) == (None, 0)

    async def test_a_listed_node_shows_how_many_runs_it_has(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.hold(node)
        assert (await _listed(bench, node)).running == 2
        await bench.end(node, held)
        assert (await _listed(bench, node)).running == 1

    async def test_a_node_that_leaves_is_recorded_as_dead(self, bench: Bench) -> None:
        node = await bench.node()
        before = await bench.now()
        await bench.store.leave(node)
        died_at = us((await _listed(bench, node)).died_at)
        assert before <= died_at <= await bench.now()
        assert await bench.store.judge() == []
        await bench.pass_time(SHORT_LEASE)
        await bench.store.leave(node)
        assert us((await _listed(bench, node)).died_at) == died_at

    async def test_a_join_sent_again_is_harmless(self, bench: Bench) -> None:
        join = NodeJoin(id="n1", name="web", app=APP, version="1", lease=HOUR, queues=(), tasks=TERMS, declares={})
        for _ in range(2):
            await bench.store.join(join)
        assert [node.died_at for node in await bench.store.nodes(APP)] == [None]

    async def test_a_node_that_joins_again_replaces_its_tasks_queues_and_declarations(self, bench: Bench) -> None:
        node = await bench.node(tasks={TASK: TaskTerms(), "old": TaskTerms()}, declares={"nightly": "1", "old": "1"})
        own, old = await bench.enqueue(), await bench.enqueue(task="old")
        await bench.hold(node, own.id)
        again = NodeJoin(
            id=node,
            name="node",
            app=APP,
            version="1",
            lease=HOUR,
            queues=("default", "slow"),
            tasks={TASK: TaskTerms(), "new": TaskTerms()},
            declares={"nightly": "2", "new": "1"},
        )
        await bench.store.join(again)
        found = await _listed(bench, node)
        assert (set(found.tasks), found.declares) == ({TASK, "new"}, {"nightly": "2", "new": "1"})
        assert list(found.queues) == ["default", "slow"]
        # It keeps the runs it holds. Runs of tasks that it does not know any more wait for other nodes.
        assert [owned.id for owned in await bench.store.owned(APP, node)] == [own.id]
        assert await bench.store.park_unknown(APP, 10) == 1
        [parked] = await bench.store.runs(APP, RunFilter(ids=(old.id,)))
        assert (parked.state, parked.reason) == (State.PARKED, Reason.UNKNOWN_TASK)
        await bench.store.join(msgspec.structs.replace(again, tasks={"old": TaskTerms()}))
        [freed] = await bench.store.runs(APP, RunFilter(ids=(old.id,)))
        assert freed.state is State.WAITING

    async def test_a_dead_node_cannot_join_again(self, bench: Bench) -> None:
        join = NodeJoin(id="n1", name="web", app=APP, version="1", lease=HOUR, queues=(), tasks=TERMS, declares={})
        await bench.store.join(join)
        await bench.store.leave("n1")
        with contextlib.suppress(EvertickError):
            await bench.store.join(join)
        async with bench.heartbeat() as heartbeat:
            assert not (await heartbeat.beat("n1", HOUR)).is_alive
        await bench.enqueue()
        assert (await bench.claim("n1")).runs == []

    async def test_leaving_without_having_joined_is_harmless(self, bench: Bench) -> None:
        await bench.store.leave("never joined")
        assert await bench.store.nodes(APP) == []

    # --- heartbeats

    async def test_a_heartbeat_extends_the_lease_by_the_clock_of_the_store(self, bench: Bench) -> None:
        node = await bench.node(lease=SHORT_LEASE)
        before = await bench.now()
        async with bench.heartbeat() as heartbeat:
            beat = await heartbeat.beat(node, 2 * HOUR)
        assert beat.is_alive
        assert beat.cancels == []
        assert before <= beat.now <= await bench.now()
        listed = await _listed(bench, node)
        assert us(listed.beat_at) == beat.now
        assert us(listed.lease_until) == beat.now + 2 * HOUR
        await bench.pass_time(2 * SHORT_LEASE)
        assert await bench.store.judge() == []

    async def test_a_heartbeat_reports_whether_there_are_runs_to_recover(self, bench: Bench) -> None:
        node = await bench.node()
        async with bench.heartbeat() as heartbeat:
            assert not (await heartbeat.beat(node, HOUR)).has_charges
            await bench.enqueue()
            assert not (await heartbeat.beat(node, HOUR)).has_charges
            [run] = (await bench.claim(node)).runs
            assert (await heartbeat.beat(node, HOUR)).has_charges
            await bench.store.finish(APP, node, [an_outcome(run)])
            assert not (await heartbeat.beat(node, HOUR)).has_charges
            await bench.enqueue(queue=own_queue("gone"))
            assert (await heartbeat.beat(node, HOUR)).has_charges

    async def test_a_heartbeat_reports_expired_leases_until_the_nodes_are_declared_dead(self, bench: Bench) -> None:
        node, silent = await bench.node(), await bench.node(lease=SHORT_LEASE)
        await bench.pass_time(2 * SHORT_LEASE)
        async with bench.heartbeat() as heartbeat:
            assert (await heartbeat.beat(node, HOUR)).has_charges
            assert await bench.store.judge() == [silent]
            assert not (await heartbeat.beat(node, HOUR)).has_charges

    async def test_a_late_heartbeat_counts_until_the_node_is_declared_dead(self, bench: Bench) -> None:
        node = await bench.node(lease=SHORT_LEASE)
        await bench.pass_time(2 * SHORT_LEASE)
        async with bench.heartbeat() as heartbeat:
            assert (await heartbeat.beat(node, HOUR)).is_alive
        assert await bench.store.judge() == []

    @pytest.mark.parametrize("death", ["declared dead", "left", "recorded its own death"])
    async def test_a_dead_node_learns_of_its_death_and_never_returns(self, bench: Bench, death: str) -> None:
        node = await bench.node(lease=SHORT_LEASE)
        async with bench.heartbeat() as heartbeat:
            match death:
                case "declared dead":
                    await bench.pass_time(2 * SHORT_LEASE)
                    assert await bench.store.judge() == [node]
                case "left":
                    await bench.store.leave(node)
                case _:
                    await heartbeat.die(node)
            before = await _listed(bench, node)
            for _ in range(2):
                assert not (await heartbeat.beat(node, HOUR)).is_alive
        after = await _listed(bench, node)
        assert after == before
        assert after.died_at is not None

    async def test_a_node_that_never_joined_is_not_alive(self, bench: Bench) -> None:
        async with bench.heartbeat() as heartbeat:
            assert not (await heartbeat.beat("never joined", HOUR)).is_alive
        assert await bench.store.nodes(APP) == []

    async def test_the_runs_of_a_node_that_recorded_its_own_death_are_reassigned(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        async with bench.heartbeat() as heartbeat:
            await heartbeat.die(node)
        assert [run.id for run in (await bench.rehome(other)).claimed] == [held.id]

    async def test_a_heartbeat_session_works_in_a_thread_and_event_loop_of_its_own(self, bench: Bench) -> None:
        node = await bench.node()

        async def beats() -> list[bool]:
            heartbeat = await bench.store.heartbeat_session()
            try:
                return [(await heartbeat.beat(node, HOUR)).is_alive for _ in range(3)]
            finally:
                await heartbeat.close()

        assert await asyncio.to_thread(asyncio.run, beats()) == [True, True, True]

    async def test_a_store_can_be_called_from_any_event_loop(self, bench: Bench) -> None:
        run = a_run()
        await asyncio.to_thread(asyncio.run, bench.store.enqueue(APP, [run]))
        assert await bench.state(run.id) is State.WAITING

    # --- deaths

    async def test_a_node_within_its_lease_is_never_declared_dead(self, bench: Bench) -> None:
        await bench.node(lease=MINUTE)
        await bench.pass_time(2 * SHORT_LEASE)
        assert await bench.store.judge() == []

    async def test_a_node_whose_lease_expired_is_declared_dead_once(self, bench: Bench) -> None:
        alive = await bench.node()
        dead = {await bench.node(lease=SHORT_LEASE) for _ in range(3)}
        await bench.pass_time(2 * SHORT_LEASE)
        before = await bench.now()
        assert set(await bench.store.judge()) == dead
        assert await bench.store.judge() == []
        for node in dead:
            assert us((await _listed(bench, node)).died_at) >= before
        assert (await _listed(bench, alive)).died_at is None

    async def test_two_concurrent_checks_declare_a_node_dead_once(self, bench: Bench) -> None:
        node = await bench.node(lease=SHORT_LEASE)
        second = await bench.stores.open()
        await bench.pass_time(2 * SHORT_LEASE)
        answers = await asyncio.gather(*(store.judge() for store in (bench.store, second) * 3))
        assert [found for answer in answers for found in answer] == [node]

    async def test_expired_nodes_of_every_app_are_declared_dead(self, bench: Bench) -> None:
        node = await bench.node(lease=SHORT_LEASE, app=OTHER_APP)
        await bench.pass_time(2 * SHORT_LEASE)
        assert await bench.store.judge() == [node]

    async def test_no_node_is_declared_dead_after_the_deadline_of_the_check(self, bench: Bench) -> None:
        """A check that is delayed would find expired leases of healthy nodes."""
        node = await bench.node(lease=SHORT_LEASE)
        asked_at = await bench.now()
        await bench.pass_time(2 * SHORT_LEASE)
        assert await bench.store.judge(asked_at + SHORT_LEASE) == []
        assert await bench.store.judge(await bench.now() + SHORT_LEASE) == [node]

    # --- recovery

    async def test_the_run_of_a_dead_node_is_claimed_at_once_by_the_node_that_recovers_it(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        before = await bench.now()
        answer = await bench.rehome(other)
        [taken] = answer.claimed
        assert (answer.released, answer.ended) == ([], [])
        assert (taken.id, taken.fence, taken.losses, taken.attempts) == (held.id, answer.fence, 1, 0)
        assert (taken.task, taken.args, taken.fire_at) == (held.task, held.args, held.fire_at)
        assert taken.fence > held.fence
        assert before <= taken.claimed_at <= await bench.now()
        run = await bench.run(held.id)
        assert (run.state, run.node, run.fence, run.losses) == (State.RUNNING, other, taken.fence, 1)
        assert [owned.id for owned in await bench.store.owned(APP, other)] == [held.id]
        assert await bench.store.owned(APP, node) == []

    @pytest.mark.parametrize("room", [1, 0], ids=["taken at once", "released"])
    async def test_a_lost_attempt_keeps_its_stored_phases(self, bench: Bench, room: int) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        phases = (
            Phase(name="fetch", at=5, seconds=1.5, metadata={"bytes": 7}),
            Phase(name="store", at=7, seconds=None),
        )
        await bench.note(node, held, phases=phases)
        await bench.store.leave(node)
        await bench.rehome(other, limit=room)
        [attempt] = await bench.store.attempts(APP, held.id)
        assert (attempt.number, attempt.fence, attempt.node) == (1, held.fence, node)
        assert (attempt.reason, attempt.phases) == (Reason.NODE_DIED, phases)
        if not room:
            await bench.hold(other, held.id)
        assert (await bench.run(held.id)).phases == ()
        # The stored attempt is no outcome of the node, so the node learns that its claim is lost.
        assert await bench.finish(node, an_outcome(held)) == ["lost"]

    async def test_a_run_that_ends_as_lost_keeps_its_phases(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node, terms=TaskTerms(at_most_once=True))
        phases = (Phase(name="fetch", at=5, seconds=None),)
        await bench.note(node, held, phases=phases)
        await bench.store.leave(node)
        await bench.rehome(other)
        run = await bench.run(held.id)
        assert (run.verdict, run.phases) == (Verdict.LOST, phases)
        assert await bench.store.attempts(APP, held.id) == []

    async def test_the_run_of_a_live_node_is_never_reassigned(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        answer = await bench.rehome(other)
        assert (answer.claimed, answer.released, answer.ended) == ([], [], [])
        assert (await bench.end(node, held)).losses == 0

    async def test_an_expired_lease_alone_is_not_a_death(self, bench: Bench) -> None:
        node, other = await bench.node(lease=SHORT_LEASE), await bench.node()
        held = await bench.hold(node)
        await bench.pass_time(2 * SHORT_LEASE)
        assert (await bench.rehome(other)).claimed == []
        assert await bench.store.judge() == [node]
        assert [run.id for run in (await bench.rehome(other)).claimed] == [held.id]

    async def test_a_run_of_a_dead_node_is_reassigned_once(self, bench: Bench) -> None:
        node, others = await bench.node(), [await bench.node() for _ in range(4)]
        second = await bench.stores.open()
        await bench.store.enqueue(APP, [a_run() for _ in range(8)])
        held = (await bench.claim(node)).runs
        await bench.store.leave(node)
        answers = await asyncio.gather(
            *(
                store.rehome(APP, other, ["default"], TERMS, 100)
                for store, other in zip((bench.store, second) * 2, others, strict=True)
            )
        )
        taken = [run.id for answer in answers for run in answer.claimed]
        assert sorted(taken) == sorted(run.id for run in held)
        assert [run.losses for run in await bench.runs()] == [1] * 8

    async def test_recovered_runs_above_the_limit_go_back_to_waiting(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(3)])
        await bench.claim(node)
        await bench.store.leave(node)
        answer = await bench.rehome(other, limit=1)
        assert (len(answer.claimed), len(answer.released)) == (1, 2)
        again = await bench.claim(other)
        assert len(again.runs) == 2
        assert [run.losses for run in (*answer.claimed, *again.runs)] == [1, 1, 1]

    async def test_recovered_runs_that_the_node_cannot_run_go_back_to_waiting(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        terms = {**TERMS, "mail": TaskTerms()}
        unknown, slow = await bench.enqueue(task="mail"), await bench.enqueue(queue="slow")
        await bench.claim(node, tasks=terms, queues=["default", "slow"])
        await bench.store.leave(node)
        answer = await bench.rehome(other)
        assert (answer.claimed, len(answer.released)) == ([], 2)
        for wanted in (unknown, slow):
            run = await bench.run(wanted.id)
            assert (run.state, run.node, run.losses) == (State.WAITING, None, 1)

    async def test_a_dead_node_recovers_no_runs(self, bench: Bench) -> None:
        node, dead = await bench.node(), await bench.dead_node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        assert (await bench.rehome(dead)).claimed == []
        assert (await bench.run(held.id)).node != dead

    async def test_the_run_of_a_pruned_node_is_reassigned(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        await bench.store.prune(APP, before=await bench.now() + HOUR, keep_per_schedule=100, limit=100)
        assert [run.id for run in (await bench.rehome(other)).claimed] == [held.id]

    async def test_a_run_that_was_lost_too_often_ends_as_lost(self, bench: Bench) -> None:
        run = await bench.enqueue()
        node = await bench.node()
        await bench.hold(node, run.id)
        for losses in range(1, LOSSES_MAX):
            await bench.store.leave(node)
            node = await bench.node()
            [taken] = (await bench.rehome(node)).claimed
            assert taken.losses == losses
        await bench.store.leave(node)
        answer = await bench.rehome(await bench.node())
        assert (answer.claimed, answer.released) == ([], [])
        assert answer.ended == [(run.id, Verdict.LOST)]
        ended = await bench.run(run.id)
        assert (ended.verdict, ended.reason, ended.losses) == (Verdict.LOST, Reason.NODE_DIED, LOSSES_MAX)

    async def test_losses_are_counted_also_when_the_run_waited_in_between(self, bench: Bench) -> None:
        run = await bench.enqueue()
        for losses in range(LOSSES_MAX):
            node = await bench.node()
            held = await bench.hold(node, run.id)
            assert held.losses == losses
            await bench.store.leave(node)
            await bench.rehome(await bench.node(), limit=0)
        assert (await bench.run(run.id)).verdict is Verdict.LOST

    async def test_an_at_most_once_run_of_a_dead_node_ends_as_lost(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        once = TaskTerms(at_most_once=True)
        held = await bench.hold(node, terms=once)
        await bench.store.leave(node)
        answer = await bench.rehome(other, tasks={TASK: once})
        assert (answer.claimed, answer.released) == ([], [])
        assert answer.ended == [(held.id, Verdict.LOST)]
        run = await bench.run(held.id)
        assert (run.verdict, run.reason, run.losses) == (Verdict.LOST, Reason.NODE_DIED, 1)

    async def test_an_at_most_once_run_ends_as_lost_also_if_the_recovering_node_cannot_run_it(
        self, bench: Bench
    ) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node, terms=TaskTerms(at_most_once=True))
        await bench.store.leave(node)
        assert (await bench.rehome(other, tasks={}, queues=[], limit=0)).ended == [(held.id, Verdict.LOST)]

    async def test_a_run_of_a_dead_node_with_a_requested_cancel_ends_as_cancelled(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        assert await bench.cancel(held.id, reason="not needed") == ["asked"]
        await bench.store.leave(node)
        answer = await bench.rehome(other)
        assert (answer.claimed, answer.released) == ([], [])
        assert answer.ended == [(held.id, Verdict.CANCELLED)]
        assert (await bench.run(held.id)).verdict is Verdict.CANCELLED

    async def test_a_run_long_past_its_deadline_is_reassigned_although_its_node_is_alive(self, bench: Bench) -> None:
        node, other = await bench.node(lease=9 * DAY), await bench.node(lease=9 * DAY)
        terms = TaskTerms(timeout=SECOND)
        held = await bench.hold(node, terms=terms)
        answer = await bench.rehome(other)
        assert (answer.claimed, answer.released, answer.ended) == ([], [], [])
        await bench.pass_time(DAY)
        [taken] = (await bench.rehome(other, tasks={TASK: terms})).claimed
        assert (taken.id, taken.losses) == (held.id, 1)
        assert await bench.store.owned(APP, node) == []

    async def test_an_overdue_run_is_not_reassigned_to_its_own_node_or_after_the_deadline_of_the_check(
        self, bench: Bench
    ) -> None:
        node, other = await bench.node(lease=9 * DAY), await bench.node(lease=9 * DAY)
        terms = TaskTerms(timeout=SECOND)
        held = await bench.hold(node, terms=terms)
        asked_at = await bench.now()
        await bench.pass_time(DAY)
        for asker, until in ((node, END_OF_TIME), (other, asked_at + SECOND)):
            answer = await bench.rehome(asker, tasks={TASK: terms}, until=until)
            assert (answer.claimed, answer.released, answer.ended) == ([], [], [])
        assert [run.id for run in (await bench.rehome(other, tasks={TASK: terms})).claimed] == [held.id]

    async def test_a_run_without_a_timeout_is_never_overdue(self, bench: Bench) -> None:
        node, other = await bench.node(lease=9 * DAY), await bench.node(lease=9 * DAY)
        await bench.hold(node)
        await bench.pass_time(DAY)
        answer = await bench.rehome(other)
        assert (answer.claimed, answer.released, answer.ended) == ([], [], [])

    async def test_the_deadline_counts_from_the_newest_claim(self, bench: Bench) -> None:
        node, other = await bench.node(lease=9 * DAY), await bench.node(lease=9 * DAY)
        terms = TaskTerms(timeout=SECOND)
        held = await bench.hold(node, terms=terms)
        await bench.end(node, held, kind="release")
        await bench.pass_time(DAY)
        await bench.hold(node, held.id, terms=terms)
        assert (await bench.rehome(other)).claimed == []
