"""Nodes: joining, beating, dying, and what becomes of the runs of the dead.

Death is written down once (`died_at`), by the node itself or by whoever sees that its lease has run out. Re-homing is a
later step that looks at what is written, so it may be repeated by anybody at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from evertick.model import Node, Reason, Verdict
from evertick.model.feed import FeedKind
from evertick.store.base import Beat, NodeJoin, Rehomed, TaskTerms, Ticks
from evertick.store.ending import DEADLINE_MARGIN, REHOMED_MOST, Ending, ending_of_lost, may_be_taken
from evertick.store.rows import json_text, node_of
from evertick.store.sqlite.candidates import read_candidates
from evertick.store.sqlite.claims import ClaimQuery
from evertick.store.sqlite.endings import end
from evertick.store.sqlite.feed import tell, tell_nodes, tell_runs
from evertick.store.sqlite.fence import is_alive
from evertick.store.sqlite.limits import make_room
from evertick.store.sqlite.queries import SQL

__all__ = ["beat", "die", "join", "judge", "nodes", "rehome"]


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
        tell(db, now, node.app, "node.joined", [(node.id, node.name)])
    if node.channels or node.leaves or is_known:
        db.execute(SQL["join.channels"], (node.id, json_text(node.channels), json_text(node.leaves)))
    for name, terms in node.tasks.items():
        db.execute(SQL["join.task"], (node.app, name, node.id, terms.hash, terms.limits))
        db.execute(SQL["join.unpark"], (node.app, name, terms.hash))
        if terms.is_limited:
            db.execute(SQL["join.may_hold_back"], (node.app, name, terms.limits))
    if any(_is_held_under_others(db, node.app, name, terms) for name, terms in node.tasks.items()):
        db.execute(SQL["limits.looked_up_to"], (node.id, ""))
    return now


def _is_held_under_others(db: sqlite3.Connection, app: str, task: str, terms: TaskTerms) -> bool:
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
    """`kind`: as what the feed hears of it."""
    if db.execute(SQL["die"], (node, now)).rowcount:
        tell_nodes(db, now, kind, [node])
    _forget_tasks(db, [node])


def judge(db: sqlite3.Connection, now: int, until: int) -> list[str]:
    if now > until:
        return []
    dead = [row["id"] for row in db.execute(SQL["judge"], (now,)).fetchall()]
    tell_nodes(db, now, "node.died", dead)
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
    until: int,
) -> Rehomed:
    if not is_alive(db, node):
        return Rehomed(now=now, fence=0, claimed=[], released=[], ended=[])
    late = now - DEADLINE_MARGIN if now <= until else None
    lost = db.execute(SQL["rehome.find"], (app, late, REHOMED_MOST, node)).fetchall()
    endings = [ending for row in lost if (ending := ending_of_lost(row)) is not None]
    over = {ending.id for ending in endings}
    left = [row for row in lost if row["id"] not in over]
    cut_off = [(app, row["id"], now, Reason.NODE_DIED, None, True) for row in left]
    db.executemany(SQL["keep_cut_off"], cut_off)
    db.executemany(SQL["rehome.lose"], [(app, row["id"], row["losses"]) for row in lost])
    bound = db.execute(SQL["rehome.bound"], (app, REHOMED_MOST)).fetchall()
    endings += [Ending(row["id"], Verdict.LOST, Reason.NODE_GONE) for row in bound]
    has_freed = end(db, now, app, endings)
    mine = [row["id"] for row in left if row["queue"] in queues and may_be_taken(row, tasks)][:limit]
    others = [row["id"] for row in left if row["id"] not in set(mine)]
    # Before anything is written over the dead node; also of those that start here at once.
    tell_runs(db, now, app, "run.released", [row["id"] for row in left], [Reason.NODE_DIED] * len(left))
    db.executemany(SQL["rehome.release"], [(app, id_, now) for id_ in others])
    has_freed = make_room(db, app, [row["limit_key"] for row in left]) or has_freed
    taker = ClaimQuery(db, now, app, node, tasks)
    found = read_candidates(db, app, mine)
    taker.take(found.candidates)
    taker.set_aside(found.unreadable)
    ended = [(ending.id, ending.verdict) for ending in endings]
    return Rehomed(now=now, fence=taker.fence, claimed=taker.claimed, released=others, freed=has_freed, ended=ended)


def nodes(db: sqlite3.Connection, now: int, app: str) -> list[Node]:
    return [node_of(row) for row in db.execute(SQL["nodes"], (app,))]
