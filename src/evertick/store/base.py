"""The protocol of a store: its intents, and the promise of each.

The engine speaks of fires, claims and verdicts; each store decides how they become rows. A store is correct when it
passes the conformance suite (`evertick.testing.conformance`).

Every intent keeps these rules:
- It is atomic, and durable before it returns.
- It uses the store's clock, read inside the transaction. Answers that decide something carry that time as `now`.
- It raises `StoreUnavailable` when the store is unreachable, locked, read-only or full. The outcome of a write is then
  *unknown*: it may have been committed. Every write can therefore be repeated or reconciled.
- One bad row never fails a batch: answers are per row.
- It sees only rows of its app. Nodes and fences are shared by all apps.

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
    "END_OF_TIME",
    "FAILED_LIMIT",
    "FAILED_MOMENT_WINDOW",
    "FAILED_WINDOW",
    "FIRST_PLACE",
    "NO_TICKS",
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
    "count_fires",
]

MigrateMode = Literal["auto", "check"]
FinishAnswer = Literal["done", "already", "lost"]

# Limits of `Pulse.failed` and `Pulse.lost`, in microseconds: by the end of a run, and by its moment.
FAILED_WINDOW = 3_600_000_000
FAILED_MOMENT_WINDOW = 48 * FAILED_WINDOW
FAILED_LIMIT = 1_000
# Writes of other processes: only runs that wait to be claimed, or anything.
News = Literal["runs", "anything"]
# Where a declaration is written: in the code of a program, or in a configuration file.
Source = Literal["code", "file"]


# --- schedules ---------------------------------------------------------------------------------------------------


class DeclaredBy(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a schedule: the name of the nodes that declare it, and what it was last written from."""

    node_name: str
    hash: str
    # The rule as written in code, before it is bound to the schedule.
    rule: str
    definition: Definition
    source: Source = "code"


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with its cursor, for planning and editing."""

    id: int
    key: str
    version: int
    created_at: int
    definition: Definition
    pause: Pause | None
    # Overrides of single future moments. Changing them raises the version.
    occurrences: tuple[Occurrence, ...] = ()
    declared: DeclaredBy | None
    # The cursor: the next nominal moment. None if there is none (done, or waiting for the end of a run).
    fire_at: int | None
    # When the schedule is due to be planned. None: not before an event (end of a pause, end of a run).
    at: int | None
    # Fires that became runs; counted against `max_fires`.
    fires: int
    # Plans that failed in a row, and the error of the last one.
    failures: int
    error: str | None
    # Hash of the inputs of the cursor: zone rules and calendar version.
    fingerprint: str
    # Live runs when it was read; see DueSchedule.live.
    live: int
    # See DueSchedule.stamp.
    stamp: int | None = None


class DuePlace(NamedTuple):
    """A place in the order of due schedules."""

    at: int
    schedule_id: int


# Sorts before every stored place.
FIRST_PLACE = DuePlace(-(2**63), 0)
# Later than every time of the store.
END_OF_TIME = 2**63 - 1


class DueSchedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A due schedule as the tick reads it: all inputs of its plan, read at one moment."""

    id: int
    key: str
    version: int
    created_at: int
    # As text, so that thousands of equal definitions are parsed once.
    definition: str
    pause: Pause | None
    occurrences: tuple[Occurrence, ...]
    fire_at: int | None
    at: int
    fires: int
    failures: int
    # Live runs of the schedule: bit 0 = there is one; bit 1 = one is blocked on another run (not by a limit); bit 2 =
    # all of them are parked or blocked on another run. It guards plans that depend on overlap.
    live: int
    # Changes with every write of the schedule's row, and recording a run writes it. None: the store has no stamps.
    stamp: int | None = None

    @property
    def place(self) -> DuePlace:
        return DuePlace(self.at, self.id)


