"""The data model: schedules, runs, gaps, messages, nodes and duties as frozen structs.

The structs that users read (`Run`, `Gap`, `Schedule`, `Node`) have datetimes. Those that the engine and the stores
exchange (`Definition`, `NewRun`, `Claimed`, ...) have integer microseconds. Structs that a busy node holds by the
thousand are exempt from garbage collection (`gc=False`); they cannot form cycles.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

__all__ = [
    "BLACKOUT_FATES",
    "CATCH_UPS",
    "IDLE_STATES",
    "LINES_MAX",
    "LINE_MAX_CHARS",
    "LIVE_STATES",
    "LOSSES_MAX",
    "OVERLAPS",
    "RERUN_OVERLAPS",
    "SCHEDULE_MODES",
    "TRANSITIONS",
    "UNIQUE_UNTIL",
    "Attempt",
    "BlackoutFate",
    "CatchUp",
    "Cause",
    "Claimed",
    "ClaimedMessage",
    "Definition",
    "DispatchMode",
    "DispatchTerms",
    "Dispatched",
    "Duty",
    "Gap",
    "LogLine",
    "Message",
    "MessageFate",
    "MessageOutcome",
    "MessageState",
    "Mode",
    "NewGap",
    "NewMessage",
    "NewRun",
    "Node",
    "Occurrence",
    "OccurrenceEdit",
    "OccurrenceKind",
    "Outcome",
    "Overlap",
    "Pause",
    "Phase",
    "Reason",
    "Report",
    "ReportKind",
    "RerunOverlap",
    "Run",
    "Schedule",
    "ScheduleMode",
    "State",
    "Tick",
    "UniqueUntil",
    "Verdict",
]

CatchUp = Literal["latest", "all", "skip"]
Overlap = Literal["skip", "queue", "allow", "replace"]
RerunOverlap = Literal["queue", "allow"]
UniqueUntil = Literal["end", "start"]
BlackoutFate = Literal["drop", "latest", "all"]
OccurrenceKind = Literal["skip", "move", "done"]
# How nodes share work. claimed: each item is claimed by one node. duty: one node at a time does all of it.
# idempotent: several nodes may do it, with the same result. every-node: each node does it for itself.
Mode = Literal["claimed", "duty", "idempotent", "every-node"]
ScheduleMode = Literal["claimed", "every-node"]
# When a run that is dispatched to an external queue counts as succeeded: forget: when the queue has accepted it; ack:
# when a worker has taken it; finish: when the worker has reported success.
DispatchMode = Literal["forget", "ack", "finish"]
CATCH_UPS: tuple[CatchUp, ...] = ("latest", "all", "skip")
OVERLAPS: tuple[Overlap, ...] = ("skip", "queue", "allow", "replace")
RERUN_OVERLAPS: tuple[RerunOverlap, ...] = ("queue", "allow")
UNIQUE_UNTIL: tuple[UniqueUntil, ...] = ("end", "start")
BLACKOUT_FATES: tuple[BlackoutFate, ...] = ("drop", "latest", "all")
SCHEDULE_MODES: tuple[ScheduleMode, ...] = ("claimed", "every-node")

# A run ends as lost after this many lost claims: it probably crashes its nodes.
LOSSES_MAX = 3
# Limits of the log that is kept for an attempt.
LINES_MAX = 5_000
LINE_MAX_CHARS = 8_192


class State(StrEnum):
    """The state of a run. A run is live in every state but done."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    PARKED = "parked"
    RUNNING = "running"
    DISPATCHED = "dispatched"
    DONE = "done"


LIVE_STATES = tuple(state for state in State if state is not State.DONE)
# Live, but neither running nor dispatched.
IDLE_STATES = frozenset({State.WAITING, State.BLOCKED, State.PARKED})

