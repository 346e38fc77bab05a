"""Two sessions at one guard: the second waits, and then sees the result of the first.

The first transaction does its work and is held before its commit; the second is started, and the server tells when it
waits for a lock. Then the first commits. So every interleaving here is the same in every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from postgres_stores import PostgresStores

from evertick.model import Cause, Outcome, State, Verdict
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import END_OF_TIME, Change, NodeJoin, Store, TaskTerms
from evertick.store.postgres import PostgresStore, endings, fires, limits, nodes, runs, schedules
from evertick.store.postgres.connection import Statements, in_schema
from evertick.testing.conformance import Bench, a_definition, a_fire, a_run, an_advance, an_outcome
from evertick.testing.conformance.bench import APP, HOUR, TASK, TERMS

_WAITING = """
    SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE NOT l.granted AND a.query LIKE '%' || $1 || '%'
"""


class Race:
    def __init__(self, stores: PostgresStores, first: PostgresStore, second: Store) -> None:
        self._stores = stores
        self._first = first
        self.second = second
        self.bench = Bench(stores, first)

    @asynccontextmanager
    async def held(self, act: Callable[[Statements], Awaitable[Any]]) -> AsyncIterator[None]:
        """The first has done its work, and commits at the end of the block."""
        is_done, may_commit = asyncio.Event(), asyncio.Event()

        async def hold(db: Statements) -> None:
            await act(db)
            is_done.set()
            await may_commit.wait()

        first = asyncio.create_task(self._first.session().write(hold))
        done = asyncio.create_task(is_done.wait())
        await asyncio.wait([first, done], return_when=asyncio.FIRST_COMPLETED)
        assert is_done.is_set(), first.exception()
        try:
            yield
        finally:
            may_commit.set()
            await first

    async def waits(self, second: Awaitable[Any]) -> asyncio.Task[Any]:
        """Started, and now waiting for the first."""
        task = asyncio.ensure_future(second)
        connection = await self._stores.connect()
        try:
            async with asyncio.timeout(20):
                while not await connection.fetchval(_WAITING, self._stores.schema):
                    assert not task.done(), f"it did not wait: {task}"
        finally:
            await connection.close()
        return task  # type: ignore[return-value]


@pytest.fixture
async def race(kept_postgres_stores: PostgresStores) -> AsyncIterator[Race]:
    first, second = await kept_postgres_stores.open(), await kept_postgres_stores.open()
    assert isinstance(first, PostgresStore)
    race = Race(kept_postgres_stores, first, second)
    yield race
    await race.bench.check()


def by_hand(schedule: Any, **fields: Any) -> Any:
    """A trigger: a run, and the cursor stays where it is."""
    run = a_fire(schedule, cause=Cause.TRIGGER, fire_at=None, due_at=None, **fields)
    return an_advance(schedule, run, live=schedule.live, next_fire_at=schedule.fire_at, next_at=schedule.at)


async def finish_all(db: Statements, node: str, outcome: Outcome) -> None:
    await endings.finish_in(db, APP, node, [outcome])


# --- recording -----------------------------------------------------------------------------------------------------


async def test_of_two_records_of_one_moment_the_second_is_refused(race: Race) -> None:
    schedule = await race.bench.add()
    plans = [an_advance(schedule, a_fire(schedule)) for _ in range(2)]
    async with race.held(lambda db: fires._record_all(db, APP, None, plans[:1])):
        second = await race.waits(race.second.record_fires(APP, None, plans[1:]))
    assert (await second).taken == [False]
    assert [run.id for run in await race.bench.runs()] == [plans[0].runs[0].id]


@pytest.mark.parametrize("first", ["trigger", "fire"])
async def test_a_trigger_and_a_fire_do_not_both_find_nothing_live(race: Race, first: str) -> None:
    schedule = await race.bench.add()
    plans = [by_hand(schedule), an_advance(schedule, a_fire(schedule), live=0)]
    if first == "fire":
        plans.reverse()
    async with race.held(lambda db: fires._record_all(db, APP, None, plans[:1])):
        second = await race.waits(race.second.record_fires(APP, None, plans[1:]))
    assert (await second).taken == [False]
    assert len(await race.bench.runs()) == 1


async def test_of_two_triggers_at_once_one_is_taken(race: Race) -> None:
    schedule = await race.bench.add()
    async with race.held(lambda db: fires._record_all(db, APP, None, [by_hand(schedule)])):
        second = await race.waits(race.second.record_fires(APP, None, [by_hand(schedule)]))
    assert (await second).taken == [False]


async def test_an_edit_and_a_fire_one_after_the_other(race: Race) -> None:
    schedule = await race.bench.add()
    edit = Change(key="nightly", kind="edit", settle=an_advance(schedule), definition=a_definition(priority=1))
    async with race.held(lambda db: schedules.change_in(db, APP, [edit], False, ())):
        second = await race.waits(race.second.record_fires(APP, None, [an_advance(schedule, a_fire(schedule))]))
    assert (await second).taken == [False]
    stored = await race.bench.stored()
    edit = Change(key="nightly", kind="edit", settle=an_advance(stored), definition=a_definition(priority=2))
    plan = an_advance(stored, a_fire(stored))
    async with race.held(lambda db: fires._record_all(db, APP, None, [plan])):
        changing = await race.waits(race.second.change_schedules(APP, [edit]))
    assert await changing == [False]
    assert (await race.bench.stored()).definition.priority == 1


async def test_a_fire_of_a_schedule_that_is_being_removed_is_refused(race: Race) -> None:
    schedule = await race.bench.add()
    remove = Change(key="nightly", kind="remove", settle=an_advance(schedule))
    async with race.held(lambda db: schedules.change_in(db, APP, [remove], False, ())):
        second = await race.waits(race.second.record_fires(APP, None, [an_advance(schedule, a_fire(schedule))]))
    assert (await second).taken == [False]
    assert await race.bench.runs() == []


async def test_of_two_adds_of_one_key_at_once_one_is_taken(race: Race) -> None:
    add = Change(key="nightly", kind="add", definition=a_definition(), fire_at=1, at=1)
    async with race.held(lambda db: schedules.change_in(db, APP, [add], False, ())):
        second = await race.waits(race.second.change_schedules(APP, [add]))
    assert await second == [False]


# --- what an end frees -----------------------------------------------------------------------------------------------


async def test_a_run_that_is_being_blocked_on_another_is_freed_by_its_end(race: Race) -> None:
    node = await race.bench.node()
    held = await race.bench.hold(node, await race.bench.fire(await race.bench.add()))
    schedule = await race.bench.stored()
    blocked = a_fire(schedule, state=State.BLOCKED)
    async with race.held(lambda db: fires._record_all(db, APP, None, [an_advance(schedule, blocked)])):
        second = await race.waits(race.second.finish(APP, node, [an_outcome(held)]))
    finished = await second
    assert (finished.answers, finished.freed) == (["done"], True)
    assert await race.bench.state(blocked.id) is State.WAITING


async def test_a_run_is_not_blocked_on_one_that_is_ending(race: Race) -> None:
    node = await race.bench.node()
    held = await race.bench.hold(node, await race.bench.fire(await race.bench.add()))
    schedule = await race.bench.stored()
    blocked = a_fire(schedule, state=State.BLOCKED)
    simply = an_outcome(held)
    async with race.held(lambda db: endings._end_reported(db, APP, node, [simply], with_freeing=False)):
        second = await race.waits(race.second.record_fires(APP, None, [an_advance(schedule, blocked)]))
    assert (await second).taken == [True]
    assert await race.bench.state(blocked.id) is State.WAITING


async def test_of_two_last_runs_that_end_at_once_the_later_one_restarts_the_schedule(race: Race) -> None:
    node = await race.bench.node()
    after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
    first = await race.bench.hold(node, await race.bench.fire(await race.bench.add()))
    last = await race.bench.hold(node, await race.bench.fire(await race.bench.stored(), after_end))
    async with race.held(lambda db: finish_all(db, node, an_outcome(first))):
        second = await race.waits(race.second.finish(APP, node, [an_outcome(last)]))
    assert (await second).answers == ["done"]
    assert (await race.bench.stored()).at is not None


async def test_a_schedule_begins_to_count_from_the_end_while_its_last_run_ends(race: Race) -> None:
    node = await race.bench.node()
    held = await race.bench.hold(node, await race.bench.fire(await race.bench.add()))
    plan = an_advance(await race.bench.stored(), after_end=HOUR, next_fire_at=None, next_at=None)
    async with race.held(lambda db: endings._end_reported(db, APP, node, [an_outcome(held)], with_freeing=False)):
        second = await race.waits(race.second.record_fires(APP, None, [plan]))
    assert (await second).taken == [True]
    assert (await race.bench.stored()).at is not None


@pytest.mark.parametrize("periods", [(None, None), (HOUR, HOUR), (None, HOUR), (HOUR, None)])
async def test_of_two_enqueues_of_one_key_at_once_one_is_new(
    race: Race, periods: tuple[int | None, int | None]
) -> None:
    first, second = (a_run(unique_key="k", unique_for=period) for period in periods)
    async with race.held(lambda db: runs.enqueue_in(db, APP, [first])):
        waiting = await race.waits(race.second.enqueue(APP, [second]))
    [answer] = await waiting
    assert (answer.id, answer.is_new) == (first.id, False)


async def test_of_two_enqueues_of_one_run_at_once_one_is_new(race: Race) -> None:
    first, other = a_run(), a_run()
    async with race.held(lambda db: runs.enqueue_in(db, APP, [first])):
        second = await race.waits(race.second.enqueue(APP, [first, other]))
    assert [(run.id, run.is_new) for run in await second] == [(first.id, False), (other.id, True)]


async def test_a_fire_and_an_enqueue_of_one_key(race: Race) -> None:
    schedule = await race.bench.add()
    new = a_run(unique_key="k")
    async with race.held(lambda db: runs.enqueue_in(db, APP, [new])):
        plan = an_advance(schedule, a_fire(schedule, unique_key="k"))
        waiting = await race.waits(race.second.record_fires(APP, None, [plan]))
    recorded = await waiting
    assert (recorded.taken, recorded.duplicates) == ([True], [plan.runs[0].id])
    assert [gap.reason for gap in await race.bench.gaps()] == ["duplicate"]


# --- runs that are taken back, or whose place is taken ---------------------------------------------------------------


async def test_a_run_that_is_being_claimed_is_not_taken_back(race: Race) -> None:
    node = await race.bench.node()
    early = await race.bench.fire(await race.bench.add())
    plan = an_advance(await race.bench.stored(), undoes_run=early)

    async def claim(db: Statements) -> None:
        await db.rows("claim", APP, node, ["default"], [TASK], 3, "{}", [])

    async with race.held(claim):
        second = await race.waits(race.second.record_fires(APP, None, [plan]))
    assert (await second).taken == [False]
    assert await race.bench.state(early) is State.RUNNING


async def test_a_run_that_is_being_taken_back_is_not_claimed(race: Race) -> None:
    node = await race.bench.node()
    early = await race.bench.fire(await race.bench.add())
    plan = an_advance(await race.bench.stored(), undoes_run=early)
    async with race.held(lambda db: fires._record_all(db, APP, None, [plan])), asyncio.timeout(10):
        assert (await race.second.claim(APP, node, ["default"], TERMS, 9)).runs == []
    assert (await race.bench.run(early)).reason == "undone"


async def _parked(race: Race) -> tuple[str, NodeJoin, Any]:
    """A parked run of a schedule, a node that would free it, and a plan that takes its place."""
    parked = await race.bench.fire(await race.bench.add())
    assert await race.bench.store.park_unknown(APP, 9) == 1
    schedule = await race.bench.stored()
    fire = a_fire(schedule, state=State.BLOCKED)
    newcomer = NodeJoin(
        id="new", name="new", app=APP, version="1", lease=HOUR, queues=("default",), tasks=TERMS, declares={}
    )
    return parked, newcomer, an_advance(schedule, fire, live=schedule.live, replaces_live=True)


async def test_no_run_replaces_a_parked_run_that_is_being_unparked(race: Race) -> None:
    parked, newcomer, plan = await _parked(race)
    async with race.held(lambda db: nodes.join(db, newcomer)):
        second = await race.waits(race.second.record_fires(APP, None, [plan]))
    assert (await second).taken == [False]
    assert await race.bench.state(parked) is State.WAITING


async def test_a_parked_run_whose_place_is_being_taken_is_not_freed(race: Race) -> None:
    parked, newcomer, plan = await _parked(race)
    async with race.held(lambda db: fires._record_all(db, APP, None, [plan])):
        second = await race.waits(race.second.join(newcomer))
    await second
    assert (await race.bench.run(parked)).verdict is Verdict.CANCELLED
    assert await race.bench.state(plan.runs[0].id) is State.WAITING


# --- the line of a schedule ------------------------------------------------------------------------------------------


async def _line(race: Race, count: int) -> list[str]:
    """A run and those that are blocked on each other behind it."""
    line = [await race.bench.fire(await race.bench.add())]
    while len(line) < count:
        line.append(await race.bench.fire(await race.bench.stored(), state=State.BLOCKED))
    return line


async def _blocked_on(race: Race, run: str) -> str | None:
    return (await race.bench.run(run)).blocked_on


async def test_a_run_that_joins_the_line_behind_a_leaving_one_waits_for_the_one_before_it(race: Race) -> None:
    first, leaving = await _line(race, 2)
    schedule = await race.bench.stored()
    new = a_fire(schedule, state=State.BLOCKED)
    async with race.held(lambda db: runs.cancel(db, APP, [leaving], "not needed")):
        second = await race.waits(race.second.record_fires(APP, None, [an_advance(schedule, new)]))
    assert (await second).taken == [True]
    assert await _blocked_on(race, new.id) == first


async def test_a_run_that_leaves_the_line_while_another_joins_it_leaves_none_behind(race: Race) -> None:
    first, leaving = await _line(race, 2)
    schedule = await race.bench.stored()
    new = a_fire(schedule, state=State.BLOCKED)
    async with race.held(lambda db: fires._record_all(db, APP, None, [an_advance(schedule, new)])):
        second = await race.waits(race.second.cancel(APP, [leaving], "not needed"))
    assert [answer.answer for answer in await second] == ["ended"]
    assert await _blocked_on(race, new.id) == first


async def test_two_that_leave_the_line_one_behind_the_other_at_once(race: Race) -> None:
    first, one, other, last = await _line(race, 4)
    async with race.held(lambda db: runs.cancel(db, APP, [one], "not needed")):
        second = await race.waits(race.second.cancel(APP, [other], "not needed"))
    await second
    assert await _blocked_on(race, last) == first


async def test_one_leaves_the_line_while_the_one_before_it_ends(race: Race) -> None:
    node = await race.bench.node()
    first, leaving, last = await _line(race, 3)
    held = await race.bench.hold(node, first)
    async with race.held(lambda db: finish_all(db, node, an_outcome(held))):
        second = await race.waits(race.second.cancel(APP, [leaving], "not needed"))
    assert [answer.answer for answer in await second] == ["ended"]
    assert await race.bench.state(last) is State.WAITING


async def test_the_end_of_a_run_that_got_its_mark_too_late_frees_who_joins_at_that_moment(race: Race) -> None:
    """The session that ends it has not locked its schedule: at its search, no run was blocked on it."""
    first, gone = await _line(race, 2)
    await race.bench.cancel(gone)
    schedule = await race.bench.stored()
    new = a_fire(schedule, state=State.BLOCKED)

    async def end_unlocked(db: Statements) -> None:
        await db.rows("run.lock", APP, [first])
        await endings.end(db, APP, [endings.Ending(first, Verdict.CANCELLED, "late")])

    assert isinstance(race.second, PostgresStore)
    async with race.held(lambda db: fires._record_all(db, APP, None, [an_advance(schedule, new)])):
        second = await race.waits(race.second.session().write(end_unlocked))
    await second
    assert await race.bench.state(new.id) is State.WAITING


# --- limits ----------------------------------------------------------------------------------------------------------


async def test_runs_that_a_claim_blocks_are_released_by_an_end_at_the_same_time(race: Race) -> None:
    node, other = await race.bench.node(), await race.bench.node()
    tasks = {TASK: TaskTerms(concurrency=Concurrency(most=1, of=Subject(task=TASK)))}
    await race.bench.enqueue()
    [held] = (await race.bench.claim(node, tasks=tasks)).runs
    behind = await race.bench.enqueue()
    async with race.held(lambda db: runs._claim_under_limits(db, APP, other, ["default"], tasks, 9)):
        ending = await race.waits(race.second.finish(APP, node, [an_outcome(held)]))
    assert (await ending).freed
    assert await race.bench.state(behind.id) is State.WAITING


async def test_two_claims_under_one_limit_take_no_more_than_may(race: Race) -> None:
    node, other = await race.bench.node(), await race.bench.node()
    tasks = {TASK: TaskTerms(concurrency=Concurrency(most=1, of=Subject(task=TASK)))}
    await race.bench.store.enqueue(APP, [a_run() for _ in range(3)])
    async with race.held(lambda db: runs._claim_under_limits(db, APP, node, ["default"], tasks, 1)):
        second = await race.waits(race.second.claim(APP, other, ["default"], tasks, 9))
    assert (await second).runs == []


def at_once(most: int) -> dict[str, TaskTerms]:
    return {TASK: TaskTerms(concurrency=Concurrency(most=most, of=Subject(task=TASK)))}


async def test_a_node_that_joins_with_other_limits_sees_what_is_being_held_back_under_the_old_ones(race: Race) -> None:
    tight, wide = at_once(1), at_once(5)
    old = await race.bench.node(tasks=tight)
    await race.bench.store.enqueue(APP, [a_run() for _ in range(3)])
    newcomer = NodeJoin(
        id="new", name="new", app=APP, version="1", lease=HOUR, queues=("default",), tasks=wide, declares={}
    )
    async with race.held(lambda db: runs._claim_under_limits(db, APP, old, ["default"], tight, 9)):
        second = await race.waits(race.second.join(newcomer))
    await second
    assert len((await race.bench.claim("new", tasks=wide)).runs) == 2


async def test_runs_blocked_by_a_node_while_it_is_declared_dead_are_checked_by_the_living(race: Race) -> None:
    tight, wide = at_once(1), at_once(5)
    living, dying = await race.bench.node(tasks=wide), await race.bench.node(tasks=tight)
    assert (await race.bench.claim(living, tasks=wide)).runs == []
    await race.bench.store.enqueue(APP, [a_run() for _ in range(3)])
    async with race.held(lambda db: runs._claim_under_limits(db, APP, dying, ["default"], tight, 9)):
        await race.second.leave(dying)
        second = await race.waits(race.second.claim(APP, living, ["default"], wide, 9))
    assert len((await second).runs) == 2


async def test_a_claim_that_comes_to_the_gate_after_its_death_holds_nothing_back(race: Race) -> None:
    tight, wide = at_once(1), at_once(5)
    living, dying = await race.bench.node(tasks=wide), await race.bench.node(tasks=tight)
    runs_ = await race.bench.store.enqueue(APP, [a_run() for _ in range(3)])
    async with race.held(lambda db: limits.enter_gate(db, APP)):
        second = await race.waits(race.second.claim(APP, dying, ["default"], tight, 9))
        await race.second.leave(dying)
    assert (await second).runs == []
    assert len((await race.bench.claim(living, tasks=wide)).runs) == len(runs_)


async def test_a_node_that_is_asked_again_while_it_looks_looks_at_all_once_more(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs blocked by the node that dies now may have a smaller key than the one that the claim has reached."""
    wide = at_once(5)
    living, dying = await race.bench.node(tasks=wide), await race.bench.node(tasks=at_once(1))
    await race.bench.store.leave(await race.bench.node(tasks=at_once(2)))
    release_next = limits.release_next

    async def meanwhile(*_: Any, **__: Any) -> bool:
        await race.second.leave(dying)
        return False

    await race.bench.store.enqueue(APP, [a_run() for _ in range(2)])
    assert len((await race.bench.claim(dying, tasks=at_once(1))).runs) == 1
    monkeypatch.setattr(limits, "release_next", meanwhile)
    await race.bench.claim(living, tasks=wide)
    monkeypatch.setattr(limits, "release_next", release_next)
    assert len((await race.bench.claim(living, tasks=wide)).runs) == 1


