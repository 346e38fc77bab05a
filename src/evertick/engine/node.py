"""The state that the loops of a node share: its identity, its tasks, the runs it holds.

The id of a node is its incarnation. A node that was declared dead starts again under a new id and loses the runs of the
old one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from evertick.clock import Clock
from evertick.driver.base import ReportSource, Sender, Work
from evertick.engine.judge import Stop
from evertick.errors import StoreUnavailable
from evertick.job.context import JobRecord
from evertick.model import Claimed, Run, Verdict
from evertick.model.every_node import own_queue
from evertick.model.hooks import Event, EventKind, Hooks
from evertick.model.limits import Rate
from evertick.store.base import NodeJoin, RunFilter, Store, TaskTerms
from evertick.text.log_level import LogSummary
from evertick.when.moment import from_us

__all__ = [
    "EVENT_OF",
    "GATHER_SECONDS",
    "Attempt",
    "ClaimLock",
    "Hold",
    "LocalNode",
    "declarer_of",
    "ended_event",
    "event_of",
    "runs_for_log",
]

# A claim, or a write of outcomes, costs about the same for one run and for fifty. Under load, free slots and outcomes
# therefore gather until there is one for every _SLOTS_PER_BATCH slots, or for GATHER_SECONDS. The first never waits.
_SLOTS_PER_BATCH = 8
GATHER_SECONDS = 0.005


class Attempt(msgspec.Struct, eq=False):
    """A run that this node has claimed."""

    run: Claimed
    work: Work
    record: JobRecord
    # The incarnation that claimed it; only that one may write its outcome.
    node: str
    task: asyncio.Task[None] | None = None
    # Why it was stopped.
    why: Stop | None = None
    # Whether it has a slot; before that it waits for one.
    has_slot: bool = False
    # The work has ended and the slot is free.
    is_over: bool = False
    # The work did not stop when asked; its outcome was recorded without it.
    is_abandoned: bool = False


class Hold:
    """The attempts of this node, from the answered claim to the answered outcome, and their slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._busy = 0
        # Attempts without a slot.
        self._waiting = 0
        # Attempts that did not stop when asked.
        self.abandoned: list[Attempt] = []

    @property
    def free(self) -> int:
        """Idle slots that no attempt waits for."""
        return max(self.room, 0)

    @property
    def room(self) -> int:
        """Idle slots minus waiting attempts; may be negative."""
        return self.idle - self._waiting

    @property
    def idle(self) -> int:
        """Slots without work."""
        return self.capacity - self._busy

    @property
    def busy(self) -> int:
        return self._busy

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    def __len__(self) -> int:
        return len(self._attempts)

    def with_ids(self, run_ids: Collection[str]) -> list[Attempt]:
        return [attempt for attempt in self._attempts.values() if attempt.run.id in run_ids]

    def take(self, attempt: Attempt) -> None:
        claim = (attempt.run.id, attempt.run.fence)
        assert claim not in self._attempts, "a claim is started once"
        self._attempts[claim] = attempt
        self._waiting += 1

    def give_slot(self, attempt: Attempt) -> None:
        assert not attempt.has_slot, "a slot is given once"
        assert self.idle > 0, "no more is at work than there are slots"
        attempt.has_slot = True
        self._waiting -= 1
        self._busy += 1

    def work_ended(self, attempt: Attempt) -> None:
        """Free the slot of the attempt, or its place among the waiting."""
        assert not attempt.is_over, "a slot is freed once"
        attempt.is_over = True
        if attempt.has_slot:
            self._busy -= 1
        else:
            self._waiting -= 1
        if attempt.is_abandoned:
            self.abandoned.remove(attempt)

    def abandon(self, attempt: Attempt) -> None:
        attempt.is_abandoned = True
        self.abandoned.append(attempt)

    def forget_attempt(self, attempt: Attempt) -> None:
        """Forget an attempt whose outcome is settled."""
        self._attempts.pop((attempt.run.id, attempt.run.fence), None)


class ClaimLock(asyncio.Lock):
    """A fair lock that shows whether others wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = 0

    @property
    def is_wanted(self) -> bool:
        return self._waiting > 0

    async def acquire(self) -> Literal[True]:
        self._waiting += 1
        try:
            return await super().acquire()
        finally:
            self._waiting -= 1


class _Starts:
    """The times of the last starts of one rate key, by `clock.elapsed`."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._at: deque[float] = deque(maxlen=rate.most)

    def room(self, now: float) -> int:
        period = self.rate.period / 1e6
        while self._at and self._at[0] <= now - period:
            self._at.popleft()
        return self.rate.most - len(self._at)

    def rest(self, now: float) -> float:
        """Seconds until the next start is allowed."""
        return 0.0 if self.room(now) > 0 else self._at[0] + self.rate.period / 1e6 - now

    def add(self, now: float) -> None:
        self._at.append(now)


