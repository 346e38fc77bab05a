"""Promises about the maintenance of a store: parking, freeing, pruning, and the pulse."""

from __future__ import annotations

import pytest

from evertick.model import Cause, Pause, Reason, State, Verdict
from evertick.store.base import TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    DAY,
    HOUR,
    MINUTE,
    OTHER_APP,
    TASK,
    TERMS,
    Bench,
    a_gap,
    a_run,
    an_advance,
    us,
)

__all__ = ["Upkeep"]

_ALL = 1_000_000


async def _prune_all(bench: Bench, *, before: int, keep_per_schedule: int = _ALL) -> None:
    """Prune until nothing is left to delete."""
    for _ in range(100):
        if await bench.store.prune(APP, before=before, keep_per_schedule=keep_per_schedule, limit=100) == 0:
            return
    raise AssertionError("prune never ends")


class Upkeep:
    # --- park, free

    async def test_a_due_run_of_a_task_that_no_live_node_knows_is_parked(self, bench: Bench) -> None:
        await bench.node()
        unknown, known = await bench.enqueue(task="mail"), await bench.enqueue()
        later = await bench.enqueue(task="mail", delay=HOUR)
        assert await bench.store.park_unknown(APP, 10) == 1
        run = await bench.run(unknown.id)
        assert (run.state, run.reason) == (State.PARKED, Reason.UNKNOWN_TASK)
        assert await bench.state(known.id) is State.WAITING
        assert await bench.state(later.id) is State.WAITING

    async def test_a_task_that_only_a_dead_node_knew_is_unknown(self, bench: Bench) -> None:
        await bench.dead_node()
        run = await bench.enqueue()
        assert await bench.store.park_unknown(APP, 10) == 1
        assert await bench.state(run.id) is State.PARKED

    async def test_parking_handles_no_more_runs_than_its_limit(self, bench: Bench) -> None:
        await bench.store.enqueue(APP, [a_run() for _ in range(3)])
        assert await bench.store.park_unknown(APP, 2) == 2
        assert (await bench.store.pulse(APP)).parked == 2
        assert await bench.store.park_unknown(APP, 2) == 1
        assert await bench.store.park_unknown(APP, 2) == 0

    async def test_a_node_that_joins_frees_parked_runs_that_it_can_run(self, bench: Bench) -> None:
        own, other = await bench.enqueue(), await bench.enqueue(task="mail")
        await bench.store.park_unknown(APP, 10)
        node = await bench.node()
        assert await bench.state(own.id) is State.WAITING
        assert await bench.state(other.id) is State.PARKED
        assert (await bench.hold(node, own.id)).attempts == 0

    async def test_a_freed_run_loses_the_reason_it_was_parked_for(self, bench: Bench) -> None:
        run = await bench.enqueue()
        await bench.store.park_unknown(APP, 10)
        node = await bench.node()
        assert (await bench.end(node, await bench.hold(node, run.id))).reason is None

    @pytest.mark.parametrize("is_freed_by_join", [True, False])
    async def test_a_late_run_is_still_late_after_it_was_parked(self, bench: Bench, is_freed_by_join: bool) -> None:
        late = await bench.fire(await bench.add(), reason=Reason.LATE)
        if is_freed_by_join:
            await bench.store.park_unknown(APP, 10)
            node = await bench.node()
        else:
            node = await bench.node()
            held = await bench.hold(node, late)
            await bench.end(node, held, kind="park", reason=Reason.UNKNOWN_TASK)
            await bench.store.park_unknown(APP, 10)
        assert (await bench.end(node, await bench.hold(node, late))).reason == Reason.LATE

    async def test_maintenance_frees_a_parked_run_whose_task_is_known_again(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.end(node, held, kind="park", reason=Reason.UNKNOWN_TASK)
        await bench.store.park_unknown(APP, 10)
        assert await bench.state(held.id) is State.WAITING

    async def test_a_run_parked_for_bad_arguments_waits_for_a_changed_task(self, bench: Bench) -> None:
        node = await bench.node(tasks={TASK: TaskTerms(hash="old")})
        held = await bench.hold(node)
        await bench.end(node, held, kind="park", reason=Reason.BAD_ARGUMENTS, task_hash="old")
        await bench.store.park_unknown(APP, 10)
        await bench.node(tasks={TASK: TaskTerms(hash="old")})
        await bench.node(tasks={"mail": TaskTerms(hash="new")})
        assert await bench.state(held.id) is State.PARKED
        await bench.node(tasks={TASK: TaskTerms(hash="new")})
        assert await bench.state(held.id) is State.WAITING

    # --- prune

    async def test_old_history_is_pruned_with_its_attempts_and_logs(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.note(node, held, lines=((1, "info", "a line"),))
        await bench.end(node, held, kind="retry")
        await bench.end(node, await bench.hold(node, held.id), attempts=2)
        assert await bench.store.attempts(APP, held.id) != []
        await _prune_all(bench, before=await bench.now() + HOUR)
        assert await bench.runs() == []
        assert await bench.store.attempts(APP, held.id) == []
        assert await bench.store.log(APP, held.id) == []

    async def test_newer_history_is_not_pruned(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        await bench.record(an_advance(schedule, gaps=(a_gap(await bench.now() - 2, await bench.now() - 1),)))
        held = await bench.hold(node)
        await bench.end(node, held)
        await _prune_all(bench, before=await bench.now() - HOUR)
        assert [run.id for run in await bench.runs()] == [held.id]
        assert len(await bench.gaps()) == 1

    async def test_live_runs_are_never_pruned(self, bench: Bench) -> None:
        node = await bench.node()
        parked = await bench.hold(node)
        await bench.end(node, parked, kind="park")
        await bench.hold(node, await bench.fire(await bench.add()))
        await bench.fire(await bench.stored(), state=State.BLOCKED)
        await bench.enqueue(delay=HOUR)
        await _prune_all(bench, before=await bench.now() + 2 * HOUR, keep_per_schedule=1)
        assert sorted(run.state for run in await bench.runs()) == sorted(
            [State.PARKED, State.RUNNING, State.BLOCKED, State.WAITING]
        )

    async def test_old_gaps_are_pruned(self, bench: Bench) -> None:
        schedule = await bench.add()
        assert schedule.fire_at is not None
        await bench.record(an_advance(schedule, gaps=(a_gap(schedule.fire_at - MINUTE, schedule.fire_at),)))
        await _prune_all(bench, before=await bench.now() + HOUR)
        assert await bench.gaps() == []

    async def test_a_node_that_has_just_died_is_still_listed(self, bench: Bench) -> None:
        dead = await bench.dead_node()
        await _prune_all(bench, before=await bench.now() - HOUR)
        assert [node.id for node in await bench.store.nodes(APP)] == [dead]

    async def test_long_dead_nodes_are_pruned(self, bench: Bench) -> None:
        alive = await bench.node(lease=99 * DAY)
        await bench.dead_node()
        # The protocol does not say how long a store keeps them; 30 days is longer than needed.
        await bench.pass_time(30 * DAY)
        await _prune_all(bench, before=await bench.now() + HOUR)
        assert [node.id for node in await bench.store.nodes(APP)] == [alive]

    async def test_pruning_keeps_only_the_newest_runs_of_each_schedule(self, bench: Bench) -> None:
        node = await bench.node()
        ids = []
        await bench.add("few")
        await bench.end(node, await bench.hold(node, await bench.fire(await bench.stored("few"))))
        await bench.add("many")
        for _ in range(4):
            ids.append(await bench.fire(await bench.stored("many")))
            await bench.end(node, await bench.hold(node, ids[-1]))
        await _prune_all(bench, before=0, keep_per_schedule=2)
        assert {run.id for run in await bench.runs(schedule_key="many")} == set(ids[2:])
        assert len(await bench.runs(schedule_key="few")) == 1

    async def test_pruning_deletes_no_more_runs_than_its_limit(self, bench: Bench) -> None:
        node = await bench.node()
        for _ in range(5):
            await bench.end(node, await bench.hold(node))
        future = await bench.now() + HOUR
        assert await bench.store.prune(APP, before=future, keep_per_schedule=_ALL, limit=2) == 2
        assert len(await bench.runs()) == 3

    async def test_a_schedule_with_future_fires_is_never_pruned(self, bench: Bench) -> None:
        node = await bench.node()
        waiting = await bench.add("to come")
        await bench.pause(await bench.add("paused"), pause=Pause(at=5))
        settle = {"next_fire_at": None, "next_at": None}
        await bench.fire(await bench.add("live"), settle)
        after_end = await bench.fire(await bench.add("after end"), {**settle, "after_end": HOUR})
        await bench.end(node, next(run for run in (await bench.claim(node)).runs if run.id == after_end))
        await _prune_all(bench, before=await bench.now() + 9 * HOUR)
        assert await bench.stored("to come") == waiting
        for key in ("paused", "live", "after end"):
            assert (await bench.stored(key)).key == key

    async def test_an_ended_schedule_is_pruned_with_its_history(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.fire(await bench.add(), {"next_fire_at": None, "next_at": None})
        await bench.end(node, await bench.hold(node, run))
        await _prune_all(bench, before=await bench.now() - HOUR)
        assert (await bench.stored()).key == "nightly"
        await _prune_all(bench, before=await bench.now() + HOUR)
        assert await bench.store.stored_schedules(APP, keys=["nightly"]) == []

    async def test_the_runs_of_a_removed_schedule_keep_their_arguments(self, bench: Bench) -> None:
        node = await bench.node()
        running = await bench.hold(node, await bench.fire(await bench.add(args={"old": True})))
        waiting = await bench.fire(await bench.stored())
        assert await bench.change("remove", await bench.stored())
        await _prune_all(bench, before=await bench.now() - HOUR)
        assert (await bench.run(waiting)).args == {"old": True}
        await _prune_all(bench, before=await bench.now() + HOUR)
        assert [(run.id, run.args) for run in await bench.runs()] == [(running.id, {"old": True})]

    # --- pulse

    async def test_the_pulse_counts_live_runs_by_state(self, bench: Bench) -> None:
        pulse = await bench.store.pulse(APP)
        assert (pulse.waiting, pulse.running, pulse.parked, pulse.blocked, pulse.schedules) == (0, 0, 0, 0, 0)
        assert pulse.oldest_due_at is None
        node = await bench.node()
        parked = await bench.hold(node)
        await bench.end(node, parked, kind="park")
        await bench.end(node, await bench.hold(node))
        await bench.hold(node, await bench.fire(await bench.add()))
        await bench.fire(await bench.stored(), state=State.BLOCKED)
        ago = await bench.now() - MINUTE
        oldest = await bench.enqueue(fire_at=ago, due_at=ago)
        await bench.enqueue()
        pulse = await bench.store.pulse(APP)
        assert (pulse.waiting, pulse.running, pulse.parked, pulse.blocked) == (2, 1, 1, 1)
        assert pulse.schedules == 1
        assert pulse.oldest_due_at == us(oldest.due_at)

    async def test_the_pulse_counts_recent_failures_by_schedule_or_task(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.end(node, await bench.hold(node))
        assert (await bench.store.pulse(APP)).failed == {}
        fired = await bench.fire(await bench.add())
        await bench.end(node, await bench.hold(node, fired), verdict=Verdict.FAILED)
        long_due = await bench.now() - HOUR * 3
        for due in (long_due, long_due, await bench.now() - 3 * DAY):
            run = await bench.enqueue(fire_at=due, due_at=due)
            await bench.end(node, await bench.hold(node, run.id), verdict=Verdict.LOST)
        skipped = await bench.hold(node)
        await bench.end(node, skipped, verdict=Verdict.SKIPPED, reason="nothing to do")
        pulse = await bench.store.pulse(APP)
        assert (pulse.failed, pulse.lost) == ({"nightly": 1}, {TASK: 2})
        other = await bench.store.pulse(OTHER_APP)
        assert (other.failed, other.lost) == ({}, {})

    @pytest.mark.parametrize(
        ("verdict", "failed"),
        [(Verdict.SUCCEEDED, {}), (Verdict.FAILED, {TASK: 1}), (Verdict.CANCELLED, {TASK: 1}), (Verdict.LOST, {})],
    )
    async def test_the_pulse_counts_a_rerun_that_ran_instead_of_the_run_it_repeats(
        self, bench: Bench, verdict: Verdict, failed: dict[str, int]
    ) -> None:
        node = await bench.node()
        dead = await bench.end(node, await bench.hold(node), verdict=Verdict.FAILED)
        # Only cause RERUN makes a rerun, `caused_by` alone does not.
        await bench.enqueue(fire_at=us(dead.fire_at), caused_by=dead.id, due_at=await bench.now() + HOUR)
        assert (await bench.store.pulse(APP)).failed == {TASK: 1}
        rerun = await bench.enqueue(cause=Cause.RERUN, fire_at=us(dead.fire_at), caused_by=dead.id)
        assert (await bench.store.pulse(APP)).failed == {}
        if verdict is Verdict.CANCELLED:
            await bench.cancel(rerun.id)
        else:
            await bench.end(node, await bench.hold(node, rerun.id), verdict=verdict)
        pulse = await bench.store.pulse(APP)
        assert (pulse.failed, pulse.lost) == (failed, {TASK: 1} if verdict is Verdict.LOST else {})

    async def test_a_store_lists_every_app_that_has_rows(self, bench: Bench) -> None:
        assert await bench.store.apps() == []
        await bench.enqueue(app=OTHER_APP)
        assert await bench.store.apps() == [OTHER_APP]
        node = await bench.node()
        assert await bench.store.apps() == [APP, OTHER_APP]
        await bench.end(node, await bench.hold(node))
        await bench.add(app="a-third")
        assert await bench.store.apps() == sorted([APP, OTHER_APP, "a-third"])
        assert await bench.store.apps(limit=1) == sorted([APP, OTHER_APP, "a-third"])[:1]

    async def test_the_clock_of_the_store_advances(self, bench: Bench) -> None:
        before = await bench.now()
        await bench.pass_time(1000)
        assert await bench.now() >= before + 1000

    async def test_waiting_for_a_change_ends_with_its_timeout(self, bench: Bench) -> None:
        assert await bench.store.changed(APP, 0.001) in (None, "runs", "anything")

    async def test_a_store_works_after_another_object_on_it_was_closed(self, bench: Bench) -> None:
        second = await bench.stores.open()
        node = await bench.node()
        await second.enqueue(APP, [a_run()])
        assert len((await second.claim(APP, node, ["default"], TERMS, 1)).runs) == 1
        await second.close()
        assert len(await bench.store.owned(APP, node)) == 1
