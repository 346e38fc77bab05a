"""Nodes: joining, beating, dying, and what becomes of the runs of the dead.

Death is written down once (`died_at`), by the node itself or by whoever sees that its lease has run out. Re-homing is a
later step that looks at what is written, so it may be repeated by anybody at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evertick.model import LOSSES_MAX, Node, Reason, Verdict
from evertick.store.base import Beat, NodeJoin, Rehomed, TaskTerms
from evertick.store.postgres.endings import Ending, end
from evertick.store.postgres.limits import make_room
from evertick.store.postgres.runs import take_runs
from evertick.store.postgres.session import Session
from evertick.store.rows import Row, json_text, node_of
from evertick.when.moment import MINUTE

__all__ = ["DEADLINE_MARGIN", "beat", "die", "join", "judge", "nodes", "rehome"]

# A run this long past its deadline is taken from its owner, though it beats: it should have stopped by itself.
DEADLINE_MARGIN = MINUTE
# Runs that one call settles at most: bounds its transaction. The rest is there for the next beat.
_REHOMED_MOST = 2_000


async def join(db: Session, node: NodeJoin) -> int:
    about = (json_text(node.queues), json_text(node.declares))
    joined = await db.only_row("join", node.id, node.name, node.app, node.version, node.lease, *about)
    if joined["is_alive"] and node.tasks:
        # In order, so that nodes that start together do not wait for each other crosswise.
        names = sorted(node.tasks)
        hashes = [node.tasks[name].hash for name in names]
        await db.count("join.tasks", node.app, node.id, names, hashes)
        db.has_news = await db.count("join.unpark", node.app, names, hashes) > 0
    now: int = joined["now"]
    return now


async def beat(db: Session, node: str, lease: int) -> Beat:
    row = await db.only_row("beat", node, lease)
    return Beat(now=row["now"], is_alive=row["is_alive"], cancels=row["cancels"])


async def die(db: Session, node: str) -> None:
    await db.count("die", node)


async def judge(db: Session) -> list[str]:
    return [row["id"] for row in await db.rows("judge")]


async def rehome(
    db: Session, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
) -> Rehomed:
    lost = await _lock_lost(db, app, node)
    endings = [ending for row in lost if (ending := _ending_of(row)) is not None]
    over = {ending.id for ending in endings}
    left = [row for row in lost if row["id"] not in over]
    mine = [row for row in left if row["queue"] in queues and _may_be_taken(row, tasks)][: max(limit, 0)]
    taken = {row["id"] for row in mine}
    others = [row["id"] for row in left if row["id"] not in taken]
    if lost:
        await db.count("rehome.lose", [row["id"] for row in lost])
    has_freed = await end(db, app, endings)
    if others:
        await db.count("rehome.release", others)
        db.has_news = True
    has_room = await make_room(db, app, [row["limit_key"] for row in lost if row["id"] not in over])
    fence, claimed = await take_runs(db, node, mine, tasks)
    now = claimed[0].claimed_at if claimed else (await db.only_row("now"))["now"]
    ended = [(ending.id, ending.verdict) for ending in endings]
    return Rehomed(
        now=now, fence=fence, claimed=claimed, released=len(others), freed=has_room or has_freed, ended=ended
    )


def _may_be_taken(row: Row, tasks: Mapping[str, TaskTerms]) -> bool:
    """Whether the asking node can run it, and no limit has a say in that."""
    terms = tasks.get(row["task"])
    return terms is not None and not terms.is_limited and row["limit_key"] is None


async def _lock_lost(db: Session, app: str, node: str) -> list[Row]:
    """Found without a lock, then locked after the schedules of those that free others, each under the claim found."""
    found = await db.rows("rehome.find", app, node, DEADLINE_MARGIN, _REHOMED_MOST)
    if not found:
        return []
    ids = [row["id"] for row in found]
    schedules = [row["schedule_id"] for row in await db.rows("run.to_free", ids)]
    if schedules:
        await db.rows("schedule.lock", schedules)
    return await db.rows("rehome.lock", app, ids, list({row["fence"] for row in found}))


def _ending_of(row: Row) -> Ending | None:
    """None: it may run again."""
    if row["is_cancel_requested"]:
        return Ending(row["id"], Verdict.CANCELLED, row["cancel_reason"] or Reason.REQUESTED)
    if row["at_most_once"] or row["losses"] >= LOSSES_MAX:
        return Ending(row["id"], Verdict.LOST, Reason.NODE_DIED)
    return None


async def nodes(db: Session, app: str) -> list[Node]:
    return [node_of(row) for row in await db.rows("nodes", app)]
