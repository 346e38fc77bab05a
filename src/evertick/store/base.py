"""The protocol of a store: intents, each with its promise.

The engine speaks of fires, claims and verdicts; how they become rows is the store's business. A store is right when it
passes the conformance suite (`evertick.testing.conformance`).

What holds for every intent:
- It is atomic, and durable before it answers.
- Its time is the store's own time, read inside the transaction; answers that decide something carry it as `now`.
- It raises `StoreUnavailable` when the store is away, locked, read-only or full. The outcome of a write is then
  *unknown*: it may have happened. Every write can be repeated or reconciled for that reason.
- One bad row never fails a batch: answers are per row.
- Everything belongs to an app; no intent sees another app's rows. Only nodes and fences are shared by all.

All times are integer microseconds. docs/explanation/protocol.md gives the reasons behind the rules.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from evertick.model import (
    Attempt,
    Cause,
    Claimed,
    ClaimedMessage,
    Definition,
    Duty,
    Gap,
    LogLine,
    Message,
    MessageOutcome,
    MessageState,
    NewGap,
    NewMessage,
    NewRun,
    Node,
    Occurrence,
    Outcome,
    Pause,
    Phase,
    Report,
    Run,
    Schedule,
    State,
    Verdict,
)
from evertick.model.feed import Cursor
from evertick.model.limits import Concurrency, Rate

__all__ = [
    "CLOCK_AHEAD",
    "CLOCK_FAR",
    "EVER",
    "FAILED_MOST",
    "LATELY",
    "LATELY_DUE",
    "NO_TICKS",
    "VERY_FIRST",
    "Advance",
    "Beat",
    "Cancelled",
    "Change",
    "ChannelPulse",
    "Checked",
    "Claim",
    "ClockRepair",
    "ClockTraces",
    "DeclaredBy",
    "DispatchesChecked",
    "Due",
    "DuePlace",
    "DueSchedule",
    "DutyHold",
    "DutyHolds",
    "DutyTick",
    "Failing",
    "FeedRead",
    "FeedRow",
    "FeedState",
    "FinishAnswer",
    "Finished",
    "Freed",
    "GapAhead",
    "GapCut",
    "HeartbeatSession",
    "Maintainable",
    "Maintenance",
    "MessageClaim",
    "MessageFilter",
    "NewCalendar",
    "News",
    "NodeJoin",
    "Note",
    "Owned",
    "Pulse",
    "Recorded",
    "Rehomed",
    "ReportAnswer",
    "ReportWindow",
    "RunFilter",
    "ScheduleFilter",
    "Source",
    "Store",
    "StoreStatus",
    "StoredSchedule",
    "TableOptions",
    "TableRows",
    "TaskTerms",
    "Ticks",
    "Within",
    "fires_counted",
]

MigrateMode = Literal["auto", "check"]
FinishAnswer = Literal["done", "already", "lost"]

# How far back `Pulse.failed` and `Pulse.lost` count, in microseconds: by its end, and by its moment.
LATELY = 3_600_000_000
LATELY_DUE = 48 * LATELY
FAILED_MOST = 1_000
# Kinds of foreign writes: runs that wait to be claimed, and nothing else; or anything, those included.
News = Literal["runs", "anything"]
# Sources of declarations: the code of a program, or the file of a configuration.
Source = Literal["code", "file"]


# --- schedules ---------------------------------------------------------------------------------------------------


class DeclaredBy(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a schedule: the name of its nodes, and the declaration it was last written from."""

    node_name: str
    hash: str
    # The rule as the code writes it, not bound.
    rule: str
    definition: Definition
    source: Source = "code"


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with its cursor, as planning and editing need it."""

    id: int
    key: str
    version: int
    created_at: int
    definition: Definition
    pause: Pause | None
    # Decisions about single moments to come. Changing them raises the version.
    occurrences: tuple[Occurrence, ...] = ()
    declared: DeclaredBy | None
    # The cursor: the next nominal moment; None when there is none (done, or waiting for the end of a run).
    fire_at: int | None
    # When to look at it; None: not before something else happens (pause, end of a run).
    at: int | None
    # Fires that became runs, for `max_fires`.
    fires: int
    # Plans that failed in a row, and what the last one said.
    failures: int
    error: str | None
    # Inputs of the cursor: zone rules and calendar version.
    fingerprint: str
    # Live runs as read, like DueSchedule.live.
    live: int
    # Like DueSchedule.stamp.
    stamp: int | None = None


class DuePlace(NamedTuple):
    """A place in the order of those that are due."""

    at: int
    schedule_id: int


# Before any moment that a column can hold.
VERY_FIRST = DuePlace(-(2**63), 0)
# A time of the store that never comes.
EVER = 2**63 - 1


class DueSchedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A due schedule as a tick reads it: all that a plan is made from, as it is at one moment."""

    id: int
    key: str
    version: int
    created_at: int
    # Its definition, as text: thousands that are equal are read once.
    definition: str
    pause: Pause | None
    occurrences: tuple[Occurrence, ...]
    fire_at: int | None
    at: int
    fires: int
    failures: int
    # Live runs of the schedule as read: bit 0 = any is live, bit 1 = one is blocked on another run (to be held back by
    # a limit does not count), bit 2 = none is live but parked ones and what is blocked on them. The guard of overlap.
    live: int
    # Which writing of its row was read, where the store can tell. Whatever records a run of the schedule writes it.
    stamp: int | None = None

    @property
    def place(self) -> DuePlace:
        return DuePlace(self.at, self.id)


