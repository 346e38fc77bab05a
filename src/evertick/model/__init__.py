"""The nouns of Evertick as plain frozen data: what a schedule, a run, a gap and a node are.

Two kinds of struct live here. What people read (`Run`, `Gap`, `Schedule`, `Node`) has datetimes. What the engine and
the stores pass along (`Definition`, `NewRun`, `Claimed`, ...) has integer microseconds, which are cheap and exact.
Those of which a busy node holds thousands are kept from the garbage collector (`gc=False`): plain data is part of no
cycle. The legal transitions of a run are one table. Nothing here does anything.
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
# How work is shared among nodes. claimed: each piece is taken by one node. duty: one node at a time does it all.
# idempotent: several may do it, with the effect of one. every-node: each node does it for itself.
Mode = Literal["claimed", "duty", "idempotent", "every-node"]
ScheduleMode = Literal["claimed", "every-node"]
# When a run that is dispatched to an outside queue has succeeded: when the queue has it (forget), when a worker took it
# (ack), when the worker says so (finish).
DispatchMode = Literal["forget", "ack", "finish"]
CATCH_UPS: tuple[CatchUp, ...] = ("latest", "all", "skip")
OVERLAPS: tuple[Overlap, ...] = ("skip", "queue", "allow", "replace")
RERUN_OVERLAPS: tuple[RerunOverlap, ...] = ("queue", "allow")
UNIQUE_UNTIL: tuple[UniqueUntil, ...] = ("end", "start")
BLACKOUT_FATES: tuple[BlackoutFate, ...] = ("drop", "latest", "all")
SCHEDULE_MODES: tuple[ScheduleMode, ...] = ("claimed", "every-node")

# A run whose claims are lost this often takes its nodes down with it, or they are hopeless: it ends as lost.
LOSSES_MAX = 3
# What is kept of the log of an attempt, and of each of its lines.
LINES_MAX = 5_000
LINE_MAX_CHARS = 8_192


class State(StrEnum):
    """Where a run is. Live is everything but done."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    PARKED = "parked"
    RUNNING = "running"
    DISPATCHED = "dispatched"
    DONE = "done"


LIVE_STATES = tuple(state for state in State if state is not State.DONE)
# Of runs that nobody is at work on.
IDLE_STATES = frozenset({State.WAITING, State.BLOCKED, State.PARKED})

# waiting -> done: cancelled, expired. blocked -> waiting: what it waited for has ended. parked -> waiting: a node that
# can run it has come. running -> waiting: retry, release, lost claim; running -> running: a dead node's run, re-homed.
# dispatched -> waiting: its worker failed and it is tried again, or nobody took it, or the worker fell silent.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.BLOCKED, State.PARKED, State.DONE}),
    State.BLOCKED: frozenset({State.WAITING, State.DONE}),
    State.PARKED: frozenset({State.WAITING, State.DONE}),
    State.RUNNING: frozenset({State.WAITING, State.PARKED, State.RUNNING, State.DISPATCHED, State.DONE}),
    State.DISPATCHED: frozenset({State.WAITING, State.DONE}),
    State.DONE: frozenset(),
}


class Verdict(StrEnum):
    """How a run or a gap ended."""

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
    EVERY_NODE = "every-node"  # a fire, on one of the nodes that all run it


