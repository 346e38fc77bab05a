"""The core loop: reads due schedules, plans their runs and gaps, and records both.

Reading and planning use no transaction. Each plan is written with a guard on the cursor that it was made from: if
several nodes made the same plan, one guard matches, and the others read again.

Under load four things overlap, so that neither the store nor this process waits for the other:

    the next page       is read
    one batch           is written
    the previous batch  starts its runs
    the next batch      is planned

A page starts where the previous one ended. A moment that appears before that place meanwhile (a new cursor, a late
commit) is left to the next tick.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from evertick.clock import Clock
from evertick.engine.node import LocalNode
from evertick.engine.work import Worker
from evertick.ledger.parsed_rules import KnownDefinition, Rules
from evertick.ledger.planning import fan_out, plan_inputs_of, run_of
from evertick.model import Claimed, Definition, NewGap, NewRun, Node, Reason
from evertick.model.hooks import Event, EventKind
from evertick.plan.inputs import Fire, Plan
from evertick.plan.plan import plan
from evertick.store.base import FIRST_PLACE, Advance, Due, DuePlace, DueSchedule, Recorded
from evertick.store.verdicts import gaps_with_duplicates
from evertick.text.log_level import TRACE, such_as, trace
from evertick.when.duration import duration_rounded
from evertick.when.moment import HOUR, MINUTE, SECOND, from_us

__all__ = ["Recorder", "advance_of"]

log = logging.getLogger("evertick.fire")

T = TypeVar("T")

# Gaps that a user or a policy asked for: logged at INFO.
_EXPECTED = frozenset({Reason.OVERLAP, Reason.DUPLICATE, Reason.BY_HAND, Reason.BLACKOUT})
# After _GATHER_AFTER ticks in a row that were closer than _GATHER_SECONDS, ticks keep that distance: moments that
# become due in between are recorded together, at a fraction of the cost.
_GATHER_SECONDS, _GATHER_AFTER = 0.025, 16
# Schedules planned, or runs started, before the event loop may run other tasks: above all the write in flight.
_CHUNK = 100
# Batches per page after the first page, which is one batch so that the first runs start soon.
_BATCHES_AHEAD = 4
# Pages per tick.
_PAGES_MOST = 8
# How far before the end of the last scan the next one starts, for commits that were late.
_BACK_US = SECOND
# Distance between two full scans: at least, at most, and in between so that they take this share of the time.
_FULL_LEAST_SECONDS, _FULL_MOST_SECONDS = 1.0, 10.0
_FULL_SHARE = 0.05
# How long a node divides the due schedules after it met a peer, and how often it then reads the live nodes.
_REMEMBERED_SECONDS = 10.0
# Neighbouring ids are often of one kind; the multiplication spreads them over the nodes.
_SPREAD, _SPREAD_BITS = 2_654_435_761, 16


class Recorder:
    """Records due moments as runs and gaps."""

    def __init__(self, node: LocalNode, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        self._rules = Rules(node.store, node.app)
        self.ticked_at: float | None = None
        # Ids for the runs that are being planned, in reverse order.
        self._ids: list[str] = []
        self._scan = ScanPosition(node.clock)
        self._peers = PeerShare(node)
        # When the last pages were read, by `clock.elapsed`.
        self._read_at = deque[float](maxlen=_GATHER_AFTER)
        # The shortest interval between two moments of one schedule in each of the last ticks. Only of recent ticks:
        # a removed schedule must not prevent gathering for ever.
        self._shortest_us = deque[int](maxlen=_GATHER_AFTER)

    async def step(self) -> float | None:
        """One tick: read, plan, record, start the runs of fused claims; page after page while more is due."""
        tick = Tick(await self._first_page())
        try:
            await self._record_all(tick)
            await tick.end()
        except (Exception, asyncio.CancelledError):
            await tick.cancel()
            raise
        finally:
            self._log_gaps(tick.gaps)
        return self._rest_after(tick)

    def require_full_scan(self) -> None:
        """A schedule was added or changed, here or elsewhere: it may be overdue."""
        self._scan.require_full_scan()

    async def _record_all(self, tick: Tick) -> None:
        """All pages. Between two of them the lock is released if another loop waits for it or the next page is late."""
        while True:
            async with self._node.claiming:
                await self._record_pages(tick)
            if tick.is_refused or self._node.is_draining or not await tick.next_page():
                return

    async def _record_pages(self, tick: Tick) -> None:
        """Record pages under one lock, until the last write is answered."""
        while await self._record_page(tick):
            if not await self._may_keep_lock(tick) or not await tick.next_page():
                break
        if tick.writing is not None:
            await self._complete(tick, tick.writing)

    async def _may_keep_lock(self, tick: Tick) -> bool:
        return await tick.is_next_page_first() and not (self._node.claiming.is_wanted or self._node.is_draining)

    async def _record_page(self, tick: Tick) -> bool:
        """One batch after the other; the head of this file says what overlaps. False: another node recorded some."""
        page = tick.page
        if len(page.due.schedules) > self._node.batch_size:
            await self._peers.look()
        for rows in self._batches(tick):
            reserved = tick.reserved
            advances = await self._plan_in_chunks(tick, rows)
            if not advances:
                continue
            before = tick.writing
            if before is not None and not all((await before.answer).taken):
                return False
            tick.writes(self._write(rows, page, advances, claims=tick.reserved - reserved))
            self._start_reading_ahead(tick)
            if before is not None:
                await self._complete(tick, before)
        self._start_reading_ahead(tick)
        return True

    async def _first_page(self) -> Page:
        """A node that shares the due schedules with peers needs several batches to choose from."""
        due = await self._read(self._scan.begin(), batches=_BATCHES_AHEAD if self._peers.is_here else 1)
        self._scan.note_answer()
        return await self._page(due)

    async def _read(self, after: DuePlace, *, batches: int) -> Due:
        limit = batches * self._node.batch_size
        since = self._node.clock.elapsed()
        due = await self._node.store.due_schedules(self._node.app, limit, after)
        self._read_at.append(self._node.clock.elapsed())
        if log.isEnabledFor(TRACE):
            seconds = self._node.clock.elapsed() - since
            trace(log, seconds, "due schedules: read %d (limit %d)", len(due.schedules), limit)
        return due

    async def _page(self, due: Due) -> Page:
        known = await self._rules.of(due.schedules)
        return Page(due=due, known=known, nodes=await self._nodes(due, known))

    def _start_reading_ahead(self, tick: Tick) -> None:
        place = tick.page.due.next_place
        if place is not None and tick.pages < _PAGES_MOST and tick.ahead is None and not self._node.is_draining:
            tick.ahead = _start_task(self._look_ahead(place), "look")

    async def _look_ahead(self, after: DuePlace) -> Page | None:
        try:
            return await self._page(await self._read(after, batches=_BATCHES_AHEAD))
        except Exception as error:
            # The batch in flight is completed first; the next tick reads again and reports the error.
            log.debug("due schedules: reading the next page failed: %s", error)
            return None

    async def _plan_in_chunks(self, tick: Tick, rows: list[DueSchedule]) -> list[Advance]:
        advances: list[Advance] = []
        for chunk in _chunks(rows):
            advances += self._plan(tick, chunk)
            if len(chunk) < len(rows):
                await asyncio.sleep(0)
        return advances

    def _batches(self, tick: Tick) -> Iterator[list[DueSchedule]]:
        """Longest overdue first. With peers, this node's share first; the rest is left to them while more is due."""
        size, rows = self._node.batch_size, tick.page.due.schedules
        if self._peers.is_here and len(rows) > size:
            own, others = self._peers.split_shares(rows)
            if tick.page.is_full and others and self._peers.peers_keep_up(own, others):
                rows, tick.is_partial = own, True
            else:
                rows = own + others
        for begin in range(0, len(rows), size):
            if not self._node.is_draining or begin == 0:
                yield rows[begin : begin + size]

    async def _nodes(self, due: Due, known: dict[int, KnownDefinition]) -> list[Node]:
        """The nodes, read only when a schedule with mode="every-node" is due."""
        is_needed = any(each.definition.mode == "every-node" for each in known.values())
        return await self._node.store.nodes(self._node.app) if is_needed else []

    def _plan(self, tick: Tick, rows: list[DueSchedule]) -> list[Advance]:
        page, may_claim = tick.page, not self._node.is_draining and self._worker.may_fuse_claims
        room = first_room = self._node.hold.free - tick.reserved if may_claim else 0
        self._ids = self._node.clock.new_ids(len(rows))[::-1]
        advances = []
        for row in rows:
            definition = page.known.get(row.id)
            if definition is not None:
                planned = self._plan_one(row, definition, page.due.now, room)
                advance = fan_out(planned, definition.definition, page.nodes)
                for run in advance.runs:
                    room -= run.is_claimed
                advances.append(advance)
        tick.reserved += first_room - room
        return advances

    def _plan_one(self, row: DueSchedule, known: KnownDefinition, now: int, room: int) -> Advance:
        """The plan of one schedule. If planning fails, the error is stored and the schedule backs off."""
        if known.rule is None:
            return _failed(row, now, known.error or "the rule cannot be read")
        try:
            live = row.live if known.guards_live else 0
            inputs = plan_inputs_of(row, known.definition, known.rule, blackout=known.blackout, live=live)
            planned = plan(inputs, now, self._node.clock.uniform)
        except Exception as error:
            self._log_unplannable(row, error)
            return _failed(row, now, f"{type(error).__name__}: {error}")
        runs = [self._run(row, known.definition, fire, room - number) for number, fire in enumerate(planned.fires)]
        return advance_of(row, known, planned, tuple(runs))

    def _run(self, row: DueSchedule, definition: Definition, fire: Fire, room: int) -> NewRun:
        # The fused claim: inserted as running here, if a slot is free and no run waits ahead. Only a claim can expire
        # a run by the store's time, pass a limit, or release a unique key, so these runs wait for one.
        node, task = self._node, definition.task
        needs_claim = fire.is_blocked or definition.expires is not None or definition.unique is not None
        is_known = task in node.terms and definition.queue in node.queues and definition.mode == "claimed"
        may_claim = room > 0 and is_known and not needs_claim and not node.is_limited(task)
        return run_of(self._new_id(), row, definition, fire, node.terms[task] if may_claim else None)

    def _new_id(self) -> str:
        # One per schedule was made in advance; a schedule with several runs needs more.
        return self._ids.pop() if self._ids else self._node.clock.new_id()

    def _write(self, rows: list[DueSchedule], page: Page, advances: list[Advance], *, claims: int) -> Batch:
        answer = _start_task(self._record(advances), "record")
        return Batch(rows, page.known, advances, answer, claims=claims, had_lease=self._node.has_lease)

    async def _record(self, advances: list[Advance]) -> Recorded:
        since = self._node.clock.elapsed()
        recorded = await self._node.store.record_fires(self._node.app, self._node.id, advances)
        if log.isEnabledFor(TRACE):
            self._trace(advances, recorded, since)
        return recorded

    def _trace(self, advances: list[Advance], recorded: Recorded, since: float) -> None:
        runs = [
            run for advance, is_taken in zip(advances, recorded.taken, strict=True) if is_taken for run in advance.runs
        ]
        fused = sum(run.is_claimed for run in runs)
        words = "recorded %d of %d schedules: %d runs, %d by fused claims,"
        trace(log, self._node.clock.elapsed() - since, words, sum(recorded.taken), len(advances), len(runs), fused)

    async def _complete(self, tick: Tick, batch: Batch) -> None:
        """After a batch is written: start its runs, wake other loops, call hooks."""
        recorded = await batch.answer
        if tick.writing is batch:
            tick.writing = None
        tick.is_refused = tick.is_refused or not all(recorded.taken)
        await self._start(tick, batch)
        self._note_intervals(batch)
        self._wake_others(batch)
        tick.gaps += self._tell_hooks(batch)

    async def _start(self, tick: Tick, batch: Batch) -> None:
        recorded = batch.answer.result()
        left_out, fused = set(recorded.left_out), list[Claimed]()
        for advance in batch.taken() if recorded.fence else ():
            for run in advance.runs:
                if run.is_claimed and run.id not in left_out:
                    fused.append(_claimed(run, batch.known[advance.schedule_id].args, recorded))
        tick.reserved -= batch.claims - len(fused)
        for chunk in _chunks(fused):
            await asyncio.sleep(0)
            tick.reserved -= len(chunk)
            self._worker.start(chunk, had_lease=batch.had_lease)

    def _wake_others(self, batch: Batch) -> None:
        """Wake the work loop for runs to claim, and stop runs that are replaced."""
        taken, duplicates = batch.taken(), set(batch.answer.result().duplicates)
        if any(not run.is_claimed for advance in taken for run in advance.runs):
            self._worker.runs_enqueued()
        # A duplicate (its unique key is taken) does not run, so it replaces nothing.
        self._worker.stop_schedules(
            {
                advance.schedule_id
                for advance in taken
                if advance.replaces_live and not any(run.id in duplicates for run in advance.runs)
            }
        )

    def _tell_hooks(self, batch: Batch) -> list[tuple[str, NewGap]]:
        """Call the hooks. Returns the gaps for the log."""
        taken, duplicates = batch.taken(), set(batch.answer.result().duplicates)
        needs_all = bool(duplicates) or "scheduled" in self._node.hooks.wanted
        advances = taken if needs_all else [advance for advance in taken if advance.gaps]
        keys = {row.id: row.key for row in batch.rows} if advances else {}
        return [gap for advance in advances for gap in self._tell(keys[advance.schedule_id], advance, duplicates)]

    def _tell(self, key: str, advance: Advance, duplicates: set[str]) -> list[tuple[str, NewGap]]:
        for run in advance.runs:
            if run.id not in duplicates:
                self._tell_scheduled(key, run)
        gaps = gaps_with_duplicates(advance.gaps, advance.runs, duplicates)
        for gap in gaps:
            emit_gap(self._node, key, gap)
        return [(key, gap) for gap in gaps]

    def _tell_scheduled(self, key: str, run: NewRun) -> None:
        if "scheduled" in self._node.hooks.wanted:
            self._node.hooks.tell(
                Event(
                    kind="scheduled",
                    app=self._node.app,
                    at=self._node.now(),
                    schedule_key=key,
                    run_id=run.id,
                    task=run.task,
                    fire_at=from_us(run.fire_at or 0),
                    reason=run.reason,
                )
            )

    def _log_gaps(self, gaps: list[tuple[str, NewGap]]) -> None:
        """Unexpected gaps first, then a count: after downtime every schedule may have a gap."""
        summary = self._node.summary
        for level, key, gap in sorted(((_level_of(gap), key, gap) for key, gap in gaps), key=lambda each: -each[0]):
            kind = f"{gap.verdict} ({gap.reason})"
            say = functools.partial(_log_gap, level, key, gap)
            summary.tell("gaps", f"{level} {kind}", log, level, say, functools.partial(_gaps_words, kind), about=key)
        if gaps:
            summary.batch_over("gaps")

    def _log_unplannable(self, row: DueSchedule, error: Exception) -> None:
        delay = duration_rounded(_delay_after_failure(row))
        say = functools.partial(
            log.error, "schedule %r: planning failed; retrying in %s", row.key, delay, exc_info=error
        )
        self._node.summary.tell("planning", "", log, logging.ERROR, say, _unplannable_words, about=row.key)

    def _rest_after(self, tick: Tick) -> float | None:
        self.ticked_at = self._node.clock.elapsed()
        if tick.is_refused:
            self._peers.meet()
        if tick.is_refused or tick.is_partial:
            return 0.01
        if tick.page.is_full:
            say = functools.partial(log.info, "tick: more schedules are due than %d pages hold; continuing", tick.pages)
            self._node.summary.tell("pages", "pages", log, logging.INFO, say, _pages_words)
            return 0.0
        self._scan.note_complete(tick.seen_until)
        if tick.next_at is None:
            return None
        since = self.ticked_at - self._read_at[-1]
        return max((tick.next_at - tick.page.due.now) / 1e6 - since, self._gather_seconds() - since, 0.0005)

    def _gather_seconds(self) -> float:
        """The least distance between two ticks; short enough that no schedule owes two moments."""
        reads = self._read_at
        is_busy = len(reads) == _GATHER_AFTER and reads[-1] - reads[0] < _GATHER_AFTER * _GATHER_SECONDS
        return min(_GATHER_SECONDS, min(self._shortest_us, default=HOUR) / 2e6) if is_busy else 0.0

    def _note_intervals(self, batch: Batch) -> None:
        # A plan that only waits (for a live run, for the end of a blackout) leaves the cursor unchanged: interval 0.
        intervals = (
            advance.next_fire_at - advance.fire_at
            for advance in batch.advances
            if advance.next_fire_at is not None and advance.fire_at is not None
        )
        shortest = min((interval for interval in intervals if interval > 0), default=None)
        if shortest is not None:
            self._shortest_us.append(shortest)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Due schedules of one read, with the inputs of their plans."""

    due: Due
    known: dict[int, KnownDefinition]
    # For schedules with mode="every-node".
    nodes: list[Node]

    @property
    def is_full(self) -> bool:
        """Whether more may be due."""
        return self.due.next_place is not None


class Batch:
    """Plans that are written together, and the store's answer."""

    __slots__ = ("advances", "answer", "claims", "had_lease", "known", "rows")

    def __init__(
        self,
        rows: list[DueSchedule],
        known: dict[int, KnownDefinition],
        advances: list[Advance],
        answer: asyncio.Task[Recorded],
        *,
        claims: int,
        had_lease: bool,
    ) -> None:
        self.rows = rows
        self.known = known
        self.advances = advances
        self.answer = answer
        # Runs written with a fused claim.
        self.claims = claims
        # Whether the node had its lease when it sent the batch.
        self.had_lease = had_lease

    def taken(self) -> list[Advance]:
        answers = self.answer.result().taken
        if all(answers):
            return self.advances
        return [advance for advance, is_taken in zip(self.advances, answers, strict=True) if is_taken]

    @property
    def next_at(self) -> int | None:
        """When the first of these schedules is due again."""
        return min((advance.next_at for advance in self.advances if advance.next_at is not None), default=None)


