"""The core loop: what is due, what it is owed, and both written down.

Reading and planning happen outside of any transaction. What is written is guarded by what was read, so that of several
nodes with the same idea one is taken and the others find nothing left to do.

Where much is due, four things go on at the same time, so that neither the store nor this process waits for the other:

    the next page     is read
    a batch           is being written; one at a time
    the batch before  begins its runs
    the batch after   is planned

More may be due than one look finds. Then the next page is read while this one is being written, from where it ends.
A moment before that place that comes up meanwhile, by a new cursor or a late commit, is for the next tick.
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
from evertick.store.base import VERY_FIRST, Advance, Due, DuePlace, DueSchedule, Recorded
from evertick.store.verdicts import gaps_with_duplicates
from evertick.text.log_level import TRACE, such_as, trace
from evertick.when.moment import HOUR, MINUTE, SECOND, from_us

__all__ = ["Recorder", "advance_of"]

log = logging.getLogger("evertick.fire")

T = TypeVar("T")

# Gaps that were asked for, in advance or by a policy.
_EXPECTED = frozenset({Reason.OVERLAP, Reason.DUPLICATE, Reason.BY_HAND, Reason.BLACKOUT})
# Where so many ticks in a row came at less than this distance, they keep it: what comes due in between goes together,
# at a fraction of the cost.
_GATHER_SECONDS, _GATHER_AFTER = 0.025, 16
# Longer work is done in turns of so many schedules: in between the event loop takes part in what else is under way,
# above all in the conversation with the store about the batch that is being written.
_TURN = 100
# So many batches are read at once, after the first: what is due begins soon, and the others are read meanwhile.
_BATCHES_AHEAD = 4
# So many pages belong to one tick at most: each is read while the one before is being written.
_PAGES_MOST = 8
# Before the end of the last look: commits take their time.
_BACK_US = SECOND
# Looks from the very first are so far apart at least and at most; in between, so that they take this share of the time.
_ALL_LEAST_SECONDS, _ALL_MOST_SECONDS = 1.0, 10.0
_ALL_SHARE = 0.05
# Whom a node has met it reckons with for so long; who else is there is asked as often.
_REMEMBERED_SECONDS = 10.0
# Neighbouring ids are often of one kind: spread by a factor that has nothing to do with their number.
_SPREAD, _SPREAD_BITS = 2_654_435_761, 16


class Recorder:
    """Turns due moments into rows of the ledger."""

    def __init__(self, node: LocalNode, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        self._rules = Rules(node.store, node.app)
        self.ticked_at: float | None = None
        # For the runs that are being planned, the first one last.
        self._ids: list[str] = []
        self._scan = ScanPosition(node.clock)
        self._peers = PeerShare(node)
        # By `clock.elapsed`: when we heard what is due, the last times.
        self._looked_at = deque[float](maxlen=_GATHER_AFTER)
        # The shortest distance between a moment and the next of its schedule, of each of the last ticks that had any.
        # Not of all times: what has gone since must not keep the others from being gathered.
        self._closest_us = deque[int](maxlen=_GATHER_AFTER)

    async def step(self) -> float | None:
        """One tick: look, plan, record, start what was recorded as already ours; page after page while more is due."""
        tick = Tick(await self._first_look())
        try:
            await self._record_all(tick)
            await tick.end()
        except (Exception, asyncio.CancelledError):
            await tick.break_off()
            raise
        finally:
            self._log_gaps(tick.gaps)
        return self._rest_after(tick)

    def look_at_all(self) -> None:
        """A schedule was added or changed, here or elsewhere: it may be due for long."""
        self._scan.look_at_all()

    async def _record_all(self, tick: Tick) -> None:
        """All pages. The lock is given up in between where others wait for it, or the next page is late."""
        while True:
            async with self._node.claiming:
                await self._record_pages(tick)
            if tick.is_refused or self._node.is_draining or not await tick.turn():
                return

    async def _record_pages(self, tick: Tick) -> None:
        """Those that follow each other without a pause. Afterwards nothing is being written."""
        while await self._record_page(tick):
            if not await self._may_go_on(tick) or not await tick.turn():
                break
        if tick.under_way is not None:
            await self._settle(tick, tick.under_way)

    async def _may_go_on(self, tick: Tick) -> bool:
        """Without giving up the lock: no other wants it, and the next page is here before the last answer."""
        return await tick.is_next_page_first() and not (self._node.claiming.is_wanted or self._node.is_draining)

    async def _record_page(self, tick: Tick) -> bool:
        """A batch at a time. While one is being written, what came of the one before begins, and the next is planned:
        so neither the store nor this process waits for the other. False: others are at the same schedules."""
        page = tick.page
        if len(page.due.schedules) > self._node.batch_size:
            await self._peers.look()
        for rows in self._batches(tick):
            reserved = tick.reserved
            advances = await self._plan_in_turns(tick, rows)
            if not advances:
                continue
            before = tick.under_way
            if before is not None and not all((await before.answer).taken):
                return False
            tick.writes(self._write(rows, page, advances, claims=tick.reserved - reserved))
            self._begin_to_look_ahead(tick)
            if before is not None:
                await self._settle(tick, before)
        self._begin_to_look_ahead(tick)
        return True

    async def _first_look(self) -> Page:
        """The first page of a tick. A node that shares what is due with others needs several batches to choose from."""
        due = await self._look(self._scan.begin(), batches=_BATCHES_AHEAD if self._peers.is_here else 1)
        self._scan.note_answer()
        return await self._page(due)

    async def _look(self, after: DuePlace, *, batches: int) -> Due:
        limit = batches * self._node.batch_size
        since = self._node.clock.elapsed()
        due = await self._node.store.due_schedules(self._node.app, limit, after)
        self._looked_at.append(self._node.clock.elapsed())
        if log.isEnabledFor(TRACE):
            trace(
                log,
                self._node.clock.elapsed() - since,
                "%d schedules are due, of %d at most,",
                len(due.schedules),
                limit,
            )
        return due

    async def _page(self, due: Due) -> Page:
        known = await self._rules.of(due.schedules)
        return Page(due=due, known=known, nodes=await self._nodes(due, known))

    def _begin_to_look_ahead(self, tick: Tick) -> None:
        """When the first batch of a page is being written, or nothing of it is to be."""
        place = tick.page.due.goes_on
        if place is not None and tick.pages < _PAGES_MOST and tick.ahead is None and not self._node.is_draining:
            tick.ahead = _begun(self._look_ahead(place), "look")

    async def _look_ahead(self, after: DuePlace) -> Page | None:
        try:
            return await self._page(await self._look(after, batches=_BATCHES_AHEAD))
        except Exception as error:
            # Whatever it is, what is under way is seen to its end; the next tick looks, and says so.
            log.debug("the look at the next page failed: %s", error)
            return None

    async def _plan_in_turns(self, tick: Tick, rows: list[DueSchedule]) -> list[Advance]:
        advances: list[Advance] = []
        for turn in _turns(rows):
            advances += self._plan(tick, turn)
            if len(turn) < len(rows):
                await asyncio.sleep(0)
        return advances

    def _batches(self, tick: Tick) -> Iterator[list[DueSchedule]]:
        """Longest due first. Where others are at the same rows each begins with its own, and leaves the rest to them
        while there is more."""
        size, rows = self._node.batch_size, tick.page.due.schedules
        if self._peers.is_here and len(rows) > size:
            ours, theirs = self._peers.ours_first(rows)
            if tick.page.is_full and theirs and self._peers.keeps_up(ours, theirs):
                rows, tick.has_left = ours, True
            else:
                rows = ours + theirs
        for begin in range(0, len(rows), size):
            if not self._node.is_draining or begin == 0:
                yield rows[begin : begin + size]

    async def _nodes(self, due: Due, known: dict[int, KnownDefinition]) -> list[Node]:
        """The nodes, for schedules of every node; read only when such a one is due, and then afresh."""
        is_asked = any(each.definition.mode == "every-node" for each in known.values())
        return await self._node.store.nodes(self._node.app) if is_asked else []

    def _plan(self, tick: Tick, rows: list[DueSchedule]) -> list[Advance]:
        page, may_claim = tick.page, not self._node.is_draining and self._worker.may_take_fires
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
        """The plan of one schedule. One that cannot be planned is noted and looked at later; the others go on."""
        if known.rule is None:
            return _failed(row, now, known.error or "the rule cannot be read")
        try:
            live = row.live if known.guards_live else 0
            inputs = plan_inputs_of(row, known.definition, known.rule, blackout=known.blackout, live=live)
            made = plan(inputs, now, self._node.clock.uniform)
        except Exception as error:
            log.exception("the schedule %r cannot be planned", row.key)
            return _failed(row, now, f"{type(error).__name__}: {error}")
        runs = [self._run(row, known.definition, fire, room - number) for number, fire in enumerate(made.fires)]
        return advance_of(row, known, made, tuple(runs))

    def _run(self, row: DueSchedule, definition: Definition, fire: Fire, room: int) -> NewRun:
        # The fused claim: inserted as already running here, where a slot is free and nothing waits ahead of it. A run
        # that may expire goes through a claim, which judges that by the store's time; so does one with a limit, which
        # a claim alone passes, and one with a unique key, which may end with its first claim.
        node, task = self._node, definition.task
        is_held_back = fire.is_blocked or definition.expires is not None or definition.unique is not None
        is_ours = task in node.terms and definition.queue in node.queues and definition.mode == "claimed"
        may_claim = room > 0 and is_ours and not is_held_back and not node.is_limited(task)
        return run_of(self._new_id(), row, definition, fire, node.terms[task] if may_claim else None)

    def _new_id(self) -> str:
        # Made together, one per schedule; what is owed more than one run takes one more each.
        return self._ids.pop() if self._ids else self._node.clock.new_id()

    def _write(self, rows: list[DueSchedule], page: Page, advances: list[Advance], *, claims: int) -> Batch:
        answer = _begun(self._record(advances), "record")
        return Batch(rows, page.known, advances, answer, claims=claims, had_lease=self._node.has_lease)

    async def _record(self, advances: list[Advance]) -> Recorded:
        since = self._node.clock.elapsed()
        recorded = await self._node.store.record_fires(self._node.app, self._node.id, advances)
        if log.isEnabledFor(TRACE):
            self._trace(advances, recorded, since)
        return recorded

    def _trace(self, advances: list[Advance], recorded: Recorded, since: float) -> None:
        runs = [
            run for advance, is_ours in zip(advances, recorded.taken, strict=True) if is_ours for run in advance.runs
        ]
        fused = sum(run.is_claimed for run in runs)
        words = "recorded %d schedules of %d: %d runs, %d of them claimed with it,"
        trace(log, self._node.clock.elapsed() - since, words, sum(recorded.taken), len(advances), len(runs), fused)

    async def _settle(self, tick: Tick, batch: Batch) -> None:
        """A batch is written: begin its runs and tell of it."""
        recorded = await batch.answer
        if tick.under_way is batch:
            tick.under_way = None
        tick.is_refused = tick.is_refused or not all(recorded.taken)
        await self._start(tick, batch)
        self._note_distances(batch)
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
        for turn in _turns(fused):
            await asyncio.sleep(0)
            tick.reserved -= len(turn)
            self._worker.start(turn, had_lease=batch.had_lease)

    def _wake_others(self, batch: Batch) -> None:
        """The work loop, for what waits to be claimed; and the runs that are replaced."""
        taken, duplicates = batch.taken(), set(batch.answer.result().duplicates)
        if any(not run.is_claimed for advance in taken for run in advance.runs):
            self._worker.queue_has_grown()
        # One whose unique key is taken does not run, and replaces none.
        self._worker.stop_schedules(
            {
                advance.schedule_id
                for advance in taken
                if advance.replaces_live and not any(run.id in duplicates for run in advance.runs)
            }
        )

    def _tell_hooks(self, batch: Batch) -> list[tuple[str, NewGap]]:
        """Answers what the log is to say."""
        taken, duplicates = batch.taken(), set(batch.answer.result().duplicates)
        concerns_all = bool(duplicates) or "scheduled" in self._node.hooks.wanted
        concerned = taken if concerns_all else [advance for advance in taken if advance.gaps]
        keys = {row.id: row.key for row in batch.rows} if concerned else {}
        return [gap for advance in concerned for gap in self._tell(keys[advance.schedule_id], advance, duplicates)]

    def _tell(self, key: str, advance: Advance, duplicates: set[str]) -> list[tuple[str, NewGap]]:
        """Tell the hooks of it. Answers the gaps for the log."""
        for run in advance.runs:
            if run.id not in duplicates:
                self._tell_scheduled(key, run)
        gaps = gaps_with_duplicates(advance.gaps, advance.runs, duplicates)
        for gap in gaps:
            tell_gap(self._node, key, gap)
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
        """After downtime every schedule may have one, and on a node that is behind with every tick: the unexpected ones
        first, then how many there are besides."""
        summary = self._node.summary
        for level, key, gap in sorted(((_level_of(gap), key, gap) for key, gap in gaps), key=lambda each: -each[0]):
            kind = f"{gap.verdict} ({gap.reason})"
            say = functools.partial(_log_gap, level, key, gap)
            summary.tell("gaps", f"{level} {kind}", log, level, say, functools.partial(_gaps_words, kind), about=key)
        if gaps:
            summary.batch_over("gaps")

    def _rest_after(self, tick: Tick) -> float | None:
        self.ticked_at = self._node.clock.elapsed()
        if tick.is_refused:
            self._peers.meet()
        if tick.is_refused or tick.has_left:
            return 0.01
        if tick.page.is_full:
            what, pages = "more is due than a tick has read (%d pages); the next follows at once", tick.pages
            say = functools.partial(log.info, what, pages)
            self._node.summary.tell("pages", "pages", log, logging.INFO, say, _pages_words)
            return 0.0
        self._scan.note_seen(tick.seen_until)
        if tick.next_at is None:
            return None
        since = self.ticked_at - self._looked_at[-1]
        return max((tick.next_at - tick.page.due.now) / 1e6 - since, self._gather_seconds() - since, 0.0005)

    def _gather_seconds(self) -> float:
        """How long after the last look the next comes at the soonest. Never so long that a schedule could owe two."""
        looks = self._looked_at
        is_busy = len(looks) == _GATHER_AFTER and looks[-1] - looks[0] < _GATHER_AFTER * _GATHER_SECONDS
        return min(_GATHER_SECONDS, min(self._closest_us, default=HOUR) / 2e6) if is_busy else 0.0

    def _note_distances(self, batch: Batch) -> None:
        """A plan that only waits, for a forerunner or the end of a blackout, leaves the cursor where it is."""
        distances = (
            advance.next_fire_at - advance.fire_at
            for advance in batch.advances
            if advance.next_fire_at is not None and advance.fire_at is not None
        )
        closest = min((distance for distance in distances if distance > 0), default=None)
        if closest is not None:
            self._closest_us.append(closest)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules that one look has found, with all that their plans are made from."""

    due: Due
    known: dict[int, KnownDefinition]
    # For schedules of every node.
    nodes: list[Node]

    @property
    def is_full(self) -> bool:
        """There may be more."""
        return self.due.goes_on is not None


