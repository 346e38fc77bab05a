"""The base of the conformance tests: the hook `Stores`, builders of test data, and `Bench`.

The author of a store provides only the hook. Builders make the smallest valid object; keyword arguments set what a test
is about. After each test `check_ledger` and `RunHistory` check the rules that hold for every ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec
import pytest

from evertick.model import (
    LOSSES_MAX,
    TRANSITIONS,
    Cause,
    Claimed,
    Definition,
    Gap,
    NewGap,
    NewRun,
    Outcome,
    Reason,
    Run,
    Schedule,
    State,
    Verdict,
)
from evertick.store.base import (
    END_OF_TIME,
    Advance,
    Change,
    Claim,
    DeclaredBy,
    FinishAnswer,
    HeartbeatSession,
    NodeJoin,
    Note,
    Owned,
    Recorded,
    Rehomed,
    RunFilter,
    ScheduleFilter,
    Store,
    StoredSchedule,
    TaskTerms,
)
from evertick.testing.clock import SettableClock
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND, to_us

__all__ = [
    "APP",
    "DAY",
    "HOUR",
    "MINUTE",
    "OTHER_APP",
    "SECOND",
    "SHORT_LEASE",
    "TASK",
    "TERMS",
    "Bench",
    "RunHistory",
    "Stores",
    "a_definition",
    "a_fire",
    "a_gap",
    "a_run",
    "an_advance",
    "an_outcome",
    "check_ledger",
    "us",
]

# --- rules that always hold -------------------------------------------------------------------------------------------


_NOMINAL = (Cause.FIRE, Cause.BACKFILL)


def check_ledger(runs: Sequence[Run], gaps: Sequence[Gap]) -> None:
    """Each run has a legal state, no moment has two runs, and each gap covers moments."""
    live = {run.id for run in runs if run.is_live}
    for run in runs:
        _check_run(run, live)
    fires = [(run.schedule_key, run.fire_at) for run in runs if run.cause in _NOMINAL]
    twice = {fire for fire in fires if fires.count(fire) > 1} if len(set(fires)) < len(fires) else set()
    assert not twice, f"nominal moments with more than one run: {twice}"
    ids = [run.id for run in runs]
    assert len(set(ids)) == len(ids), "a run is listed twice"
    for gap in gaps:
        assert gap.first_at <= gap.last_at, f"a gap that ends before it begins: {gap}"
        assert gap.count >= 1, f"a gap of no moments: {gap}"


def _check_run(run: Run, live: set[str]) -> None:
    is_done = run.state is State.DONE
    assert (run.verdict is not None) == is_done, f"a run has a verdict if and only if it is done: {run}"
    assert (run.finished_at is not None) == is_done, f"a run has finished_at if and only if it is done: {run}"
    if run.state is State.RUNNING:
        assert run.node, f"running without a node: {run}"
        assert run.fence, f"running without a fence: {run}"
        assert run.started_at, f"running without started_at: {run}"
    assert (run.dispatched is not None) == (run.state is State.DISPATCHED), (
        f"a run has `dispatched` if and only if it is dispatched: {run}"
    )
    if run.state is State.DISPATCHED:
        assert run.fence, f"dispatched without a fence: {run}"
    if run.state is State.BLOCKED and run.reason in (Reason.CONCURRENCY, Reason.RATE):
        assert run.blocked_on, f"blocked by a limit without its key: {run}"
    elif run.state is State.BLOCKED:
        assert run.blocked_on in live, f"blocked on a run that is not live: {run}"
    if run.state is State.PARKED:
        assert run.reason, f"parked without a reason: {run}"
    assert 0 <= run.losses <= LOSSES_MAX, f"more losses than allowed: {run}"


class RunHistory:
    """Checks each later state of a run, and each claim, against those seen before."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._claims: set[tuple[str, int]] = set()
        self._fence = 0

    def check_runs(self, runs: Sequence[Run]) -> None:
        for run in runs:
            before = self._runs.get(run.id)
            if before is not None:
                _check_change(before, run)
            self._runs[run.id] = run

    def check_claim(self, runs: Sequence[Claimed], fence: int) -> None:
        """Fences grow with each claim, across all runs, and no (run, fence) is claimed twice."""
        if not runs:
            return
        assert fence > self._fence, f"fence {fence} after {self._fence}"
        self._fence = fence
        for run in runs:
            assert run.fence == fence, f"claimed with fence {fence}, but the run has {run.fence}"
            assert (run.id, fence) not in self._claims, f"claimed twice: {run.id} with fence {fence}"
            self._claims.add((run.id, fence))


