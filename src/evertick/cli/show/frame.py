"""One look at an app: what runs, what is due next, what came of the last, who is there, how far behind it is, which
duties and messages to the outside there are.

Every question is bounded, whatever the store holds: live runs are found by the nodes that hold them, schedules by the
index of the tick. One frame costs a few milliseconds beside a hundred thousand waiting runs.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from evertick.cli.command.nodes import node_state
from evertick.cli.show.node_names import known_names
from evertick.model import Duty, Gap, Node, Run, Schedule, State
from evertick.store.base import ChannelPulse, RunFilter, ScheduleFilter, Store
from evertick.when import from_us

__all__ = ["Frame", "NodeLine", "look"]

_RUNNING_MOST = 100
_NEXT_MOST = 20
_RECENT_MOST = 20
_NODES_MOST = 50


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A live node in brief."""

    id: str
    name: str
    state: str
    running: int
    beat_at: datetime
    started_at: datetime
    queues: tuple[str, ...]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    app: str
    schedules: int
    # Counted up to 10,000 each.
    running: int
    waiting: int
    blocked: int
    parked: int
    dispatched: int
    # How long the oldest run that is due has been waiting, and the schedule that is longest due.
    lag_seconds: float
    overdue_seconds: float
    runs: list[Run]
    next: list[Schedule]
    recent: list[Run | Gap]
    nodes: list[NodeLine]
    duties: list[Duty]
    # Channels with messages that are not sent.
    channels: list[ChannelPulse]
    # Names of all nodes that are known, by id.
    names: dict[str, str]


async def look(store: Store, app: str) -> Frame:
    pulse = await store.pulse(app)
    now = from_us(pulse.now)
    known = await store.nodes(app)
    nodes = [node for node in known if node.died_at is None][-_NODES_MOST:]
    upcoming = await store.schedules(
        app, ScheduleFilter(is_paused=False, is_by_due=True, with_counts=False, limit=_NEXT_MOST)
    )
    oldest = now if pulse.oldest_due_at is None else from_us(pulse.oldest_due_at)
    first = next((each.next_due_at for each in upcoming if each.next_due_at is not None), now)
    return Frame(
        at=now,
        app=app,
        schedules=pulse.schedules,
        running=pulse.running,
        waiting=pulse.waiting,
        blocked=pulse.blocked,
        parked=pulse.parked,
        dispatched=pulse.dispatched,
        lag_seconds=_seconds_since(oldest, now),
        overdue_seconds=_seconds_since(first, now),
        runs=await _running(store, app, nodes),
        next=upcoming,
        recent=await _recent(store, app),
        nodes=[_line(node, now) for node in nodes],
        duties=await store.duties(app),
        channels=await store.channels(app),
        names=known_names(known),
    )


def _seconds_since(moment: datetime, now: datetime) -> float:
    return max(now - moment, timedelta(0)).total_seconds()


async def _running(store: Store, app: str, nodes: list[Node]) -> list[Run]:
    """The runs that live nodes hold, longest running first."""
    ids: list[str] = []
    for node in nodes:
        if node.running and len(ids) < _RUNNING_MOST:
            ids += [owned.id for owned in await store.owned(app, node.id)]
    runs = await store.runs(app, RunFilter(ids=tuple(ids[:_RUNNING_MOST]), limit=_RUNNING_MOST)) if ids else []
    return sorted((run for run in runs if run.is_live), key=lambda run: (run.started_at or run.fire_at, run.id))


async def _recent(store: Store, app: str) -> list[Run | Gap]:
    ended = await store.runs(app, RunFilter(states=(State.DONE,), limit=_RECENT_MOST))
    rows: list[Run | Gap] = [*ended, *await store.gaps(app, RunFilter(limit=_RECENT_MOST))]
    rows.sort(key=lambda row: row.recorded_at if isinstance(row, Gap) else row.finished_at or row.fire_at, reverse=True)
    return rows[:_RECENT_MOST]


def _line(node: Node, now: datetime) -> NodeLine:
    return NodeLine(
        id=node.id,
        name=node.name,
        state=node_state(node, now),
        running=node.running,
        beat_at=node.beat_at,
        started_at=node.started_at,
        queues=node.queues,
    )