class Tick:
    """The current page, the batch in flight, and the results so far."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pages = 1
        self.writing: Batch | None = None
        # The next page, while it is read; its result is None if the read failed.
        self.ahead: asyncio.Task[Page | None] | None = None
        # Slots reserved for fused claims whose runs have not started.
        self.reserved = 0
        # Another node recorded some of the schedules first.
        self.is_refused = False
        # Some schedules of a page were left to peers.
        self.is_partial = False
        # Recorded gaps by schedule key, logged together at the end of the tick.
        self.gaps: list[tuple[str, NewGap]] = []
        # When the first of all planned schedules is due again; the last read may not have seen it.
        self._next_at: int | None = None

    @property
    def next_at(self) -> int | None:
        return _earlier(self.page.due.next_at, self._next_at)

    @property
    def seen_until(self) -> int:
        """The store's time up to which nothing due is left."""
        now = self.page.due.now
        return now if self._next_at is None else min(now, self._next_at)

    def writes(self, batch: Batch) -> None:
        self.writing = batch
        self._next_at = _earlier(self._next_at, batch.next_at)

    async def is_next_page_first(self) -> bool:
        """Whether the next page arrives before the answer to the write in flight."""
        if self.ahead is None or self.writing is None:
            return False
        await asyncio.wait({self.ahead, self.writing.answer}, return_when=asyncio.FIRST_COMPLETED)
        return self.ahead.done()

    async def next_page(self) -> bool:
        """Go to the next page, if there is one."""
        page = None if self.ahead is None else await self.ahead
        self.ahead = None
        if page is not None:
            self.page = page
            self.pages += 1
        return page is not None

    async def end(self) -> None:
        """Wait for the tasks of this tick."""
        if tasks := self._tasks():
            await asyncio.gather(*tasks, return_exceptions=True)

    async def cancel(self) -> None:
        for task in self._tasks():
            task.cancel()
        await self.end()

    def _tasks(self) -> list[asyncio.Task[Page | None] | asyncio.Task[Recorded]]:
        answer = None if self.writing is None else self.writing.answer
        return [task for task in (self.ahead, answer) if task is not None]