def _reachable() -> dict[State, frozenset[State]]:
    """The states that a run can have later: any number of legal transitions away."""
    reach = {state: {state, *TRANSITIONS[state]} for state in State}
    for _ in State:
        for state in State:
            reach[state] |= {end for step in tuple(reach[state]) for end in reach[step]}
    return {state: frozenset(ends) for state, ends in reach.items()}


_REACHABLE = _reachable()


def _check_change(before: Run, after: Run) -> None:
    assert after.state in _REACHABLE[before.state], f"{before.state} became {after.state}: {after}"
    assert after.losses >= before.losses, f"losses decreased: {after}"
    assert after.attempts >= before.attempts, f"attempts decreased: {after}"
    for name in ("fire_at", "created_at", "cause", "task", "args", "schedule_key", "app"):
        assert getattr(after, name) == getattr(before, name), f"{name} of a run changed: {before} -> {after}"
    if before.state is State.DONE:
        for name in ("verdict", "reason", "finished_at", "result", "error", "attempts", "losses"):
            assert getattr(after, name) == getattr(before, name), f"{name} changed after the verdict: {after}"


# --- the hook ---------------------------------------------------------------------------------------------------------


APP = "app"
OTHER_APP = "other"
TASK = "tidy"
TERMS: Mapping[str, TaskTerms] = {TASK: TaskTerms()}

# The waits of a store with a clock of its own, in tests of leases and delays.
SHORT_LEASE = 50_000
_SHORT = 60_000


class Stores(ABC):
    """The hook: how the suite gets stores, and how it lets time pass for them."""

    # The longest wait that `pass_time` accepts, in microseconds; a test that needs more is skipped. None: no limit,
    # for a store with a settable clock.
    patience: int | None = None

    @abstractmethod
    async def open(self) -> Store:
        """Another opened store object on the database of this test. The fixture closes it."""

    @abstractmethod
    async def pass_time(self, us: int) -> None:
        """Let at least this much of the store's time pass."""


# --- time --------------------------------------------------------------------------------------------------------


def us(moment: datetime | None) -> int:
    """A time as the store protocol has it, in microseconds."""
    assert moment is not None, "the time is missing"
    return to_us(moment)


# --- builders ----------------------------------------------------------------------------------------------------

# Ids only have to differ and to grow: each test has its own database.
_ids = SettableClock()


def a_definition(**fields: Any) -> Definition:
    return Definition(**{"task": TASK, "when": "every 1m", **fields})


def a_run(**fields: Any) -> NewRun:
    """An enqueued run."""
    return NewRun(**{"id": _ids.new_id(), "task": TASK, "cause": Cause.ENQUEUE, **fields})


def a_fire(schedule: StoredSchedule, **fields: Any) -> NewRun:
    """The run of the moment at the schedule's cursor."""
    own = {
        "cause": Cause.FIRE,
        "task": schedule.definition.task,
        "fire_at": schedule.fire_at,
        "due_at": fields.get("fire_at", schedule.fire_at),
        "schedule_id": schedule.id,
        "schedule_key": schedule.key,
        "version": schedule.version,
    }
    return a_run(**{**own, **fields})


def a_gap(first_at: int, last_at: int, **fields: Any) -> NewGap:
    own = {"count": 2, "verdict": Verdict.SKIPPED, "reason": "coalesced"}
    return NewGap(**{"first_at": first_at, "last_at": last_at, **own, **fields})