class Due(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    schedules: list[DueSchedule]
    # When the next schedule that is not due yet wants to be looked at.
    next_at: int | None
    # Where the next look goes on, if this one has found as many as it may; what it could not read counts.
    goes_on: DuePlace | None


class Advance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The writes of a plan for one schedule, guarded by what it was made from.

    Taken only if the schedule's (version, fire_at, at) are still these and, where `live` is given, its live runs still
    look the same. Then runs and gaps are inserted and the cursor moves, all or nothing.
    """

    schedule_id: int
    version: int
    fire_at: int | None
    at: int | None
    live: int | None = None
    # Where the store gave one with what was read: a row that still has it is as it was, and so are its live runs if
    # there were none. Lets a store take the plan without a look at them.
    stamp: int | None = None
    runs: tuple[NewRun, ...] = ()
    gaps: tuple[NewGap, ...] = ()
    next_fire_at: int | None = None
    # None: not before something else happens.
    next_at: int | None = None
    # For rules that count from the end of a run: while a run of the schedule is live there is no cursor; the verdict of
    # the last live one sets it this much later. Taken with no run live, it is set from now.
    after_end: int | None = None
    # Ask the live runs to cancel (overlap "replace"): waiting and blocked ones end at once, running ones are flagged.
    replaces_live: bool = False
    # The pause ended by its `until`.
    ends_pause: bool = False
    # The decisions about single moments from now on; None leaves them as they are. Anything else raises the version.
    occurrences: tuple[Occurrence, ...] | None = None
    # The id of a live run of cause fire that was made before its moment, to be taken back. Taken only if the run is not
    # at work, and no try of it was judged or lost. Then it ends as cancelled(undone), its cause becomes trigger, so
    # that its moment has no run and may get one, it counts in `fires` no more, and its unique key is free.
    takes_back: str | None = None
    # Why planning failed; counts as a failure and changes nothing but `next_at`.
    error: str | None = None
    fingerprint: str = ""
    # Written if it is taken.
    messages: tuple[NewMessage, ...] = ()


def fires_counted(runs: Iterable[NewRun], without: Container[str] = ()) -> int:
    """How many fires these runs are, those with the given ids left out: a moment that all nodes run is one."""
    count = 0
    on_all_nodes: set[int | None] = set()
    for run in runs:
        if run.id in without:
            continue
        if run.cause is Cause.FIRE:
            count += 1
        elif run.cause is Cause.EVERY_NODE:
            on_all_nodes.add(run.fire_at)
    return count + len(on_all_nodes)


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    # The fence under which claimed runs were inserted; 0 when none was.
    fence: int
    # One answer per advance: False = the guard did not match, nothing of it was written.
    taken: list[bool]
    # Ids of runs of taken advances that the ledger had already, or whose unique key was taken: not inserted, and not to
    # be started.
    left_out: list[str] = []
    # Those whose unique key was taken: fires became gaps. An advance that brings runs by hand (trigger, rerun), all of
    # them with a key that is taken, is not taken either.
    duplicates: list[str] = []


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A person's change to one schedule: add, edit, pause, resume, remove.

    `settle` closes the old definition's account up to now (see Advance; its guard is the guard of the whole change, its
    cursor the new cursor). For an add it is None and the cursor is in `fire_at` and `at`.
    """

    key: str
    kind: Literal["add", "edit", "pause", "resume", "remove"]
    settle: Advance | None = None
    definition: Definition | None = None
    pause: Pause | None = None
    # None leaves it as it is.
    declared: DeclaredBy | None = None
    # Written if it is taken, beside those of `settle`.
    messages: tuple[NewMessage, ...] = ()
    # add only
    created_at: int = 0
    fire_at: int | None = None
    at: int | None = None
    fingerprint: str = ""


class NewCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """A named calendar to be kept, see `put_calendar`."""

    name: str
    version: str
    content: bytes


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule whose last `count` fires have failed, all of them, and which is to be paused for that."""

    schedule_id: int
    key: str
    # As read: what was changed since is judged anew.
    version: int
    count: int
    # Of the newest of them.
    run: str
    verdict: Verdict
    reason: str | None
    error: str | None


class ScheduleFilter(msgspec.Struct, frozen=True, kw_only=True):
    keys: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    is_paused: bool | None = None
    after_key: str | None = None
    limit: int = 1000
    with_counts: bool = True
    # In the order in which they want to be looked at, those that do not left out; costs what is answered.
    is_by_due: bool = False


# --- runs --------------------------------------------------------------------------------------------------------


class TaskTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A node's terms of a task when it claims: how long an attempt may take, whether it may run twice, how many of
    its runs may be at work at once or start in a period."""

    hash: str = ""
    timeout: int | None = None
    at_most_once: bool = False
    concurrency: Concurrency | None = None
    rate: Rate | None = None

    @property
    def is_limited(self) -> bool:
        return self.concurrency is not None or self.rate is not None

    @property
    def limits(self) -> str:
        """The same for the same limits, and else another; empty for none."""
        if not self.is_limited:
            return ""
        written = msgspec.json.encode((self.concurrency, self.rate), order="deterministic")
        return blake2b(written, digest_size=8).hexdigest()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    fence: int
    runs: list[Claimed]
    # Runs that were too old to start, ended here as missed(expired).
    expired: list[str]
    # When the next waiting run of these queues and tasks is due (None: none waits; <= now: more is waiting), or when
    # the next start under a rate is free, whichever is earlier. A claim that has taken all it was to take may say `now`
    # without a look: more may be waiting.
    next_due_at: int | None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """One answer per outcome. `freed`: something has become due by it, now or later: a retry, a released run, one that
    was blocked on the run or by a limit, a schedule that counts from the end of a run."""

    answers: list[FinishAnswer]
    freed: bool


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the store says a node holds."""

    id: str
    fence: int


class Rehomed(msgspec.Struct, frozen=True, kw_only=True):
    """Results of re-homing the runs of dead nodes."""

    now: int
    fence: int
    # Taken over by the asking node, to be started now.
    claimed: list[Claimed]
    # Put back to waiting for others. Runs of tasks with a limit always are: a limit is passed by a claim alone.
    released: list[str]
    # Whether a limit let something through because of it.
    freed: bool = False
    # Ended: (run id, verdict): lost for good, or cancelled because that was asked for.
    ended: list[tuple[str, Verdict]]


class ReportWindow(msgspec.Struct, frozen=True):
    """A stretch of the store's time in which every report of a channel's workers came through, and was written."""

    since: int
    until: int


class DispatchesChecked(msgspec.Struct, frozen=True, kw_only=True):
    """Results for dispatched runs whose time was over, or whose cancel was asked for."""

    now: int
    # Put back to waiting; at the cost of a loss, if a worker had it.
    released: list[str]
    # Ended: (run id, verdict): lost for good, or cancelled because that was asked for.
    ended: list[tuple[str, Verdict]]
    # Whether something has become due by an end.
    freed: bool
    # Whether messages were written that tell workers to stop.
    has_killed: bool


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """done: it was taken. already: the ledger had it before, or the run has ended or gone back by the word of this very
    fence. stale: the run is not in these hands any more, or never was; nothing was written."""

    answer: Literal["done", "already", "stale"]
    # The verdict that the run has got by it.
    verdict: Verdict | None = None
    # The run went back to waiting by it.
    is_put_back: bool = False


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """ended: it was not running, and is done(cancelled). asked: it runs or is dispatched; its owner gets the request.
    done: too late."""

    id: str
    answer: Literal["ended", "asked", "done", "unknown"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a running attempt: progress and phases (the latest win), log lines (time, level,
    text)."""

    id: str
    fence: int
    progress: float | None = None
    progress_text: str | None = None
    # All that it has so far; None: no news of them.
    phases: tuple[Phase, ...] | None = None
    # Number of the first line of this note among the lines of this attempt: makes a repeated note harmless.
    seq: int = 0
    lines: tuple[tuple[int, str, str], ...] = ()


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Newest moment first, or oldest. `since` and `until` bound fire_at, both inclusive.

    `states` and `verdicts` None = all.
    `was_rerun`: whether the ledger has a run of cause rerun that was caused by this one.
    """

    ids: tuple[str, ...] | None = None
    # How their ids begin.
    id_prefix: str | None = None
    schedule_key: str | None = None
    task: str | None = None
    states: tuple[State, ...] | None = None
    verdicts: tuple[Verdict, ...] | None = None
    labels: dict[str, str] = {}
    was_rerun: bool | None = None
    since: int | None = None
    until: int | None = None
    # For runs alone: the limit then leaves out the newest.
    is_oldest_first: bool = False
    limit: int = 100

    @property
    def fits_live(self) -> bool:
        """Whether a live run can be among them: it has no verdict, and was not rerun."""
        has_state = self.states is None or any(state is not State.DONE for state in self.states)
        return has_state and self.verdicts is None and not self.was_rerun

    @property
    def fits_done(self) -> bool:
        return self.states is None or State.DONE in self.states


# --- messages ----------------------------------------------------------------------------------------------------


class MessageClaim(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    messages: list[ClaimedMessage]
    # When the next waiting message of these channels is due (None: none waits; <= now: more is waiting).
    next_due_at: int | None


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. `states` None = all."""

    ids: tuple[str, ...] | None = None
    # How their ids begin.
    id_prefix: str | None = None
    channel: str | None = None
    # Of that channel.
    key: str | None = None
    states: tuple[MessageState, ...] | None = None
    limit: int = 100


class ChannelPulse(msgspec.Struct, frozen=True, kw_only=True):
    """How one channel stands. Counts stop at their bound."""

    channel: str
    waiting: int
    sending: int
    dead: int
    # When the oldest waiting message was or is due. Every try that fails moves that of its message on.
    oldest_due_at: int | None
    # When the oldest message was put there that was tried in vain and is tried again.
    oldest_failing_at: int | None = None


# --- nodes -------------------------------------------------------------------------------------------------------


class NodeJoin(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    app: str
    version: str
    lease: int
    queues: tuple[str, ...]
    tasks: Mapping[str, TaskTerms]
    declares: Mapping[str, str]
    # Whose messages it hands to the outside.
    channels: tuple[str, ...] = ()
    # Tasks that it knows and leaves to others, each with its driver. For people: nothing is claimed by it.
    leaves: Mapping[str, str] = {}


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """is_alive False: this incarnation was declared dead, and stays so."""

    now: int
    is_alive: bool
    # Ids of my running runs whose cancel was asked for.
    cancels: list[str]
    # Whether there may be something to look after: a lease has run out, or a run of the app is held, or in the own
    # queue of a node. A store that does not know says so.
    has_charges: bool = True
    # Whether a dispatched run of the app is overdue, and whether one of those is to be cancelled: the first is for
    # nodes that read its reports, the other for any node (`check_dispatched`). A store that does not know says True.
    has_dispatched: bool = True
    has_dispatched_cancels: bool = True
    # Whether a duty of the app is free (`hold_duties`), be it one that this node has or not. A store that does not know
    # says so.
    has_free_duties: bool = True


class DutyHold(msgspec.Struct, frozen=True, kw_only=True):
    """A duty as the nodes that declare it see it."""

    name: str
    # The living node that holds it; None: none does.
    node: str | None
    # Grows by one with every taking, and never goes back.
    term: int
    # When its holder, or the one before, meant to act next.
    next_at: int | None
    error: str | None


class DutyHolds(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    duties: list[DutyHold]

    def are_all_held(self, names: Sequence[str]) -> bool:
        return len(self.duties) == len(set(names)) and all(duty.node is not None for duty in self.duties)


class DutyTick(msgspec.Struct, frozen=True, kw_only=True):
    """A tick of a duty, by its holder."""

    name: str
    term: int
    # Whether it has acted just now; else only what is to come has changed.
    has_acted: bool
    next_at: int | None
    error: str | None


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """How the app stands, for health and for people."""

    now: int
    waiting: int
    running: int
    parked: int
    blocked: int
    # In the hands of an outside queue.
    dispatched: int = 0
    oldest_due_at: int | None
    schedules: int
    # Failed and lost runs within the last hour (`LATELY`), of moments of the last two days: how many
    # runs of each schedule, or of each task for what has none, the most first. Of the newest thousand of both. One that
    # was rerun is not counted, unless the rerun was not even tried: if that fails, it counts itself.
    failed: Mapping[str, int] = {}
    lost: Mapping[str, int] = {}


# The loops of a node by name: microseconds since the last step came back well (None: none has), and until the next one
# that it takes by itself (None: it is in the middle of one). Counted from the beat, so that no two clocks are compared.
Ticks = Mapping[str, tuple[int | None, int | None]]
NO_TICKS: Ticks = {}


class HeartbeatSession(Protocol):
    """The heartbeat's own connection: nothing else on it can delay a beat. Used by one thread, its own."""

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        """Extend the lease from the store's now, unless the node is written down as dead; keep its ticks for people."""
        ...

    async def die(self, node: str) -> None:
        """Write down the death of this node by its own hand (a stalled event loop). Its runs are re-homed."""
        ...

    async def resign(self, node: str) -> None:
        """Give up all duties of this node (a stalled event loop); the node lives on."""
        ...

    async def close(self) -> None: ...


# --- feed --------------------------------------------------------------------------------------------------------


class FeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one kind and one transaction, as `evertick.feed` reads them."""

    txid: int
    seq: int
    at: int
    kind: str
    body: str


class FeedRead(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a feed, and its bounds as of the same moment: nothing is kept before `first`, and whatever comes will
    be at `end` or behind it."""

    now: int
    first: Cursor
    end: Cursor
    rows: list[FeedRow]


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """How a feed is, for people. None for what there is not."""

    now: int
    # For how long events are kept.
    kept: int
    # The oldest event that is written, and cannot be read yet because an older transaction is still open; and whose
    # transaction that is, in words.
    held_at: int | None = None
    holder: str | None = None


# --- transactions of others --------------------------------------------------------------------------------------


class Within(Protocol):
    """A transaction of the user's own, on the user's connection to this very store: it commits, or rolls back.

    Each intent is all or nothing in itself: an error leaves the user's transaction as it was. On a plain connection
    (`is_async` False) nothing waits for an event loop: plain code may run these coroutines to their end by itself.
    Raises `Refused` for a connection that leads elsewhere, or that has no transaction open and begins none by itself.
    """

    @property
    def is_async(self) -> bool: ...

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        """Like `Store.enqueue`. Other connections see the runs after the user's commit, and are woken by it."""
        ...

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        """Like `Store.send`: the user's commit sends them, and a rollback leaves nothing of them."""
        ...

    async def finish(self, app: str, node: str, outcome: Outcome) -> FinishAnswer:
        """Like `Store.finish`, for one run: the user's commit ends it, and a rollback leaves it running."""
        ...


class JobTransaction(Protocol):
    """A transaction that the store opens for a job: the job's rows and the end of its run, together or not at all.

    When its seconds are over it is rolled back, whatever the job is doing; `commit` raises `TransactionTimeout` after
    that, and so does its connection or, where that only has errors of its own driver, `rollback`. Plain ones wait for
    no event loop, like `Within`.
    """

    async def begin(self, app: str, node: str, run: str, fence: int) -> Any:
        """A connection in a transaction that can write; None if (node, fence) do not hold the run."""
        ...

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        """Write the outcome, unless this transaction has it already, and commit. False: rolled back, it is lost."""
        ...

    async def rollback(self) -> None: ...


class Store(Protocol):
    """The ledger. Opened lazily; every intent may be called from any event loop of the process that opened it."""

    @property
    def id(self) -> str:
        """Which ledger it is, from its first migration on, while it is open: letters, digits, "_" and "-" alone."""
        ...

    async def open(self, *, migrate: MigrateMode) -> None:
        """Connect, check or apply migrations. Refuses a store whose `compatible_from` is newer than this code."""
        ...

    async def close(self) -> None: ...

    async def now(self) -> int:
        """The store's time."""
        ...

    async def heartbeat_session(self) -> HeartbeatSession:
        """A line for the thread that calls it."""
        ...

    async def changed(self, app: str, timeout: float) -> News | None:
        """Wait until another process may have written something of this app, at most `timeout` seconds: None by then.

        A hint, never relied on. It may come for what was written of another app, and say more than there is.
        """
        ...

    # schedules

    async def due_schedules(self, app: str, limit: int, after: DuePlace = VERY_FIRST) -> Due:
        """The schedules that want to be looked at by the store's time, longest due first; of those at once, by id.

        `after`: from there on in this order; what comes before it is left out.
        """
        ...

    async def stored_schedules(
        self, app: str, *, ids: Sequence[int] = (), keys: Sequence[str] = ()
    ) -> list[StoredSchedule]:
        """Definitions with cursor, by id or key. Newer formats, unreadable here, are left out."""
        ...

    async def declared_schedules(self, app: str) -> list[StoredSchedule]:
        """All that code declares or declared."""
        ...

    async def fingerprints(self, app: str) -> dict[str, int]:
        """Fingerprints of the cursors: each in use, and one schedule that has it."""
        ...

    async def computed_with(self, app: str, fingerprint: str, *, after: int, limit: int) -> list[StoredSchedule]:
        """Schedules whose cursor was computed with this fingerprint, by id, those after the given id."""
        ...

    async def record_fires(self, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
        """Write plans: at most one run per (schedule, fire_at), cursor and rows in one transaction.

        Runs with `is_claimed` are inserted as running on `node` under one new fence; if that node is dead they are
        inserted as waiting, and the fence is 0. An insert of a run that is there already (same id, or same nominal
        moment) is left out, never an error. Runs in state blocked are blocked on the schedule's newest live run that no
        other is blocked on, so that several stand in line; if none is live any more they are inserted as waiting. When
        one in the middle of the line ends, the one behind it is blocked on the one before it. `fires` counts runs of
        cause fire, and moments of cause every-node. A pause that ends raises the version, and so do changed
        `occurrences`. A fire whose unique key is taken becomes a gap, skipped for the reason of `NewRun.if_taken`.
        """
        ...

    async def change_schedules(
        self, app: str, changes: Sequence[Change], *, all_or_none: bool = False, calendars: Sequence[NewCalendar] = ()
    ) -> list[bool]:
        """Apply people's changes. False: the guard did not match (or the key is taken, for an add); read and try again.

        With `all_or_none`, one False means that nothing was written. Each taken change raises the version. Old
        definitions are kept for the runs that were recorded under them. `calendars` are kept with the changes, in the
        same transaction, as `put_calendar` keeps them. A resume may bring another definition and declaration, too.
        Remove cancels the schedule's waiting, blocked and parked runs; the running ones and history stay.
        """
        ...

    async def schedules(self, app: str, wanted: ScheduleFilter) -> list[Schedule]:
        """For people, by key."""
        ...

    async def failing(self, app: str, *, ids: Sequence[int] | None = None, limit: int = 1000) -> list[Failing]:
        """Schedules with `pause_after` N, not paused, whose newest N fires that count have all failed or were lost.

        Fires that were succeeded, failed or lost count, in the order of their moments. Those recorded before the
        definition was last changed, or before the last pause ended, do not. Of these schedules, or of all of the app.
        """
        ...

    async def calendar_users(self, app: str, name: str, *, limit: int = 1000) -> list[str]:
        """Keys of the schedules that use a calendar, in their rule or as their blackout, by key."""
        ...

    async def remove_calendar(self, app: str, name: str) -> bool:
        """Forget a calendar. False: a schedule uses it, or there is none of that name; nothing was removed."""
        ...

    async def calendars(self, app: str) -> dict[str, bytes]:
        """All named calendars, newest version each."""
        ...

    async def put_calendar(self, app: str, name: str, version: str, content: bytes) -> None:
        """Keep a calendar under its name. The same content again changes nothing."""
        ...

    # runs

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        """Insert runs by hand, all or none. The same id again, or a unique key that is taken, answers the run there is.

        A key is taken while a live run has it (`unique_until` "start": until its first claim, for good), and for the
        time of `unique_for` from the insertion, as long as the ledger knows that run.
        """
        ...

    async def claim(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
    ) -> Claim:
        """Take up to `limit` due waiting runs: highest priority first, then longest due. A dead node gets nothing.

        Runs of tasks with a limit are taken only while fewer than `concurrency` of their key run, and fewer than
        `rate` of their key were claimed within any period; a claim is the only thing that passes a limit, and every
        claim counts. The others become blocked, and wait again when their key is free: a limited task at the head of
        the queue holds up no other behind it.

        The limits are those of the claiming node, whatever others held back under theirs: after a `join` with other
        limits, or the death of a node that had others, the claims of a node also look again at what is held back, a
        bounded number of keys each, and take what their own limits have room for. While there is more to look at,
        `next_due_at` is not after `now`.

        What is in a newer `format` than this code can read is left alone, as if it were not there. A run that says it
        can be read and cannot is parked (`unreadable`), with what is wrong as its error; it stops no other.
        """
        ...

    async def finish(self, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
        """Write outcomes, each only if (node, fence) still hold the run.

        done: moves to history, frees what was blocked on it, restarts an after-end schedule; a cancelled one without a
        reason gets that of the request. release and park leave the count of attempts as it was. already: this very
        outcome was written before (its answer was lost). lost: not ours any more; nothing was written. Messages of an
        outcome are written with it, or not at all. Of an outcome that cannot be written the rest is, with the error
        that says so; it does not stop the others. dispatch: the run belongs to no node any more; it keeps
        its fence, and counts as running for limits, unique keys and overlap. Phases of an outcome are those of its
        attempt; where it brings none, those of its notes hold.
        """
        ...

    async def apply_reports(self, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
        """Write what workers report of dispatched runs, each only if the run is dispatched under that fence.

        The caller need not know the task: what was agreed when the run was dispatched stands beside it. pushed:
        the time to take it begins, and mode forget ends as succeeded. taken, and whatever else a worker says first:
        the time between its words begins, and mode ack ends as succeeded. progress: that time begins anew, unless a
        cancel was asked for. finish and skip end it. fail and undelivered spend the attempt: it is tried again as
        agreed, or ends as failed. release spends nothing. After a request to cancel it, these three end it as
        cancelled. Several about one run are taken in their order.
        """
        ...

    async def check_dispatched(self, app: str, limit: int, windows: Mapping[str, ReportWindow]) -> DispatchesChecked:
        """Settle up to `limit` dispatched runs that are overdue by the store's clock, and those to be cancelled.

        `windows`: by channel, when the caller read all reports of workers. A caller that did not read those of a worker
        cannot call it silent: a run of another channel is left alone, and so is one whose time was over later than it
        was heard; one whose whole time was not heard is looked at again when as much has been. One that is to be
        cancelled is for anybody.

        What no worker took in its time goes back to waiting, and what fell silent with its worker does so at the cost
        of a loss; a run that must not run twice, or was lost too often, ends as lost. A run to be cancelled whose
        message is still in the outbox ends at once, and its message goes. Else whoever has it, or takes it, is told by
        a message on the kill channel, if there is one. It ends as cancelled at once if by all that was heard no worker
        has it; else when its worker says so, or has had the time for it. A run whose message was not delivered yet has
        no time that could be over: a queue that is away delays it, and costs nothing.
        """
        ...

    def within(self, connection: object) -> Within:
        """Work inside the transaction of a user's own connection, or of what leads to one. Nothing is done yet."""
        ...

    def transaction(self, *, seconds: float, is_plain: bool) -> JobTransaction:
        """A transaction for a job, open for so long at most. Plain: for code without an event loop."""
        ...

    async def owned(self, app: str, node: str) -> list[Owned]:
        """Runs that the node holds by the store's word."""
        ...

    async def cancel(self, app: str, ids: Sequence[str], reason: str) -> list[Cancelled]:
        """End what is not running; ask the owner of what is. `check_dispatched` does the rest for dispatched runs."""
        ...

    async def note(self, app: str, node: str, notes: Sequence[Note]) -> list[str]:
        """Write progress, phases and log lines of running runs. Answers the ids that are not the node's any more.

        Lines of a run that this very claim has ended as succeeded are taken: its job may have ended it by itself. A
        note that cannot be written is left out, and does not stop the others.
        """
        ...

    async def runs(self, app: str, wanted: RunFilter) -> list[Run]: ...

    async def recorded_moments(self, app: str, schedule_id: int, *, first: int, last: int, limit: int) -> list[int]:
        """The nominal moments in [first, last] that have a run by fire or backfill, live or done, oldest first."""
        ...

    async def gaps(self, app: str, wanted: RunFilter) -> list[Gap]:
        """Gaps that touch the time of the filter, newest first. Filters that only runs have match no gap."""
        ...

    async def attempts(self, app: str, run: str) -> list[Attempt]:
        """Earlier tries, oldest first. What was given back, or was lost with its node, is among them if it had phases:
        `number` is then that of the try that follows."""
        ...

    async def log(self, app: str, run: str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Log lines in order, from the `after`-th on."""
        ...

    # messages

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        """Put messages into the outbox, all or none. The same id again, or a key that its channel knows, answers the
        message there is: waiting, on its way, sent and remembered, or dead."""
        ...

    async def claim_messages(
        self, app: str, node: str, channels: Mapping[str, int], held: Sequence[str]
    ) -> MessageClaim:
        """Take due messages, longest due first, of each channel as many as it has room for. A dead node gets nothing.

        Before that, messages whose owner is dead or missing are due again, and have spent an attempt; so are those that
        the store says this node holds and that are not in `held` (the answer of their claim was lost), for nothing.
        A newer `format` is left alone. A message that cannot be read though its format says so is dead, and stops no
        other.
        """
        ...

    async def settle_messages(self, app: str, node: str, outcomes: Sequence[MessageOutcome]) -> list[FinishAnswer]:
        """Write what came of messages, each only if (node, fence) still hold it; answers like those of `finish`."""
        ...

    async def messages(self, app: str, wanted: MessageFilter) -> list[Message]: ...

    async def channels(self, app: str) -> list[ChannelPulse]:
        """The channels with messages that are not sent, by name."""
        ...

    async def retry_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        """Make dead and waiting messages due now, dead ones with no attempt spent. Answers the ids of those.

        Not those that dispatched a run which is not in these hands any more.
        """
        ...

    async def hasten_messages(self, app: str, channel: str, limit: int) -> int:
        """Make messages of a channel due now that were tried in vain and wait for their next try, so many at most.
        Answers how many: fewer than that, and there are no more."""
        ...

    async def drop_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        """Forget messages that wait or are dead, with their keys. Answers the ids of those.

        A run that one of them was to dispatch is to be cancelled.
        """
        ...

    # nodes

    async def join(self, node: NodeJoin) -> int:
        """Begin an incarnation; answers the store's now. Frees parked runs that this node can run.

        Sent again while the node lives, what it says replaces what it said before: queues, tasks, declarations. What it
        holds stays its own.

        If runs of its tasks may be held back under other limits than it brings (`TaskTerms.limits`), or it brings none,
        its claims look at them again. The join itself stays cheap, however many there are.
        """
        ...

    async def leave(self, node: str) -> None:
        """End an incarnation by a graceful stop: written down as dead."""
        ...

    async def judge(self, until: int = EVER) -> list[str]:
        """Write down the death of every node whose lease has run out, or which was last heard at a time that is still
        to come, by more than its lease: before the clock was put back. Answers those that were written down here.

        No node is judged later than `until`, by the store's time: a question that was under way for long, or met a step
        of the clock, finds every lease run out, though all are well.
        """
        ...

    async def rehome(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int, until: int = EVER
    ) -> Rehomed:
        """Settle runs whose node is dead or missing, and runs of others that are long past their deadline; the latter
        not later than `until`, as with `judge`.

        Each costs one loss. Up to `limit` that the node can run are claimed by it at once, but none of a task with a
        limit; others go back to waiting. A run that must not run twice, or was lost too often, ends as lost; one that
        was to be cancelled as cancelled.

        What is in the own queue ("@" and its id) of a node that is dead or missing was for that node alone: held or
        not, it ends as lost(node_gone), and is never given to another.
        """
        ...

    async def nodes(self, app: str) -> list[Node]: ...

    # duties

    async def hold_duties(self, app: str, node: str, names: Sequence[str]) -> DutyHolds:
        """Take those of the named duties that no living node holds, and answer how each of them stands.

        A duty is held while its node is not written down as dead and has not resigned. Every taking raises its term by
        one; the term never goes back, even if the duty was pruned meanwhile. A dead node gets nothing. Where nothing is
        to be taken nothing is written.
        """
        ...

    async def tick_duty(self, app: str, node: str, tick: DutyTick) -> bool:
        """Write down what a holder has done and means to do next. False: it does not hold it under that term."""
        ...

    async def resign_duties(self, app: str, node: str, terms: Mapping[str, int]) -> None:
        """Give up duties, each only if held under that term; wakes those who may take them."""
        ...

    async def duties(self, app: str) -> list[Duty]:
        """For people, by name."""
        ...

    # feed

    async def keep_feed(self, app: str, kept: int | None) -> None:
        """Write down every event of the app from now on, whichever node causes it, and keep each so long. None: no more
        of it, and what there is goes. Only a feed that was off begins anew; another time changes nothing else."""
        ...

    async def feed(
        self, app: str, *, start: Cursor | None, since: int | None, kinds: Sequence[str] | None, limit: int
    ) -> FeedRead | None:
        """Rows of the feed from `start` on (None: from the first), of these kinds, written at `since` or later.

        Their order never changes, and nothing ever comes before what was answered: a transaction that commits late is
        read late, but read. Events are written in the transaction of what they tell. None: the app has no feed.
        """
        ...

    async def feed_state(self, app: str) -> FeedState | None: ...

    # upkeep

    async def park_unknown(self, app: str, limit: int) -> int:
        """Park due waiting runs whose task no live node knows; free parked ones whose task is known again.

        What is in a node's own queue is never parked for that: re-homing ends it.

        Also lets through what a limit holds back though nothing of its key runs or is about to: by the rules of claim
        and finish there is no such thing, but older code or a clock put back may have left some.
        """
        ...

    async def prune(self, app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        """Delete a bite of old history (and what hangs on it), gaps, dead nodes, finished one-shot schedules, starts
        that no rate counts any more, unique keys whose period is over, duties not held since, messages
        that need not be remembered, events that the feed keeps no longer.

        Answers how many rows the bite had. A store may drop old history as a whole instead, which counts for nothing,
        and keep up to two days of it longer for that. `keep_per_schedule` None: as many as the store does well with.
        """
        ...

    async def pulse(self, app: str) -> Pulse: ...

    async def apps(self, *, limit: int = 100) -> list[str]:
        """The apps by name: each that has a schedule, a node that is known, a run that waits or one that has ended."""
        ...


# --- a wrong clock ------------------------------------------------------------------------------------------------


class GapAhead(msgspec.Struct, frozen=True, kw_only=True):
    """A gap that was recorded at a time that is still to come."""

    id: int
    schedule_id: int
    key: str
    first_at: int
    last_at: int


class GapCut(msgspec.Struct, frozen=True, kw_only=True):
    """A gap as it is to be, up to `last_at`. With a count of 0 it goes: none of its moments has come."""

    id: int
    last_at: int
    count: int
    is_exact: bool


class ClockTraces(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an app that were written while the store's clock was ahead."""

    now: int
    # Between which times, both still to come, they say that they were written. None: there is no such row.
    first_at: int | None = None
    last_at: int | None = None
    # By kind of row, how many there are to be put right: as far as they were counted.
    rows: Mapping[str, int] = {}
    gaps: tuple[GapAhead, ...] = ()


@runtime_checkable
class ClockRepair(Protocol):
    """A store that can put right what was written while its clock was ahead; it is not asked of every store."""

    async def clock_traces(self, app: str, *, limit: int) -> ClockTraces:
        """Up to `limit` of each kind. Reads all that is live, and history: for people, not for loops.

        A row was written while the clock was ahead if it says that it was written later than `CLOCK_AHEAD` from now.
        A run or a message waits for a time that will not come if it was put there by then, or was due at such a time
        and has been tried, given back or made to wait before.
        """
        ...

    async def mend_times(self, app: str, gaps: Sequence[GapCut], *, traces: ClockTraces, limit: int) -> dict[str, int]:
        """Put up to `limit` rows of each kind right; answers how many were, by kind: nothing at all when it is done.

        What waits for a time that will not come is due now or, if it was never tried, after the delay that it was
        given. A time that is still to come, of something that has happened, becomes now; durations stay. A run whose
        moment has not come stands for that moment no more: its cause becomes trigger. A node that holds a run keeps it.
        `traces`: what was found before the first call; rows that tell of the wrong time are put right after those that
        wait.
        """
        ...


# Nothing is written at a later time than now; small steps of a clock are no sign.
CLOCK_AHEAD = 60_000_000
# Messages and runs that were tried before wait no longer than this, whatever else is known.
CLOCK_FAR = 366 * 86_400_000_000


# --- care ---------------------------------------------------------------------------------------------------------


class TableRows(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows a table has; `is_exact` is False where counting stopped at its bound."""

    name: str
    rows: int
    is_exact: bool = True


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is set to fill and vacuum a table, and what the migrations have set otherwise."""

    name: str
    options: dict[str, str]
    migrated: dict[str, str] = {}


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the database itself is. None: the store has no such thing, or it cannot be told."""

    description: str
    # Name and version, like "SQLite 3.46.1".
    engine: str
    store_id: str | None
    # The migration it has reached, the one that this code knows, and the names of those in between.
    version: int
    version_known: int
    missing: tuple[str, ...] = ()
    bytes: int
    # Waiting in the write-ahead log.
    wal_bytes: int | None = None
    journal_mode: str | None = None
    page_bytes: int | None = None
    pages: int | None = None
    free_pages: int | None = None
    # Whether free pages can be given back in bites: incremental, full (by itself, at every commit) or none.
    vacuum: Literal["incremental", "full", "none"] | None = None
    disk_free_bytes: int | None = None
    file_system: str | None = None
    is_on_network: bool = False
    tables: tuple[TableRows, ...] = ()
    options: tuple[TableOptions, ...] = ()
    # The oldest moment in history, over all apps.
    oldest_at: int | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Problems of the database, each in a sentence. `is_complete` False: the time for looking was over."""

    problems: tuple[str, ...]
    is_complete: bool = True


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """Pages that a bite has given back to the file system, and how many are left to give."""

    pages: int
    pages_left: int


class Maintenance(Protocol):
    """Looking after the database itself, for people. Works on a store that is not open: one that cannot be opened is
    what people want to look at."""

    async def status(self) -> StoreStatus: ...

    async def check(self, *, is_quick: bool = False, seconds_most: float | None = None) -> Checked:
        """Whether the tables are those of this code and the file is whole; quick: without comparing indexes."""
        ...

    async def migrate(self) -> list[str]:
        """Apply what is missing; answers the names of what was applied here."""
        ...

    async def give_back(self, pages_most: int) -> Freed:
        """Give a bite of free space back. Refused where the store was not made for it."""
        ...

    async def rewrite(self) -> None:
        """Write the whole database anew, without free space; it blocks all other writes."""
        ...

    async def backup(self, path: str) -> int:
        """Write a whole copy, as of one moment, to a new file while others go on; answers its size in bytes. Refused
        where the database has tools of its own for it."""
        ...


@runtime_checkable
class Maintainable(Protocol):
    """A store with maintenance; not every store has it."""

    def maintenance(self) -> Maintenance: ...


class OpensStore(Protocol):
    """How a store is registered under `evertick.stores`: called with its URL, the clock, and what it may be told."""

    def __call__(self, url: str, *, clock: Any, is_inline: bool = False) -> Store: ...
