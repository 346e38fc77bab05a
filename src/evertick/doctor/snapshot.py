"""A frame of `top`: running jobs, next fires, last results, nodes, duties, channels, and problems.

Every query is bounded: live runs are found by their nodes, schedules by the index of due times. With a hundred thousand
waiting runs a frame takes a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from evertick.doctor.finding import Finding
from evertick.doctor.health import health_of, look, problems_of, with_schedules
from evertick.doctor.nodes import node_state
from evertick.doctor.thresholds import Thresholds
from evertick.explain.words import known_names
from evertick.model import Duty, Gap, Node, Run, Schedule, State
from evertick.store.base import ChannelPulse, RunFilter, Store

__all__ = ["Frame", "NodeLine", "frame_of"]

_RUNNING_MOST = 100
_NEXT_MOST = 20
_RECENT_MOST = 20
_NODES_MOST = 50
# Rows of each kind that are checked for problems: a frame is drawn every few seconds.
_CHECKED_MOST = 100
# The checks of single schedules take this long at most in one frame.
_SCHEDULES_SECONDS = 0.2


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has not ended."""

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
    # How long the oldest due run or schedule waits, and the schedule alone.
    lag_seconds: float
    overdue_seconds: float
    runs: list[Run]
    next: list[Schedule]
    recent: list[Run | Gap]
    nodes: list[NodeLine]
    duties: list[Duty]
    # Channels with unsent messages.
    channels: list[ChannelPulse]
    # Names of live and dead nodes, by id.
    names: dict[str, str]
    problems: list[Finding] = []


async def frame_of(store: Store, app: str, killed: Mapping[str, int]) -> Frame:
    """Read a frame. `killed`: the process id by node id, for nodes whose process is gone from this machine."""
    evidence = await look(store, app, killed=killed, most=_CHECKED_MOST)
    evidence = await with_schedules(evidence, store, seconds_most=_SCHEDULES_SECONDS)
    health = health_of(evidence)
    nodes = [node for node in evidence.nodes if node.died_at is None][-_NODES_MOST:]
    return Frame(
        at=health.at,
        app=app,
        schedules=health.schedules,
        running=health.running,
        waiting=health.waiting,
        blocked=health.blocked,
        parked=health.parked,
        dispatched=health.dispatched,
        lag_seconds=health.lag_seconds,
        overdue_seconds=health.overdue_seconds,
        runs=await _running(store, app, nodes),
        next=list(evidence.due[:_NEXT_MOST]),
        recent=await _recent(store, app),
        nodes=[_line(node, health.at, killed) for node in nodes],
        duties=list(evidence.duties),
        channels=health.channels,
        names=known_names(evidence.nodes),
        problems=problems_of(evidence, Thresholds()),
    )


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


def _line(node: Node, now: datetime, killed: Mapping[str, int]) -> NodeLine:
    return NodeLine(
        id=node.id,
        name=node.name,
        state=node_state(node, now, killed),
        running=node.running,
        beat_at=node.beat_at,
        started_at=node.started_at,
        queues=node.queues,
    )
