"""Nodes: join, heartbeat, death, and the recovery of the runs of dead nodes; and the duties that nodes hold.

A death is recorded once (`died_at`), by the node itself or by any node that sees its expired lease. Recovery is a later
step that reads the recorded deaths, so any node may repeat it at any time.

A duty is held by a row that names a living node; nothing is renewed. So a death frees all duties of the node without a
further write, and the next node that asks takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from evertick.clock import Clock
from evertick.errors import StoreUnavailable
from evertick.model import Duty, Node, Reason, Verdict
from evertick.model.feed import FeedKind
from evertick.store.base import END_OF_TIME, NO_TICKS, Beat, DutyHolds, DutyTick, NodeJoin, Rehomed, TaskTerms, Ticks
from evertick.store.postgres.connection import Connection, Statements, columns_of, connect, disconnect, translated
from evertick.store.postgres.endings import end, lock_before
from evertick.store.postgres.feed import publish_runs
from evertick.store.postgres.limits import enter_gate, make_room
from evertick.store.postgres.location import Location
from evertick.store.postgres.runs import take_runs
from evertick.store.postgres.wakeup import EVERY_APP
from evertick.store.rows import Row, duty_hold_of, duty_of, json_text, node_of, storable_text
from evertick.store.verdicts import DEADLINE_MARGIN, REHOMED_MOST, Ending, can_be_claimed, ending_of_lost

__all__ = [
    "OwnHeartbeatSession",
    "beat",
    "die",
    "duties",
    "hold_duties",
    "join",
    "judge",
    "named_duties",
    "nodes",
    "rehome",
    "resign",
    "resign_duties",
    "tick_duty",
]

# --- duties -----------------------------------------------------------------------------------------------------------


async def named_duties(db: Statements, app: str, names: Sequence[str]) -> DutyHolds:
    rows = await db.rows("duties.named", app, list(names))
    return DutyHolds(now=rows[0]["now"], duties=[duty_hold_of(row) for row in rows if row["name"] is not None])


async def hold_duties(db: Statements, app: str, node: str, names: Sequence[str]) -> DutyHolds:
    await db.count("hold_duties.begin", app, node, list(names))
    await db.rows("hold_duties.lock", app, list(names))
    await db.count("hold_duties.take", app, node, list(names))
    return await named_duties(db, app, names)


async def tick_duty(db: Statements, app: str, node: str, tick: DutyTick) -> bool:
    values = (tick.has_acted, tick.next_at, storable_text(tick.error))
    return await db.count("tick_duty", app, tick.name, node, tick.term, *values) > 0


async def resign_duties(db: Statements, app: str, node: str, terms: Mapping[str, int]) -> None:
    if await db.count("resign_duties", app, node, list(terms), list(terms.values())):
        db.wake(app)


async def resign(db: Statements, node: str) -> None:
    await db.count("resign", node)


async def duties(db: Statements, app: str) -> list[Duty]:
    return [duty_of(row) for row in await db.rows("duties", app)]


# --- nodes ------------------------------------------------------------------------------------------------------------


async def join(db: Statements, node: NodeJoin) -> int:
    about = (json_text(node.queues), json_text(node.declares))
    joined = await db.only_row("join", node.id, node.name, node.app, node.version, node.lease, *about)
    if joined["is_alive"] and (node.channels or node.leaves or not joined["is_new"]):
        await db.count("join.channels", node.id, json_text(node.channels), json_text(node.leaves))
    if joined["is_alive"] and not joined["is_new"]:
        names = sorted(node.tasks)
        await enter_gate(db, node.app)
        forgotten = await db.only_row("join.forget", node.id, names, [node.tasks[name].limits for name in names])
        if forgotten["has_news"]:
            db.wake(node.app)
    if joined["is_alive"] and node.tasks:
        # In order, so that nodes that start together do not deadlock.
        names = sorted(node.tasks)
        hashes = [node.tasks[name].hash for name in names]
        limits = [node.tasks[name].limits for name in names]
        await enter_gate(db, node.app)
        await db.count("join.tasks", node.app, node.id, names, hashes, limits)
        await db.count("join.look", node.app, node.id, names, limits)
        if await db.count("join.unpark", node.app, names, hashes):
            db.wake(node.app)
    now: int = joined["now"]
    return now


async def beat(db: Statements, node: str, lease: int, ticks: Ticks) -> Beat:
    row = await db.only_row("beat", node, lease, json_text(ticks) if ticks else None)
    return Beat(
        now=row["now"],
        is_alive=row["is_alive"],
        cancels=row["cancels"],
        has_charges=row["has_charges"],
        has_dispatched=row["has_dispatched"],
        has_dispatched_cancels=row["has_dispatched_cancels"],
        has_free_duties=row["has_free_duties"],
    )


async def die(db: Statements, node: str, kind: FeedKind) -> None:
    """`kind`: the kind of the feed event."""
    if (await db.only_row("die", node, kind))["has_news"]:
        db.wake(EVERY_APP)


async def leave(db: Statements, node: str) -> None:
    await die(db, node, "node.left")


async def judge(db: Statements, until: int = END_OF_TIME) -> list[str]:
    dead = await db.rows("judge", until)
    if any(row["has_news"] for row in dead):
        db.wake(EVERY_APP)
    return [row["id"] for row in dead]


async def rehome(
    db: Statements,
    app: str,
    node: str,
    queues: Sequence[str],
    tasks: Mapping[str, TaskTerms],
    limit: int,
    until: int = END_OF_TIME,
) -> Rehomed:
    lost, bound = await _lock_lost(db, app, node, until)
    endings = [ending for row in lost if (ending := ending_of_lost(row)) is not None]
    endings += [Ending(id_, Verdict.LOST, Reason.NODE_GONE) for id_ in bound]
    over = {ending.id for ending in endings}
    left = [row for row in lost if row["id"] not in over]
    mine = [row for row in left if row["queue"] in queues and can_be_claimed(row, tasks)][: max(limit, 0)]
    taken = {row["id"] for row in mine}
    others = [row["id"] for row in left if row["id"] not in taken]
    if left:
        cut_off = [(row["id"], Reason.NODE_DIED, None) for row in left]
        await db.count("keep_cut_off", *columns_of(cut_off), True)
    if lost:
        await db.count("rehome.lose", [row["id"] for row in lost])
    has_freed = await end(db, app, endings)
    # Before the columns of the dead node are overwritten, also for runs that are claimed here at once.
    await publish_runs(db, app, "run.released", [row["id"] for row in left], [Reason.NODE_DIED] * len(left))
    if others:
        await db.count("rehome.release", others)
        db.wake(app)
    has_room = await make_room(db, app, [row["limit_key"] for row in lost if row["id"] not in over])
    fence, claimed = await take_runs(db, app, node, mine, tasks)
    await publish_runs(db, app, "run.started", [each.id for each in claimed])
    now = claimed[0].claimed_at if claimed else (await db.only_row("now"))["now"]
    ended = [(ending.id, ending.verdict) for ending in endings]
    return Rehomed(now=now, fence=fence, claimed=claimed, released=others, freed=has_room or has_freed, ended=ended)


async def _lock_lost(db: Statements, app: str, node: str, until: int) -> tuple[list[Row], list[str]]:
    """Lost claims, and runs in the own queue of a node that is gone.

    Found without a lock, then locked in order, each only under the claim that was found.
    """
    found = await db.rows("rehome.find", app, node, DEADLINE_MARGIN, REHOMED_MOST, until)
    if not found:
        return [], []
    ids = [row["id"] for row in found]
    bound = [row["id"] for row in found if row["fence"] is None]
    await lock_before(db, app, ids)
    fences = {row["fence"] for row in found if row["fence"] is not None}
    lost = await db.rows("rehome.lock", app, ids, list(fences)) if fences else []
    alone = await db.rows("rehome.lock_bound", app, bound) if bound else []
    return lost, [row["id"] for row in alone]


async def nodes(db: Statements, app: str) -> list[Node]:
    return [node_of(row) for row in await db.rows("nodes", app)]


# --- the heartbeat ----------------------------------------------------------------------------------------------------


T = TypeVar("T")

# A heartbeat that gets no answer must fail while there is time for others.
_WAITS_PER_LEASE = 4
_LEAST_SECONDS = 0.5
_MICROSECONDS = 1_000_000


class OwnHeartbeatSession:
    """Its connection is opened by the first heartbeat, and again by the heartbeat after a failed one.

    `on_return`: called when the server answers again. Earlier statements on other connections may never be answered.
    """

    def __init__(self, where: Location, sql: Mapping[str, str], clock: Clock, on_return: Callable[[], None]) -> None:
        self._where = where
        self._sql = sql
        self._clock = clock
        self._on_return = on_return
        self._connection: Connection | None = None
        self._was_silent = False

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        seconds = max(_LEAST_SECONDS, lease / _MICROSECONDS / _WAITS_PER_LEASE)
        try:
            answer = await self._perform(seconds, lambda db: beat(db, node, lease, ticks))
        except StoreUnavailable as error:
            # After a refusal or a lost connection the other connections have the error too.
            self._was_silent = self._was_silent or isinstance(error.__cause__, TimeoutError)
            raise
        if self._was_silent:
            self._was_silent = False
            self._on_return()
        return answer

    async def die(self, node: str) -> None:
        await self._perform(self._where.timeout, lambda db: die(db, node, "node.died"))

    async def resign(self, node: str) -> None:
        await self._perform(self._where.timeout, lambda db: resign(db, node))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await disconnect(connection)

    async def _perform(self, seconds: float, act: Callable[[Statements], Awaitable[T]]) -> T:
        with translated(self._where):
            try:
                async with asyncio.timeout(min(seconds, self._where.timeout)):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await connect(self._where)
                    return await act(Statements(self._connection, self._sql, self._clock))
            except BaseException:
                # After any error: the next heartbeat must not wait for the rest of this one.
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.terminate()
                raise
