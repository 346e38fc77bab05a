"""How an app stands, graded for monitors: who is there, how far behind it is, what waits, what failed lately.

Every question is bounded, whatever the store holds. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum

import msgspec

from evertick.cli.command.nodes import node_state
from evertick.cli.exits import EXIT_UNKNOWN
from evertick.cli.show.words import span
from evertick.daemon.report import DaemonReport
from evertick.explain.dispatched_run import is_heard
from evertick.explain.words import node_names
from evertick.ledger.clock_repair import astray_in, written_ahead
from evertick.model import Dispatched, Duty, Node, State
from evertick.store.base import FAILED_MOST, ChannelPulse, RunFilter, ScheduleFilter, Store
from evertick.when import from_us

__all__ = ["Grade", "Limits", "NodeStanding", "Problem", "Standing", "look", "problems_of", "worst"]

_NAMED_MOST = 3
_DISPATCHED_MOST = 1_000
# So many paused schedules are looked at for those that are left over.
_PAUSED_MOST = 1_000
# So many schedules, by key, are looked at for those that a wrong clock makes stand still; `doctor` looks at all.
_ASTRAY_MOST = 1_000


class Grade(IntEnum):
    """As monitors count them; the value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = EXIT_UNKNOWN


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """From when on it is a problem. A count of 0: never."""

    lag_warning: timedelta
    lag_critical: timedelta
    failed_warning: int
    failed_critical: int


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    grade: Grade
    what: str
    fix: str


class NodeStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has not ended."""

    id: str
    name: str
    # As `node_state` says it; or killed: its lease holds yet, but its process on this machine is gone.
    state: str
    # The process that is gone, of a killed one.
    pid: int | None = None
    beat_age_seconds: float
    running: int
    version: str


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One look at an app, by the store's time."""

    at: datetime
    app: str
    nodes: list[NodeStanding]
    schedules: int
    # How long the oldest run that is due waits for a slot, and the oldest due schedule for being recorded.
    lag_seconds: float
    oldest_due_at: datetime | None
    # Counted up to 10,000 each.
    running: int
    waiting: int
    blocked: int
    parked: int
    dispatched: int
    # Failed or lost within the last hour and not rerun since, counted up to 1,000; and how many of them were lost. Of
    # which schedules or tasks, the most first.
    failed: int
    failed_of: list[str]
    lost: int = 0
    lost_of: list[str] = []
    channels: list[ChannelPulse]
    # Since when the oldest run of an outside queue waits for a worker, of those dispatched first; and which queue.
    oldest_untaken_at: datetime | None = None
    untaken_by: str | None = None
    # Since when a worker should have spoken whom no live node can hear; and of which queue.
    unheard_since: datetime | None = None
    unheard_by: str | None = None
    duties: list[Duty]
    # Keys of schedules that stand still because the clock was wrong, of the first 1,000; and the latest time, still to
    # come, at which something says that it was written.
    astray: list[str] = []
    written_ahead: datetime | None = None
    # Keys of schedules that are paused because no configuration has them any more.
    left_over: list[str] = []
    # Of the daemons on this machine that keep this ledger and this configuration's state directory.
    daemons: list[DaemonReport]

    @property
    def living(self) -> list[NodeStanding]:
        return [node for node in self.nodes if node.state == "alive"]


async def look(
    store: Store, app: str, daemons: Sequence[DaemonReport], killed: Sequence[DaemonReport] = ()
) -> Standing:
    """`daemons`: those of this machine that live; `killed`: those that do no more, and have not said so."""
    pulse = await store.pulse(app)
    now = from_us(pulse.now)
    nodes = [node for node in await store.nodes(app) if node.died_at is None]
    oldest = [moment for moment in (await _first_due(store, app), _moment(pulse.oldest_due_at)) if moment is not None]
    due = min((moment for moment in oldest if moment <= now), default=None)
    dispatched = await _dispatched(store, app) if pulse.dispatched else []
    untaken, unheard = _untaken(dispatched), _unheard(dispatched, nodes, now)
    return Standing(
        at=now,
        app=app,
        nodes=_lines(nodes, now, {each.node_id: each.pid for each in killed}),
        schedules=pulse.schedules,
        lag_seconds=0.0 if due is None else (now - due).total_seconds(),
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
        channels=await store.channels(app),
        oldest_untaken_at=None if untaken is None else untaken.pushed_at,
        untaken_by=None if untaken is None else untaken.to,
        unheard_since=None if unheard is None else unheard.until,
        unheard_by=None if unheard is None else unheard.to,
        left_over=await _left_over(store, app),
        astray=[each.key async for each in astray_in(store, app, most=_ASTRAY_MOST)],
        written_ahead=await written_ahead(store, app),
        duties=[duty for duty in await store.duties(app) if duty.error is not None],
        daemons=list(daemons),
    )


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


async def _first_due(store: Store, app: str) -> datetime | None:
    wanted = ScheduleFilter(is_paused=False, is_by_due=True, with_counts=False, limit=1)
    return next((each.next_due_at for each in await store.schedules(app, wanted)), None)