class ScanPosition:
    """Where the next scan of the index of due schedules starts.

    After a complete tick, only two things can appear before its end: a schedule that was added or changed (the node is
    notified), and a late commit of another node. So most scans start a little before the end of the last. A full scan
    is rare, because a transaction that stays open keeps every old index entry, and a full scan walks over all of them.

    A full scan counts only after a complete tick. If the tick failed, was refused, left rows to peers or had too many
    pages, the full scan is repeated.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The store's time up to which all is recorded.
        self._seen_until: int | None = None
        # When the next full scan is due, by `clock.elapsed`.
        self._full_at = 0.0
        # Of the current scan.
        self._is_full = False
        self._began_at = 0.0
        self._took = 0.0

    def require_full_scan(self) -> None:
        """Make the next scan a full one; a schedule may be overdue."""
        self._full_at = 0.0
        self._is_full = False

    def begin(self) -> DuePlace:
        """Where the scan that begins now starts."""
        self._began_at = self._clock.elapsed()
        self._is_full = self._seen_until is None or self._began_at >= self._full_at
        return FIRST_PLACE if self._seen_until is None or self._is_full else DuePlace(self._seen_until - _BACK_US, 0)

    def note_answer(self) -> None:
        self._took = self._clock.elapsed() - self._began_at

    def note_complete(self, until: int) -> None:
        """The tick was complete up to this store time."""
        self._seen_until = until
        if self._is_full:
            distance = max(self._took / _FULL_SHARE, _FULL_LEAST_SECONDS)
            self._full_at = self._clock.elapsed() + min(distance, _FULL_MOST_SECONDS)


class PeerShare:
    """Divides due schedules among nodes that are behind.

    Each node scans for itself, and if two plan the same schedule, one plan is wasted. That costs little while the nodes
    keep up. Nodes that are behind would conflict all the time, so a node that met a peer first takes its own share, by
    schedule id. The division is only a preference: rows that a node leaves undone move to the front of every scan.
    """

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        # By `clock.elapsed`.
        self._is_here_until = 0.0
        self._asked_at: float | None = None
        # The position of this node among the live nodes, and their number.
        self._number, self._count = 0, 1

    def meet(self) -> None:
        """Another node recorded a schedule first."""
        self._is_here_until = self._node.clock.elapsed() + _REMEMBERED_SECONDS

    @property
    def is_here(self) -> bool:
        """Whether a peer was met recently."""
        return self._node.clock.elapsed() < self._is_here_until

    async def look(self) -> None:
        """Read the live nodes, if a peer was met recently."""
        now = self._node.clock.elapsed()
        if not self.is_here or (self._asked_at is not None and now < self._asked_at + _REMEMBERED_SECONDS):
            return
        alive = sorted(each.id for each in await self._node.store.nodes(self._node.app) if each.died_at is None)
        self._asked_at = now
        is_known = self._node.id in alive
        self._number, self._count = (alive.index(self._node.id), len(alive)) if is_known else (0, 1)

    def split_shares(self, rows: Sequence[DueSchedule]) -> tuple[list[DueSchedule], list[DueSchedule]]:
        """The share of this node, and the shares of its peers."""
        own, others = list[DueSchedule](), list[DueSchedule]()
        for row in rows:
            number = (row.id * _SPREAD >> _SPREAD_BITS) % self._count
            (own if number == self._number else others).append(row)
        return own, others

    def peers_keep_up(self, own: Sequence[DueSchedule], others: Sequence[DueSchedule]) -> bool:
        """Whether the peers record their shares: if they do not, their rows are the longest overdue."""
        return len(own) * self._count * 2 >= len(own) + len(others)


def _start_task(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(work, name=f"evertick {name}")


def _chunks(items: list[T]) -> Iterator[list[T]]:
    return (items[begin : begin + _CHUNK] for begin in range(0, len(items), _CHUNK))


def advance_of(row: DueSchedule, known: KnownDefinition, made: Plan, runs: tuple[NewRun, ...]) -> Advance:
    """The plan, guarded by the cursor that it was made from."""
    return Advance(
        schedule_id=row.id,
        version=row.version,
        fire_at=row.fire_at,
        at=row.at,
        live=row.live if known.guards_live else None,
        stamp=row.stamp,
        runs=runs,
        gaps=made.gaps,
        next_fire_at=made.next_fire_at,
        next_at=made.next_at,
        after_end=made.after_end,
        replaces_live=made.replaces_live,
        ends_pause=made.ends_pause,
        occurrences=made.occurrences,
        fingerprint=known.fingerprint,
    )


def _log_gap(level: int, key: str, gap: NewGap) -> None:
    moments = "the moment" if gap.count == 1 else f"{gap.count} moments up to"
    log.log(level, "schedule %r: %s %s: %s (%s)", key, moments, from_us(gap.last_at), gap.verdict, gap.reason)


def _gaps_words(kind: str, count: int, names: list[str], seconds: float | None) -> str:
    gaps = f"moments of {count} more schedules" if seconds is None else f"{count} more gaps of schedules"
    return f"{gaps}{such_as(names, seconds)}: {kind}; the ledger has each gap"


def _unplannable_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"planning of schedules failed {count} more times{such_as(names, seconds)}"


def _pages_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more ticks{such_as(names, seconds)} had more due schedules than they could read"


def _level_of(gap: NewGap) -> int:
    return logging.INFO if gap.reason.partition(" ")[0] in _EXPECTED else logging.WARNING


def _failed(row: DueSchedule, now: int, error: str) -> Advance:
    next_at = now + _delay_after_failure(row)
    return Advance(
        schedule_id=row.id, version=row.version, fire_at=row.fire_at, at=row.at, next_at=next_at, error=error
    )


def _delay_after_failure(row: DueSchedule) -> int:
    return min(MINUTE << min(row.failures, 6), HOUR)


def _claimed(run: NewRun, args: bytes, recorded: Recorded) -> Claimed:
    assert run.fire_at is not None, "a fire has a moment"
    assert run.due_at is not None, "a fire has a due time"
    return Claimed(
        id=run.id,
        fence=recorded.fence,
        task=run.task,
        args=args,
        fire_at=run.fire_at,
        due_at=run.due_at,
        claimed_at=recorded.now,
        schedule_id=run.schedule_id,
        schedule_key=run.schedule_key,
        cause=run.cause,
        queue=run.queue,
        priority=run.priority,
        labels=run.labels,
    )


def emit_gap(node: LocalNode, key: str, gap: NewGap) -> None:
    kind: EventKind = "missed" if gap.verdict == "missed" else "skipped"
    if kind in node.hooks.wanted:
        node.hooks.tell(
            Event(
                kind=kind,
                app=node.app,
                at=node.now(),
                schedule_key=key,
                fire_at=from_us(gap.last_at),
                reason=gap.reason,
                count=gap.count,
            )
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)
