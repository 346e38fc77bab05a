"""Nodes: joining, beating, dying, and what becomes of the runs of the dead.

Death is written down once (`died_at`), by the node itself or by whoever sees that its lease has run out. Re-homing is a
later step that looks at what is written, so it may be repeated by anybody at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evertick.model import Node, Reason, Verdict
from evertick.model.feed import FeedKind
from evertick.store.base import Beat, NodeJoin, Rehomed, TaskTerms, Ticks
from evertick.store.ending import DEADLINE_MARGIN, REHOMED_MOST, Ending, ending_of_lost, may_be_taken
from evertick.store.postgres.endings import end, lock_before
from evertick.store.postgres.feed import tell_runs
from evertick.store.postgres.limits import enter_gate, make_room
from evertick.store.postgres.runs import take_runs
from evertick.store.postgres.session import Statements, columns_of
from evertick.store.postgres.wakeup import EVERY_APP
from evertick.store.rows import Row, json_text, node_of

__all__ = ["beat", "die", "join", "judge", "nodes", "rehome"]


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
        # In order, so that nodes that start together do not wait for each other crosswise.
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
    """`kind`: as what the feed hears of it."""
    if (await db.only_row("die", node, kind))["has_news"]:
        db.wake(EVERY_APP)


async def judge(db: Statements, until: int) -> list[str]:
    dead = await db.rows("judge", until)
    if any(row["has_news"] for row in dead):
        db.wake(EVERY_APP)
    return [row["id"] for row in dead]


async def rehome(
    db: Statements, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int, until: int
) -> Rehomed:
    lost, bound = await _lock_lost(db, app, node, until)
    endings = [ending for row in lost if (ending := ending_of_lost(row)) is not None]
    endings += [Ending(id_, Verdict.LOST, Reason.NODE_GONE) for id_ in bound]
    over = {ending.id for ending in endings}
    left = [row for row in lost if row["id"] not in over]
    mine = [row for row in left if row["queue"] in queues and may_be_taken(row, tasks)][: max(limit, 0)]
    taken = {row["id"] for row in mine}
    others = [row["id"] for row in left if row["id"] not in taken]
    if left:
        cut_off = [(row["id"], Reason.NODE_DIED, None) for row in left]
        await db.count("keep_cut_off", *columns_of(cut_off), True)
    if lost:
        await db.count("rehome.lose", [row["id"] for row in lost])
    has_freed = await end(db, app, endings)
    # Before anything is written over the dead node; also of those that start here at once.
    await tell_runs(db, app, "run.released", [row["id"] for row in left], [Reason.NODE_DIED] * len(left))
    if others:
        await db.count("rehome.release", others)
        db.wake(app)
    has_room = await make_room(db, app, [row["limit_key"] for row in lost if row["id"] not in over])
    fence, claimed = await take_runs(db, app, node, mine, tasks)
    await tell_runs(db, app, "run.started", [each.id for each in claimed])
    now = claimed[0].claimed_at if claimed else (await db.only_row("now"))["now"]
    ended = [(ending.id, ending.verdict) for ending in endings]
    return Rehomed(now=now, fence=fence, claimed=claimed, released=others, freed=has_room or has_freed, ended=ended)


async def _lock_lost(db: Statements, app: str, node: str, until: int) -> tuple[list[Row], list[str]]:
    """Lost claims, and what waits for a node alone that is gone.

    Found without a lock, then locked in order, each under the claim found.
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