class OwnRates:
    """Rates that this node counts in memory (`rate_limits="memory"`), without writes to the store.

    N nodes together start N times as many runs, and a restart forgets earlier starts. Within a node the promise is the
    store's: no window of one period has more starts than the rate.
    """

    def __init__(self, clock: Clock, terms: Mapping[str, TaskTerms]) -> None:
        self._clock = clock
        by_key: dict[str, _Starts] = {}
        self._starts: dict[str, _Starts] = {}
        for task, each in terms.items():
            if each.rate is not None:
                # Keys with arguments are rejected at definition: only a claim knows the arguments.
                self._starts[task] = by_key.setdefault(each.rate.key(None), _Starts(each.rate))

    def of(self, terms: Mapping[str, TaskTerms]) -> OwnRates:
        """The rates of changed tasks. Earlier starts count where the rate of a key is unchanged."""
        rates = OwnRates(self._clock, terms)
        before = {starts.rate.key(None): starts for starts in self._starts.values()}
        for task, starts in rates._starts.items():
            known = before.get(starts.rate.key(None))
            if known is not None and known.rate == starts.rate:
                rates._starts[task] = known
        return rates

    def __contains__(self, task: str) -> bool:
        return task in self._starts

    def without_rate(self, task: str, terms: TaskTerms) -> TaskTerms:
        return msgspec.structs.replace(terms, rate=None) if task in self._starts else terms

    def without_any(self, terms: Mapping[str, TaskTerms]) -> Mapping[str, TaskTerms]:
        if not self._starts:
            return terms
        return {task: each for task, each in terms.items() if task not in self._starts}

    def admit(self, terms: Mapping[str, TaskTerms], room: int) -> tuple[Mapping[str, TaskTerms], int]:
        """The tasks that may be claimed now, and the most runs that each of them may start.

        If that is less than the room, the next claim follows at once, without the tasks that have reached their rate.
        """
        if not self._starts:
            return terms, room
        now = self._clock.elapsed()
        rooms = {task: starts.room(now) for task, starts in self._starts.items()}
        admitted = {task: each for task, each in terms.items() if rooms.get(task, room) > 0}
        return admitted, min([room, *(rooms[task] for task in rooms if rooms[task] > 0)])

    def started(self, runs: Iterable[Claimed]) -> None:
        # Counted after the answer of the claim: counted earlier, the next start could be too early.
        now = self._clock.elapsed()
        for run in runs:
            if run.task in self._starts:
                self._starts[run.task].add(now)

    def rests(self) -> list[float]:
        """Seconds until each rate that is used up allows a start."""
        now = self._clock.elapsed()
        rests = [starts.rest(now) for starts in self._starts.values()]
        return [max(rest, 0.001) for rest in rests if rest > 0]


EVENT_OF: dict[Verdict, EventKind] = {
    Verdict.SUCCEEDED: "succeeded",
    Verdict.FAILED: "failed",
    Verdict.CANCELLED: "cancelled",
    Verdict.SKIPPED: "skipped",
    Verdict.MISSED: "missed",
    Verdict.LOST: "lost",
}


def declarer_of(node_name: str) -> str:
    """The program that declares a schedule: the node name without its host, which changes with each rollout."""
    return node_name.partition("@")[0]