@pytest.mark.parametrize("first", ["claim", "finish"])
async def test_a_claim_that_looks_again_and_an_end_take_no_more_than_may(race: Race, first: str) -> None:
    tight, wide = at_once(1), at_once(2)
    old = await race.bench.node(tasks=tight)
    new = await race.bench.node(tasks=wide)
    await race.bench.store.enqueue(APP, [a_run() for _ in range(4)])
    [held] = (await race.bench.claim(old, tasks=tight)).runs
    if first == "claim":
        async with race.held(lambda db: runs._claim_under_limits(db, APP, new, ["default"], wide, 9)):
            second = await race.waits(race.second.finish(APP, old, [an_outcome(held)]))
        assert (await second).freed
    else:
        async with race.held(lambda db: finish_all(db, old, an_outcome(held))):
            second = await race.waits(race.second.claim(APP, new, ["default"], wide, 9))
        assert len((await second).runs) == 2
    await race.bench.claim(new, tasks=wide)
    assert len(await race.bench.store.owned(APP, new)) == 2


async def test_a_cancel_that_finds_its_run_let_through_meanwhile_begins_again_at_the_gate(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked whether it needs the gate before the run came under the limit."""
    tasks = at_once(1)
    node = await race.bench.node(tasks=tasks)
    first, second, third = [await race.bench.enqueue(priority=9 - place) for place in range(3)]
    [held] = (await race.bench.claim(node, tasks=tasks, limit=1)).runs
    assert held.id == first.id
    looks: list[bool] = []
    lock_before = endings.lock_before

    async def meanwhile(db: Statements, app: str, ids: Sequence[str]) -> None:
        await lock_before(db, app, ids)
        looks.append(db.is_in_gate)
        if len(looks) == 1:
            await race.second.claim(APP, node, ["default"], tasks, 9)
            monkeypatch.setattr(endings, "lock_before", lock_before)
            await race.second.finish(APP, node, [an_outcome(held)])
            monkeypatch.setattr(endings, "lock_before", meanwhile)

    monkeypatch.setattr(endings, "lock_before", meanwhile)
    assert [one.answer for one in await race.bench.store.cancel(APP, [second.id], "not needed")] == ["ended"]
    assert looks == [False, True]
    assert await race.bench.state(third.id) is State.WAITING


# --- claims ----------------------------------------------------------------------------------------------------------


async def test_two_claims_at_once_do_not_wait_and_share_nothing(race: Race) -> None:
    node, other = await race.bench.node(), await race.bench.node()
    await race.bench.store.enqueue(APP, [a_run() for _ in range(6)])
    first: list[Any] = []

    async def claim(db: Statements) -> None:
        first.extend(await db.rows("claim", APP, node, ["default"], [TASK], 3, "{}", []))

    async with race.held(claim), asyncio.timeout(10):
        second = await race.second.claim(APP, other, ["default"], TERMS, 10)
    taken = set(first[0]["id"])
    assert len(taken) == len(second.runs) == 3
    assert taken.isdisjoint(run.id for run in second.runs)
    assert second.fence > first[0]["fence"]


async def test_an_outcome_that_waits_for_a_rehoming_is_lost(race: Race) -> None:
    node, other = await race.bench.node(), await race.bench.node()
    held = await race.bench.hold(node)
    await race.bench.store.leave(node)
    async with race.held(lambda db: nodes.rehome(db, APP, other, ["default"], TERMS, 9, END_OF_TIME)):
        second = await race.waits(race.second.finish(APP, node, [an_outcome(held)]))
    assert (await second).answers == ["lost"]
    assert [owned.id for owned in await race.bench.store.owned(APP, other)] == [held.id]


async def test_a_run_that_is_being_finished_is_not_recovered(race: Race) -> None:
    node, other = await race.bench.node(), await race.bench.node()
    held = await race.bench.hold(node)
    await race.bench.store.leave(node)
    async with race.held(lambda db: finish_all(db, node, an_outcome(held))), asyncio.timeout(10):
        answer = await race.second.rehome(APP, other, ["default"], TERMS, 9)
    assert (answer.claimed, answer.released, answer.ended) == ([], [], [])
    assert (await race.bench.run(held.id)).verdict is Verdict.SUCCEEDED


async def test_a_run_that_was_rehomed_to_a_new_node_meanwhile_is_left_to_it(race: Race) -> None:
    node, other = await race.bench.node(), await race.bench.node()
    held = await race.bench.hold(node)
    await race.bench.store.leave(node)
    newcomer = NodeJoin(
        id="new", name="new", app=APP, version="1", lease=HOUR, queues=("default",), tasks=TERMS, declares={}
    )
    found: list[Any] = []

    async def find(db: Statements) -> None:
        found.extend(await db.rows("rehome.find", APP, other, 0, 10, END_OF_TIME))
        await race.second.join(newcomer)
        assert len((await race.second.rehome(APP, "new", ["default"], TERMS, 9)).claimed) == 1
        # Seen as it was, it would look as if its node did not exist.
        ids, fences = [row["id"] for row in found], [row["fence"] for row in found]
        assert await db.rows("rehome.lock", APP, ids, fences) == []

    async with race.held(find):
        pass
    assert [row["id"] for row in found] == [held.id]


async def test_a_cancel_and_a_claim_of_one_run(race: Race) -> None:
    node = await race.bench.node()
    run = await race.bench.enqueue()
    async with race.held(lambda db: runs.cancel(db, APP, [run.id], "not needed")), asyncio.timeout(10):
        assert (await race.second.claim(APP, node, ["default"], TERMS, 9)).runs == []
    assert (await race.bench.run(run.id)).verdict is Verdict.CANCELLED
    other = await race.bench.enqueue()

    async def claim(db: Statements) -> None:
        await db.rows("claim", APP, node, ["default"], [TASK], 3, "{}", [])

    async with race.held(claim):
        second = await race.waits(race.second.cancel(APP, [other.id], "not needed"))
    assert [answer.answer for answer in await second] == ["asked"]


# --- nodes -----------------------------------------------------------------------------------------------------------


async def test_a_heartbeat_that_waits_for_the_judge_learns_of_the_death(race: Race) -> None:
    node = await race.bench.node(lease=1)
    await race.bench.pass_time(1000)
    line = await race.second.heartbeat_session()
    async with race.held(lambda db: nodes.judge(db, END_OF_TIME)):
        beat = await race.waits(line.beat(node, HOUR))
    assert not (await beat).is_alive
    await line.close()


async def test_a_judge_who_waits_for_a_beat_spares_the_node(race: Race) -> None:
    node = await race.bench.node(lease=1)
    await race.bench.pass_time(1000)
    async with race.held(lambda db: nodes.beat(db, node, HOUR, {})):
        judging = await race.waits(race.second.judge())
    assert await judging == []


async def test_a_run_that_is_parked_while_its_node_joins_is_freed_by_the_next_upkeep(race: Race) -> None:
    run = await race.bench.enqueue()
    newcomer = NodeJoin(
        id="new", name="new", app=APP, version="1", lease=HOUR, queues=("default",), tasks=TERMS, declares={}
    )
    async with race.held(lambda db: nodes.join(db, newcomer)):
        assert await race.second.park_unknown(APP, 9) == 1
    assert await race.bench.state(run.id) is State.PARKED
    await race.second.park_unknown(APP, 9)
    assert await race.bench.state(run.id) is State.WAITING


async def test_a_batch_of_verdicts_locks_its_runs_in_their_order(race: Race) -> None:
    """Or it would wait crosswise with a cancel of the same runs."""
    node = await race.bench.node()
    await race.bench.store.enqueue(APP, [a_run() for _ in range(2)])
    low, high = sorted((await race.bench.claim(node)).runs, key=lambda run: run.id)
    async with race.held(lambda db: db.rows("run.lock", APP, [low.id])):
        second = await race.waits(race.second.finish(APP, node, [an_outcome(high), an_outcome(low)]))
        assert [one.answer for one in await race.bench.store.cancel(APP, [high.id], "not needed")] == ["asked"]
    assert (await second).answers == ["done", "done"]


async def test_any_number_of_unique_keys_takes_a_bounded_number_of_locks(race: Race) -> None:
    keys = [f"key {number}" for number in range(2000)]
    connection = await race.bench.stores.connect()
    assert await connection.fetchval("SELECT min(hashtext(key)) < 0 FROM unnest($1::text[]) AS k(key)", keys)
    counted = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    counts: list[int] = []

    async def lock_all(db: Statements) -> None:
        await db.rows("unique.lock", APP, keys)
        counts.append((await db.select(counted))[0]["count"])

    async with race.held(lock_all):
        pass
    await connection.close()
    assert counts == [256]


async def test_transactions_that_wait_crosswise_are_tried_again(race: Race) -> None:
    first, second = await race.bench.enqueue(), await race.bench.enqueue()
    turn, has_first = asyncio.Event(), asyncio.Event()
    tries = 0

    async def crosswise(db: Statements) -> None:
        nonlocal tries
        tries += 1
        await db.count("cancel.ask", [second.id], "one")
        turn.set()
        await has_first.wait()
        await db.count("cancel.ask", [first.id], "one")

    async def straight(db: Statements) -> None:
        nonlocal tries
        tries += 1
        await db.count("cancel.ask", [first.id], "other")
        has_first.set()
        await turn.wait()
        await db.count("cancel.ask", [second.id], "other")

    lines = [store.session() for store in (race.bench.store, race.second) if isinstance(store, PostgresStore)]
    await asyncio.gather(lines[0].write(straight), lines[1].write(crosswise))
    assert tries == 3


# --- the second line of defence ------------------------------------------------------------------------------------

_DONE_BEFORE = """
    INSERT INTO evertick.history (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, verdict, attempts, losses, created_at, finished_at, is_cancel_requested)
    SELECT gen_random_uuid(), app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority,
        'succeeded', 1, 0, created_at, created_at, false
    FROM evertick.runs WHERE id = $1
"""


async def test_a_moment_that_history_has_already_stops_no_other_end(
    race: Race, kept_postgres_stores: PostgresStores, caplog: pytest.LogCaptureFixture
) -> None:
    node = await race.bench.node()
    doubled = await race.bench.fire(await race.bench.add())
    other = await race.bench.enqueue()
    held = (await race.bench.claim(node)).runs
    connection = await kept_postgres_stores.connect()
    await connection.execute(in_schema(_DONE_BEFORE, kept_postgres_stores.schema), doubled)
    await connection.close()
    assert await race.bench.finish(node, *(an_outcome(each) for each in held)) == ["done", "done"]
    assert await race.bench.state(other.id) is State.DONE
    assert "history has their moments" in caplog.text
    assert await race.bench.finish(node, *(an_outcome(each) for each in held)) == (
        ["already" if each.id == other.id else "lost" for each in held]
    )