class Batch:
    """Plans that are written together, and the answer to them."""

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
        # How many runs are written as claimed.
        self.claims = claims
        # When it was sent.
        self.had_lease = had_lease

    def taken(self) -> list[Advance]:
        answers = self.answer.result().taken
        if all(answers):
            return self.advances
        return [advance for advance, is_taken in zip(self.advances, answers, strict=True) if is_taken]

    @property
    def next_at(self) -> int | None:
        """When the first of its schedules wants to be looked at again."""
        return min((advance.next_at for advance in self.advances if advance.next_at is not None), default=None)


class Tick:
    """The pages and the batch under way, and their results."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pages = 1
        self.under_way: Batch | None = None
        # The next page, if it is being read; None comes of a look that failed.
        self.ahead: asyncio.Task[Page | None] | None = None
        # Slots that are spoken for: of runs that are planned or written as claimed, and have not begun.
        self.reserved = 0
        # Another node recorded some of them first.
        self.is_refused = False
        # Some of what it has seen, to other nodes.
        self.has_left = False
        # By schedule key, what it has written that the log is to tell: once for all, or a node that is behind would say
        # little else.
        self.gaps: list[tuple[str, NewGap]] = []
        # When the first wants to be looked at again of all that were planned: the last look need not have seen it.
        self._next_at: int | None = None

    @property
    def next_at(self) -> int | None:
        return _earlier(self.page.due.next_at, self._next_at)

    @property
    def seen_until(self) -> int:
        """By the store's time: nothing is left that wants to be looked at before. The last look need not have seen what
        this tick has written."""
        now = self.page.due.now
        return now if self._next_at is None else min(now, self._next_at)

    def writes(self, batch: Batch) -> None:
        self.under_way = batch
        self._next_at = _earlier(self._next_at, batch.next_at)

    async def is_next_page_first(self) -> bool:
        """Whether the next page is here before the answer to what is under way."""
        if self.ahead is None or self.under_way is None:
            return False
        await asyncio.wait({self.ahead, self.under_way.answer}, return_when=asyncio.FIRST_COMPLETED)
        return self.ahead.done()

    async def turn(self) -> bool:
        """To the next page, if there is one."""
        page = None if self.ahead is None else await self.ahead
        self.ahead = None
        if page is not None:
            self.page = page
            self.pages += 1
        return page is not None

    async def end(self) -> None:
        """Nothing that it began goes on after it."""
        if tasks := self._tasks():
            await asyncio.gather(*tasks, return_exceptions=True)

    async def break_off(self) -> None:
        for task in self._tasks():
            task.cancel()
        await self.end()

    def _tasks(self) -> list[asyncio.Task[Page | None] | asyncio.Task[Recorded]]:
        writing = None if self.under_way is None else self.under_way.answer
        return [task for task in (self.ahead, writing) if task is not None]


class ScanPosition:
    """From where a look for what is due begins.

    Behind a tick that left nothing undone there is nothing but what has come there since: a schedule that was added or
    changed, of which a node hears, and a cursor that another node was late to commit. So most looks begin a little
    before the end of the last. Only now and then one begins at the very first: a transaction that is kept open for long
    keeps every past entry of the index, too, and a look from the very first walks over all of them.

    A look from the very first that was not seen to its end is repeated from there: whether the tick failed, was
    refused, left something to others, or had more than it may take.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By the store's time: what wanted to be looked at until then was, and is written.
        self._seen_until: int | None = None
        # By `clock.elapsed`: when to begin at the very first.
        self._all_again_at = 0.0
        # Of the look that is under way.
        self._is_all = False
        self._began_at = 0.0
        self._took = 0.0

    def look_at_all(self) -> None:
        """Something may have come due long ago. Said while a look is under way, it is for the next."""
        self._all_again_at = 0.0
        self._is_all = False

    def begin(self) -> DuePlace:
        """Where the look begins that comes now."""
        self._began_at = self._clock.elapsed()
        self._is_all = self._seen_until is None or self._began_at >= self._all_again_at
        return VERY_FIRST if self._seen_until is None or self._is_all else DuePlace(self._seen_until - _BACK_US, 0)

    def note_answer(self) -> None:
        self._took = self._clock.elapsed() - self._began_at

    def note_seen(self, until: int) -> None:
        """Nothing is left undone of what the look has found, up to this moment by the store's time."""
        self._seen_until = until
        if self._is_all:
            distance = max(self._took / _ALL_SHARE, _ALL_LEAST_SECONDS)
            self._all_again_at = self._clock.elapsed() + min(distance, _ALL_MOST_SECONDS)