async def _left_over(store: Store, app: str) -> list[str]:
    paused = await store.schedules(app, ScheduleFilter(is_paused=True, with_counts=False, limit=_PAUSED_MOST))
    keys = [each.key for each in paused if each.declared_in == "file"]
    stored = await store.stored_schedules(app, keys=keys) if keys else []
    return sorted(each.key for each in stored if each.pause is not None and each.pause.is_left_over)


async def _dispatched(store: Store, app: str) -> list[Dispatched]:
    wanted = RunFilter(states=(State.DISPATCHED,), is_oldest_first=True, limit=_DISPATCHED_MOST)
    return [run.dispatched for run in await store.runs(app, wanted) if run.dispatched is not None]


def _unheard(dispatched: Sequence[Dispatched], living: Sequence[Node], now: datetime) -> Dispatched | None:
    """The dispatch whose worker should have spoken first, where no node could hear it."""
    overdue = [each for each in dispatched if each.until is not None and each.until < now]
    unheard = [each for each in overdue if living and not is_heard(each.to, living)]
    return min(unheard, key=lambda each: each.until or now, default=None)


def _untaken(dispatched: Sequence[Dispatched]) -> Dispatched | None:
    """The dispatch that has waited longest for a worker since the queue has it."""
    waiting = [each for each in dispatched if each.pushed_at is not None and each.taken_at is None]
    return min(waiting, key=lambda each: each.pushed_at or each.at, default=None)


def _lines(nodes: Sequence[Node], now: datetime, killed: Mapping[str, int]) -> list[NodeStanding]:
    """`killed`: by the id of a node, its process that is gone."""
    names = node_names(nodes)
    return [
        NodeStanding(
            id=node.id,
            name=names[node.id],
            state="killed" if node.id in killed else node_state(node, now),
            pid=killed.get(node.id),
            beat_age_seconds=max((now - node.beat_at).total_seconds(), 0.0),
            running=node.running,
            version=node.version,
        )
        for node in nodes
    ]


def worst(problems: Sequence[Problem]) -> Grade:
    return max((problem.grade for problem in problems), default=Grade.OK)


def problems_of(standing: Standing, limits: Limits) -> list[Problem]:
    """What a monitor should tell, the worst first."""
    found = [
        *_about_nodes(standing),
        *_about_clock(standing),
        *_about_lag(standing, limits),
        *_about_failed(standing, limits),
        *_about_runs(standing),
        *_about_channels(standing, limits),
        *_about_dispatched(standing, limits),
        *(problem for daemon in standing.daemons for problem in _about_daemon(daemon, standing)),
    ]
    return sorted(found, key=lambda problem: -problem.grade)


def _about_nodes(standing: Standing) -> Iterator[Problem]:
    if not standing.living:
        has_work = bool(standing.schedules or standing.waiting or standing.running)
        yield Problem(
            grade=Grade.CRITICAL if has_work else Grade.WARNING,
            what="no node is alive"
            + (": nothing fires and nothing runs" if has_work else ", and nothing is scheduled"),
            fix="start one with `evertick daemon` or `evertick run module:attribute`",
        )
    for node in standing.nodes:
        if node.state == "killed":
            yield Problem(
                grade=Grade.WARNING,
                what=f"node {node.name} was killed: its process {node.pid} is gone from this machine",
                fix="start it again; what it was at is taken over when its lease has run out",
            )
        elif node.state != "alive":
            yield Problem(
                grade=Grade.WARNING,
                what=f"node {node.name} is silent for {_span(node.beat_age_seconds)}, its lease has run out",
                fix="if its process is gone, another node takes its runs over; if it is there, see what holds it up",
            )


def _about_clock(standing: Standing) -> Iterator[Problem]:
    fix = "put the clock right, then run `evertick db repair-clock`"
    if standing.astray:
        count = _count(len(standing.astray), "schedule", _ASTRAY_MOST)
        stands = "stands" if len(standing.astray) == 1 else "stand"
        what = f"{count} {stands} still because the clock was wrong: {_named(standing.astray)}"
        yield Problem(grade=Grade.CRITICAL, what=what, fix=fix)
    elif standing.written_ahead is not None:
        at = f"{standing.written_ahead:%Y-%m-%d %H:%M:%S} UTC"
        what = f"the store's clock was ahead: the ledger has rows that were written at {at}"
        yield Problem(grade=Grade.WARNING, what=what, fix=fix)


def _about_lag(standing: Standing, limits: Limits) -> Iterator[Problem]:
    lag = timedelta(seconds=standing.lag_seconds)
    if lag >= limits.lag_warning:
        yield Problem(
            grade=Grade.CRITICAL if lag >= limits.lag_critical else Grade.WARNING,
            what=f"the oldest that is due waits for {span(lag)}",
            fix="see what takes the slots with `evertick top`; raise concurrency, or start more nodes",
        )


