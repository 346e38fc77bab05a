"""What every test of the suite stands on: the hook, the builders, and a bench with the verbs of a test.

The hook (`Stores`) is all that the author of a store provides. The builders make the smallest legal thing and take
what a test is about as keyword arguments. The bench keeps what it has seen of every run, so that a test that only
looks at one promise still notices when another is broken.

`check_ledger` and `Sightings` hold what is true of every ledger, whatever was done to it: checked after each test,
through what people can read.
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
    "Sightings",
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

# --- what always holds ------------------------------------------------------------------------------------------------


_NOMINAL = (Cause.FIRE, Cause.BACKFILL)


def check_ledger(runs: Sequence[Run], gaps: Sequence[Gap]) -> None:
    """Every run is in a state that can be, no nominal moment has two runs, every gap is a stretch."""
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
    assert (run.verdict is not None) == is_done, f"a verdict belongs to what is done, and to nothing else: {run}"
    assert (run.finished_at is not None) == is_done, f"an end belongs to what is done, and to nothing else: {run}"
    if run.state is State.RUNNING:
        assert run.node, f"running, and nobody runs it: {run}"
        assert run.fence, f"running under no fence: {run}"
        assert run.started_at, f"running, and never started: {run}"
    assert (run.dispatched is not None) == (run.state is State.DISPATCHED), f"in other hands, or not: {run}"
    if run.state is State.DISPATCHED:
        assert run.fence, f"dispatched under no fence: {run}"
    if run.state is State.BLOCKED and run.reason in (Reason.CONCURRENCY, Reason.RATE):
        assert run.blocked_on, f"held back by a limit without a key: {run}"
    elif run.state is State.BLOCKED:
        assert run.blocked_on in live, f"blocked on what is not live: {run}"
    if run.state is State.PARKED:
        assert run.reason, f"parked for no reason: {run}"
    assert 0 <= run.losses <= LOSSES_MAX, f"lost more often than a run may be: {run}"


class Sightings:
    """Runs as they were last seen, and claims as they were given out."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._claims: set[tuple[str, int]] = set()
        self._fence = 0

    def look(self, runs: Sequence[Run]) -> None:
        for run in runs:
            before = self._runs.get(run.id)
            if before is not None:
                _check_change(before, run)
            self._runs[run.id] = run

    def claim(self, runs: Sequence[Claimed], fence: int) -> None:
        """A greater fence is a later claim, across runs too; no (run, fence) is given out twice."""
        if not runs:
            return
        assert fence > self._fence, f"fence {fence} after {self._fence}"
        self._fence = fence
        for run in runs:
            assert run.fence == fence, f"claimed under {fence}, but holds {run.fence}"
            assert (run.id, fence) not in self._claims, f"given out twice: {run.id} under {fence}"
            self._claims.add((run.id, fence))


def _reachable() -> dict[State, frozenset[State]]:
    """Where a run may be at a later look: any number of legal transitions away."""
    reach = {state: {state, *TRANSITIONS[state]} for state in State}
    for _ in State:
        for state in State:
            reach[state] |= {end for step in tuple(reach[state]) for end in reach[step]}
    return {state: frozenset(ends) for state, ends in reach.items()}


_REACHABLE = _reachable()


def _check_change(before: Run, after: Run) -> None:
    assert after.state in _REACHABLE[before.state], f"{before.state} became {after.state}: {after}"
    assert after.losses >= before.losses, f"a loss was forgotten: {after}"
    assert after.attempts >= before.attempts, f"an attempt was forgotten: {after}"
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

# What a store that really waits has to wait for in the tests of leases and delays.
SHORT_LEASE = 50_000
_SHORT = 60_000


class Stores(ABC):
    """The hook: how the suite gets stores, and how it lets time pass for them."""

    # The longest stretch that `pass_time` can be asked for, in microseconds; a test that needs more is skipped. None:
    # any stretch, because the store can be told its time.
    patience: int | None = None

    @abstractmethod
    async def open(self) -> Store:
        """Another store object, opened, on the database of this test. Whoever made the hook closes it."""

    @abstractmethod
    async def pass_time(self, us: int) -> None:
        """Let at least this much of the store's time pass."""


# --- time --------------------------------------------------------------------------------------------------------


def us(moment: datetime | None) -> int:
    """What people read, as what stores pass along."""
    assert moment is not None, "there should be a time here"
    return to_us(moment)


# --- builders ----------------------------------------------------------------------------------------------------

# Ids only have to differ and to come in order; stores of one test never meet those of another.
_ids = SettableClock()


def a_definition(**fields: Any) -> Definition:
    return Definition(**{"task": TASK, "when": "every 1m", **fields})


def a_run(**fields: Any) -> NewRun:
    """A run by hand."""
    return NewRun(**{"id": _ids.new_id(), "task": TASK, "cause": Cause.ENQUEUE, **fields})


def a_fire(schedule: StoredSchedule, **fields: Any) -> NewRun:
    """The run of the moment that the schedule's cursor stands on."""
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
    """A plan made from what was read of the schedule: these runs, and the cursor a minute on."""
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
    """One store, one app, and the verbs of a test; `stores` for a second store object on the same database."""

    def __init__(self, stores: Stores, store: Store) -> None:
        self.stores = stores
        self.store = store
        self._sightings = Sightings()

    async def now(self) -> int:
        return await self.store.now()

    @property
    def short(self) -> int:
        """A period to be waited for. A store that really waits gets it over with; any other is given one that does not
        end by itself while a slow machine comes to the next line."""
        return _SHORT if self.stores.patience is not None else MINUTE

    async def pass_time(self, us: int) -> None:
        if self.stores.patience is not None and us > self.stores.patience:
            pytest.skip(f"needs {us / SECOND:g} s to pass, which this store would really have to wait for")
        await self.stores.pass_time(us)

    async def check(self) -> None:
        """What must hold at any moment, whatever a test has done."""
        for app in (APP, OTHER_APP):
            found = await self.store.runs(app, RunFilter(limit=10_000))
            check_ledger(found, await self.store.gaps(app, RunFilter(limit=10_000)))
            self._sightings.look(found)

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
        """A schedule, due for ten minutes unless told otherwise."""
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
        """Edit, pause, resume or remove; the cursor stays unless `settle` says otherwise."""
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
        """Record the moment that the cursor stands on; answers the id of its run."""
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
        self._sightings.claim(answer.runs, answer.fence)
        return answer

    async def hold(self, node: str, run: str | None = None, *, terms: TaskTerms | None = None) -> Claimed:
        """Claim this run (or a new one) and nothing else, as nothing else waits."""
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
        self._sightings.look(found)
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
        """A node that lives."""
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
        self._sightings.claim(answer.claimed, answer.fence)
        return answer

    @asynccontextmanager
    async def heartbeat(self) -> AsyncIterator[HeartbeatSession]:
        heartbeat = await self.store.heartbeat_session()
        try:
            yield heartbeat
        finally:
            await heartbeat.close()