class PeerShare:
    """Which of the due schedules are ours, while other nodes are at them, too.

    Nodes find what is due each by itself, and of two that plan the same one does so in vain. That costs little while
    they keep up. Nodes that are behind would be in each other's way without end: so a node that has met another takes
    its own share first, by the ids of the schedules. No node has to keep to it: what one leaves undone comes to the
    front, where the others find nothing else.
    """

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        # By `clock.elapsed`.
        self._is_here_until = 0.0
        self._asked_at: float | None = None
        # Which of how many this node is.
        self._number, self._count = 0, 1

    def meet(self) -> None:
        """Another node has taken what this one wanted to take."""
        self._is_here_until = self._node.clock.elapsed() + _REMEMBERED_SECONDS

    @property
    def is_here(self) -> bool:
        return self._node.clock.elapsed() < self._is_here_until

    async def look(self) -> None:
        """Ask for the live nodes, while another was met."""
        now = self._node.clock.elapsed()
        if not self.is_here or (self._asked_at is not None and now < self._asked_at + _REMEMBERED_SECONDS):
            return
        alive = sorted(each.id for each in await self._node.store.nodes(self._node.app) if each.died_at is None)
        self._asked_at = now
        is_known = self._node.id in alive
        self._number, self._count = (alive.index(self._node.id), len(alive)) if is_known else (0, 1)

    def ours_first(self, rows: Sequence[DueSchedule]) -> tuple[list[DueSchedule], list[DueSchedule]]:
        """Our share of these, and that of the others."""
        ours, theirs = list[DueSchedule](), list[DueSchedule]()
        for row in rows:
            number = (row.id * _SPREAD >> _SPREAD_BITS) % self._count
            (ours if number == self._number else theirs).append(row)
        return ours, theirs

    def keeps_up(self, ours: Sequence[DueSchedule], theirs: Sequence[DueSchedule]) -> bool:
        """Whether the others do their part: where they do not, it is theirs that is longest due."""
        return len(ours) * self._count * 2 >= len(ours) + len(theirs)