# The legal transitions.
# waiting -> done: cancelled or expired. blocked -> waiting: the run or limit that blocked it is out of the way.
# parked -> waiting: a node that can run it has started. running -> waiting: retry, release or lost claim.
# running -> running: reassigned from a dead node. dispatched -> waiting: retry after the worker failed, after no worker
# took it, or after the worker stopped reporting.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.BLOCKED, State.PARKED, State.DONE}),
    State.BLOCKED: frozenset({State.WAITING, State.DONE}),
    State.PARKED: frozenset({State.WAITING, State.DONE}),
    State.RUNNING: frozenset({State.WAITING, State.PARKED, State.RUNNING, State.DISPATCHED, State.DONE}),
    State.DISPATCHED: frozenset({State.WAITING, State.DONE}),
    State.DONE: frozenset(),
}


class Verdict(StrEnum):
    """The final state of a run or a gap."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    MISSED = "missed"
    LOST = "lost"


class Cause(StrEnum):
    """Why a run exists."""

    FIRE = "fire"
    TRIGGER = "trigger"
    ENQUEUE = "enqueue"
    BACKFILL = "backfill"
    RERUN = "rerun"
    EVERY_NODE = "every-node"  # a fire of a schedule with mode "every-node", on one of the nodes


class Reason(StrEnum):
    """Why Evertick set a verdict or a state. A job that raises `Skip` gives its own reason."""

    LATE = "late"  # ran long after its moment
    CLOCK = "clock"  # recorded while the store's clock was wrong, and corrected later
    COALESCED = "coalesced"  # a newer moment ran in its place
    OVERLAP = "overlap"  # an earlier run of the schedule was still live
    GRACE = "grace"  # noticed later than the grace time allows
    LIMIT = "limit"  # beyond `catch_up_limit`
    DOWNTIME = "downtime"  # no node was running, and catch_up is "skip"
    PAUSED = "paused"
    EDITED = "edited"
    REMOVED = "removed"
    UNDECLARED = "undeclared"  # the code or file that declared the schedule no longer does
    REPLACED = "replaced"  # cancelled for a newer fire of its schedule
    EXPIRED = "expired"  # not started within `expires`
    REQUESTED = "requested"  # cancelled by a user or a program
    TIMEOUT = "timeout"
    ERROR = "error"  # the job raised
    NODE_DIED = "node_died"  # its node died: too many losses, or the task must run at most once
    NODE_GONE = "node_gone"  # bound to one node, which has stopped or died
    NO_NODE = "no_node"  # mode "every-node", and no live node knew the task
    SHUTDOWN = "shutdown"  # interrupted by a stop, and may not run again or on another node
    NO_SLOT = "no_slot"  # released before its start: the node that claimed it had no free slot in time
    NOT_TAKEN = "not_taken"  # dispatched, and no worker took it within `ack_timeout`
    NO_PROGRESS = "no_progress"  # its worker stopped reporting
    UNDELIVERED = "undelivered"  # the external queue did not accept it
    UNREACHABLE = "unreachable"  # stopped because the store was unreachable until the lease ended
    DUPLICATE = "duplicate"  # another run has its unique key
    BLACKOUT = "blackout"  # its moment was in a blackout, and blackout_fate is "drop"
    BY_HAND = "by_hand"  # a user skipped this moment
    UNDONE = "undone"  # a user undid the early run of this moment
    CONCURRENCY = "concurrency"  # blocked by the concurrency limit of its key
    RATE = "rate"  # blocked by the rate limit of its key
    UNKNOWN_TASK = "unknown_task"  # parked: no live node knows the task
    BAD_ARGUMENTS = "bad_arguments"  # parked: the stored arguments do not match the task's signature
    UNREADABLE = "unreadable"  # parked: the node that claimed it cannot decode its row
    NEWER_FORMAT = "newer_format"  # waiting: only nodes of a newer release can read it


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pause of a schedule: since when, why, and until when. Times in microseconds."""

    at: int
    note: str = ""
    # None: until it is resumed.
    until: int | None = None
    # Paused by Evertick because no code or file declares it; declaring it again resumes it.
    is_undeclared: bool = False
    # With `is_undeclared`: the configuration has it, with `enabled = false`.
    is_disabled: bool = False
    # Paused by Evertick after `pause_after` failures in a row.
    is_failing: bool = False

    @property
    def is_left_over(self) -> bool:
        """Whether no code or file has the schedule, so that a prune may remove it."""
        return self.is_undeclared and not self.is_disabled


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's override of one future moment of a schedule: skip it, or run it at another time.

    Times in microseconds. `to` is the new time of a moved moment. Kind "done": the moment already has its row.
    """

    fire_at: int
    kind: OccurrenceKind
    to: int | None = None
    note: str = ""


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The user's definition of a schedule. Durations in microseconds; `when`: canonical text of the bound rule."""

    task: str
    when: str
    args: dict[str, Any] = {}
    queue: str = "default"
    priority: int = 0
    catch_up: CatchUp = "latest"
    catch_up_limit: int = 100
    pace: int = 1_000_000
    grace: int | None = None
    overlap: Overlap = "skip"
    expires: int | None = None
    labels: dict[str, str] = {}
    # A key that only one run has at a time, or within `unique_for`, across all schedules and enqueues.
    unique: str | None = None
    unique_until: UniqueUntil = "end"
    unique_for: int | None = None
    # The name of a calendar: the schedule does not fire while it is closed.
    blackout: str | None = None
    # Which moments of a blackout run when it ends.
    blackout_fate: BlackoutFate = "drop"
    # The number of failures in a row after which the schedule is paused.
    pause_after: int | None = None
    # claimed: a fire is one run, on one node. every-node: a fire is a run on each live node that knows the task.
    mode: ScheduleMode = "claimed"
    format: int = 1


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run to insert."""

    id: str
    task: str
    cause: Cause
    # None: the store's time of insertion plus `delay`, so that an enqueue does not depend on the caller's clock.
    fire_at: int | None = None
    due_at: int | None = None
    delay: int = 0
    schedule_id: int | None = None
    # None: the store looks it up by `schedule_id`.
    schedule_key: str | None = None
    version: int | None = None
    # None: the arguments of this version of the schedule.
    args: bytes | None = None
    queue: str = "default"
    priority: int = 0
    state: State = State.WAITING
    reason: str | None = None
    # It may start until this long after due_at.
    expires: int | None = None
    labels: dict[str, str] = {}
    unique_key: str | None = None
    unique_until: UniqueUntil = "end"
    # The key stays unique for this long after the insertion, even if the run has ended.
    unique_for: int | None = None
    # The reason of the gap that is recorded if another run has its unique key.
    if_taken: str = Reason.DUPLICATE
    # The id of the run that enqueued it.
    caused_by: str | None = None
    traceparent: str | None = None
    # Insert it as claimed by the recording node, which saves the write of a claim.
    is_claimed: bool = False
    timeout: int | None = None
    at_most_once: bool = False
    # Raised by a release that older ones cannot read; nodes of older releases do not claim such a run.
    format: int = 1


class MessageState(StrEnum):
    """The state of a message in the outbox. Dead: delivery was given up."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    DEAD = "dead"


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the outbox, written in the transaction that causes it.

    `key` is its idempotency key: of two messages with the same channel and key, the outbox keeps the first.
    """

    id: str
    channel: str
    key: str
    # JSON.
    body: bytes
    headers: dict[str, str] = {}
    # Due this long after it is written, by the store's clock.
    delay: int = 0
    # The id of the run that sends it.
    caused_by: str | None = None
    # If it dispatches that run to an external queue: the fence of the dispatch.
    dispatches: int | None = None
    # See `NewRun.format`.
    format: int = 1


class NewGap(msgspec.Struct, frozen=True, kw_only=True):
    """A range of moments that get no run. `is_exact` is False if counting stopped at its limit."""

    first_at: int
    last_at: int
    count: int
    verdict: Verdict
    reason: str
    is_exact: bool = True


class Claimed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run as its node claimed it. Only this node, under this fence, may write to it."""

    id: str
    fence: int
    task: str
    args: bytes
    fire_at: int
    due_at: int
    claimed_at: int
    attempts: int = 0
    losses: int = 0
    schedule_id: int | None = None
    schedule_key: str | None = None
    cause: Cause = Cause.FIRE
    queue: str = "default"
    priority: int = 0
    labels: dict[str, str] = {}
    traceparent: str | None = None


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named phase of an attempt: its start, its duration, whether it raised."""

    name: str
    at: int
    # None: it had not ended when the attempt did, or at the last report.
    seconds: float | None
    is_failed: bool = False
    # JSON-like details, such as a status or a number of bytes.
    metadata: dict[str, Any] = {}


class DispatchTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The terms of a run that is dispatched to an external queue.

    They are stored with the run, so that a node can apply them without knowing the task. Durations in microseconds;
    None: no limit.
    """

    # The channel of the message that dispatches it.
    to: str
    # For display: the queue behind that channel, and the command that starts a worker for it.
    queue: str | None = None
    served_by: str | None = None
    # The name of the worker that took it, from the worker's first report.
    worker: str | None = None
    mode: DispatchMode = "finish"
    # From its delivery to the queue until a worker takes it.
    ack_timeout: int | None = None
    # Between two reports of the worker.
    progress_timeout: int | None = None
    # From when a worker took it until the end of the attempt.
    timeout: int | None = None
    # The channel of the message that asks its worker to stop.
    kill: str | None = None
    # The delay of the next attempt if the worker fails, by the task's retry policy; None: no retry.
    retry_delay: int | None = None
    # The same if the worker itself asks for a retry.
    asked_delay: int | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a run, written by the node that claimed it.

    done: ends with `verdict`. retry: waiting again after `delay`; the attempt counts. release: waiting again at once;
    the attempt does not count. park: not claimable until a node that can run it starts. dispatch: handed to an external
    queue by one of `messages`, under the terms `dispatch`; no node holds it then.
    """

    id: str
    fence: int
    kind: Literal["done", "retry", "release", "park", "dispatch"]
    verdict: Verdict | None = None
    reason: str | None = None
    error: str | None = None
    result: bytes | None = None
    delay: int = 0
    # Attempts so far, with this one (release and park do not change it).
    attempts: int = 0
    phases: tuple[Phase, ...] = ()
    # Of a run that is parked for bad arguments: the hash of the signature. A task with another hash unparks it.
    task_hash: str | None = None
    # Written together with this outcome; not sent if the store rejects it, for example after a cancel.
    messages: tuple[NewMessage, ...] = ()
    dispatch: DispatchTerms | None = None


ReportKind = Literal["pushed", "undelivered", "taken", "progress", "finish", "fail", "skip", "release"]


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A report about a dispatched run, under the fence of its dispatch.

    From the node that delivers its message: pushed (the queue accepted it), undelivered (delivery was given up). From
    its worker: taken (started), progress (still running), finish, fail, skip (its end), release (returned unfinished).
    Every report of a worker implies `taken`.
    """

    id: str
    fence: int
    kind: ReportKind
    progress: float | None = None
    progress_text: str | None = None
    # JSON, of finish.
    result: bytes | None = None
    # Of fail and undelivered.
    error: str | None = None
    # Why it was skipped or released; of fail: the kind of failure.
    reason: str | None = None
    # Of fail: None follows the task's retry policy, False ends the run, True asks for a retry.
    retry: bool | None = None
    # Of fail with retry=True, and of release: the delay of the next attempt.
    retry_after: int | None = None
    # The name of the worker, for display.
    worker: str | None = None
    # Of finish, fail and skip: the duration that the worker measured.
    took: int | None = None
    # Log lines (time, level, text). `seq` is the number of the first one within this dispatch, so that a repeated
    # report adds nothing; None: append.
    lines: tuple[tuple[int, str, str], ...] = ()
    seq: int | None = None


class ClaimedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as its node claimed it. Only this node, under this fence, may settle it."""

    id: str
    fence: int
    channel: str
    key: str
    body: bytes
    headers: dict[str, str]
    # Attempts so far, with those whose node died.
    attempts: int
    due_at: int
    created_at: int
    caused_by: str | None = None
    # The error of the last attempt.
    error: str | None = None
    # See `NewMessage.dispatches`.
    dispatches: int | None = None


MessageFate = Literal["sent", "retry", "dead", "release"]


class MessageOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a message, written by the node that claimed it.

    sent, dead: the key is kept for `remember`; the body of a sent message is deleted. retry: due again after `delay`;
    the attempt counts. release: due again at once; the attempt does not count.
    """

    id: str
    fence: int
    kind: MessageFate
    attempts: int = 0
    delay: int = 0
    remember: int = 0
    error: str | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A log line of a run, from `ctx.log` or `logging`."""

    at: datetime
    level: str
    text: str
    fence: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier attempt of a run; the last one is in the run itself.

    An interrupted attempt (its node died or stopped) does not count. It is listed if it had phases, under the same
    number as the next attempt.
    """

    number: int
    fence: int
    node: str | None
    started_at: datetime | None
    finished_at: datetime
    error: str | None
    reason: str | None
    phases: tuple[Phase, ...] = ()


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a run that is dispatched to an external queue."""

    # The channel of the message that dispatched it.
    to: str
    # The queue, and the command that starts a worker for it, if the driver gives them.
    queue: str | None = None
    served_by: str | None = None
    mode: DispatchMode
    at: datetime
    # When the queue accepted its message; None: the message is still in the outbox.
    pushed_at: datetime | None
    # When a worker took it.
    taken_at: datetime | None
    # Without a report until then it is dispatched again, or given up. None: no limit.
    until: datetime | None


class DispatchedTo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was dispatched to: the channel, the queue, and the name of the worker; None if unknown."""

    to: str
    queue: str | None = None
    worker: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as users read it."""

    id: str
    app: str
    schedule_key: str | None
    task: str
    args: Any
    fire_at: datetime
    due_at: datetime
    state: State
    verdict: Verdict | None
    reason: str | None
    cause: Cause
    attempts: int
    losses: int
    queue: str
    priority: int
    labels: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    node: str | None
    fence: int | None
    result: Any
    error: str | None
    progress: float | None = None
    progress_text: str | None = None
    phases: tuple[Phase, ...] = ()
    blocked_on: str | None = None
    caused_by: str | None = None
    is_cancel_requested: bool = False
    # Only while it is dispatched.
    dispatched: Dispatched | None = None
    # Also after a dispatched run has ended.
    dispatched_to: DispatchedTo | None = None
    # False if an enqueue found this run instead of adding one (same unique key or id).
    is_new: bool = True

    @property
    def is_live(self) -> bool:
        return self.state is not State.DONE

    def __str__(self) -> str:
        """The short form for print and messages; `repr` has all fields."""
        of = f" of schedule {self.schedule_key!r}" if self.schedule_key is not None else ""
        how = self.state.value if self.verdict is None else self.verdict.value
        return f"run {self.id} of task {self.task!r}{of}: {how}" + (f" ({self.reason})" if self.reason else "")


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A range of moments of one schedule that got no run, as users read it."""

    schedule_key: str
    first_at: datetime
    last_at: datetime
    count: int
    is_exact: bool
    verdict: Verdict
    reason: str
    recorded_at: datetime


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the outbox, as users read it."""

    id: str
    app: str
    channel: str
    # The idempotency key, the same at every attempt; by default the id.
    key: str
    # None after it was sent.
    body: Any
    headers: dict[str, str]
    state: MessageState
    # Attempts so far, with those whose node died.
    attempts: int
    due_at: datetime
    created_at: datetime
    settled_at: datetime | None = None
    node: str | None = None
    error: str | None = None
    caused_by: str | None = None
    # False if a send found this message instead of adding one (same key or id).
    is_new: bool = True


class OccurrenceEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A user's override of one future moment, as users read it."""

    fire_at: datetime
    kind: OccurrenceKind
    to: datetime | None
    note: str


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as users read it: its definition, its next moment, its last run and its statistics."""

    key: str
    app: str
    task: str
    when: str
    args: dict[str, Any]
    queue: str
    priority: int
    labels: dict[str, str]
    catch_up: CatchUp
    catch_up_limit: int
    grace_seconds: float | None
    overlap: Overlap
    mode: ScheduleMode
    version: int
    created_at: datetime
    next_fire_at: datetime | None
    next_due_at: datetime | None
    is_paused: bool
    paused_at: datetime | None
    pause_note: str
    paused_until: datetime | None
    # Overrides of future moments.
    occurrences: tuple[OccurrenceEdit, ...]
    unique: str | None
    blackout: str | None
    blackout_fate: BlackoutFate
    pause_after: int | None
    is_declared: bool
    # Whether code or a configuration file declares it; None: neither does.
    declared_in: Literal["code", "file"] | None
    # Fields whose current value differs from the declared one.
    overrides: tuple[str, ...]
    fires: int
    last_run_id: str | None
    last_fire_at: datetime | None
    last_state: State | None
    last_verdict: Verdict | None
    last_reason: str | None
    # Finished runs by verdict, within the retention of history.
    counts: dict[str, int]
    # Why the schedule cannot be planned; None: it can.
    error: str | None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The last and the next step of a background loop. `last_at` None: no step yet; `next_at` None: running now."""

    last_at: datetime | None
    next_at: datetime | None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node: one engine in one process, from its start to its end."""

    id: str
    name: str
    app: str
    version: str
    started_at: datetime
    beat_at: datetime
    lease_until: datetime
    died_at: datetime | None
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    # The schedules that it declares: key -> hash of the declaration.
    declares: dict[str, str]
    # The channels whose messages it delivers.
    channels: tuple[str, ...] = ()
    # The tasks that it knows but does not run, each with the driver that is not enabled on it.
    leaves: dict[str, str] = {}
    # As of its last heartbeat: its background loops by name, the channels whose reports it reads (`hearing_tick`), and
    # the jobs that blocked its event loop (`blocking_tick`).
    ticks: dict[str, Tick] = {}
    running: int

    def hears(self, channel: str) -> bool:
        """Whether it reads the reports of workers about runs that were dispatched by this channel."""
        return hearing_tick(channel) in self.ticks


def hearing_tick(channel: str) -> str:
    """The name in `Node.ticks` for a channel whose reports the node reads."""
    return f"reports of {channel}"


_BLOCKED_BY = "blocked by "


def blocking_tick(name: str) -> str:
    """The name in `Node.ticks` for a job that blocked the event loop, from `last_at` to `next_at` (None: until now)."""
    return f"{_BLOCKED_BY}{name}"


def blockers_of_loop(node: Node) -> dict[str, Tick]:
    """The jobs that blocked the event loop of a node in the last hour, by name."""
    return {name.removeprefix(_BLOCKED_BY): tick for name, tick in node.ticks.items() if name.startswith(_BLOCKED_BY)}


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """A duty: a singleton job that one node at a time holds, as users read it."""

    name: str
    # The id of the node that holds it; None: no live node does.
    node: str | None
    node_name: str | None
    # Grows by one each time a node takes the duty.
    term: int
    # When it was last taken.
    since: datetime
    # The last and the next tick; None for a duty that is one long loop.
    ticked_at: datetime | None
    next_at: datetime | None
    # The error of the last tick.
    error: str | None
