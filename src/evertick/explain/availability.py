"""The table of high availability: every loop, duty and schedule, its holders, and how it runs on several nodes.

The modes come from `engine/loops.py`, and from the declarations of schedules and duties. Each heartbeat of a node has
the last and the next step of its loops. Reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal, get_args

import msgspec

from evertick.engine.loops import LOOPS, OWN_DUTIES, PRUNE, LoopKind
from evertick.ledger.planning import able_nodes
from evertick.model import Duty, Mode, Node, Schedule
from evertick.store.base import ScheduleFilter, Store
from evertick.when import from_us

__all__ = ["HA_KINDS", "REPLICAS", "HaKind", "HaLine", "HaNode", "HaTable", "ha_table"]

HaKind = Literal["loop", "duty", "schedule"]
HA_KINDS: tuple[HaKind, ...] = get_args(HaKind)

# How a schedule or a duty runs on N nodes, by its mode.
REPLICAS: dict[tuple[HaKind, Mode], str] = {
    ("schedule", "claimed"): "Each fire is recorded by one of them, and run by one that knows the task.",
    ("schedule", "every-node"): "Each fire is recorded by one of them, and run once by each that knows the task.",
    ("duty", "duty"): PRUNE.replicas,
}


class HaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A live node. Several may have the same name."""

    id: str
    name: str


class HaLine(msgspec.Struct, frozen=True, kw_only=True):
    """One loop, duty or schedule."""

    kind: HaKind
    name: str
    mode: Mode
    # The purpose of a loop or a built-in duty; the rule of a schedule.
    does: str
    # The holder of a duty; the live nodes that take part in a loop or a schedule.
    holders: tuple[HaNode, ...]
    # The term of a duty.
    term: int | None = None
    # The last and the next step, tick or fire over all nodes.
    last_at: datetime | None = None
    next_at: datetime | None = None
    is_paused: bool = False
    # A sentence about N nodes.
    replicas: str


class HaTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table of an app at a time of the store's clock."""

    app: str
    at: datetime
    # The live nodes, the oldest first.
    nodes: tuple[HaNode, ...]
    lines: tuple[HaLine, ...]
    # The number of schedules of the app, which may exceed the limit of the lines.
    schedules: int


async def ha_table(
    store: Store,
    app: str,
    *,
    kinds: Iterable[HaKind] = HA_KINDS,
    limit: int = 100,
    declared_duties: Sequence[str] = (),
) -> HaTable:
    """The current holders of loops, duties and schedules. At most `limit` schedules are listed, by key.

    The store knows only duties that were held once; `declared_duties` are listed in any case.
    """
    wanted, pulse = set(kinds), await store.pulse(app)
    nodes = [node for node in await store.nodes(app) if node.died_at is None]
    lines: list[HaLine] = []
    if "loop" in wanted:
        lines += [_loop(kind, nodes) for kind in LOOPS]
    if "duty" in wanted:
        lines += _duties(await store.duties(app), declared_duties)
    if "schedule" in wanted:
        listed = await store.schedules(app, ScheduleFilter(limit=limit, with_counts=False))
        lines += [_schedule(each, nodes) for each in listed]
    return HaTable(
        app=app,
        at=from_us(pulse.now),
        nodes=_short(nodes),
        lines=tuple(lines),
        schedules=pulse.schedules,
    )


def _short(nodes: Sequence[Node]) -> tuple[HaNode, ...]:
    return tuple(HaNode(id=node.id, name=node.name) for node in nodes)


def _loop(kind: LoopKind, nodes: Sequence[Node]) -> HaLine:
    # A node of another version may lack the loop, and a new node has sent no heartbeat yet.
    holders = [node for node in nodes if kind.name in node.ticks]
    ticks = [node.ticks[kind.name] for node in holders]
    return HaLine(
        kind="loop",
        name=kind.name,
        mode=kind.mode,
        does=kind.does,
        holders=_short(holders),
        last_at=max((tick.last_at for tick in ticks if tick.last_at is not None), default=None),
        next_at=min((tick.next_at for tick in ticks if tick.next_at is not None), default=None),
        replicas=kind.replicas,
    )


def _duties(found: Sequence[Duty], declared: Sequence[str]) -> Iterator[HaLine]:
    """Built-in duties first. Built-in and declared duties are listed also before a node has held them."""
    by_name = {duty.name: duty for duty in found}
    for name in (*OWN_DUTIES, *sorted({*by_name, *declared} - OWN_DUTIES.keys())):
        duty, own = by_name.get(name), OWN_DUTIES.get(name)
        holder = None if duty is None or duty.node is None else HaNode(id=duty.node, name=duty.node_name or duty.node)
        yield HaLine(
            kind="duty",
            name=name,
            mode="duty",
            does="" if own is None else own.does,
            holders=() if holder is None else (holder,),
            term=None if duty is None or holder is None else duty.term,
            last_at=None if duty is None else duty.ticked_at,
            next_at=None if duty is None else duty.next_at,
            replicas=REPLICAS["duty", "duty"] if own is None else own.replicas,
        )


def _schedule(schedule: Schedule, nodes: Sequence[Node]) -> HaLine:
    return HaLine(
        kind="schedule",
        name=schedule.key,
        mode=schedule.mode,
        does=schedule.when,
        holders=_short(able_nodes(nodes, schedule.task)),
        last_at=schedule.last_fire_at,
        next_at=None if schedule.is_paused else schedule.next_fire_at,
        is_paused=schedule.is_paused,
        replicas=REPLICAS["schedule", schedule.mode],
    )
