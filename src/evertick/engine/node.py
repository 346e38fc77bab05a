"""This node, as its loops share it: who it is, what it can run, what it holds.

A node's id is its incarnation. When the store says it is dead it comes back under another id; what the old one held is
no longer its own.
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
    "runs_told_of",
]

# A claim, or a write of outcomes, costs the store much the same for one run and for fifty. So under load (more is
# waiting, or a write has just ended and there are more outcomes) those that come one by one wait for each other: until
# they are one for so many slots, and for a moment at most. The first one never waits.
_SLOTS_PER_BATCH = 8
GATHER_SECONDS = 0.005


class Attempt(msgspec.Struct, eq=False):
    """A claimed run in the hands of this node."""

    run: Claimed
    work: Work
    record: JobRecord
    # The incarnation that claimed it: only that one may write about it.
    node: str
    task: asyncio.Task[None] | None = None
    # Why it was told to stop.
    why: Stop | None = None
    # Its work takes a slot; before that it waits for one.
    has_slot: bool = False
    # The work has ended and its slot is free.
    is_over: bool = False
    # Its outcome was given without waiting for the work, which did not stop when asked.
    is_abandoned: bool = False


class Hold:
    """The runs this node holds, from the answered claim to the answered outcome, and the slots their work takes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._busy = 0
        # Claimed, and not in a slot yet.
        self._waiting = 0
        # Told to stop, and not back yet.
        self.abandoned: list[Attempt] = []

    @property
    def free(self) -> int:
        """Slots with no run waiting for them."""
        return max(self.room, 0)

    @property
    def room(self) -> int:
        """The same, but less than nothing by as many as wait in vain."""
        return self.idle - self._waiting

    @property
    def idle(self) -> int:
        """Slots in which nothing is at work."""
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
        """The slot is free again, or is not needed any more."""
        assert not attempt.is_over, "a slot is given back once"
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

    def let_go(self, attempt: Attempt) -> None:
        """Nothing is left to be written about it."""
        self._attempts.pop((attempt.run.id, attempt.run.fence), None)


