"""Promises about limits and unique keys: never exceeded, no run left blocked, no other run delayed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from evertick.model import Cause, Reason, State, Verdict
from evertick.model.limits import Concurrency, Rate, Subject
from evertick.store.base import NodeJoin, TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    OTHER_APP,
    SHORT_LEASE,
    TASK,
    Bench,
    a_fire,
    a_run,
    an_advance,
    an_outcome,
    us,
)

__all__ = ["Limits"]

FREE = "free"


def at_once(most: int, text: str | None = None, task: str = TASK, **terms: Any) -> TaskTerms:
    return TaskTerms(concurrency=Concurrency(most=most, of=Subject(task=task, text=text)), **terms)


def per(most: int, period: int, text: str | None = None, task: str = TASK, **terms: Any) -> TaskTerms:
    return TaskTerms(rate=Rate(most=most, period=period, of=Subject(task=task, text=text)), **terms)


def both(most: int, rate: int, period: int) -> TaskTerms:
    return at_once(most, rate=per(rate, period).rate)


_order = itertools.count()


async def enqueue(bench: Bench, count: int, **fields: Any) -> list[str]:
    """Runs that are long due, in the order of their due time."""
    ago = await bench.now() - MINUTE
    moments = [ago + next(_order) for _ in range(count)]
    runs = [a_run(**{"fire_at": moment, "due_at": moment, **fields}) for moment in moments]
    return [run.id for run in await bench.store.enqueue(APP, runs)]


async def claimed(bench: Bench, node: str, tasks: Mapping[str, TaskTerms], limit: int = 100) -> list[str]:
    return [run.id for run in (await bench.claim(node, tasks=tasks, limit=limit)).runs]


async def states(bench: Bench, runs: list[str]) -> list[State]:
    return [await bench.state(run) for run in runs]


async def taken_by_new_node(bench: Bench, tasks: Mapping[str, TaskTerms]) -> list[str]:
    """The runs that a new node claims at once, in as many claims as the answers ask for."""
    node = await bench.node(tasks=tasks)
    taken: list[str] = []
    for _ in range(50):
        answer = await bench.claim(node, tasks=tasks, limit=1_000)
        taken += [run.id for run in answer.runs]
        if answer.next_due_at is None or answer.next_due_at > answer.now:
            return taken
    raise AssertionError("fifty claims, and more runs are waiting")


class Limits:
    # --- concurrency

    @pytest.mark.parametrize("terms", [at_once(1, "of-{x}"), per(1, HOUR, "of-{x}")], ids=["concurrency", "rate"])
    async def test_a_limit_key_may_contain_characters_that_databases_reject(
        self, bench: Bench, terms: TaskTerms
    ) -> None:
        tasks = {TASK: terms, FREE: TaskTerms()}
        node = await bench.node(tasks=tasks)
        odd = [b'{"x":"a\\u0000b"}', b'{"x":"a\\u0000b"}', b'{"x":"a\\ufffdb"}', b'{"x":"ab"}']
        first, again, *others = [(await enqueue(bench, 1, args=args))[0] for args in odd]
        [free] = await enqueue(bench, 1, task=FREE)
        # It does not stop the others, and is not equal to a key that looks the same.
        assert sorted(await claimed(bench, node, tasks)) == sorted([first, *others, free])
        assert await bench.state(again) is State.BLOCKED

    async def test_no_more_runs_of_a_task_than_its_concurrency_limit_run_at_once(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(2)}
        runs = await enqueue(bench, 5)
        assert await claimed(bench, node, tasks) == runs[:2]
        assert await claimed(bench, node, tasks) == []
        assert await states(bench, runs) == [State.RUNNING] * 2 + [State.BLOCKED] * 3

    async def test_a_run_blocked_by_a_limit_names_the_limit(self, bench: Bench) -> None:
        node = await bench.node()
        first, second = await enqueue(bench, 2, args=b'{"who":"ann"}')
        assert await claimed(bench, node, {TASK: at_once(1, "c-{who}")}) == [first]
        held = await bench.run(second)
        assert (held.state, held.reason, held.blocked_on) == (State.BLOCKED, Reason.CONCURRENCY, "c-ann")
        assert (await bench.run(first)).blocked_on is None
        assert (await bench.store.pulse(APP)).blocked == 1

    async def test_a_concurrency_limit_covers_all_nodes_together(self, bench: Bench) -> None:
        nodes, tasks = [await bench.node() for _ in range(3)], {TASK: at_once(2)}
        await enqueue(bench, 9)
        other = await bench.stores.open()
        claims = await asyncio.gather(
            *(store.claim(APP, node, ["default"], tasks, 5) for node in nodes for store in (bench.store, other))
        )
        assert sum(len(claim.runs) for claim in claims) == 2

    async def test_each_app_has_its_own_limits(self, bench: Bench) -> None:
        tasks = {TASK: at_once(1)}
        await enqueue(bench, 1)
        assert len(await claimed(bench, await bench.node(), tasks)) == 1
        foreign = await bench.node(app=OTHER_APP)
        await bench.enqueue(app=OTHER_APP)
        assert len((await bench.claim(foreign, tasks=tasks, app=OTHER_APP)).runs) == 1

    @pytest.mark.parametrize("kind", ["done", "retry", "release", "park"])
    async def test_every_end_of_a_claim_frees_its_place_in_the_limit(self, bench: Bench, kind: str) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1)}
        runs = await enqueue(bench, 3)
        [held] = (await bench.claim(node, tasks=tasks)).runs
        answer = await bench.store.finish(APP, node, [an_outcome(held, kind, delay=HOUR)])
        assert (answer.answers, answer.freed) == (["done"], True)
        assert await claimed(bench, node, tasks) == [runs[1]]

    @pytest.mark.parametrize("is_final", [True, False])
    async def test_the_death_of_a_node_frees_its_places_in_a_limit(self, bench: Bench, is_final: bool) -> None:
        dying, node = await bench.node(), await bench.node()
        tasks = {TASK: at_once(1, at_most_once=is_final)}
        runs = await enqueue(bench, 2)
        assert await claimed(bench, dying, tasks) == runs[:1]
        assert await claimed(bench, node, tasks) == []
        await bench.store.leave(dying)
        rehomed = await bench.rehome(node, tasks=tasks)
        assert rehomed.freed
        assert await claimed(bench, node, tasks) == runs[1:]

    async def test_limited_runs_of_a_dead_node_are_released_and_claimed_again(self, bench: Bench) -> None:
        dying, node = await bench.node(), await bench.node()
        tasks = {TASK: at_once(2), FREE: TaskTerms()}
        runs = await enqueue(bench, 2)
        free = (await bench.enqueue(task=FREE)).id
        assert set(await claimed(bench, dying, tasks)) == {*runs, free}
        await bench.store.leave(dying)
        rehomed = await bench.rehome(node, tasks=tasks)
        assert [run.id for run in rehomed.claimed] == [free]
        assert len(rehomed.released) == 2
        assert await claimed(bench, node, {TASK: at_once(1)}) == runs[:1]

    @pytest.mark.parametrize("way", ["cancelled", "expired", "removed", "replaced", "parked"])
    async def test_an_unblocked_run_that_is_never_claimed_passes_its_place_to_the_next_run(
        self, bench: Bench, way: str
    ) -> None:
        node, tasks = await bench.node(lease=SHORT_LEASE if way == "parked" else HOUR), {TASK: at_once(1)}
        ago = await bench.now() - MINUTE
        schedule = await bench.add(overlap="replace")
        running = (await bench.enqueue(priority=9)).id
        second = await bench.fire(schedule, priority=5, due_at=ago, expires=2 * MINUTE)
        third = (await bench.enqueue(task=TASK)).id
        [held] = (await bench.claim(node, tasks=tasks)).runs
        assert held.id == running
        assert await states(bench, [second, third]) == [State.BLOCKED] * 2
        assert await bench.finish(node, an_outcome(held)) == ["done"]
        assert await states(bench, [second, third]) == [State.WAITING, State.BLOCKED]
        stored = await bench.stored()
        match way:
            case "cancelled":
                assert await bench.cancel(second) == ["ended"]
            case "expired":
                await bench.pass_time(2 * MINUTE)
                assert (await bench.claim(node, tasks={TASK: at_once(1)}, limit=1)).expired == [second]
                assert await bench.state(third) is State.RUNNING
                return
            case "removed":
                assert await bench.change("remove", stored)
            case "replaced":
                new = a_fire(stored, state=State.BLOCKED)
                assert (await bench.record(an_advance(stored, new, replaces_live=True))).taken == [True]
            case "parked":
                await bench.store.leave(node)
                await bench.store.park_unknown(APP, 1)
                assert await bench.state(second) is State.PARKED
        assert await bench.state(third) is State.WAITING

    async def test_cancelling_a_blocked_run_unblocks_no_other_run(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1)}
        runs = await enqueue(bench, 3)
        await claimed(bench, node, tasks)
        assert await bench.cancel(runs[1]) == ["ended"]
        assert (await bench.run(runs[1])).verdict is Verdict.CANCELLED
        assert await bench.state(runs[2]) is State.BLOCKED

    async def test_a_run_that_expires_while_it_is_blocked_ends_when_it_would_be_claimed(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1)}
        [running] = await enqueue(bench, 1)
        [held] = (await bench.claim(node, tasks=tasks)).runs
        now = await bench.now()
        old = await enqueue(bench, 1, due_at=now, expires=MINUTE)
        fresh = await enqueue(bench, 1, due_at=now, priority=-1)
        assert await claimed(bench, node, tasks) == []
        await bench.pass_time(MINUTE + 1)
        await bench.finish(node, an_outcome(held))
        answer = await bench.claim(node, tasks=tasks)
        assert (answer.expired, [run.id for run in answer.runs]) == (old, fresh)
        assert running == held.id

    async def test_removing_a_schedule_cancels_its_runs_that_a_limit_blocks(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1)}
        await enqueue(bench, 1, priority=9)
        schedule = await bench.add()
        held = await bench.fire(schedule)
        await bench.claim(node, tasks=tasks)
        assert await bench.change("remove", await bench.stored())
        assert (await bench.run(held)).verdict is Verdict.CANCELLED

    async def test_a_raised_limit_is_used_up_by_the_next_claim(self, bench: Bench) -> None:
        node = await bench.node()
        runs = await enqueue(bench, 9)
        [held] = (await bench.claim(node, tasks={TASK: at_once(1)})).runs
        await bench.finish(node, an_outcome(held))
        assert sorted(await claimed(bench, node, {TASK: at_once(5)})) == sorted(runs[1:6])

    async def test_a_raised_limit_is_used_up_by_claims_of_several_small_nodes(self, bench: Bench) -> None:
        nodes = [await bench.node() for _ in range(4)]
        runs = await enqueue(bench, 9)
        [held] = (await bench.claim(nodes[0], tasks={TASK: at_once(1)})).runs
        await bench.finish(nodes[0], an_outcome(held))
        taken = [run for node in nodes for run in await claimed(bench, node, {TASK: at_once(3)}, limit=1)]
        assert taken == runs[1:4]

    async def test_a_lowered_limit_starts_no_run_until_enough_have_ended(self, bench: Bench) -> None:
        node = await bench.node()
        runs = await enqueue(bench, 4)
        held = (await bench.claim(node, tasks={TASK: at_once(3)})).runs
        for each in held[:2]:
            await bench.finish(node, an_outcome(each))
            assert await claimed(bench, node, {TASK: at_once(1)}) == []
        await bench.finish(node, an_outcome(held[2]))
        assert await claimed(bench, node, {TASK: at_once(1)}) == runs[3:]

    async def test_runs_that_a_removed_limit_blocked_are_claimed(self, bench: Bench) -> None:
        node = await bench.node()
        runs = await enqueue(bench, 4)
        [held] = (await bench.claim(node, tasks={TASK: at_once(1)})).runs
        await bench.finish(node, an_outcome(held))
        taken: list[str] = []
        for _ in runs[1:]:
            taken += await claimed(bench, node, {TASK: TaskTerms()})
        assert taken == runs[1:]

    @pytest.mark.parametrize("terms", [at_once(5, "new"), per(100, HOUR)], ids=["another key", "a rate instead"])
    async def test_runs_that_a_changed_limit_blocked_are_claimed(self, bench: Bench, terms: TaskTerms) -> None:
        node = await bench.node()
        runs = await enqueue(bench, 4)
        [held] = (await bench.claim(node, tasks={TASK: at_once(1)})).runs
        await bench.finish(node, an_outcome(held))
        taken: list[str] = []
        for _ in runs[1:]:
            taken += await claimed(bench, node, {TASK: terms}, limit=1)
        assert taken == runs[1:]

    async def test_a_limited_task_at_the_head_of_the_queue_does_not_delay_the_runs_behind_it(
        self, bench: Bench
    ) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1), FREE: TaskTerms()}
        ahead = await enqueue(bench, 30, priority=9)
        behind = await enqueue(bench, 3, task=FREE)
        assert await claimed(bench, node, tasks, limit=4) == [ahead[0], *behind]

    async def test_blocked_runs_are_freed_by_priority_then_longest_due_first(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1)}
        now = await bench.now()
        [first] = await enqueue(bench, 1, priority=99)
        made = {
            (priority, ago): (await bench.enqueue(priority=priority, fire_at=now - ago, due_at=now - ago)).id
            for priority, ago in [(0, 10), (5, 1), (0, 20), (5, 30)]
        }
        taken = []
        for _ in range(5):
            [held] = (await bench.claim(node, tasks=tasks)).runs
            taken.append(held.id)
            await bench.finish(node, an_outcome(held))
        assert taken == [first, made[5, 30], made[5, 1], made[0, 20], made[0, 10]]

    async def test_a_limit_key_made_of_arguments_limits_each_value_separately(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1, "c-{who}")}
        ann = await enqueue(bench, 2, args=b'{"who":"ann"}')
        bob = await enqueue(bench, 2, args=b'{"who":"bob"}')
        seven = await enqueue(bench, 1, args=b'{"who":7}')
        without = await enqueue(bench, 2)
        assert await claimed(bench, node, tasks) == [ann[0], bob[0], seven[0], without[0]]

    async def test_the_arguments_of_a_schedule_make_the_key_of_its_runs(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1, "c-{who}")}
        schedule = await bench.add(args={"who": "ann"})
        fired = await bench.fire(schedule)
        by_hand = await enqueue(bench, 1, args=b'{"who":"ann"}')
        assert await claimed(bench, node, tasks) == [fired]
        assert await bench.state(by_hand[0]) is State.BLOCKED

    async def test_tasks_with_the_same_limit_key_share_the_limit(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(2, "db"), FREE: at_once(2, "db", FREE)}
        one, other = await enqueue(bench, 2), await enqueue(bench, 2, task=FREE)
        held = (await bench.claim(node, tasks=tasks)).runs
        assert [run.id for run in held] == one
        await bench.finish(node, an_outcome(held[0]))
        assert await claimed(bench, node, tasks) == other[:1]

    async def test_a_limit_of_a_task_and_a_limit_key_of_the_same_name_are_two_limits(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1), FREE: at_once(1, TASK, FREE)}
        runs = [*await enqueue(bench, 1), *await enqueue(bench, 1, task=FREE)]
        assert await claimed(bench, node, tasks) == runs

    async def test_a_run_that_no_live_node_can_take_does_not_block_others_of_its_limit_key(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1, "db")}
        [running] = (await bench.claim(node, tasks=tasks)).runs if await enqueue(bench, 1) else []
        everything = {**tasks, FREE: at_once(1, "db", FREE)}
        foreign = [*await enqueue(bench, 1, task=FREE), *await enqueue(bench, 1, queue="elsewhere")]
        own = await enqueue(bench, 1)
        assert (await bench.claim(node, tasks=everything, queues=["default", "elsewhere"])).runs == []
        await bench.finish(node, an_outcome(running))
        assert await claimed(bench, node, tasks) == own
        assert await states(bench, foreign) == [State.WAITING] * 2

    async def test_a_run_blocked_by_a_limit_is_live_for_overlap(self, bench: Bench) -> None:
        """It counts as waiting does: with overlap `queue` one more run may be blocked on it."""
        node, tasks = await bench.node(), {TASK: at_once(1)}
        await enqueue(bench, 1, priority=9)
        await bench.fire(await bench.add(overlap="queue"))
        await bench.claim(node, tasks=tasks)
        stored = await bench.stored()
        assert stored.live == 1
        queued = a_fire(stored, state=State.BLOCKED)
        assert (await bench.record(an_advance(stored, queued, live=1))).taken == [True]
        assert (await bench.stored()).live == 3
        [due] = [row for row in (await bench.store.due_schedules(APP, 10)).schedules if row.id == stored.id]
        assert due.live == 3

    async def test_a_claim_that_passes_over_many_limited_runs_reports_that_more_is_waiting(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: at_once(1), FREE: TaskTerms()}
        await enqueue(bench, 1_500, priority=9)
        [free] = await enqueue(bench, 1, task=FREE)
        taken: list[str] = []
        for _ in range(3):
            answer = await bench.claim(node, tasks=tasks)
            taken += [run.id for run in answer.runs]
            if free in taken:
                break
            assert answer.next_due_at is not None
            assert answer.next_due_at <= answer.now
        assert len(taken) == 2

    async def test_maintenance_does_not_unblock_runs_that_a_limit_blocks(self, bench: Bench) -> None:
        node = await bench.node()
        await enqueue(bench, 2)
        await claimed(bench, node, {TASK: at_once(1)})
        late = await enqueue(bench, 2, task=FREE)
        await claimed(bench, await bench.node(tasks={FREE: TaskTerms()}), {FREE: per(1, HOUR, task=FREE)})
        await bench.store.park_unknown(APP, 100)
        assert (await bench.store.pulse(APP)).blocked == 2
        assert await bench.state(late[1]) is State.BLOCKED

    # --- rates

    async def test_no_more_runs_than_the_rate_start_in_a_period(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: per(3, HOUR)}
        runs = await enqueue(bench, 5)
        held = (await bench.claim(node, tasks=tasks)).runs
        assert [run.id for run in held] == runs[:3]
        for each in held:
            await bench.finish(node, an_outcome(each))
        assert await claimed(bench, node, tasks) == []
        blocked = await bench.run(runs[3])
        assert (blocked.state, blocked.reason, blocked.blocked_on) == (State.BLOCKED, Reason.RATE, TASK)

    async def test_a_claim_reports_when_the_rate_allows_the_next_start(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: per(2, HOUR)}
        await enqueue(bench, 1)
        first = await bench.claim(node, tasks=tasks)
        await bench.pass_time(1_000)
        await enqueue(bench, 3)
        second = await bench.claim(node, tasks=tasks)
        assert len(second.runs) == 1
        assert second.next_due_at == first.now + HOUR
        assert (await bench.claim(node, tasks=tasks)).next_due_at == first.now + HOUR

    async def test_the_next_run_starts_as_soon_as_the_rate_allows_it(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: per(2, bench.short)}
        runs = await enqueue(bench, 5)
        taken: list[tuple[str, int]] = []
        for _ in range(20):
            answer = await bench.claim(node, tasks=tasks)
            taken += [(run.id, answer.now) for run in answer.runs]
            if len(taken) == 5:
                break
            await bench.pass_time(bench.short // 3)
        assert [run for run, _ in taken] == runs
        assert all(taken[n + 2][1] - taken[n][1] >= bench.short for n in range(3))

    async def test_every_claim_counts_for_a_rate_also_that_of_a_retry(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: per(2, HOUR)}
        [run] = await enqueue(bench, 1)
        for _ in range(2):
            [held] = (await bench.claim(node, tasks=tasks)).runs
            await bench.finish(node, an_outcome(held, "retry", attempts=held.attempts + 1))
        assert await claimed(bench, node, tasks) == []
        assert (await bench.run(run)).reason == Reason.RATE

    async def test_a_rate_covers_all_nodes_together(self, bench: Bench) -> None:
        nodes, tasks = [await bench.node() for _ in range(3)], {TASK: per(4, HOUR)}
        await enqueue(bench, 9)
        other = await bench.stores.open()
        claims = await asyncio.gather(
            *(store.claim(APP, node, ["default"], tasks, 3) for node in nodes for store in (bench.store, other))
        )
        assert sum(len(claim.runs) for claim in claims) == 4

    async def test_a_rate_by_key_counts_each_key_separately(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: per(1, HOUR, "c-{who}")}
        ann = await enqueue(bench, 2, args=b'{"who":"ann"}')
        bob = await enqueue(bench, 2, args=b'{"who":"bob"}')
        assert await claimed(bench, node, tasks) == [ann[0], bob[0]]

    async def test_a_large_rate_is_used_up_and_never_exceeded(self, bench: Bench) -> None:
        """Above a thousand per period starts are grouped: at most a thousandth of the rate is lost, none is added."""
        node, tasks = await bench.node(), {TASK: per(1_200, HOUR)}
        await enqueue(bench, 1_300)
        taken = 0
        for _ in range(14):
            answer = await bench.claim(node, tasks=tasks)
            taken += len(answer.runs)
        assert taken == 1_200
        assert answer.next_due_at is not None
        assert HOUR * 0.99 < answer.next_due_at - answer.now <= HOUR

    async def test_a_cancelled_run_that_was_unblocked_passes_its_start_to_the_next_run(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: per(1, bench.short)}
        runs = await enqueue(bench, 3)
        assert await claimed(bench, node, tasks) == runs[:1]
        await bench.pass_time(bench.short)
        # A claim whose slots go to another task unblocks a run that it does not take.
        free = await enqueue(bench, 1, task=FREE, priority=9)
        assert await claimed(bench, node, {**tasks, FREE: TaskTerms()}, limit=1) == free
        assert await bench.cancel(runs[1]) == ["ended"]
        assert await claimed(bench, node, tasks) == runs[2:]

    async def test_a_rate_and_a_concurrency_limit_apply_together(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: both(2, 3, HOUR)}
        runs = await enqueue(bench, 6)
        held = (await bench.claim(node, tasks=tasks)).runs
        assert [run.id for run in held] == runs[:2]
        await bench.finish(node, an_outcome(held[0]), an_outcome(held[1]))
        assert await claimed(bench, node, tasks) == [runs[2]]
        reasons = {(await bench.run(run)).reason for run in runs[3:]}
        assert reasons <= {Reason.RATE, Reason.CONCURRENCY}
        assert (await bench.store.pulse(APP)).blocked == 3

    async def test_with_a_rate_and_a_concurrency_limit_every_run_ends(self, bench: Bench) -> None:
        node, tasks = await bench.node(), {TASK: both(2, 3, bench.short)}
        runs, ended = await enqueue(bench, 10), 0
        for _ in range(200):
            held = (await bench.claim(node, tasks=tasks)).runs
            ended += len(held)
            assert len(held) <= 2
            await bench.finish(node, *(an_outcome(each) for each in held))
            if ended == len(runs):
                break
            await bench.pass_time(bench.short // 3)
        assert await states(bench, runs) == [State.DONE] * 10

    async def test_a_run_blocked_by_its_second_limit_does_not_delay_runs_outside_that_limit(self, bench: Bench) -> None:
        node = await bench.node()
        tasks = {TASK: at_once(1, "c-{who}", rate=per(1, bench.short).rate)}
        ann = await enqueue(bench, 3, args=b'{"who":"ann"}')
        bob = await enqueue(bench, 1, args=b'{"who":"bob"}')
        [held] = (await bench.claim(node, tasks=tasks)).runs
        assert held.id == ann[0]
        await bench.pass_time(bench.short)
        # The rate allows one start. Ann's is blocked by her running run, Bob's is not.
        assert await claimed(bench, node, tasks) == bob
        await bench.pass_time(bench.short)
        assert await claimed(bench, node, tasks) == []
        await bench.finish(node, an_outcome(held))
        assert await claimed(bench, node, tasks) == ann[1:2]

    async def test_with_two_limits_by_key_every_run_ends(self, bench: Bench) -> None:
        node = await bench.node()
        tasks = {TASK: at_once(1, "c-{who}", rate=per(1, bench.short, "r-{where}").rate)}
        runs = [
            *await enqueue(bench, 4, args=b'{"who":"ann","where":"x"}'),
            *await enqueue(bench, 4, args=b'{"who":"ann","where":"y"}'),
            *await enqueue(bench, 4, args=b'{"who":"bob","where":"x"}'),
        ]
        for _ in range(200):
            held = (await bench.claim(node, tasks=tasks)).runs
            await bench.finish(node, *(an_outcome(each) for each in held))
            if set(await states(bench, runs)) == {State.DONE}:
                break
            await bench.pass_time(bench.short // 3)
        assert set(await states(bench, runs)) == {State.DONE}

    # --- limits that change with a deployment

    @pytest.mark.parametrize("new", [per(100, MINUTE), TaskTerms(), at_once(9)], ids=["raised", "removed", "another"])
    async def test_runs_blocked_by_a_rate_do_not_wait_after_a_deployment_changes_it(
        self, bench: Bench, new: TaskTerms
    ) -> None:
        runs = await enqueue(bench, 5)
        old = await bench.node(tasks={TASK: per(1, HOUR)})
        [held] = (await bench.claim(old, tasks={TASK: per(1, HOUR)})).runs
        await bench.finish(old, an_outcome(held))
        await bench.store.leave(old)
        assert sorted(await taken_by_new_node(bench, {TASK: new})) == sorted(runs[1:])

    @pytest.mark.parametrize("new", [at_once(5), TaskTerms(), per(9, HOUR)], ids=["raised", "removed", "another"])
    async def test_a_raised_concurrency_limit_applies_before_running_runs_end(
        self, bench: Bench, new: TaskTerms
    ) -> None:
        runs = await enqueue(bench, 5)
        old = await bench.node(tasks={TASK: at_once(1)})
        assert await claimed(bench, old, {TASK: at_once(1)}) == runs[:1]
        assert sorted(await taken_by_new_node(bench, {TASK: new})) == sorted(runs[1:])

    async def test_a_node_without_the_limit_claims_all_blocked_runs_in_one_claim(self, bench: Bench) -> None:
        old = await bench.node(tasks={TASK: at_once(1)})
        runs = await enqueue(bench, 5)
        assert await claimed(bench, old, {TASK: at_once(1)}) == runs[:1]
        young = await bench.node(tasks={TASK: TaskTerms()})
        assert await claimed(bench, young, {TASK: TaskTerms()}) == runs[1:]
        assert await claimed(bench, old, {TASK: at_once(1)}) == []

    async def test_a_raised_limit_is_not_exceeded(self, bench: Bench) -> None:
        runs = await enqueue(bench, 9)
        old = await bench.node(tasks={TASK: at_once(1)})
        assert await claimed(bench, old, {TASK: at_once(1)}) == runs[:1]
        assert await taken_by_new_node(bench, {TASK: at_once(3)}) == runs[1:3]
        assert await states(bench, runs[3:]) == [State.BLOCKED] * 6

    async def test_after_a_small_raise_of_a_rate_the_next_start_follows_the_new_rate(self, bench: Bench) -> None:
        runs = await enqueue(bench, 3)
        old = await bench.node(tasks={TASK: per(1, HOUR)})
        first = await bench.claim(old, tasks={TASK: per(1, HOUR)})
        assert [run.id for run in first.runs] == runs[:1]
        new = {TASK: per(1, 10 * MINUTE)}
        answer = await bench.claim(await bench.node(tasks=new), tasks=new)
        assert (answer.runs, answer.next_due_at) == ([], first.now + 10 * MINUTE)

    async def test_a_node_with_unchanged_limits_leaves_blocked_runs_blocked(self, bench: Bench) -> None:
        tasks = {TASK: at_once(1), FREE: per(1, HOUR, task=FREE)}
        runs = [*await enqueue(bench, 2), *await enqueue(bench, 2, task=FREE)]
        first = await bench.claim(await bench.node(tasks=tasks), tasks=tasks)
        answer = await bench.claim(await bench.node(tasks=tasks), tasks=tasks)
        assert (len(first.runs), answer.runs, answer.next_due_at) == (2, [], first.now + HOUR)
        assert await states(bench, runs) == [State.RUNNING, State.BLOCKED] * 2

    @pytest.mark.parametrize("way", ["leaves", "is declared dead", "loses the task", "has other limits"])
    async def test_runs_blocked_under_limits_that_no_node_has_now_are_claimed_by_other_nodes(
        self, bench: Bench, way: str
    ) -> None:
        """The usual order of a deployment: the new node joins before the old one leaves."""
        tight, wide = {TASK: per(1, HOUR)}, {TASK: per(100, MINUTE)}
        living = await bench.node(tasks=wide)
        dying = await bench.node(tasks=tight, lease=SHORT_LEASE if way == "is declared dead" else HOUR)
        assert await claimed(bench, living, wide) == []
        runs = await enqueue(bench, 3)
        [held] = (await bench.claim(dying, tasks=tight)).runs
        await bench.finish(dying, an_outcome(held))
        if way == "leaves":
            await bench.store.leave(dying)
        elif way in ("loses the task", "has other limits"):
            known = {} if way == "loses the task" else {TASK: per(2, HOUR)}
            await bench.store.join(
                NodeJoin(
                    id=dying,
                    name="node",
                    app=APP,
                    version="2",
                    lease=HOUR,
                    queues=("default",),
                    tasks=known,
                    declares={},
                )
            )
        else:
            await bench.pass_time(SHORT_LEASE + 1)
            assert dying in await bench.store.judge()
        assert await claimed(bench, living, wide) == runs[1:]

    async def test_a_raised_limit_with_many_keys_is_used_up_in_several_claims(self, bench: Bench) -> None:
        old, new = {TASK: per(1, HOUR, "c-{who}")}, {TASK: per(5, MINUTE, "c-{who}")}
        node = await bench.node(tasks=old)
        for who in range(150):
            await enqueue(bench, 2, args=b'{"who":%d}' % who)
        first = await bench.claim(node, tasks=old, limit=1_000)
        assert len(first.runs) == 150
        await bench.store.leave(node)
        assert len(await taken_by_new_node(bench, new)) == 150

    # --- unique keys

    async def test_a_unique_key_until_start_is_free_after_the_first_claim(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.enqueue(unique_key="k", unique_until="start")
        assert (await bench.enqueue(unique_key="k")).id == first.id
        held = await bench.hold(node, first.id)
        second = await bench.enqueue(unique_key="k", unique_until="start")
        assert second.is_new
        # A retry of the first run neither takes the key back nor fails because of it.
        assert await bench.finish(node, an_outcome(held, "retry", delay=HOUR)) == ["done"]
        assert (await bench.enqueue(unique_key="k")).id == second.id
        await bench.hold(node, second.id)
        assert (await bench.enqueue(unique_key="k")).is_new

    async def test_a_unique_key_for_a_period_is_taken_also_after_the_end_of_its_run(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.enqueue(unique_key="k", unique_for=HOUR)
        assert (await bench.enqueue(unique_key="k", unique_for=HOUR)).id == first.id
        await bench.end(node, await bench.hold(node, first.id))
        again = await bench.enqueue(unique_key="k")
        assert (again.id, again.is_new, again.state) == (first.id, False, State.DONE)
        assert (await bench.enqueue(unique_key="other", unique_for=HOUR)).is_new

    async def test_a_unique_key_for_a_period_is_free_after_the_period(self, bench: Bench) -> None:
        first = await bench.enqueue(unique_key="k", unique_for=bench.short)
        await bench.pass_time(bench.short)
        second = await bench.enqueue(unique_key="k", unique_for=HOUR)
        assert (second.is_new, (await bench.run(first.id)).state) == (True, State.WAITING)
        assert (await bench.enqueue(unique_key="k")).id == second.id

    async def test_the_unique_key_of_a_live_run_also_stops_an_enqueue_with_a_period(self, bench: Bench) -> None:
        first = await bench.enqueue(unique_key="k")
        assert (await bench.enqueue(unique_key="k", unique_for=HOUR)).id == first.id
        await bench.cancel(first.id)
        assert (await bench.enqueue(unique_key="k", unique_for=HOUR)).is_new

    async def test_an_enqueue_sent_again_is_no_duplicate_of_itself(self, bench: Bench) -> None:
        new = a_run(unique_key="k", unique_for=bench.short)
        await bench.store.enqueue(APP, [new])
        await bench.pass_time(bench.short)
        other = await bench.enqueue(unique_key="k", unique_for=HOUR)
        [again] = await bench.store.enqueue(APP, [new])
        assert (again.id, again.is_new) == (new.id, False)
        assert other.is_new

    async def test_a_fire_whose_unique_key_is_taken_becomes_a_gap(self, bench: Bench) -> None:
        await bench.enqueue(unique_key="k")
        schedule = await bench.add()
        new = a_fire(schedule, unique_key="k")
        recorded = await bench.record(an_advance(schedule, new))
        assert (recorded.taken, recorded.left_out, recorded.duplicates) == ([True], [new.id], [new.id])
        assert await bench.runs(ids=(new.id,)) == []
        [gap] = await bench.gaps()
        assert (gap.verdict, gap.reason, gap.count) == (Verdict.SKIPPED, Reason.DUPLICATE, 1)
        assert us(gap.first_at) == us(gap.last_at) == schedule.fire_at
        stored = await bench.stored()
        assert (stored.fires, stored.fire_at) == (0, (schedule.fire_at or 0) + MINUTE)

    async def test_a_fire_whose_unique_key_is_taken_replaces_no_run(self, bench: Bench) -> None:
        schedule = await bench.add(overlap="replace")
        live = await bench.fire(schedule, unique_key="k")
        stored = await bench.stored()
        new = a_fire(stored, unique_key="k", state=State.BLOCKED)
        assert (await bench.record(an_advance(stored, new, replaces_live=True))).duplicates == [new.id]
        assert await bench.state(live) is State.WAITING

    @pytest.mark.parametrize("cause", [Cause.TRIGGER, Cause.RERUN])
    async def test_a_manual_run_whose_unique_key_is_taken_changes_nothing(self, bench: Bench, cause: Cause) -> None:
        await bench.enqueue(unique_key="k")
        schedule = await bench.add()
        new = a_run(cause=cause, schedule_id=schedule.id, version=1, fire_at=1, due_at=1, unique_key="k")
        recorded = await bench.record(an_advance(schedule, new))
        assert (recorded.taken, recorded.duplicates) == ([False], [new.id])
        assert await bench.stored() == schedule
        assert await bench.gaps() == []

    async def test_a_manual_run_sent_again_is_no_duplicate_of_itself(self, bench: Bench) -> None:
        schedule = await bench.add()
        new = a_run(cause=Cause.TRIGGER, schedule_id=schedule.id, version=1, fire_at=1, due_at=1, unique_key="k")
        stays = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        for _ in range(2):
            assert (await bench.record(an_advance(schedule, new, **stays))).taken == [True]
        assert len(await bench.runs()) == 1

    async def test_old_starts_of_rates_and_old_unique_keys_are_pruned(self, bench: Bench) -> None:
        node = await bench.node()
        await enqueue(bench, 3)
        await claimed(bench, node, {TASK: per(3, HOUR)})
        await bench.enqueue(unique_key="k", unique_for=HOUR)
        assert await bench.store.prune(APP, before=0, keep_per_schedule=10, limit=100) == 0
        await bench.pass_time(HOUR)
        # A store may keep three starts of one moment in one row or in three.
        assert await bench.store.prune(APP, before=0, keep_per_schedule=10, limit=100) in (2, 4)
        assert await bench.store.prune(APP, before=0, keep_per_schedule=10, limit=100) == 0