class Reason(StrEnum):
    """The reasons Evertick itself gives beside a verdict or a state. A job's `Skip` brings its own words."""

    LATE = "late"  # ran, but well after its moment
    CLOCK = "clock"  # recorded while the store's clock was wrong, and put right since
    COALESCED = "coalesced"  # a newer moment ran for it
    OVERLAP = "overlap"  # an earlier run of the schedule was still live
    GRACE = "grace"  # noticed later than the grace time allows
    LIMIT = "limit"  # more moments owed than catch-up may make up for
    DOWNTIME = "downtime"  # nobody was there, and catch-up is skip
    PAUSED = "paused"
    EDITED = "edited"
    REMOVED = "removed"
    UNDECLARED = "undeclared"  # the code that declared the schedule no longer does
    REPLACED = "replaced"  # a newer fire took its place
    EXPIRED = "expired"  # not started within its time
    REQUESTED = "requested"  # somebody asked for the cancel
    TIMEOUT = "timeout"
    ERROR = "error"  # the job raised
    NODE_DIED = "node_died"  # its node was lost, once too often or for a task that must not run twice
    NODE_GONE = "node_gone"  # it was for one node alone, which has left or died
    NO_NODE = "no_node"  # for every node, and no live one knew the task
    SHUTDOWN = "shutdown"  # cut off by a stop, and must not run twice or elsewhere
    NO_SLOT = "no_slot"  # given back unbegun: the node that had claimed it had no slot free for it in time
    NOT_TAKEN = "not_taken"  # dispatched, and no worker took it in its time
    NO_PROGRESS = "no_progress"  # its worker fell silent
    UNDELIVERED = "undelivered"  # the queue it was to be dispatched to would not take it
    UNREACHABLE = "unreachable"  # stopped because the store could not be reached before the lease ended
    DUPLICATE = "duplicate"  # another run has its unique key
    BLACKOUT = "blackout"  # its schedule was in a blackout whose fate is to drop
    BY_HAND = "by_hand"  # somebody skipped this one moment
    UNDONE = "undone"  # somebody took back that it runs early
    CONCURRENCY = "concurrency"  # blocked: as many as may run of its key do
    RATE = "rate"  # blocked: as many as may start in a period have
    UNKNOWN_TASK = "unknown_task"  # parked: no live node knows the task
    BAD_ARGUMENTS = "bad_arguments"  # parked: the stored arguments no longer fit the task
    UNREADABLE = "unreadable"  # parked: what stands in the ledger makes no sense to the code that claimed it
    NEWER_FORMAT = "newer_format"  # waiting: only nodes of a newer release can read it


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule stands still since `at`, for a reason, perhaps until a moment. Times in microseconds."""

    at: int
    note: str = ""
    until: int | None = None
    # Set when Evertick itself paused it because no code declares it any more: declaring it again resumes it.
    is_undeclared: bool = False
    # Set beside it when a configuration has it all the same, and says that it is disabled.
    is_disabled: bool = False
    # Set when Evertick itself paused it because it had failed as often in a row as `pause_after` allows.
    is_failing: bool = False

    @property
    def is_left_over(self) -> bool:
        """Whether it stands still because nobody knows it any more, and so may be taken away."""
        return self.is_undeclared and not self.is_disabled


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody decided about one moment of a schedule that is still to come: skip it, or run it at another time.

    Times in microseconds. `to` is when a moved one is due. Done: it has its row already, before its own time has come.
    """

    fire_at: int
    kind: OccurrenceKind
    to: int | None = None
    note: str = ""


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What people write about a schedule. Durations in microseconds; `when` is the bound canonical text."""

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
    # A key that no two runs have at once (or within a period), whatever schedule or enqueue made them.
    unique: str | None = None
    unique_until: UniqueUntil = "end"
    unique_for: int | None = None
    # The name of a calendar: while it is closed nothing fires, and what becomes of those moments.
    blackout: str | None = None
    blackout_fate: BlackoutFate = "drop"
    # Failed verdicts in a row after which the schedule is paused.
    pause_after: int | None = None
    # claimed: a fire is one run, for one node. every-node: a run for each live node that knows the task.
    mode: ScheduleMode = "claimed"
    format: int = 1


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run to be inserted. `args` only where they are its own, else those of the schedule's version hold."""

    id: str
    task: str
    cause: Cause
    # None: the store's own time of insertion plus `delay` (an enqueue must not depend on the caller's clock).
    fire_at: int | None = None
    due_at: int | None = None
    delay: int = 0
    schedule_id: int | None = None
    # As people call it; a store that is not told looks it up.
    schedule_key: str | None = None
    version: int | None = None
    args: bytes | None = None
    queue: str = "default"
    priority: int = 0
    state: State = State.WAITING
    reason: str | None = None
    # How long after due_at it may still start.
    expires: int | None = None
    labels: dict[str, str] = {}
    unique_key: str | None = None
    unique_until: UniqueUntil = "end"
    # Unique for this long from its insertion, whether it is live or not.
    unique_for: int | None = None
    # What the gap of its moment says when another run has its unique key.
    if_taken: str = Reason.DUPLICATE
    caused_by: str | None = None
    traceparent: str | None = None
    # Insert as already running on the recording node (the fused claim), with what a claim would set.
    is_claimed: bool = False
    timeout: int | None = None
    at_most_once: bool = False
    # Raised by a release that writes what older ones cannot read: their nodes leave such a run to newer ones.
    format: int = 1


