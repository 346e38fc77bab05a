"""Nodes: join, heartbeat, death, and the recovery of the runs of dead nodes; and the duties that nodes hold.

A death is recorded once (`died_at`), by the node itself or by any node that sees its expired lease. Recovery is a later
step that reads the recorded deaths, so any node may repeat it at any time.

A duty is held by a row that names a living node; nothing is renewed. So a death frees all duties of the node without a
further write, and the next node that asks takes them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from evertick.model import Duty, Node, Reason, Verdict
from evertick.model.feed import FeedKind
from evertick.store.base import END_OF_TIME, Beat, DutyHolds, DutyTick, NodeJoin, Rehomed, TaskTerms, Ticks
from evertick.store.rows import duty_hold_of, duty_of, json_text, node_of, storable_text
from evertick.store.sqlite.claims import ClaimQuery, read_candidates
from evertick.store.sqlite.connection import SQL, is_alive
from evertick.store.sqlite.endings import end
from evertick.store.sqlite.feed import publish, publish_nodes, publish_runs
from evertick.store.sqlite.limits import make_room
from evertick.store.verdicts import DEADLINE_MARGIN, REHOMED_MOST, Ending, can_be_claimed, ending_of_lost

__all__ = [
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


def join(db: sqlite3.Connection, now: int, node: NodeJoin) -> int:
    about = (json_text(node.queues), json_text(node.declares))
    is_known = db.execute(SQL["join.is_known"], (node.id,)).fetchone() is not None
    db.execute(SQL["join"], (node.id, node.name, node.app, node.version, now, node.lease, *about))
    if not is_alive(db, node.id):
        return now
    if is_known:
        limits = json_text({name: terms.limits for name, terms in node.tasks.items()})
        db.execute(SQL["join.look_again"], (node.id, limits))
        db.execute(SQL["join.forget"], (node.id, limits))
    else:
        publish(db, now, node.app, "node.joined", [(node.id, node.name)])
    if node.channels or node.leaves or is_known:
        db.execute(SQL["join.channels"], (node.id, json_text(node.channels), json_text(node.leaves)))
    for name, terms in node.tasks.items():
        db.execute(SQL["join.task"], (node.app, name, node.id, terms.hash, terms.limits))
        db.execute(SQL["join.unpark"], (node.app, name, terms.hash))
        if terms.is_limited:
            db.execute(SQL["join.may_hold_back"], (node.app, name, terms.limits))
    if any(_may_be_blocked_by_others(db, node.app, name, terms) for name, terms in node.tasks.items()):
        db.execute(SQL["limits.looked_up_to"], (node.id, ""))
    return now


def _may_be_blocked_by_others(db: sqlite3.Connection, app: str, task: str, terms: TaskTerms) -> bool:
    return db.execute(SQL["join.has_other_limits"], (app, task, terms.limits)).fetchone() is not None


def beat(db: sqlite3.Connection, now: int, node: str, lease: int, ticks: Ticks) -> Beat:
    alive = db.execute(SQL["beat"], (node, now, lease, json_text(ticks) if ticks else None)).fetchone()
    if alive is None:
        return Beat(now=now, is_alive=False, cancels=[])
    app: str = alive["app"]
    dispatched = db.execute(SQL["beat.has_dispatched"], (app, now)).fetchone()
    return Beat(
        now=now,
        is_alive=True,
        cancels=[row["id"] for row in db.execute(SQL["beat.cancels"], (app, node))],
        has_charges=bool(db.execute(SQL["beat.has_charges"], (app, now)).fetchone()["has_charges"]),
        has_dispatched=bool(dispatched["has_dispatched"]),
        has_dispatched_cancels=bool(dispatched["has_dispatched_cancels"]),
        has_free_duties=bool(db.execute(SQL["beat.has_free_duties"], (app,)).fetchone()["has_free_duties"]),
    )


def die(db: sqlite3.Connection, now: int, node: str, kind: FeedKind) -> None:
    """`kind`: the kind of the feed event."""
    if db.execute(SQL["die"], (node, now)).rowcount:
        publish_nodes(db, now, kind, [node])
    _forget_tasks(db, [node])


def leave(db: sqlite3.Connection, now: int, node: str) -> None:
    die(db, now, node, "node.left")


def judge(db: sqlite3.Connection, now: int, until: int = END_OF_TIME) -> list[str]:
    if now > until:
        return []
    dead = [row["id"] for row in db.execute(SQL["judge"], (now,)).fetchall()]
    publish_nodes(db, now, "node.died", dead)
    _forget_tasks(db, dead)
    return dead


def _forget_tasks(db: sqlite3.Connection, dead: Sequence[str]) -> None:
    db.executemany(SQL["die.look_again"], [(node,) for node in dead])
    db.executemany(SQL["die.forget_tasks"], [(node,) for node in dead])


def rehome(
    db: sqlite3.Connection,
    now: int,
    app: str,
    node: str,
    queues: Sequence[str],
    tasks: Mapping[str, TaskTerms],
    limit: int,
    until: int = END_OF_TIME,
) -> Rehomed:
    if not is_alive(db, node):
        return Rehomed(now=now, fence=0, claimed=[], released=[], ended=[])
    late = now - DEADLINE_MARGIN if now <= until else None
    lost = db.execute(SQL["rehome.find"], (app, late, REHOMED_MOST, node)).fetchall()
    endings = [ending for row in lost if (ending := ending_of_lost(row)) is not None]
    ended_ids = {ending.id for ending in endings}
    left = [row for row in lost if row["id"] not in ended_ids]
    cut_off = [(app, row["id"], now, Reason.NODE_DIED, None, True) for row in left]
    db.executemany(SQL["keep_cut_off"], cut_off)
    db.executemany(SQL["rehome.lose"], [(app, row["id"], row["losses"]) for row in lost])
    bound = db.execute(SQL["rehome.bound"], (app, REHOMED_MOST)).fetchall()
    endings += [Ending(row["id"], Verdict.LOST, Reason.NODE_GONE) for row in bound]
    has_freed = end(db, now, app, endings)
    mine = [row["id"] for row in left if row["queue"] in queues and can_be_claimed(row, tasks)][:limit]
    others = [row["id"] for row in left if row["id"] not in set(mine)]
    # Before the columns of the dead node are overwritten, also for runs that are claimed here at once.
    publish_runs(db, now, app, "run.released", [row["id"] for row in left], [Reason.NODE_DIED] * len(left))
    db.executemany(SQL["rehome.release"], [(app, id_, now) for id_ in others])
    has_freed = make_room(db, app, [row["limit_key"] for row in left]) or has_freed
    query = ClaimQuery(db, now, app, node, tasks)
    found = read_candidates(db, app, mine)
    query.take(found.candidates)
    query.park_unreadable(found.unreadable)
    ended = [(ending.id, ending.verdict) for ending in endings]
    return Rehomed(now=now, fence=query.fence, claimed=query.claimed, released=others, freed=has_freed, ended=ended)


def nodes(db: sqlite3.Connection, now: int, app: str) -> list[Node]:
    return [node_of(row) for row in db.execute(SQL["nodes"], (app,))]


# --- duties -----------------------------------------------------------------------------------------------------------


def named_duties(db: sqlite3.Connection, now: int, app: str, names: Sequence[str]) -> DutyHolds:
    rows = db.execute(SQL["duties.named"], (app, json_text(names)))
    return DutyHolds(now=now, duties=[duty_hold_of(row) for row in rows])


def hold_duties(db: sqlite3.Connection, now: int, app: str, node: str, names: Sequence[str]) -> DutyHolds:
    for statement in ("hold_duties.begin", "hold_duties.take"):
        db.execute(SQL[statement], (app, node, json_text(names), now))
    return named_duties(db, now, app, names)


def tick_duty(db: sqlite3.Connection, now: int, app: str, node: str, tick: DutyTick) -> bool:
    values = (tick.has_acted, tick.next_at, storable_text(tick.error), now)
    return db.execute(SQL["tick_duty"], (app, tick.name, node, tick.term, *values)).rowcount > 0


def resign_duties(db: sqlite3.Connection, now: int, app: str, node: str, terms: Mapping[str, int]) -> None:
    db.executemany(SQL["resign_duties"], [(app, name, node, term) for name, term in terms.items()])


def resign(db: sqlite3.Connection, now: int, node: str) -> None:
    db.execute(SQL["resign"], (node,))


def duties(db: sqlite3.Connection, now: int, app: str) -> list[Duty]:
    return [duty_of(row) for row in db.execute(SQL["duties"], (app,))]