def _about_failed(standing: Standing, limits: Limits) -> Iterator[Problem]:
    """What failed may run again as it is; nobody knows how far what was lost has come, and its job minds."""
    is_critical = 0 < limits.failed_critical <= standing.failed
    if not is_critical and not 0 < limits.failed_warning <= standing.failed:
        return
    grade, failed = Grade.CRITICAL if is_critical else Grade.WARNING, standing.failed - standing.lost
    if failed:
        yield Problem(
            grade=grade,
            what=f"{_count(failed, 'run', FAILED_MOST)} failed in the last hour: {_named(standing.failed_of)}",
            fix="`evertick failed` has their errors; `evertick rerun --failed --verdict failed` runs them again",
        )
    if standing.lost:
        was = "was" if standing.lost == 1 else "were"
        yield Problem(
            grade=grade,
            what=f"{_count(standing.lost, 'run', FAILED_MOST)} {was} lost in the last hour: {_named(standing.lost_of)}",
            fix="nobody knows how far a lost run came, and its job is not to be done twice: `evertick failed --verdict "
            "lost` has their ids; see what each has left behind before `evertick rerun RUN`",
        )


def _about_runs(standing: Standing) -> Iterator[Problem]:
    if standing.parked:
        yield Problem(
            grade=Grade.WARNING,
            what=f"{_count(standing.parked, 'run')} parked",
            fix="`evertick doctor` says why: no node knows the task, or the arguments do not fit",
        )
    for duty in standing.duties:
        yield Problem(
            grade=Grade.WARNING, what=f"duty {duty.name} fails", fix="`evertick duties` has its error, and who holds it"
        )


def _about_channels(standing: Standing, limits: Limits) -> Iterator[Problem]:
    for channel in standing.channels:
        late, failing = _since(standing, channel.oldest_due_at), _since(standing, channel.oldest_failing_at)
        if failing >= limits.lag_warning:
            yield Problem(
                grade=Grade.CRITICAL if failing >= limits.lag_critical else Grade.WARNING,
                what=f"channel {channel.channel}: the oldest message is tried in vain for {span(failing)}",
                fix=f"`evertick outbox list --channel {channel.channel}` tells what the other side says",
            )
        elif late >= limits.lag_warning:
            yield Problem(
                grade=Grade.CRITICAL if late >= limits.lag_critical else Grade.WARNING,
                what=f"channel {channel.channel}: the oldest message waits for {span(late)}",
                fix="its sender is busy, or on no node: see `evertick doctor`",
            )
        if channel.dead:
            yield Problem(
                grade=Grade.WARNING,
                what=f"channel {channel.channel}: {_count(channel.dead, 'message')} given up",
                fix="`evertick outbox list --state dead` has their errors; `evertick outbox retry` sends them again",
            )


def _since(standing: Standing, us: int | None) -> timedelta:
    """How long ago it was; nothing, if it is yet to come."""
    return timedelta(0) if us is None else standing.at - from_us(us)


def _about_dispatched(standing: Standing, limits: Limits) -> Iterator[Problem]:
    at, by = standing.oldest_untaken_at, standing.untaken_by
    if at is not None and standing.at - at >= limits.lag_warning:
        waited = standing.at - at
        yield Problem(
            grade=Grade.CRITICAL if waited >= limits.lag_critical else Grade.WARNING,
            what=f"the oldest run that {by} has waits for a worker for {span(waited)}",
            fix="start a worker that takes it, or more of them; `evertick runs --state dispatched` lists all of them, "
            "and `evertick why RUN` shows the command",
        )
    since, queue = standing.unheard_since, standing.unheard_by
    if since is not None and standing.at - since >= limits.lag_warning:
        waited = standing.at - since
        yield Problem(
            grade=Grade.CRITICAL if waited >= limits.lag_critical else Grade.WARNING,
            what=f"no node has heard of the workers of {queue} for {span(waited)} longer than it may be",
            fix="see to its broker; nothing is lost meanwhile, and `evertick runs --state dispatched` has the runs",
        )


def _about_daemon(daemon: DaemonReport, standing: Standing) -> Iterator[Problem]:
    which = "" if len(standing.daemons) == 1 else f" {daemon.pid}"
    if daemon.problems:
        yield Problem(
            grade=Grade.WARNING,
            what=f"the new configuration of the daemon{which} does not hold: {daemon.problems[0]}",
            fix="correct it; `evertick config check` tells all that is wrong",
        )
    if daemon.wants_restart:
        yield Problem(
            grade=Grade.WARNING,
            what=f"changed, but not in force before a restart: {_named(daemon.wants_restart)}",
            fix=f"restart the daemon{which} when it suits you: `systemctl restart evertick`, `/etc/init.d/evertick "
            f"restart`; one that nothing supervises by `kill {daemon.pid}`, and the command that started it",
        )


def _span(seconds: float) -> str:
    return span(timedelta(seconds=seconds))


def _count(count: int, what: str, most: int = 10_000) -> str:
    return f"{count}{'+' if count >= most else ''} {what}{'' if count == 1 else 's'}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
