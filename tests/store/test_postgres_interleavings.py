"""Every order in which the statements of two intents can reach a real server gives a ledger that one after the other
would have given as well, and leaves nothing stuck.

The stage is set so that any two intents meet: a schedule that is due and whose last run is held by a dead node; a
waiting run whose unique key is free from its start on; where it matters, a waiting run that is too old to start, and of
a task with a concurrency of one a run that is held and one that waits.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from interleaving import Interleaving, Sessions, explore
from postgres_stores import PostgresStores

from evertick.clock import system_clock
from evertick.model import Outcome as Ending
from evertick.model import State
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import Change, Claim, NodeJoin, Owned, RunFilter, Store, StoredSchedule, TaskTerms
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import in_schema
from evertick.testing.conformance import a_definition, a_fire, a_run, an_advance, an_outcome
from evertick.testing.conformance.bench import HOUR, MINUTE, TERMS, check_ledger

pytestmark = pytest.mark.asyncio(loop_scope="module")

_LIMITED = "limited"
_TASKS = {_LIMITED: TaskTerms(concurrency=Concurrency(most=1, of=Subject(task=_LIMITED)))}
_SHARED = "shared"
_LANE = {_SHARED: TaskTerms(concurrency=Concurrency(most=2, of=Subject(task=_SHARED)))}
_ALL = {**TERMS, **_TASKS, **_LANE}
_QUEUES = ["default"]
# How often work is taken and done before what is left counts as stuck.
_ROUNDS_MOST = 10

# All that an app has; what people may read of it does not show the marks that the next intent goes by.
_TABLES = ("schedules", "due", "runs", "history", "gaps", "attempts", "limits", "grants", "unique_keys")
_ROWS = "SELECT to_jsonb(t) AS told FROM evertick.{table} t WHERE app = $1"
# Different in every app; and when a run that waited for another is due, depends on which of them was there first.
_DIFFERS = ("app", "schedule_id", "fence", "due_at")
# Greater numbers are microseconds since 1970.
_ANY_TIME = 10**15

Ledger = list[str]
# The answers to the two, and the rows that they leave.
Outcome = tuple[Any, Any, Ledger]
Act = Callable[[PostgresStore], Awaitable[Any]]


async def _join(store: Store, app: str, node: str, lease: int) -> None:
    joining = NodeJoin(
        id=node, name=node, app=app, version="1", lease=lease, queues=("default",), tasks=_ALL, declares={}
    )
    await store.join(joining)


async def _under_limit(store: Store, app: str, node: str, names: dict[str, str]) -> Owned:
    """One that the node holds, and one that will have to wait for it."""
    runs = [a_run(task=_LIMITED, priority=1), a_run(task=_LIMITED)]
    await store.enqueue(app, runs)
    [held] = (await store.claim(app, node, _QUEUES, _TASKS, 1)).runs
    names |= dict(zip((run.id for run in runs), ("limited", "behind"), strict=True))
    return Owned(id=held.id, fence=held.fence)


async def _in_lane(store: Store, app: str, node: str, names: dict[str, str]) -> Owned:
    """One that the node holds, one that was let through when another had ended, and one that is still held back."""
    runs = [a_run(task=_SHARED, priority=9 - place) for place in range(4)]
    await store.enqueue(app, runs)
    held, ended = (await store.claim(app, node, _QUEUES, _LANE, 9)).runs
    await store.finish(app, node, [an_outcome(ended)])
    names |= dict(zip((run.id for run in runs), ("shared", "ended", "let through", "held back"), strict=True))
    return Owned(id=held.id, fence=held.fence)


def _is_drawn(name: str, value: object) -> bool:
    return name == "id" and isinstance(value, int)


@dataclass
class Stage:
    """A new app for the two sessions. Their results are described by names instead of ids."""

    app: str
    store: Store
    schedule: StoredSchedule
    # The dead node, and what it holds: the last run of the schedule, one under a limit, one that others wait behind.
    late: str
    held: Owned
    limited: Owned | None
    shared: Owned | None
    names: dict[str, str]

    @staticmethod
    async def new(store: Store, *, is_limited: bool, has_lane: bool, has_old: bool) -> Stage:
        app = system_clock.new_token()
        late = f"late {app}"
        await _join(store, app, late, lease=HOUR)
        now = await store.now()
        moment = now - 10 * MINUTE
        add = Change(key="nightly", kind="add", definition=a_definition(), created_at=moment, fire_at=moment, at=moment)
        await store.change_schedules(app, [add])
        [schedule] = await store.stored_schedules(app, keys=["nightly"])
        fire = a_fire(schedule, is_claimed=True)
        fence = (await store.record_fires(app, late, [an_advance(schedule, fire)])).fence
        names = {late: "late", fire.id: "held"}
        limited = await _under_limit(store, app, late, names) if is_limited else None
        shared = await _in_lane(store, app, late, names) if has_lane else None
        waiting = a_run(unique_key="k", unique_until="start")
        old = a_run(fire_at=now - HOUR, expires=MINUTE)
        await store.enqueue(app, [waiting, old] if has_old else [waiting])
        names |= {waiting.id: "waiting", old.id: "old"}
        await store.leave(late)
        [schedule] = await store.stored_schedules(app, keys=["nightly"])
        return Stage(app, store, schedule, late, Owned(id=fire.id, fence=fence), limited, shared, names)

    @property
    def moment(self) -> int:
        assert self.schedule.fire_at is not None
        return self.schedule.fire_at

    def named(self, *ids: str) -> tuple[str, ...]:
        return tuple(sorted(self.names[id_] for id_ in ids))

    async def ledger(self, connection: asyncpg.Connection, schema: str) -> Ledger:
        """All that is stored about the app, a line for each row: with names for ids, and without times and fences."""
        lines = []
        for table in _TABLES:
            rows = await connection.fetch(in_schema(_ROWS.format(table=table), schema), self.app)
            lines += [f"{table}: {self._told(json.loads(row['told']))}" for row in rows]
        return sorted(lines)

    def _told(self, row: dict[str, Any]) -> dict[str, Any]:
        told = {name: self._told_value(value) for name, value in row.items() if name not in _DIFFERS}
        # Ids that are numbers are drawn from a sequence.
        return {name: value for name, value in told.items() if value and not _is_drawn(name, value)}

    def _told_value(self, value: Any) -> Any:
        """Moments by their distance from the cursor; of any other time, that there is one."""
        if isinstance(value, int) and value > _ANY_TIME:
            return "some time" if (value - self.moment) % MINUTE else f"{(value - self.moment) // MINUTE} min"
        return self.names.get(value, value) if isinstance(value, str) else value

    async def drain(self, node: str) -> None:
        """All recorded runs end, by a node that takes and executes all it can get."""
        for _ in range(_ROUNDS_MOST):
            await self.store.rehome(self.app, node, _QUEUES, _ALL, 100)
            await self.store.claim(self.app, node, _QUEUES, _ALL, 100)
            for owner in ("A", "B", self.late):
                held = await self.store.owned(self.app, owner)
                await self.store.finish(self.app, owner, [an_outcome(run) for run in held])
            left = await self.store.runs(self.app, RunFilter(states=tuple(set(State) - {State.DONE})))
            if not left:
                check_ledger(await self.store.runs(self.app, RunFilter()), await self.store.gaps(self.app, RunFilter()))
                return
        raise AssertionError(f"stuck: {left}")


# --- the intents: the statements of each session, and its answers ---------------------------------------------------


def _record(stage: Stage, me: str) -> Act:
    new = a_fire(stage.schedule, state=State.BLOCKED)
    stage.names[new.id] = f"fire of {me}"

    async def act(store: PostgresStore) -> Any:
        plan = an_advance(stage.schedule, new, live=stage.schedule.live)
        answer = await store.record_fires(stage.app, None, [plan])
        return answer.taken, stage.named(*answer.left_out)

    return act


def _record_and_claim(stage: Stage, me: str) -> Act:
    return _record_as_claimed(stage, me)


def _record_without_stamp(stage: Stage, me: str) -> Act:
    return _record_as_claimed(stage, me, stamp=None)


def _record_as_claimed(stage: Stage, me: str, **fields: Any) -> Act:
    new = a_fire(stage.schedule, is_claimed=True)
    stage.names[new.id] = f"fire of {me}"

    async def act(store: PostgresStore) -> Any:
        answer = await store.record_fires(stage.app, me, [an_advance(stage.schedule, new, **fields)])
        return answer.taken, stage.named(*answer.left_out), answer.fence > 0

    return act


def _claim(stage: Stage, me: str) -> Act:
    async def act(store: PostgresStore) -> Any:
        return _taken(stage, await store.claim(stage.app, me, _QUEUES, TERMS, 100))

    return act


def _claim_under_limit(stage: Stage, me: str) -> Act:
    async def act(store: PostgresStore) -> Any:
        return _taken(stage, await store.claim(stage.app, me, _QUEUES, _TASKS, 100))

    return act


def _taken(stage: Stage, answer: Claim) -> Any:
    return stage.named(*(run.id for run in answer.runs)), stage.named(*answer.expired)


def _finish(stage: Stage, me: str) -> Act:
    return _end(stage, an_outcome(stage.held))


def _finish_under_limit(stage: Stage, me: str) -> Act:
    assert stage.limited is not None
    return _end(stage, an_outcome(stage.limited))


def _finish_before_lane(stage: Stage, me: str) -> Act:
    assert stage.shared is not None
    return _end(stage, an_outcome(stage.shared))


def _claim_from_lane(stage: Stage, me: str) -> Act:
    async def act(store: PostgresStore) -> Any:
        return _taken(stage, await store.claim(stage.app, me, _QUEUES, _LANE, 100))

    return act


def _cancel_lane(stage: Stage, me: str) -> Act:
    ids = [id_ for id_, name in stage.names.items() if name in ("let through", "held back")]

    async def act(store: PostgresStore) -> Any:
        return [answer.answer for answer in await store.cancel(stage.app, ids, "not needed")]

    return act


def _retry(stage: Stage, me: str) -> Act:
    return _end(stage, an_outcome(stage.held, "retry"))


def _end(stage: Stage, outcome: Ending) -> Act:
    async def act(store: PostgresStore) -> Any:
        return (await store.finish(stage.app, stage.late, [outcome])).answers

    return act


def _expire(stage: Stage, me: str) -> Act:
    async def act(store: PostgresStore) -> Any:
        answer = await store.rehome(stage.app, me, _QUEUES, TERMS, 100)
        ended = [(*stage.named(run), verdict) for run, verdict in answer.ended]
        return stage.named(*(run.id for run in answer.claimed)), stage.named(*answer.released), ended

    return act


def _edit(stage: Stage, me: str) -> Act:
    new = a_fire(stage.schedule, state=State.BLOCKED)
    stage.names[new.id] = f"fire of {me}"

    async def act(store: PostgresStore) -> Any:
        settle = an_advance(stage.schedule, new, live=stage.schedule.live)
        edit = Change(key="nightly", kind="edit", settle=settle, definition=a_definition(priority=ord(me)))
        return await store.change_schedules(stage.app, [edit])

    return act


def _remove(stage: Stage, me: str) -> Act:
    async def act(store: PostgresStore) -> Any:
        remove = Change(key="nightly", kind="remove", settle=an_advance(stage.schedule))
        return await store.change_schedules(stage.app, [remove])

    return act


def _cancel(stage: Stage, me: str) -> Act:
    ids = [id_ for id_, name in stage.names.items() if name in ("held", "waiting", "old", "behind")]

    async def act(store: PostgresStore) -> Any:
        return [answer.answer for answer in await store.cancel(stage.app, ids, "not needed")]

    return act


def _enqueue(stage: Stage, me: str) -> Act:
    new = a_run(unique_key="k", unique_until="start")
    stage.names[new.id] = f"new of {me}"

    async def act(store: PostgresStore) -> Any:
        [answer] = await store.enqueue(stage.app, [new])
        return stage.named(answer.id), answer.is_new

    return act


_INTENTS: dict[str, Callable[[Stage, str], Act]] = {
    "record": _record,
    "claim": _claim,
    "finish": _finish,
    "expire": _expire,
    "edit": _edit,
    "cancel": _cancel,
    "enqueue": _enqueue,
}
# Other ways of theirs, each beside those that it can get in the way of.
_VARIANTS: dict[str, Callable[[Stage, str], Act]] = {
    "record and claim": _record_and_claim,
    "record without a stamp": _record_without_stamp,
    "claim and drop the old": _claim,
    "retry": _retry,
    "remove": _remove,
    "claim under a limit": _claim_under_limit,
    "finish under a limit": _finish_under_limit,
    "finish before a lane": _finish_before_lane,
    "claim from a lane": _claim_from_lane,
    "claim from a lane and drop the let through": _claim_from_lane,
    "cancel a lane": _cancel_lane,
}
# Recovery skips a run that another session has locked; the next heartbeat finds it. This is its answer.
_PUT_OFF: dict[str, Any] = {"expire": ((), (), [])}
_PAIRS = [
    *combinations_with_replacement(_INTENTS, 2),
    *(("record and claim", other) for other in ("record and claim", "record", "expire", "edit", "remove")),
    *(("record without a stamp", other) for other in ("record without a stamp", "record and claim", "edit", "remove")),
    *(("claim and drop the old", other) for other in ("claim and drop the old", "record", "cancel", "enqueue")),
    *(("retry", other) for other in ("retry", "record", "finish", "expire", "edit", "cancel", "remove")),
    *(("remove", other) for other in ("remove", "record", "claim", "finish", "expire", "edit", "cancel")),
    *(("claim under a limit", other) for other in ("claim under a limit", "expire", "cancel", "enqueue")),
    *(("finish under a limit", other) for other in ("finish under a limit", "claim under a limit", "expire")),
    *(("cancel a lane", other) for other in ("cancel a lane", "finish before a lane", "claim from a lane", "expire")),
    ("cancel a lane", "claim from a lane and drop the let through"),
    ("finish before a lane", "claim from a lane"),
]
# Released runs that have become too old to start.
_AGE = """
    UPDATE evertick.runs SET due_at = due_at - 1000000, expires = 1
    WHERE app = $1 AND state = 'waiting' AND limit_key IS NOT NULL
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sessions(postgres_dsn: str) -> AsyncIterator[Sessions]:
    stores = PostgresStores(postgres_dsn, pool_size="1")
    sessions = await Sessions.open(stores)
    for node in "AB":
        await _join(sessions.pair[0].store, "", node, lease=HOUR)
    yield sessions
    await sessions.close()
    await stores.close()