def an_advance(schedule: StoredSchedule, *runs: NewRun, **fields: Any) -> Advance:
    """A plan from this reading of the schedule: the runs, and the cursor a minute later."""
    next_at = None if schedule.fire_at is None else schedule.fire_at + MINUTE
    own = {
        "schedule_id": schedule.id,
        "version": schedule.version,
        "fire_at": schedule.fire_at,
        "at": schedule.at,
        "stamp": schedule.stamp,
        "runs": runs,
        "next_fire_at": next_at,
        "next_at": next_at,
    }
    return Advance(**{**own, **fields})


def an_outcome(held: Claimed | Owned, kind: str = "done", **fields: Any) -> Outcome:
    own: dict[str, Any] = {"id": held.id, "fence": held.fence, "kind": kind}
    if kind == "done":
        own |= {"verdict": Verdict.SUCCEEDED, "attempts": 1}
    elif kind == "retry":
        own |= {"attempts": 1, "reason": "error"}
    elif kind == "park":
        own |= {"reason": "bad_arguments"}
    return Outcome(**{**own, **fields})


# --- the bench ---------------------------------------------------------------------------------------------------


class Bench:
    """One store and one app, with the actions of a test; `stores` opens a second store object on the same database."""

    def __init__(self, stores: Stores, store: Store) -> None:
        self.stores = stores
        self.store = store
        self._history = RunHistory()

    async def now(self) -> int:
        return await self.store.now()

    @property
    def short(self) -> int:
        """A period that a test waits for. It is long for a settable clock, so that it cannot pass on a slow machine."""
        return _SHORT if self.stores.patience is not None else MINUTE

    async def pass_time(self, us: int) -> None:
        if self.stores.patience is not None and us > self.stores.patience:
            pytest.skip(f"needs {us / SECOND:g} s to pass, which this store can only wait for")
        await self.stores.pass_time(us)

    async def check(self) -> None:
        """Check the rules that hold after every test."""
        for app in (APP, OTHER_APP):
            found = await self.store.runs(app, RunFilter(limit=10_000))
            check_ledger(found, await self.store.gaps(app, RunFilter(limit=10_000)))
            self._history.check_runs(found)

    # schedules

    async def add(
        self,
        key: str = "nightly",
        *,
        fire_at: int | None = None,
        at: int | None = None,
        declared: DeclaredBy | None = None,
        app: str = APP,
        **fields: Any,
    ) -> StoredSchedule:
        """A schedule, by default due since ten minutes."""
        if fire_at is None:
            fire_at = await self.now() - 10 * MINUTE
        change = Change(
            key=key,
            kind="add",
            definition=a_definition(**fields),
            declared=declared,
            created_at=fire_at,
            fire_at=fire_at,
            at=fire_at if at is None else at,
        )
        assert await self.store.change_schedules(app, [change]) == [True]
        return await self.stored(key, app=app)

    async def stored(self, key: str = "nightly", *, app: str = APP) -> StoredSchedule:
        [found] = await self.store.stored_schedules(app, keys=[key])
        return found

    async def change(self, kind: str, schedule: StoredSchedule, settle: Advance | None = None, **fields: Any) -> bool:
        """Edit, pause, resume or remove; the cursor stays unless `settle` moves it."""
        if settle is None:
            settle = an_advance(schedule, next_fire_at=schedule.fire_at, next_at=schedule.at)
        change = msgspec.convert({"key": schedule.key, "kind": kind}, Change)
        change = msgspec.structs.replace(change, settle=settle, **fields)
        [taken] = await self.store.change_schedules(APP, [change])
        return taken

    async def pause(self, schedule: StoredSchedule, **fields: Any) -> StoredSchedule:
        settle = an_advance(schedule, next_fire_at=schedule.fire_at, next_at=None)
        assert await self.change("pause", schedule, settle, **fields)
        return await self.stored(schedule.key)

    async def record(self, *advances: Advance, node: str | None = None) -> Recorded:
        return await self.store.record_fires(APP, node, advances)

    async def fire(self, schedule: StoredSchedule, advance: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """Record the moment at the cursor; returns the id of its run."""
        new = a_fire(schedule, **fields)
        assert (await self.record(an_advance(schedule, new, **(advance or {})))).taken == [True]
        return new.id

    async def schedule(self, key: str = "nightly", **wanted: Any) -> Schedule:
        [found] = await self.store.schedules(APP, ScheduleFilter(keys=(key,), **wanted))
        return found

    # runs

    async def enqueue(self, *, app: str = APP, **fields: Any) -> Run:
        [found] = await self.store.enqueue(app, [a_run(**fields)])
        return found

    async def claim(
        self,
        node: str,
        *,
        limit: int = 100,
        tasks: Mapping[str, TaskTerms] = TERMS,
        queues: Sequence[str] = ("default",),
        app: str = APP,
    ) -> Claim:
        answer = await self.store.claim(app, node, queues, tasks, limit)
        self._history.check_claim(answer.runs, answer.fence)
        return answer

    async def hold(self, node: str, run: str | None = None, *, terms: TaskTerms | None = None) -> Claimed:
        """Claim this run, or a new one. No other run may be waiting."""
        if run is None:
            run = (await self.enqueue()).id
        answer = await self.claim(node, tasks=TERMS if terms is None else {TASK: terms})
        assert [held.id for held in answer.runs] == [run]
        return answer.runs[0]

    async def finish(self, node: str, *outcomes: Outcome) -> list[FinishAnswer]:
        return (await self.store.finish(APP, node, outcomes)).answers

    async def end(self, node: str, held: Claimed, **fields: Any) -> Run:
        assert await self.finish(node, an_outcome(held, **fields)) == ["done"]
        return await self.run(held.id)

    async def cancel(self, *runs: str, reason: str = "requested") -> list[str]:
        answers = await self.store.cancel(APP, runs, reason)
        assert [answer.id for answer in answers] == list(runs)
        return [answer.answer for answer in answers]

    async def note(self, node: str, held: Claimed, **fields: Any) -> list[str]:
        return await self.store.note(APP, node, [Note(id=held.id, fence=held.fence, **fields)])

    async def run(self, run: str) -> Run:
        [found] = await self.runs(ids=(run,))
        return found

    async def state(self, run: str) -> State:
        return (await self.run(run)).state

    async def runs(self, *, app: str = APP, **wanted: Any) -> list[Run]:
        found = await self.store.runs(app, RunFilter(**wanted))
        self._history.check_runs(found)
        return found

    async def gaps(self, **wanted: Any) -> list[Gap]:
        return await self.store.gaps(APP, RunFilter(**wanted))

    # nodes

    async def node(
        self,
        *,
        name: str = "node",
        lease: int = HOUR,
        tasks: Mapping[str, TaskTerms] = TERMS,
        queues: tuple[str, ...] = ("default",),
        declares: Mapping[str, str] | None = None,
        app: str = APP,
    ) -> str:
        """A live node."""
        node = _ids.new_token()
        await self.store.join(
            NodeJoin(
                id=node,
                name=name,
                app=app,
                version="1",
                lease=lease,
                queues=queues,
                tasks=tasks,
                declares=declares or {},
            )
        )
        return node

    async def dead_node(self) -> str:
        node = await self.node()
        await self.store.leave(node)
        return node

    async def rehome(
        self,
        node: str,
        *,
        limit: int = 100,
        tasks: Mapping[str, TaskTerms] = TERMS,
        queues: Sequence[str] = ("default",),
        app: str = APP,
        until: int = END_OF_TIME,
    ) -> Rehomed:
        answer = await self.store.rehome(app, node, queues, tasks, limit, until)
        self._history.check_claim(answer.claimed, answer.fence)
        return answer

    @asynccontextmanager
    async def heartbeat(self) -> AsyncIterator[HeartbeatSession]:
        heartbeat = await self.store.heartbeat_session()
        try:
            yield heartbeat
        finally:
            await heartbeat.close()