class LocalNode:
    """The state that all loops of the engine share."""

    def __init__(
        self,
        *,
        name: str,
        app: str,
        version: str,
        store: Store,
        clock: Clock,
        works: Mapping[str, Work],
        queues: Sequence[str],
        concurrency: int,
        lease: int,
        hooks: Hooks,
        declares: Mapping[str, str],
        senders: Mapping[str, Sender] | None = None,
        sources: Sequence[ReportSource] = (),
        leaves: Mapping[str, str] | None = None,
        has_own_rates: bool = False,
        batch_size: int = 1_000,
    ) -> None:
        self.name, self.app, self.version = name, app, version
        self.store, self.clock = store, clock
        self.works = works
        self.queues = tuple(queues)
        self.lease = lease
        self.hooks = hooks
        self.declares = dict(declares)
        # Senders by channel.
        self.senders: Mapping[str, Sender] = senders or {}
        # Where workers report on dispatched runs.
        self.sources = tuple(sources)
        # Tasks that this node leaves to others, each with the driver that is not enabled here.
        self.leaves: Mapping[str, str] = leaves or {}
        self.hold = Hold(concurrency)
        # The most fires, claims or outcomes in one transaction.
        self.batch_size = batch_size
        self.id = clock.new_token()
        self._has_own_rates = has_own_rates
        # Rates counted in memory; the store does not see them.
        self.rates = OwnRates(clock, {})
        self.terms: dict[str, TaskTerms] = {}
        self._learn_terms(works)
        # Held during each claim, and while the node compares its runs with the store: a claim whose answer has not
        # arrived would look like a claim that the node does not hold.
        self.claiming = ClaimLock()
        # Limits log lines that would repeat per run or batch.
        self.summary = LogSummary(clock.elapsed)
        self.is_draining = False
        # Running work was cut off: runs claimed from now on are released.
        self.is_closed = False
        # Until then, by `clock.elapsed`, no node can have declared this one dead. Counted from sending the heartbeat.
        self.trusted_until = 0.0

    def know(
        self,
        works: Mapping[str, Work],
        declares: Mapping[str, str],
        senders: Mapping[str, Sender],
        sources: Sequence[ReportSource],
        leaves: Mapping[str, str],
    ) -> None:
        """Replace tasks and declarations. Runs claimed before keep their old tasks; reports on dispatched runs are
        still read."""
        # A claim in flight may return runs of a removed task, which still need their work.
        self.works = {**self.works, **works}
        self.declares, self.leaves = dict(declares), leaves
        self.senders = {**self.senders, **senders}
        known = {id(source) for source in self.sources}
        self.sources = (*self.sources, *(source for source in sources if id(source) not in known))
        self._learn_terms(works)

    def _learn_terms(self, works: Mapping[str, Work]) -> None:
        terms = {task: work.terms for task, work in works.items()}
        self.rates = self.rates.of(terms if self._has_own_rates else {})
        self.terms = {task: self.rates.without_rate(task, each) for task, each in terms.items()}
        # See `RunQueue`.
        self.may_claim_ahead = not any(each.at_most_once or self.is_limited(task) for task, each in self.terms.items())

    @property
    def trusted_seconds_left(self) -> float:
        """How long work that must not run twice may continue without a heartbeat: it stops when a third of the lease is
        left, so that it has ended when the lease expires."""
        return self.trusted_until - self.lease / 3e6 - self.clock.elapsed()

    @property
    def is_trusted(self) -> bool:
        return self.trusted_seconds_left > 0

    @property
    def has_lease(self) -> bool:
        """Whether the lease is valid, so that no node can have declared this one dead."""
        return self.clock.elapsed() < self.trusted_until

    def start_incarnation(self) -> None:
        """Start a new incarnation. The old id never returns."""
        self.id = self.clock.new_token()

    @property
    def served(self) -> tuple[str, ...]:
        """The configured queues and the node's own queue."""
        return (*self.queues, own_queue(self.id))

    def is_batch(self, count: int) -> bool:
        """Whether this many free slots or outcomes are worth a statement under load."""
        return count * _SLOTS_PER_BATCH >= self.hold.capacity or count >= self.batch_size

    def rest_for(self, count: int) -> float | None:
        """How long a loop waits that has this many of them left."""
        if count == 0:
            return None
        return 0.0 if self.is_batch(count) else GATHER_SECONDS

    def is_limited(self, task: str) -> bool:
        return self.terms[task].is_limited or task in self.rates

    def joining(self) -> NodeJoin:
        return NodeJoin(
            id=self.id,
            name=self.name,
            app=self.app,
            version=self.version,
            lease=self.lease,
            queues=self.queues,
            tasks=self.terms,
            declares=self.declares,
            channels=tuple(sorted(self.senders)),
            leaves=self.leaves,
        )

    def now(self) -> datetime:
        return from_us(self.clock.now_us())

    def tell(self, kind: EventKind, run: Claimed, *, reason: str | None = None, error: str | None = None) -> None:
        """Call hooks for a run of this node."""
        if kind in self.hooks.wanted:
            self.hooks.tell(
                Event(
                    kind=kind,
                    app=self.app,
                    at=self.now(),
                    schedule_key=run.schedule_key,
                    run_id=run.id,
                    task=run.task,
                    fire_at=from_us(run.fire_at),
                    attempt=run.attempts + 1,
                    reason=reason,
                    error=error,
                )
            )

    async def emit_ended(self, run_ids: Sequence[str]) -> None:
        """Call hooks for runs that the store ended: lost with their node, expired, cancelled."""
        if not run_ids or not any(kind in self.hooks.wanted for kind in EVENT_OF.values()):
            return
        for run in await self.store.runs(self.app, RunFilter(ids=tuple(run_ids), limit=len(run_ids))):
            if run.verdict is not None:
                self.hooks.tell(ended_event(run, self.now()))


def ended_event(run: Run, at: datetime) -> Event:
    assert run.verdict is not None, "the run has ended"
    return event_of(EVENT_OF[run.verdict], run, at)


def event_of(kind: EventKind, run: Run, at: datetime) -> Event:
    return Event(
        kind=kind,
        app=run.app,
        at=at,
        schedule_key=run.schedule_key,
        run_id=run.id,
        task=run.task,
        fire_at=run.fire_at,
        attempt=run.attempts,
        reason=run.reason,
        error=run.error,
    )


async def runs_for_log(node: LocalNode, ids: Sequence[str]) -> dict[str, Run]:
    """Runs by id, for log lines. Empty if the store is unavailable."""
    if not ids:
        return {}
    try:
        wanted = tuple(dict.fromkeys(ids))
        return {run.id: run for run in await node.store.runs(node.app, RunFilter(ids=wanted, limit=len(wanted)))}
    except StoreUnavailable:
        return {}
