"""The health of an app: a bounded read of its ledger, its figures, and the findings for monitors.

`status`, `top` and the doctor take their findings from here, so that they agree. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from evertick.clock import system_clock
from evertick.doctor.database import about_outbox
from evertick.doctor.finding import Finding, Severity
from evertick.doctor.nodes import about_duties, about_nodes, is_alive, node_state
from evertick.doctor.runs import about_dispatched, about_ended, about_parked, about_waiting, is_unheard
from evertick.doctor.schedules import about_late_runs, about_overdue, about_wrong_clock
from evertick.doctor.thresholds import Thresholds
from evertick.explain.all_schedules import ParsedSchedule, survey
from evertick.explain.dispatched_run import unsent_messages
from evertick.explain.words import node_names
from evertick.ledger.clock_repair import Astray, written_ahead
from evertick.model import Dispatched, Duty, Message, Node, Run, Schedule, State
from evertick.store.base import ChannelPulse, Pulse, RunFilter, ScheduleFilter, Store
from evertick.when import from_us

__all__ = [
    "AppHealth",
    "Evidence",
    "NodeHealth",
    "due_since",
    "findings_of",
    "health_of",
    "look",
    "problems_of",
    "with_schedules",
]

# The oldest runs of each kind, and due schedules, that are read.
_READ_MOST = 1_000


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The data about an app at a time of the store's clock, from which figures and findings are computed."""

    app: str
    pulse: Pulse
    # Live and dead nodes; and the process id by node id, for nodes whose process is gone from this machine.
    nodes: Sequence[Node] = ()
    killed: Mapping[str, int] = {}
    duties: Sequence[Duty] = ()
    channels: Sequence[ChannelPulse] = ()
    # By due time.
    due: Sequence[Schedule] = ()
    waiting: Sequence[Run] = ()
    parked: Sequence[Run] = ()
    dispatched: Sequence[Run] = ()
    # The unsent messages of dispatched runs.
    unsent: Mapping[str, Message] = {}
    # The latest write time in the future.
    ahead: datetime | None = None
    # Schedules that a wrong clock has stopped, and keys of those that are no longer declared; and how many schedules
    # were checked, if not all.
    astray: Sequence[Astray] = ()
    left_over: Sequence[str] = ()
    looked_at: int | None = None

    @property
    def at(self) -> datetime:
        return from_us(self.pulse.now)

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if is_alive(node, self.at, self.killed)]


async def look(store: Store, app: str, *, killed: Mapping[str, int] | None = None, most: int = _READ_MOST) -> Evidence:
    """Read the data. Every query is bounded. `with_schedules` adds checks of single schedules."""
    pulse = await store.pulse(app)
    by_due = ScheduleFilter(is_paused=False, is_by_due=True, with_counts=False, limit=most)

    async def runs(state: State, count: int) -> list[Run]:
        return await store.runs(app, RunFilter(states=(state,), is_oldest_first=True, limit=most)) if count else []

    dispatched = await runs(State.DISPATCHED, pulse.dispatched)
    return Evidence(
        app=app,
        pulse=pulse,
        nodes=await store.nodes(app),
        killed=killed or {},
        duties=await store.duties(app),
        channels=await store.channels(app),
        due=await store.schedules(app, by_due),
        waiting=await runs(State.WAITING, pulse.waiting),
        parked=await runs(State.PARKED, pulse.parked),
        dispatched=dispatched,
        unsent=await unsent_messages(store, app, dispatched) if dispatched else {},
        ahead=await written_ahead(store, app),
    )


async def with_schedules(evidence: Evidence, store: Store, *, seconds_most: float) -> Evidence:
    """Add the checks of each schedule, as many as fit into the time."""
    astray: list[Astray] = []
    left_over: list[str] = []
    end, count = system_clock.elapsed() + seconds_most, 0
    async for each in survey(store, evidence.app):
        if system_clock.elapsed() > end:
            return msgspec.structs.replace(evidence, astray=astray, left_over=left_over, looked_at=count)
        count += 1
        _note(each, astray, left_over)
    return msgspec.structs.replace(evidence, astray=astray, left_over=left_over)


def with_surveyed(evidence: Evidence, surveyed: Sequence[ParsedSchedule]) -> Evidence:
    """The same for schedules that were already read."""
    astray: list[Astray] = []
    left_over: list[str] = []
    for each in surveyed:
        _note(each, astray, left_over)
    return msgspec.structs.replace(evidence, astray=astray, left_over=left_over)


def _note(each: ParsedSchedule, astray: list[Astray], left_over: list[str]) -> None:
    if each.astray is not None:
        astray.append(each.astray)
    if each.is_left_over and each.schedule.declared_in == "file":
        left_over.append(each.schedule.key)


# --- findings --------------------------------------------------------------------------------------------------------


def findings_of(evidence: Evidence, thresholds: Thresholds) -> Iterator[Finding]:
    now, living, pulse = evidence.at, evidence.living, evidence.pulse
    has_work = bool(pulse.schedules or pulse.waiting or pulse.running or pulse.blocked or pulse.dispatched)
    yield from about_nodes(evidence.nodes, now, has_work=has_work, killed=evidence.killed)
    yield from about_wrong_clock(evidence.ahead, evidence.astray)
    yield from about_overdue(evidence.due, living, now, thresholds)
    yield from about_waiting(evidence.waiting, living, now, thresholds)
    yield from about_late_runs(evidence.waiting, evidence.ahead, now)
    yield from about_ended(pulse, thresholds)
    yield from about_parked(evidence.parked, living)
    yield from about_duties(evidence.duties, evidence.nodes, now)
    yield from about_outbox(evidence.channels, living, now, thresholds)
    yield from about_dispatched(evidence.dispatched, evidence.unsent, living, now, thresholds)