class MessageState(StrEnum):
    """Where a message of the outbox is. Sent ones are remembered by their key for a while; dead ones were given up."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    DEAD = "dead"


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be dispatched to the outside, written in the transaction that causes it.

    `key` is its idempotency key: of two messages of a channel with the same key, the outbox knows the first.
    """

    id: str
    channel: str
    key: str
    # JSON.
    body: bytes
    headers: dict[str, str] = {}
    # Due this long after it was written, by the store's time.
    delay: int = 0
    # The run that sends it.
    caused_by: str | None = None
    # The fence under which it hands that run to an outside queue: the run waits for its delivery. None: it dispatches
    # nothing.
    dispatches: int | None = None
    # As that of a run.
    format: int = 1


class NewGap(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of moments that get no run. `is_exact` is False where counting stopped at its bound."""

    first_at: int
    last_at: int
    count: int
    verdict: Verdict
    reason: str
    is_exact: bool = True


class Claimed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run as its owner holds it. Only (node, fence) may write about it."""

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
    """A named stretch of an attempt: when it began, how long it took, whether it raised."""

    name: str
    at: int
    # None: it had not ended when its attempt did, or when it was last heard of.
    seconds: float | None
    is_failed: bool = False
    # JSON-like; what is worth knowing of it, as a status or a count of bytes.
    metadata: dict[str, Any] = {}


class DispatchTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is agreed about a run in the hands of an outside queue. Stands in the ledger beside it, so that any node can
    go by it, whether it knows the task or not. Durations in microseconds; None: no bound."""

    # The channel of the message that dispatches it.
    to: str
    # For people: the queue behind that channel, and the command that starts a worker of it.
    queue: str | None = None
    served_by: str | None = None
    # Written later, when a worker is heard of: who took it, as it calls itself.
    worker: str | None = None
    mode: DispatchMode = "finish"
    # From its delivery to the queue until a worker has taken it.
    ack_timeout: int | None = None
    # Between two words of the worker.
    progress_timeout: int | None = None
    # From the taking to the end of the attempt.
    timeout: int | None = None
    # The channel on which its worker hears that it is to stop.
    kill: str | None = None
    # How long until it is tried again if the worker fails, by the task's retry policy at this attempt; None: it is not.
    retry_delay: int | None = None
    # The same if the worker asks for another try itself.
    asked_delay: int | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an owner has to say about a run it holds: its verdict, or where it goes instead.

    done: ends with `verdict`. retry: back to waiting after `delay`, the attempt is spent. release: back to waiting at
    once, nothing is spent. park: leaves the claim index until a node comes that can run it. dispatch: belongs to no
    node any more, but to the worker that takes its message, one of `messages`; its terms are `dispatch`.
    """

    id: str
    fence: int
    kind: Literal["done", "retry", "release", "park", "dispatch"]
    verdict: Verdict | None = None
    reason: str | None = None
    error: str | None = None
    result: bytes | None = None
    delay: int = 0
    # Judged tries so far, this one included (release and park leave it as it was).
    attempts: int = 0
    phases: tuple[Phase, ...] = ()
    # For parked arguments: the hash of the signature they did not fit; another hash frees the run.
    task_hash: str | None = None
    # Written with this outcome, if it is taken; what comes in its place (a cancel) sends nothing.
    messages: tuple[NewMessage, ...] = ()
    dispatch: DispatchTerms | None = None


ReportKind = Literal["pushed", "undelivered", "taken", "progress", "finish", "fail", "skip", "release"]


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is said about a dispatched run from outside, under the fence it was dispatched with.

    By the node that brings its message to the queue: pushed, it is there; undelivered, it was given up. By its worker:
    taken, it has begun; progress, it is still at it; finish, fail, skip, how it ended; release, it is given back
    undone. Whatever a worker says tells that it was taken.
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
    # Why it was skipped or given back; of fail a word for the kind of failure.
    reason: str | None = None
    # Of fail: None leaves it to the task's policy, False ends the run, True asks for another try.
    retry: bool | None = None
    # Of fail that asks for it, and of release: how long until then.
    retry_after: int | None = None
    # Who says so, for people: the first of a dispatch that gives a name.
    worker: str | None = None
    # Of finish, fail and skip: from the taking to the end, as its worker has measured it.
    took: int | None = None
    # Log lines (time, level, text), and the number of the first among those of this dispatch, which makes a repeated
    # report harmless; None: behind what is there.
    lines: tuple[tuple[int, str, str], ...] = ()
    seq: int | None = None


class ClaimedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as its owner holds it. Only (node, fence) may settle it."""

    id: str
    fence: int
    channel: str
    key: str
    body: bytes
    headers: dict[str, str]
    # Judged tries so far; a try whose node died is one.
    attempts: int
    due_at: int
    created_at: int
    caused_by: str | None = None
    # What the last try said.
    error: str | None = None
    # As that of a `NewMessage`.
    dispatches: int | None = None


MessageFate = Literal["sent", "retry", "dead", "release"]


class MessageOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner has to say about a message it holds.

    sent, dead: the key is remembered for `remember`, the body of a sent one is not. retry: due again after `delay`, the
    attempt is spent. release: due again at once, nothing is spent.
    """

    id: str
    fence: int
    kind: MessageFate
    attempts: int = 0
    delay: int = 0
    remember: int = 0
    error: str | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run wrote, by `ctx.log` or through `logging`."""

    at: datetime
    level: str
    text: str
    fence: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier try of a run (the last one is in the run itself).

    Every try that failed and was tried again. A try that was cut off (its node died or stopped) counts as no attempt:
    it is here if it had phases, under the number that the next try has, too.
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
    """How a run in the hands of an outside queue stands."""

    # The channel it went by.
    to: str
    # The queue there, and the command that starts a worker of it, where its driver says so.
    queue: str | None = None
    served_by: str | None = None
    mode: DispatchMode
    at: datetime
    # When the queue took its message; None: it is still in the outbox.
    pushed_at: datetime | None
    # When a worker took it.
    taken_at: datetime | None
    # Without another word it is looked at then: pushed again, or given up. None: there is no such time.
    until: datetime | None


class DispatchedTo(msgspec.Struct, frozen=True, kw_only=True):
    """Who has or had a run outside: the channel it went by, the queue there, and the worker, as it calls itself; None
    where that is not known."""

    to: str
    queue: str | None = None
    worker: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the ledger, as people read it."""

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
    # While it is in the hands of an outside queue.
    dispatched: Dispatched | None = None
    # The same, and of one that ended there.
    dispatched_to: DispatchedTo | None = None
    # False when an enqueue found this run already there (unique key, or the same id sent twice).
    is_new: bool = True

    @property
    def is_live(self) -> bool:
        return self.state is not State.DONE

    def __str__(self) -> str:
        """For print and messages. The representation has all fields, by which two that differ are told apart."""
        of = f" of schedule {self.schedule_key!r}" if self.schedule_key is not None else ""
        how = self.state.value if self.verdict is None else self.verdict.value
        return f"run {self.id} of task {self.task!r}{of}: {how}" + (f" ({self.reason})" if self.reason else "")


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of moments of one schedule that got no run, as people read it."""

    schedule_key: str
    first_at: datetime
    last_at: datetime
    count: int
    is_exact: bool
    verdict: Verdict
    reason: str
    recorded_at: datetime


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the outbox, as its sender and people read it."""

    id: str
    app: str
    channel: str
    # The idempotency key, the same at every try; the id where nobody chose one.
    key: str
    # None once it was sent.
    body: Any
    headers: dict[str, str]
    state: MessageState
    # Tries that were judged or lost; 0 at the first.
    attempts: int
    due_at: datetime
    created_at: datetime
    settled_at: datetime | None = None
    node: str | None = None
    error: str | None = None
    caused_by: str | None = None
    # False when a send found this message already there (the same key, or the same id sent twice).
    is_new: bool = True


class OccurrenceEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody decided about one moment to come, as people read it."""

    fire_at: datetime
    kind: OccurrenceKind
    to: datetime | None
    note: str


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as people read it: its definition, its cursor, how it fared."""

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
    # Decisions about single moments to come.
    occurrences: tuple[OccurrenceEdit, ...]
    unique: str | None
    blackout: str | None
    blackout_fate: BlackoutFate
    pause_after: int | None
    is_declared: bool
    # What declares it: the code of a program, or the file of a configuration; None: nobody does.
    declared_in: Literal["code", "file"] | None
    # Fields whose value at run time differs from what is declared.
    overrides: tuple[str, ...]
    fires: int
    last_run_id: str | None
    last_fire_at: datetime | None
    last_state: State | None
    last_verdict: Verdict | None
    last_reason: str | None
    # Finished runs by verdict, as far as history is kept.
    counts: dict[str, int]
    # Why the schedule could not be planned, when that is so.
    error: str | None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """When a background loop of a node stepped last, and when it will by itself. None: not yet; it is at it now."""

    last_at: datetime | None
    next_at: datetime | None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One engine in one process, from its start to its end."""

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
    # What it declares: schedule key -> hash of the declaration.
    declares: dict[str, str]
    # Whose messages it hands to the outside.
    channels: tuple[str, ...] = ()
    # The tasks that it knows and leaves to others, each with the driver that it does not run.
    leaves: dict[str, str] = {}
    # Its background loops by name, as of its last beat; each channel whose workers it hears; and what has blocked its
    # event loop of late.
    ticks: dict[str, Tick] = {}
    running: int

    def hears(self, channel: str) -> bool:
        """Whether it gets what workers report of runs that went by the channel."""
        return hearing_tick(channel) in self.ticks


def hearing_tick(channel: str) -> str:
    """Under which name a node tells that it hears the workers of a channel."""
    return f"reports of {channel}"


_BLOCKED_BY = "blocked by "


def blocking_tick(name: str) -> str:
    """Under which name a node tells what has blocked its event loop: since when, and until when (None: it does yet)."""
    return f"{_BLOCKED_BY}{name}"


def blockers_of_loop(node: Node) -> dict[str, Tick]:
    """What has blocked the event loop of a node in the last hour, by the name of the job."""
    return {name.removeprefix(_BLOCKED_BY): tick for name, tick in node.ticks.items() if name.startswith(_BLOCKED_BY)}


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """Work that one node does at a time, as people see it."""

    name: str
    # Who holds it; None: nobody alive does.
    node: str | None
    node_name: str | None
    # Grows by one with every taking.
    term: int
    # When it was last taken.
    since: datetime
    # When it last acted, and when it is to act next; None for a loop that has no ticks.
    ticked_at: datetime | None
    next_at: datetime | None
    # What its last act raised.
    error: str | None