class Due(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    schedules: list[DueSchedule]
    # When the next schedule becomes due, of those that are not due yet.
    next_at: int | None
    # Where the next call continues; None if this one found fewer than `limit`. Unreadable schedules count.
    next_place: DuePlace | None


class Advance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The writes of a plan for one schedule, guarded by the state from which the plan was made.

    It is applied only if the schedule's (version, fire_at, at) are unchanged and, where `live` is given, the state of
    its live runs is unchanged too. Then runs and gaps are inserted and the cursor moves, all or nothing.
    """

    schedule_id: int
    version: int
    fire_at: int | None
    at: int | None
    live: int | None = None
    # The stamp that was read with the schedule, if the store has stamps. An unchanged stamp proves that the row is
    # unchanged and, if there were no live runs, that there still are none; the store need not read the runs.
    stamp: int | None = None
    runs: tuple[NewRun, ...] = ()
    gaps: tuple[NewGap, ...] = ()
    next_fire_at: int | None = None
    # None: not before an event.
    next_at: int | None = None
    # For rules that count from the end of a run: there is no cursor while a run is live. The verdict of the last live
    # run sets the cursor this much later; if no run is live, the cursor is set from now.
    after_end: int | None = None
    # Cancel the live runs (overlap "replace"): waiting and blocked ones end at once, running ones get a cancel request.
    replaces_live: bool = False
    # The pause has ended by its `until`.
    ends_pause: bool = False
    # The new overrides of single moments; None leaves them unchanged. Any other value raises the version.
    occurrences: tuple[Occurrence, ...] | None = None
    # Undo an early fire: the id of a live run of cause fire that was recorded before its moment. Applied only if the
    # run is not running and has no judged or lost attempt. The run ends as cancelled(undone), its cause becomes
    # trigger, it no longer counts in `fires`, and its unique key is released, so that the moment may get another run.
    undoes_run: str | None = None
    # Why planning failed. Counts as a failure; only `next_at` is written.
    error: str | None = None
    fingerprint: str = ""
    # Written if the advance is applied.
    messages: tuple[NewMessage, ...] = ()


def count_fires(runs: Iterable[NewRun], without: Container[str] = ()) -> int:
    """Count the fires among these runs, except those in `without`. A moment that runs on every node is one fire."""
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
    # The fence of the runs that were inserted as claimed; 0 if there are none.
    fence: int
    # One answer per advance. False: the guard did not match, and nothing of it was written.
    taken: list[bool]
    # Runs of applied advances that were not inserted, and must not be started: the ledger already had the run, or its
    # unique key was taken.
    left_out: list[str] = []
    # Those of them whose unique key was taken: their fires became gaps. If all manual runs (trigger, rerun) of an
    # advance have a key that is taken, the advance is not applied.
    duplicates: list[str] = []


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A user's change to one schedule: add, edit, pause, resume, remove.

    `settle` settles the old definition up to now. Its guard is the guard of the change, and its cursor is the new
    cursor. For an add it is None, and the cursor is in `fire_at` and `at`.
    """

    key: str
    kind: Literal["add", "edit", "pause", "resume", "remove"]
    settle: Advance | None = None
    definition: Definition | None = None
    pause: Pause | None = None
    # None leaves it unchanged.
    declared: DeclaredBy | None = None
    # Written if the change is applied, in addition to those of `settle`.
    messages: tuple[NewMessage, ...] = ()
    # For add only.
    created_at: int = 0
    fire_at: int | None = None
    at: int | None = None
    fingerprint: str = ""


class NewCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """A named calendar to store; see `put_calendar`."""

    name: str
    version: str
    content: bytes


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule whose last `count` fires have all failed, and which is to be paused for that."""

    schedule_id: int
    key: str
    # The version that was read; if it has changed, the schedule is checked again.
    version: int
    count: int
    # The newest of these runs.
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
    # Sort by the time at which schedules are due, without those that have none. Reads only the rows it returns.
    is_by_due: bool = False


# --- runs --------------------------------------------------------------------------------------------------------


class TaskTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A node's settings for a task when it claims: timeout of an attempt, at-most-once, concurrency and rate limit."""

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
        """A hash of the limits; empty if there are none."""
        if not self.is_limited:
            return ""
        written = msgspec.json.encode((self.concurrency, self.rate), order="deterministic")
        return blake2b(written, digest_size=8).hexdigest()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    fence: int
    runs: list[Claimed]
    # Runs that were too old to start and ended here as missed(expired).
    expired: list[str]
    # The earlier of two times: when the next waiting run of these queues and tasks is due (<= now: more are waiting),
    # and when a rate allows the next start. None: nothing waits. A claim that reached its limit may return `now`
    # without a search: more may be waiting.
    next_due_at: int | None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """One answer per outcome. `freed`: something has become due, now or later: a retry, a released run, a run that was
    blocked on this one or by a limit, a schedule that counts from the end of a run."""

    answers: list[FinishAnswer]
    freed: bool


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is claimed by a node, by the store's rows."""

    id: str
    fence: int


class Rehomed(msgspec.Struct, frozen=True, kw_only=True):
    """Results of recovering the runs of dead nodes."""

    now: int
    fence: int
    # Claimed by the calling node, which must start them now.
    claimed: list[Claimed]
    # Returned to waiting for other nodes. Always so for tasks with a limit, because only a claim may pass a limit.
    released: list[str]
    # Whether a limit released a blocked run.
    freed: bool = False
    # Runs that ended, with their verdict: lost, or cancelled if a cancel was requested.
    ended: list[tuple[str, Verdict]]


class ReportWindow(msgspec.Struct, frozen=True):
    """A period, by the store's clock, in which every report of a channel's workers was read and written."""

    since: int
    until: int


class DispatchesChecked(msgspec.Struct, frozen=True, kw_only=True):
    """Results for dispatched runs that were overdue or had a cancel request."""

    now: int
    # Returned to waiting; with a loss, if a worker had taken the run.
    released: list[str]
    # Runs that ended, with their verdict: lost, or cancelled if a cancel was requested.
    ended: list[tuple[str, Verdict]]
    # Whether an end made something due.
    freed: bool
    # Whether messages were written that tell workers to stop a run.
    has_kill_messages: bool


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """done: the report was applied. already: the ledger had it before, or a report with this fence has already ended or
    released the run. stale: the run is not dispatched under this fence; nothing was written."""

    answer: Literal["done", "already", "stale"]
    # The verdict that the run has by this report.
    verdict: Verdict | None = None
    # The report returned the run to waiting.
    is_returned: bool = False


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """ended: the run was not running, and is done(cancelled). asked: it runs or is dispatched; its owner gets a cancel
    request. done: it had ended already."""

    id: str
    answer: Literal["ended", "asked", "done", "unknown"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a running attempt: progress and phases (the latest values win), and log lines (time, level, text)."""

    id: str
    fence: int
    progress: float | None = None
    progress_text: str | None = None
    # All phases so far; None: unchanged.
    phases: tuple[Phase, ...] | None = None
    # Number of this note's first line among the lines of the attempt, so that a repeated note does no harm.
    seq: int = 0
    lines: tuple[tuple[int, str, str], ...] = ()


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Newest moment first, or oldest. `since` and `until` bound fire_at, both inclusive.

    None in `states` and `verdicts` means all. `was_rerun`: whether a run of cause rerun was caused by this one.
    """

    ids: tuple[str, ...] | None = None
    # A prefix of the id.
    id_prefix: str | None = None
    schedule_key: str | None = None
    task: str | None = None
    states: tuple[State, ...] | None = None
    verdicts: tuple[Verdict, ...] | None = None
    labels: dict[str, str] = {}
    was_rerun: bool | None = None
    since: int | None = None
    until: int | None = None
    # For runs only: the limit then cuts off the newest.
    is_oldest_first: bool = False
    limit: int = 100

    @property
    def fits_live(self) -> bool:
        """Whether a live run can match: it has no verdict, and was not rerun."""
        has_state = self.states is None or any(state is not State.DONE for state in self.states)
        return has_state and self.verdicts is None and not self.was_rerun

    @property
    def fits_done(self) -> bool:
        return self.states is None or State.DONE in self.states


# --- messages ----------------------------------------------------------------------------------------------------


class MessageClaim(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    messages: list[ClaimedMessage]
    # When the next waiting message of these channels is due (None: none waits; <= now: more are waiting).
    next_due_at: int | None


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. None in `states` means all."""

    ids: tuple[str, ...] | None = None
    # A prefix of the id.
    id_prefix: str | None = None
    channel: str | None = None
    # The key within that channel.
    key: str | None = None
    states: tuple[MessageState, ...] | None = None
    limit: int = 100


class ChannelPulse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one channel. Counts stop at their bound."""

    channel: str
    waiting: int
    sending: int
    dead: int
    # The due time of the waiting message that is due first. Every failed attempt moves the due time of its message.
    oldest_due_at: int | None
    # When the oldest message was written whose attempts have failed and which is tried again.
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
    # The channels whose messages this node delivers.
    channels: tuple[str, ...] = ()
    # Tasks that it knows but leaves to other nodes, each with its driver. For display: the node claims none of them.
    leaves: Mapping[str, str] = {}


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """is_alive False: this incarnation was declared dead and never returns."""

    now: int
    is_alive: bool
    # Ids of the node's running runs with a cancel request.
    cancels: list[str]
    # Whether recovery may have work: a lease has expired, or the app has a running run or a run in a node's own queue.
    # A store that does not know returns True.
    has_charges: bool = True
    # Whether a dispatched run of the app is overdue, and whether one of those has a cancel request. Nodes that read the
    # reports handle the first, any node the second (`check_dispatched`). A store that does not know returns True.
    has_dispatched: bool = True
    has_dispatched_cancels: bool = True
    # Whether any duty of the app is free (`hold_duties`). A store that does not know returns True.
    has_free_duties: bool = True


class DutyHold(msgspec.Struct, frozen=True, kw_only=True):
    """A duty as seen by the nodes that declare it."""

    name: str
    # The living node that holds it; None if it is free.
    node: str | None
    # Grows by one each time a node takes the duty, and never decreases.
    term: int
    # When its current or last holder planned to act next.
    next_at: int | None
    error: str | None


class DutyHolds(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    duties: list[DutyHold]

    def are_all_held(self, names: Sequence[str]) -> bool:
        return len(self.duties) == len(set(names)) and all(duty.node is not None for duty in self.duties)


class DutyTick(msgspec.Struct, frozen=True, kw_only=True):
    """A tick of a duty, written by its holder."""

    name: str
    term: int
    # True: the duty has just acted. False: only `next_at` or `error` has changed.
    has_acted: bool
    next_at: int | None
    error: str | None


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the app, for health checks and for display."""

    now: int
    waiting: int
    running: int
    parked: int
    blocked: int
    # Dispatched to an external queue.
    dispatched: int = 0
    oldest_due_at: int | None
    schedules: int
    # Failed and lost runs that ended within the last hour (`FAILED_WINDOW`) and whose moment is less than two days old,
    # counted by schedule, or by task for runs without one; highest first. Only the newest thousand of both are counted.
    # A run is not counted if a rerun of it is live or was executed; the rerun counts in its place.
    failed: Mapping[str, int] = {}
    lost: Mapping[str, int] = {}


# The loops of a node by name: microseconds since the last successful step (None: none yet), and until the next planned
# step (None: a step is in progress). Relative to the heartbeat, so that no two clocks are compared.
Ticks = Mapping[str, tuple[int | None, int | None]]
NO_TICKS: Ticks = {}


class HeartbeatSession(Protocol):
    """The heartbeat's own connection, so that no other statement delays it. Used by one thread only."""

    async def beat(self, node: str, lease: int, ticks: Ticks = NO_TICKS) -> Beat:
        """Extend the lease from the store's now, unless the node was declared dead; store its ticks for display."""
        ...

    async def die(self, node: str) -> None:
        """Declare this node dead, by itself (the event loop is stuck). Other nodes recover its runs."""
        ...

    async def resign(self, node: str) -> None:
        """Resign all duties of this node (the event loop is stuck); the node lives on."""
        ...

    async def close(self) -> None: ...


# --- feed --------------------------------------------------------------------------------------------------------


class FeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one kind from one transaction, as `evertick.feed` reads them."""

    txid: int
    seq: int
    at: int
    kind: str
    body: str


class FeedRead(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a feed, and its bounds at the same moment: nothing before `first` is kept, and every later event is at
    or after `end`."""

    now: int
    first: Cursor
    end: Cursor
    rows: list[FeedRow]


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a feed, for display."""

    now: int
    # How long events are kept.
    kept: int
    # The time of the oldest event that readers cannot see yet because an older transaction is still open, and a
    # description of that transaction. None if there is none.
    held_at: int | None = None
    holder: str | None = None


# --- transactions of users ---------------------------------------------------------------------------------------


class Within(Protocol):
    """Intents inside a transaction of the user, on the user's connection to this store. The user commits or rolls back.

    Each intent is all or nothing: an error leaves the user's transaction as it was. On a synchronous connection
    (`is_async` False) nothing waits for an event loop, so that synchronous code can run these coroutines to their end.
    Raises `Refused` for a connection to another database, and for one that has no open transaction and begins none by
    itself.
    """

    @property
    def is_async(self) -> bool: ...

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        """Like `Store.enqueue`. The user's commit makes the runs visible and wakes the nodes."""
        ...

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        """Like `Store.send`. The user's commit sends the messages; a rollback discards them."""
        ...

    async def finish(self, app: str, node: str, outcome: Outcome) -> FinishAnswer:
        """Like `Store.finish`, for one run. The user's commit ends the run; after a rollback it is still running."""
        ...


class JobTransaction(Protocol):
    """A transaction that the store opens for a job: the job's rows and the end of its run are written together or not
    at all.

    After its time limit it is rolled back, even while the job uses it. Then `commit` raises `TransactionTimeout`, and
    so does the connection or, if that can only raise errors of its driver, `rollback`. Synchronous ones never wait for
    an event loop, like `Within`.
    """

    async def begin(self, app: str, node: str, run: str, fence: int) -> Any:
        """A connection in a writable transaction. None if (node, fence) does not hold the run."""
        ...

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        """Write the outcome, unless it is written already, and commit. False: the claim is lost; rolled back."""
        ...

    async def rollback(self) -> None: ...


class Store(Protocol):
    """The ledger. It connects lazily. Every intent may be called from any event loop of the process that opened it."""

    @property
    def id(self) -> str:
        """The id of the ledger, set by its first migration: letters, digits, "_" and "-". Known while it is open."""
        ...

    async def open(self, *, migrate: MigrateMode) -> None:
        """Connect, and check or apply migrations. Refuses a store whose `compatible_from` is newer than this code."""
        ...

    async def close(self) -> None: ...

    async def now(self) -> int:
        """The store's time."""
        ...

    async def heartbeat_session(self) -> HeartbeatSession:
        """A connection for the calling thread."""
        ...

    async def changed(self, app: str, timeout: float) -> News | None:
        """Wait until another process may have written something of this app. None: `timeout` seconds have passed.

        Only a hint: it may come for a write of another app, or report more than was written.
        """
        ...

    # schedules

    async def due_schedules(self, app: str, limit: int, after: DuePlace = FIRST_PLACE) -> Due:
        """The schedules that are due by the store's clock, longest due first, then by id.

        `after`: return only schedules after this place in that order.
        """
        ...

    async def stored_schedules(
        self, app: str, *, ids: Sequence[int] = (), keys: Sequence[str] = ()
    ) -> list[StoredSchedule]:
        """Schedules by id or key. Those in a newer format, which this code cannot read, are left out."""
        ...

    async def declared_schedules(self, app: str) -> list[StoredSchedule]:
        """All schedules that are or were declared."""
        ...

    async def fingerprints(self, app: str) -> dict[str, int]:
        """Each fingerprint in use, with the id of one schedule that has it."""
        ...

    async def computed_with(self, app: str, fingerprint: str, *, after: int, limit: int) -> list[StoredSchedule]:
        """Schedules whose cursor was computed with this fingerprint, by id, from the id after `after`."""
        ...

    async def record_fires(self, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
        """Apply plans: at most one run per (schedule, fire_at); cursor and rows are written in one transaction.

        - Runs with `is_claimed` are inserted as running on `node` under one new fence. If that node is dead, they are
          inserted as waiting, and the fence is 0.
        - A run that exists already (same id, or same nominal moment) is left out. This is not an error.
        - Runs in state blocked are blocked on the schedule's newest live run that no other run is blocked on, so they
          form a line. If no run is live, they are inserted as waiting. When a run in the middle of the line ends, the
          run behind it is blocked on the run before it.
        - `fires` counts runs of cause fire, and moments of cause every-node.
        - The end of a pause raises the version, and so do changed `occurrences`.
        - A fire whose unique key is taken becomes a gap, skipped for the reason in `NewRun.if_taken`.
        """
        ...

    async def change_schedules(
        self, app: str, changes: Sequence[Change], *, all_or_none: bool = False, calendars: Sequence[NewCalendar] = ()
    ) -> list[bool]:
        """Apply changes by users. False: the guard did not match (or the key is taken, for an add); read and try again.

        - With `all_or_none`, one False means that nothing was written.
        - Each applied change raises the version. Old definitions are kept for the runs that were recorded under them.
        - `calendars` are stored in the same transaction, as by `put_calendar`.
        - A resume may carry a new definition and declaration.
        - A remove cancels the schedule's waiting, blocked and parked runs. Running runs continue, and history stays.
        """
        ...

    async def schedules(self, app: str, wanted: ScheduleFilter) -> list[Schedule]:
        """For display, by key."""
        ...

    async def failing(self, app: str, *, ids: Sequence[int] | None = None, limit: int = 1000) -> list[Failing]:
        """Schedules with `pause_after` N, not paused, whose newest N counted fires have all failed or were lost.

        Fires that succeeded, failed or were lost count, in the order of their moments. Fires recorded before the last
        change of the definition, or before the end of the last pause, do not. `ids` None: all schedules of the app.
        """
        ...

    async def calendar_users(self, app: str, name: str, *, limit: int = 1000) -> list[str]:
        """Keys of the schedules that use a calendar in their rule or as their blackout, by key."""
        ...

    async def remove_calendar(self, app: str, name: str) -> bool:
        """Remove a calendar. False: a schedule uses it, or the name is unknown; nothing was removed."""
        ...

    async def calendars(self, app: str) -> dict[str, bytes]:
        """The newest version of every named calendar."""
        ...

    async def put_calendar(self, app: str, name: str, version: str, content: bytes) -> None:
        """Store a calendar under its name. Equal content changes nothing."""
        ...

    # runs

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        """Insert runs, all or none. If the id is known or the unique key is taken, the answer is the existing run.

        A key is taken while a live run has it (with `unique_until` "start": until the first claim of that run), and for
        `unique_for` from the insertion, as long as the ledger knows that run.
        """
        ...

    async def claim(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
    ) -> Claim:
        """Claim up to `limit` due waiting runs: highest priority first, then longest due. A dead node gets none.

        Runs of a task with a limit are claimed only while fewer than `concurrency` runs of their key are running, and
        fewer than `rate` runs of their key were claimed within any period. Only a claim passes a limit, and every claim
        counts. The other runs become blocked, and return to waiting when their key is free, so that a limited task at
        the head of the queue does not delay the runs behind it.

        The limits of the claiming node apply. After a `join` with other limits, or the death of a node with other
        limits, the claims of a node also check blocked runs again, a bounded number of keys per claim, and take those
        that its own limits allow. While keys are left to check, `next_due_at` is not after `now`.

        Runs in a newer `format` are ignored. A run in a known format that cannot be read is parked (`unreadable`), with
        the error; the claim continues with the others.
        """
        ...

    async def finish(self, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
        """Write outcomes, each only if (node, fence) still holds the run.

        - done: the outcome was applied. An ended run moves to history, unblocks the runs that were blocked on it, and
          sets the cursor of an after-end schedule. A cancelled outcome without a reason gets that of the request.
        - already: this outcome was written before, and its answer was lost.
        - lost: the claim no longer holds the run; nothing was written.

        Release and park do not change the count of attempts. A dispatch leaves the run without a node: it keeps its
        fence, and counts as running for limits, unique keys and overlap. The messages of an outcome are written with it
        or not at all. If a field of an outcome cannot be stored, the rest is written with an error that says so, and
        the other outcomes are not affected. Phases of an outcome are those of its attempt; if it has none, those of its
        notes are kept.
        """
        ...

    async def apply_reports(self, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
        """Apply reports of workers on dispatched runs, each only if the run is dispatched under that fence.

        The caller need not know the task, because the run's row has the terms of the dispatch. Several reports on one
        run are applied in their order.

        - pushed: `ack_timeout` starts; mode forget ends as succeeded.
        - taken, or the first report of another kind: the time allowed between reports starts; mode ack ends as
          succeeded.
        - progress: that time starts again, unless a cancel was requested.
        - finish, skip: the run ends.
        - fail, undelivered: the attempt is spent; the run is retried by its terms, or ends as failed.
        - release: the run returns to waiting, and no attempt is spent.

        After a cancel request, fail, undelivered and release end the run as cancelled.
        """
        ...

    async def check_dispatched(self, app: str, limit: int, windows: Mapping[str, ReportWindow]) -> DispatchesChecked:
        """Settle up to `limit` dispatched runs that are overdue by the store's clock or have a cancel request.

        `windows`: by channel, the period in which the caller read all reports. A caller that missed reports cannot
        declare a worker silent. So runs of other channels are ignored, and so are runs that became overdue after the
        window; a run whose timeout began before the window is postponed until a whole timeout was read. Cancel
        requests are handled by any caller.

        A run that no worker took in time returns to waiting; a run whose worker fell silent does so with a loss. A run
        that must not run twice, or that was lost too often, ends as lost.

        A run to be cancelled ends at once, and its message is deleted, if the message is still in the outbox.
        Otherwise, if there is a kill channel, a message on it tells the worker to stop. The run ends as cancelled at
        once if, by all reports, no worker has it; otherwise when the worker confirms, or when its time to stop is over.

        A run whose message was not delivered yet has no timeout: an unreachable queue delays it and costs no loss.
        """
        ...

    def within(self, connection: object) -> Within:
        """Work in the user's transaction. `connection`: a driver connection, or a wrapper around one. Does no I/O."""
        ...

    def transaction(self, *, seconds: float, is_plain: bool) -> JobTransaction:
        """A transaction for a job, rolled back after `seconds`. `is_plain`: for code without an event loop."""
        ...

    async def owned(self, app: str, node: str) -> list[Owned]:
        """Runs that the node holds, by the store's rows."""
        ...

    async def cancel(self, app: str, ids: Sequence[str], reason: str) -> list[Cancelled]:
        """End runs that are not running, and request the cancel of others. `check_dispatched` ends dispatched runs."""
        ...

    async def note(self, app: str, node: str, notes: Sequence[Note]) -> list[str]:
        """Write progress, phases and log lines of running runs. Returns the ids that the node no longer holds.

        Lines of a run that the same claim has ended as succeeded are written too, because a job may end its own run. A
        note that cannot be stored is left out; the others are written.
        """
        ...

    async def runs(self, app: str, wanted: RunFilter) -> list[Run]: ...

    async def recorded_moments(self, app: str, schedule_id: int, *, first: int, last: int, limit: int) -> list[int]:
        """Nominal moments in [first, last] that have a run of cause fire, backfill or every-node, oldest first."""
        ...

    async def gaps(self, app: str, wanted: RunFilter) -> list[Gap]:
        """Gaps that overlap the period of the filter, newest first. Filters that only runs have match no gap."""
        ...

    async def attempts(self, app: str, run: str) -> list[Attempt]:
        """Earlier attempts, oldest first. Released and lost ones are included if they had phases; their `number` is
        that of the attempt that follows."""
        ...

    async def log(self, app: str, run: str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Log lines in order, without the first `after`."""
        ...

    # messages

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        """Write messages to the outbox, all or none. If the id or the key of the channel is known, the answer is the
        existing message: waiting, sending, sent and remembered, or dead."""
        ...

    async def claim_messages(
        self, app: str, node: str, channels: Mapping[str, int], held: Sequence[str]
    ) -> MessageClaim:
        """Claim due messages, longest due first, as many per channel as it has room for. A dead node gets none.

        First it makes abandoned messages due again: those of a dead or missing node, which costs an attempt, and those
        that this node holds in the store but not in `held` (the answer of their claim was lost), which costs none.
        Messages in a newer `format` are ignored. A message in a known format that cannot be read becomes dead.
        """
        ...

    async def settle_messages(self, app: str, node: str, outcomes: Sequence[MessageOutcome]) -> list[FinishAnswer]:
        """Write the outcomes of messages, each only if (node, fence) still holds it. Answers as in `finish`."""
        ...

    async def messages(self, app: str, wanted: MessageFilter) -> list[Message]: ...

    async def channels(self, app: str) -> list[ChannelPulse]:
        """The channels that have unsent messages, by name."""
        ...

    async def retry_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        """Make dead and waiting messages due now; dead ones start with no attempt spent. Returns their ids.

        Ignores a message that dispatches a run which is no longer dispatched by it.
        """
        ...

    async def hasten_messages(self, app: str, channel: str, limit: int) -> int:
        """Make up to `limit` messages of a channel due now that failed before and wait for their next attempt. Returns
        their number; fewer than `limit` means that there are no more."""
        ...

    async def drop_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        """Delete waiting and dead messages, with their keys. Returns their ids.

        If one of them was to dispatch a run, the cancel of that run is requested.
        """
        ...

    # nodes

    async def join(self, node: NodeJoin) -> int:
        """Start an incarnation; returns the store's now. Unparks runs that this node can run.

        A repeated join of a living node replaces its queues, tasks and declarations. It keeps its claims.

        If runs of its tasks may be blocked under other limits than its own (`TaskTerms.limits`), or it has no limit for
        them, its claims check those runs again. The join itself does not: its cost does not depend on their number.
        """
        ...

    async def leave(self, node: str) -> None:
        """Stop an incarnation: it is recorded as dead."""
        ...

    async def judge(self, until: int = END_OF_TIME) -> list[str]:
        """Declare dead every node whose lease has expired, or whose last heartbeat is later than now by more than its
        lease (the clock was put back). Returns the nodes that this call declared dead.

        Declares nothing after `until`, by the store's clock: a statement that was delayed, or that met a step of the
        clock, finds every lease expired although all nodes are healthy.
        """
        ...

    async def rehome(
        self,
        app: str,
        node: str,
        queues: Sequence[str],
        tasks: Mapping[str, TaskTerms],
        limit: int,
        until: int = END_OF_TIME,
    ) -> Rehomed:
        """Recover runs whose node is dead or missing and, not after `until` (see `judge`), runs of living nodes that
        are long past their deadline.

        Each recovery costs one loss. The calling node claims up to `limit` runs that it can run, except those of tasks
        with a limit; the others return to waiting. A run that must not run twice, or that was lost too often, ends as
        lost. A run with a cancel request ends as cancelled.

        Runs in the own queue ("@" and the id) of a dead or missing node were for that node only: claimed or not, they
        end as lost(node_gone), and no other node gets them.
        """
        ...

    async def nodes(self, app: str) -> list[Node]: ...

    # duties

    async def hold_duties(self, app: str, node: str, names: Sequence[str]) -> DutyHolds:
        """Take those of the named duties that are free, and return the state of each named duty.

        A duty is held until its node is declared dead or resigns. Each take raises its term by one; the term never
        decreases, even if the duty was pruned meanwhile. A dead node gets none. Writes nothing if none is free.
        """
        ...

    async def tick_duty(self, app: str, node: str, tick: DutyTick) -> bool:
        """Record the last and the next act of a duty. False: the node does not hold it under that term."""
        ...

    async def resign_duties(self, app: str, node: str, terms: Mapping[str, int]) -> None:
        """Resign duties, each only if held under that term, and wake the nodes that may take them."""
        ...

    async def duties(self, app: str) -> list[Duty]:
        """For display, by name."""
        ...

    # feed

    async def keep_feed(self, app: str, kept: int | None) -> None:
        """Record every event of the app from now on, on all nodes, and keep each for `kept`. None: stop, and delete the
        feed. Starts a new feed only if there was none; otherwise only the time is changed."""
        ...

    async def feed(
        self, app: str, *, start: Cursor | None, since: int | None, kinds: Sequence[str] | None, limit: int
    ) -> FeedRead | None:
        """Rows of the feed from `start` (None: from the first), of these kinds, written at `since` or later.

        The order never changes, and no event is added before an event that was returned: an event whose transaction
        commits late is returned late, but never skipped. Events are written in the transaction of the change they
        report. None: the app has no feed.
        """
        ...

    async def feed_state(self, app: str) -> FeedState | None: ...

    # upkeep

    async def park_unknown(self, app: str, limit: int) -> int:
        """Park due waiting runs whose task no living node knows; unpark those whose task is known again.

        Runs in a node's own queue are not parked: `rehome` ends them.

        Also releases runs that are blocked by a limit although nothing of their key is running or about to run. Claim
        and finish leave no such runs, but older code or a clock that was put back may have.
        """
        ...

    async def prune(self, app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        """Delete up to `limit` old rows: history (with its attempts and log lines), gaps, dead nodes, finished one-shot
        schedules, starts that no rate counts any more, unique keys whose period is over, unused duties, and messages
        and feed events that are no longer kept.

        Returns the number of deleted rows. A store may drop old history by whole partitions, which are not counted, and
        for that keep up to two days more. `keep_per_schedule` None: a default of the store.
        """
        ...

    async def pulse(self, app: str) -> Pulse: ...

    async def apps(self, *, limit: int = 100) -> list[str]:
        """The apps by name: each that has a schedule, a node, a waiting run or a finished run."""
        ...


# --- a wrong clock ------------------------------------------------------------------------------------------------


class GapAhead(msgspec.Struct, frozen=True, kw_only=True):
    """A gap that was recorded at a time in the future."""

    id: int
    schedule_id: int
    key: str
    first_at: int
    last_at: int


class GapCut(msgspec.Struct, frozen=True, kw_only=True):
    """How to cut a gap: it ends at `last_at`. With a count of 0 it is deleted, because none of its moments has come."""

    id: int
    last_at: int
    count: int
    is_exact: bool


class ClockTraces(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an app that were written while the store's clock was ahead."""

    now: int
    # The earliest and the latest time, both in the future, at which they say that they were written. None: no such row.
    first_at: int | None = None
    last_at: int | None = None
    # The number of rows to repair, by kind; counted up to the limit.
    rows: Mapping[str, int] = {}
    gaps: tuple[GapAhead, ...] = ()


@runtime_checkable
class ClockRepair(Protocol):
    """An optional part of a store: repairs rows that were written while its clock was ahead."""

    async def clock_traces(self, app: str, *, limit: int) -> ClockTraces:
        """Find up to `limit` rows of each kind. Reads all live rows and history: for operators, not for loops.

        A row was written while the clock was ahead if its time of writing is later than now by `CLOCK_AHEAD`. A waiting
        run or message is affected if it was inserted while the clock was ahead, or if it is due after such a time and
        was tried, released or delayed before.
        """
        ...

    async def mend_times(self, app: str, gaps: Sequence[GapCut], *, traces: ClockTraces, limit: int) -> dict[str, int]:
        """Repair up to `limit` rows of each kind; returns their number by kind. Empty when nothing is left to repair.

        Rows that wait for a time in the future become due now or, if they were never tried, after their original delay.
        The times of past events that lie in the future become now; durations stay. A run whose moment has not come is
        detached from that moment: its cause becomes trigger. A node that holds a run keeps it. `traces`: what was found
        before the first call. Waiting rows are repaired first, then the rows that prove the wrong time.
        """
        ...


# Rows have times up to now; a small step of a clock is no evidence.
CLOCK_AHEAD = 60_000_000
# No message or run that was tried before waits longer than this.
CLOCK_FAR = 366 * 86_400_000_000


# --- maintenance --------------------------------------------------------------------------------------------------


class TableRows(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows of a table. `is_exact` False: counting stopped at its bound."""

    name: str
    rows: int
    is_exact: bool = True


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server's storage options of a table, and those that the migrations set."""

    name: str
    options: dict[str, str]
    migrated: dict[str, str] = {}


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the database itself. None: the store has no such value, or it is unknown."""

    description: str
    # Name and version, like "SQLite 3.46.1".
    engine: str
    store_id: str | None
    # The migration it has, the newest migration of this code, and the names of those it lacks.
    version: int
    version_known: int
    missing: tuple[str, ...] = ()
    bytes: int
    # Size of the write-ahead log.
    wal_bytes: int | None = None
    journal_mode: str | None = None
    page_bytes: int | None = None
    pages: int | None = None
    free_pages: int | None = None
    # How free pages return to the file system: incremental (in steps), full (at every commit), or none.
    vacuum: Literal["incremental", "full", "none"] | None = None
    disk_free_bytes: int | None = None
    file_system: str | None = None
    is_on_network: bool = False
    tables: tuple[TableRows, ...] = ()
    options: tuple[TableOptions, ...] = ()
    # The oldest moment in history, of all apps.
    oldest_at: int | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Problems of the database, one sentence each. `is_complete` False: the check ran out of time."""

    problems: tuple[str, ...]
    is_complete: bool = True


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """Pages that one step returned to the file system, and how many free pages are left."""

    pages: int
    pages_left: int


class Maintenance(Protocol):
    """Maintenance of the database, for operators. Works on a store that is not open, because one that cannot be opened
    needs it most."""

    async def status(self) -> StoreStatus: ...

    async def check(self, *, is_quick: bool = False, seconds_most: float | None = None) -> Checked:
        """Check the tables against this code, and the integrity of the file. `is_quick`: do not compare indexes."""
        ...

    async def migrate(self) -> list[str]:
        """Apply missing migrations; returns the names of those applied by this call."""
        ...

    async def give_back(self, pages_most: int) -> Freed:
        """Return up to `pages_most` free pages to the file system. Refused if the file was not created for it."""
        ...

    async def rewrite(self) -> None:
        """Rewrite the whole database without free space. Blocks all other writes."""
        ...

    async def backup(self, path: str) -> int:
        """Write a consistent copy to a new file while other processes continue; returns its size in bytes. Refused if
        the database has its own tools for that."""
        ...


@runtime_checkable
class Maintainable(Protocol):
    """A store with maintenance, which is optional."""

    def maintenance(self) -> Maintenance: ...


class OpensStore(Protocol):
    """The factory of a store under the entry point `evertick.stores`: takes its URL and the clock."""

    def __call__(self, url: str, *, clock: Any, is_inline: bool = False) -> Store: ...