def problems_of(evidence: Evidence, thresholds: Thresholds) -> list[Finding]:
    """The errors and warnings, the worst first."""
    found = [each for each in findings_of(evidence, thresholds) if each.severity is not Severity.NOTE]
    return sorted(found, key=lambda each: each.severity is not Severity.ERROR)


# --- figures ---------------------------------------------------------------------------------------------------------


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has not ended."""

    id: str
    name: str
    # The result of `node_state`.
    state: str
    # The process id of a killed node.
    pid: int | None = None
    beat_age_seconds: float
    running: int
    version: str


class AppHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an app at a time of the store's clock."""

    at: datetime
    app: str
    nodes: list[NodeHealth]
    schedules: int
    # How long the oldest due run waits for a slot, or the oldest due schedule to be recorded; and the schedule alone.
    lag_seconds: float
    overdue_seconds: float
    oldest_due_at: datetime | None
    # Counted up to 10,000 each.
    running: int
    waiting: int
    blocked: int
    parked: int
    dispatched: int
    # Failed and lost runs of the last hour that were not rerun, counted up to 1,000, and the lost ones of them; with
    # their schedules or tasks, the most frequent first.
    failed: int
    failed_of: list[str]
    lost: int = 0
    lost_of: list[str] = []
    channels: list[ChannelPulse]
    # When the oldest dispatched run without a worker was sent, and its queue.
    oldest_untaken_at: datetime | None = None
    untaken_by: str | None = None
    # When the oldest report that no live node can read was due, and its queue.
    unheard_since: datetime | None = None
    unheard_by: str | None = None
    # Failing duties.
    duties: list[Duty]
    # Keys of schedules that a wrong clock has stopped; the latest write time in the future; keys of schedules that are
    # paused because no configuration declares them; and how many schedules were checked, if not all.
    astray: list[str] = []
    written_ahead: datetime | None = None
    left_over: list[str] = []
    looked_at: int | None = None

    @property
    def living(self) -> list[NodeHealth]:
        return [node for node in self.nodes if node.state == "alive"]


def due_since(pulse: Pulse, due: Sequence[Schedule]) -> datetime | None:
    """The due time of the oldest run that waits for a slot or schedule that waits to be recorded. `due` is sorted."""
    scheduled = next((each.next_due_at for each in due), None)
    run_due = None if pulse.oldest_due_at is None else from_us(pulse.oldest_due_at)
    now = from_us(pulse.now)
    return min((moment for moment in (scheduled, run_due) if moment is not None and moment <= now), default=None)


def health_of(evidence: Evidence) -> AppHealth:
    pulse, now = evidence.pulse, evidence.at
    scheduled = next((each.next_due_at for each in evidence.due), None)
    due = due_since(pulse, evidence.due)
    dispatched = [run.dispatched for run in evidence.dispatched if run.dispatched is not None]
    untaken = _untaken(dispatched)
    overdue = [each for each in dispatched if is_unheard(each, evidence.living, now)]
    unheard = min(overdue, key=lambda each: each.until or now, default=None)
    return AppHealth(
        at=now,
        app=evidence.app,
        nodes=_nodes(evidence),
        schedules=pulse.schedules,
        lag_seconds=0.0 if due is None else (now - due).total_seconds(),
        overdue_seconds=0.0 if scheduled is None else max((now - scheduled).total_seconds(), 0.0),
        oldest_due_at=due,
        running=pulse.running,
        waiting=pulse.waiting,
        blocked=pulse.blocked,
        parked=pulse.parked,
        dispatched=pulse.dispatched,
        failed=sum(pulse.failed.values()) + sum(pulse.lost.values()),
        failed_of=list(pulse.failed),
        lost=sum(pulse.lost.values()),
        lost_of=list(pulse.lost),
        channels=list(evidence.channels),
        oldest_untaken_at=None if untaken is None else untaken.pushed_at,
        untaken_by=None if untaken is None else untaken.to,
        unheard_since=None if unheard is None else unheard.until,
        unheard_by=None if unheard is None else unheard.to,
        duties=[duty for duty in evidence.duties if duty.error is not None],
        astray=[each.key for each in evidence.astray],
        written_ahead=evidence.ahead,
        left_over=sorted(evidence.left_over),
        looked_at=evidence.looked_at,
    )


def _untaken(dispatched: Sequence[Dispatched]) -> Dispatched | None:
    """The sent dispatch that has waited longest for a worker."""
    waiting = [each for each in dispatched if each.pushed_at is not None and each.taken_at is None]
    return min(waiting, key=lambda each: each.pushed_at or each.at, default=None)


def _nodes(evidence: Evidence) -> list[NodeHealth]:
    nodes = [node for node in evidence.nodes if node.died_at is None]
    names = node_names(nodes)
    return [
        NodeHealth(
            id=node.id,
            name=names[node.id],
            state=node_state(node, evidence.at, evidence.killed),
            pid=evidence.killed.get(node.id),
            beat_age_seconds=max((evidence.at - node.beat_at).total_seconds(), 0.0),
            running=node.running,
            version=node.version,
        )
        for node in nodes
    ]