class Meeting:
    """Two intents, in a new app each time, and the ledgers that they may leave."""

    def __init__(self, sessions: Sessions, first: str, second: str) -> None:
        self._sessions = sessions
        self._names = (first, second)
        intents = _INTENTS | _VARIANTS
        self._first, self._second = intents[first], intents[second]
        self._is_limited = any("a limit" in name for name in (first, second))
        self._has_lane = any("a lane" in name for name in (first, second))
        self._has_old = any(name.endswith("the old") for name in (first, second))
        self._ages = any(name.endswith("the let through") for name in (first, second))
        self._stage: Stage | None = None
        self._lawful: list[Outcome] = []

    async def stage(self) -> tuple[Act, Act]:
        store = self._sessions.pair[0].store
        self._stage = stage = await Stage.new(
            store, is_limited=self._is_limited, has_lane=self._has_lane, has_old=self._has_old
        )
        if self._ages:
            await self._sessions.watch.execute(in_schema(_AGE, self._sessions.schema), stage.app)
        return self._first(stage, "A"), self._second(stage, "B")

    async def learn(self) -> None:
        """The result of whole transactions one after the other, or of one intent while the other delays it."""
        await explore(self._sessions, self.stage, self._learn, in_whole_transactions=True)
        for place, name in enumerate(self._names):
            if name in _PUT_OFF:
                acts = await self.stage()
                answers = [await acts[1 - place](self._sessions.pair[0].store)]
                answers.insert(place, _PUT_OFF[name])
                await self._keep(answers)

    async def explore(self) -> list[Interleaving]:
        return await explore(self._sessions, self.stage, self._judge)

    async def _learn(self, run: Interleaving) -> None:
        await self._keep(run.answers)

    async def _keep(self, answers: Sequence[Any]) -> None:
        assert self._stage is not None
        ledger = await self._stage.ledger(self._sessions.watch, self._sessions.schema)
        self._lawful.append((answers[0], answers[1], ledger))
        await self._stage.drain("A")

    async def _judge(self, run: Interleaving) -> None:
        assert self._stage is not None
        found = (*run.answers, await self._stage.ledger(self._sessions.watch, self._sessions.schema))
        assert found in self._lawful, self._complaint(run, found)

    def _complaint(self, run: Interleaving, found: Outcome) -> str:
        lines = [" ".join(run.order), f"came to {found[:2]} and", *found[2], "instead of"]
        for *answers, ledger in self._lawful:
            lines += [f"{answers} and what differs in", *sorted(set(ledger) ^ set(found[2]))]
        return "\n".join(lines)


@pytest.mark.parametrize(("first", "second"), _PAIRS)
async def test_any_order_of_statements_has_the_result_of_one_after_the_other(
    sessions: Sessions, first: str, second: str
) -> None:
    meeting = Meeting(sessions, first, second)
    await meeting.learn()
    seen = await meeting.explore()
    assert len({run.order for run in seen}) == len(seen) >= 2


async def test_a_lock_that_is_missing_is_noticed(sessions: Sessions) -> None:
    meeting = Meeting(sessions, "claim", "cancel")
    await meeting.learn()
    with sessions.without_locks_of("run.lock"), pytest.raises(AssertionError, match="instead of"):
        await meeting.explore()