def _begun(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(work, name=f"evertick {name}")


def _turns(items: list[T]) -> Iterator[list[T]]:
    return (items[begin : begin + _TURN] for begin in range(0, len(items), _TURN))


def advance_of(row: DueSchedule, known: KnownDefinition, made: Plan, runs: tuple[NewRun, ...]) -> Advance:
    """The plan with the guard of what it was made from."""
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
    log.log(level, "%s: %s %s: %s (%s)", key, moments, from_us(gap.last_at), gap.verdict, gap.reason)


def _gaps_words(kind: str, count: int, names: list[str], seconds: float | None) -> str:
    those = f"moments of {count} more schedules" if seconds is None else f"moments of schedules {count} times"
    return f"{those}{such_as(names, seconds)}: {kind}; the ledger has each of them"


def _pages_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"more was due than a tick has read, {count} times{such_as(names, seconds)}"


def _level_of(gap: NewGap) -> int:
    return logging.INFO if gap.reason.partition(" ")[0] in _EXPECTED else logging.WARNING


def _failed(row: DueSchedule, now: int, error: str) -> Advance:
    wait = min(MINUTE << min(row.failures, 6), HOUR)
    return Advance(
        schedule_id=row.id, version=row.version, fire_at=row.fire_at, at=row.at, next_at=now + wait, error=error
    )


def _claimed(run: NewRun, args: bytes, recorded: Recorded) -> Claimed:
    assert run.fire_at is not None, "a fire has its moment"
    assert run.due_at is not None, "a fire knows when it is due"
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


def tell_gap(node: LocalNode, key: str, gap: NewGap) -> None:
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