class ClaimLock(asyncio.Lock):
    """First come, first served. Its holder can see whether others wait for it."""

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
    """When the last starts of one key were, by the node's own steady clock."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._at: deque[float] = deque(maxlen=rate.most)

    def room(self, now: float) -> int:
        period = self.rate.period / 1e6
        while self._at and self._at[0] <= now - period:
            self._at.popleft()
        return self.rate.most - len(self._at)

    def rest(self, now: float) -> float:
        """How long until the next start is free; 0: it is."""
        return 0.0 if self.room(now) > 0 else self._at[0] + self.rate.period / 1e6 - now

    def add(self, now: float) -> None:
        self._at.append(now)


class OwnRates:
    """Rates that a node counts by itself (`rate_limits="memory"`): no writes, and no word of them to the store.

    N nodes together start N times as many, and a node that is started again has forgotten what it started before.
    Within a node the promise is that of the store: no stretch of a period holds more starts than the rate says.
    """

    def __init__(self, clock: Clock, terms: Mapping[str, TaskTerms]) -> None:
        self._clock = clock
        by_key: dict[str, _Starts] = {}
        self._starts: dict[str, _Starts] = {}
        for task, each in terms.items():
            if each.rate is not None:
                # A text that names arguments is refused where the task is made: only a claim could tell its key.
                self._starts[task] = by_key.setdefault(each.rate.key(None), _Starts(each.rate))

    def of(self, terms: Mapping[str, TaskTerms]) -> OwnRates:
        """The rates of other tasks. Of a key whose rate is the same, the starts so far still count."""
        made = OwnRates(self._clock, terms)
        before = {starts.rate.key(None): starts for starts in self._starts.values()}
        for task, starts in made._starts.items():
            known = before.get(starts.rate.key(None))
            if known is not None and known.rate == starts.rate:
                made._starts[task] = known
        return made

    def __contains__(self, task: str) -> bool:
        return task in self._starts

    def without_rate(self, task: str, terms: TaskTerms) -> TaskTerms:
        return msgspec.structs.replace(terms, rate=None) if task in self._starts else terms

    def without_any(self, terms: Mapping[str, TaskTerms]) -> Mapping[str, TaskTerms]:
        if not self._starts:
            return terms
        return {task: each for task, each in terms.items() if task not in self._starts}

    def admit(self, terms: Mapping[str, TaskTerms], room: int) -> tuple[Mapping[str, TaskTerms], int]:
        """The tasks that may be claimed now, and how many runs of them at most: as many as each of them may start.

        Where that is less than there is room for, the next claim follows at once, without those that are used up.
        """
        if not self._starts:
            return terms, room
        now = self._clock.elapsed()
        rooms = {task: starts.room(now) for task, starts in self._starts.items()}
        admitted = {task: each for task, each in terms.items() if rooms.get(task, room) > 0}
        return admitted, min([room, *(rooms[task] for task in rooms if rooms[task] > 0)])

    def started(self, runs: Iterable[Claimed]) -> None:
        # Not before the claim was answered: what is started later than it was counted would be too early for the next.
        now = self._clock.elapsed()
        for run in runs:
            if run.task in self._starts:
                self._starts[run.task].add(now)

    def rests(self) -> list[float]:
        """In how many seconds those that are used up may start again."""
        now = self._clock.elapsed()
        used_up = [starts.rest(now) for starts in self._starts.values()]
        return [max(rest, 0.001) for rest in used_up if rest > 0]


# The event of each verdict.
EVENT_OF: dict[Verdict, EventKind] = {
    Verdict.SUCCEEDED: "succeeded",
    Verdict.FAILED: "failed",
    Verdict.CANCELLED: "cancelled",
    Verdict.SKIPPED: "skipped",
    Verdict.MISSED: "missed",
    Verdict.LOST: "lost",
}


def declarer_of(node_name: str) -> str:
    """Whose code declares a schedule: the program, whatever host it runs on (hosts come and go with every rollout)."""
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
        # How messages are delivered, by channel.
        self.senders: Mapping[str, Sender] = senders or {}
        # Where workers report of what was dispatched to them.
        self.sources = tuple(sources)
        # Tasks that it knows and leaves to others, each with the driver that it does not run.
        self.leaves: Mapping[str, str] = leaves or {}
        self.hold = Hold(concurrency)
        # How many fires, claims or verdicts go into one intent, at most: bounds its transaction and its memory.
        self.batch_size = batch_size
        self.id = clock.new_token()
        self._has_own_rates = has_own_rates
        # The rates that this node counts by itself, which the store then hears nothing of.
        self.rates = OwnRates(clock, {})
        self.terms: dict[str, TaskTerms] = {}
        self._learn_terms(works)
        # Held over every statement that claims, and over the comparison of what the store says we hold: in between,
        # a claim whose answer is under way would look like a stray.
        self.claiming = ClaimLock()
        # Lines of the log that would come once per run or batch.
        self.summary = LogSummary(clock.elapsed)
        self.is_draining = False
        # Running work is cut off: runs that claims bring from now on are given back.
        self.is_closed = False
        # By `clock.elapsed`: until then no node may have declared us dead. Counted from sending the beat.
        self.trusted_until = 0.0

    def know(
        self,
        works: Mapping[str, Work],
        declares: Mapping[str, str],
        senders: Mapping[str, Sender],
        sources: Sequence[ReportSource],
        leaves: Mapping[str, str],
    ) -> None:
        """Other tasks and declarations from now on. What was claimed before is carried out as it was then, and what was
        dispatched before is still reported on."""
        # A claim may be under way for a task that is not ours any more: what it brings must find its work.
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
        # Where a claim must be a start, none is taken for later; see `RunQueue`.
        self.may_claim_ahead = not any(each.at_most_once or self.is_limited(task) for task, each in self.terms.items())

    @property
    def trusted_seconds_left(self) -> float:
        """How long what must not run beside its successor may go on unless a beat is answered: while a third of the
        lease is left, so that it has stopped when the lease is over."""
        return self.trusted_until - self.lease / 3e6 - self.clock.elapsed()

    @property
    def is_trusted(self) -> bool:
        return self.trusted_seconds_left > 0

    @property
    def has_lease(self) -> bool:
        """Whether no node can have declared us dead yet, as far as we know."""
        return self.clock.elapsed() < self.trusted_until

    def reborn(self) -> None:
        """Another incarnation: the old id never comes back."""
        self.id = self.clock.new_token()

    @property
    def served(self) -> tuple[str, ...]:
        """All queues it works on: those it was told to, and its own."""
        return (*self.queues, own_queue(self.id))

    def is_batch(self, count: int) -> bool:
        """Whether so many free slots, or outcomes, are worth a statement under load."""
        return count * _SLOTS_PER_BATCH >= self.hold.capacity or count >= self.batch_size

    def rest_for(self, count: int) -> float | None:
        """How long a loop rests that has so many of them left to do."""
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
        """Tell the hooks about a run of ours."""
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

    async def tell_ended(self, run_ids: Sequence[str]) -> None:
        """Tell the hooks about runs that the store itself has ended: lost with their node, expired, cancelled."""
        if not run_ids or not any(kind in self.hooks.wanted for kind in EVENT_OF.values()):
            return
        for run in await self.store.runs(self.app, RunFilter(ids=tuple(run_ids), limit=len(run_ids))):
            if run.verdict is not None:
                self.hooks.tell(ended_event(run, self.now()))


def ended_event(run: Run, at: datetime) -> Event:
    """The event of a run that has ended."""
    assert run.verdict is not None, "it has ended"
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


async def runs_told_of(node: LocalNode, ids: Sequence[str]) -> dict[str, Run]:
    """The runs, for lines of the log, which do without an answer of the store."""
    if not ids:
        return {}
    try:
        wanted = tuple(dict.fromkeys(ids))
        return {run.id: run for run in await node.store.runs(node.app, RunFilter(ids=wanted, limit=len(wanted)))}
    except StoreUnavailable:
        return {}
