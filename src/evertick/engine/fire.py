"""The core loop: what is due, what it is owed, and both written down.

Reading and planning happen outside of any transaction. What is written is guarded by what was read, so that of several
nodes with the same idea one is taken and the others find nothing left to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from evertick.edit import facts_of, run_of
from evertick.engine.node import LocalNode
from evertick.engine.work import Worker
from evertick.events import Event, EventKind
from evertick.facts import Fire, Plan, guards_live
from evertick.fan_out import fan_out
from evertick.model import Claimed, Definition, NewGap, NewRun, Node, Reason
from evertick.plan import plan
from evertick.rules import KnownDefinition, Rules
from evertick.store.base import Advance, Due, DueSchedule, Recorded
from evertick.unique import gaps_with_duplicates
from evertick.when.moment import HOUR, MINUTE, from_us

__all__ = ["Recorder", "advance_of"]

log = logging.getLogger("evertick.fire")

T = TypeVar("T")

# Gaps that somebody has asked for, in advance or by a policy.
_EXPECTED = frozenset({Reason.OVERLAP, Reason.DUPLICATE, Reason.BY_HAND, Reason.BLACKOUT})


# Where so many ticks in a row came at less than this distance, they keep it: what comes due in between goes together,
# at a fraction of the cost.
_GATHER_SECONDS, _GATHER_AFTER = 0.02, 16


# Longer work is done in turns of so many schedules: in between the event loop takes part in what else is under way,
# above all in the conversation with the store about the batch that is being written.
_TURN = 100
# So many batches are read at once.
_BATCHES_AHEAD = 4


class Batch:
    """Plans that are written together, and the answer to them."""

    __slots__ = ("advances", "answer", "had_lease", "rows")

    def __init__(
        self, rows: list[DueSchedule], advances: list[Advance], answer: asyncio.Task[Recorded], *, had_lease: bool
    ) -> None:
        self.rows = rows
        self.advances = advances
        self.answer = answer
        # When it was sent.
        self.had_lease = had_lease

    def taken(self) -> list[Advance]:
        answers = self.answer.result().taken
        return [advance for advance, is_taken in zip(self.advances, answers, strict=True) if is_taken]


class Recorder:
    """Turns due moments into rows of the ledger."""

    def __init__(self, node: LocalNode, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        self._rules = Rules(node.store, node.app)
        self.ticked_at: float | None = None
        # For the runs that are being planned, the first one last.
        self._ids: list[str] = []
        # Runs that are being written as claimed, and do not have their slots yet.
        self._being_claimed = 0
        # Others are at the same schedules.
        self._has_company = False
        # By `clock.elapsed`: when we heard what is due, the last times.
        self._looked_at = deque[float](maxlen=_GATHER_AFTER)
        # The shortest distance between a moment and the next of its schedule that we have seen.
        self._closest_us = HOUR

    async def step(self) -> float | None:
        """One tick: look, plan, record, start what was recorded as already ours."""
        due = await self._node.store.due_schedules(self._node.app, _BATCHES_AHEAD * self._node.batch_size)
        self._looked_at.append(self._node.clock.elapsed())
        known = await self._rules.of(due.schedules)
        nodes = await self._nodes(due, known)
        async with self._node.claiming:
            written = await self._write_all(due, known, nodes)
        for batch in written:
            self._follow_up(batch)
        return self._rest_after(due, written)

    async def _write_all(self, due: Due, known: dict[int, KnownDefinition], nodes: list[Node]) -> list[Batch]:
        """A batch at a time. While one is being written, what came of the one before begins, and the next is planned:
        so neither the store nor this process waits for the other."""
        written: list[Batch] = []
        under_way: Batch | None = None
        self._being_claimed = 0
        for rows in self._batches(due):
            advances = await self._plan_in_turns(due, rows, known, nodes)
            if not advances:
                continue
            before = under_way
            if before is not None and not all((await before.answer).taken):
                break  # somebody else is at it: look again
            under_way = self._write(rows, advances)
            if before is not None:
                await self._start(before, known)
                written.append(before)
        if under_way is not None:
            await under_way.answer
            await self._start(under_way, known)
            written.append(under_way)
        return written

    async def _plan_in_turns(
        self, due: Due, rows: list[DueSchedule], known: dict[int, KnownDefinition], nodes: list[Node]
    ) -> list[Advance]:
        advances: list[Advance] = []
        for turn in _turns(rows):
            advances += self._plan(msgspec.structs.replace(due, schedules=turn), known, nodes)
            if len(turn) < len(rows):
                await asyncio.sleep(0)
        return advances

    def _batches(self, due: Due) -> Iterator[list[DueSchedule]]:
        """Longest due first. Where others were at the same rows lately each begins somewhere else."""
        size, rows = self._node.batch_size, due.schedules
        begins = range(0, len(rows), size)
        shift = int(self._node.clock.uniform() * len(begins)) if self._has_company and len(begins) > 1 else 0
        for begin in (*begins[shift:], *begins[:shift]):
            if not self._node.is_draining or begin == begins[shift]:
                yield rows[begin : begin + size]

    async def _nodes(self, due: Due, known: dict[int, KnownDefinition]) -> list[Node]:
        """Who is there for what runs on every node; read only when such a schedule is due, and then afresh."""
        is_asked = any(each.definition.mode == "every-node" for each in known.values())
        return await self._node.store.nodes(self._node.app) if is_asked else []

    def _plan(self, due: Due, known: dict[int, KnownDefinition], nodes: list[Node]) -> list[Advance]:
        may_claim = not self._node.is_draining and self._worker.queue_is_short
        room = first_room = self._node.hold.free - self._being_claimed if may_claim else 0
        self._ids = self._node.clock.new_ids(len(due.schedules))[::-1]
        advances = []
        for row in due.schedules:
            definition = known.get(row.id)
            if definition is not None:
                planned = self._plan_one(row, definition, due.now, room)
                advance = fan_out(planned, definition.definition, nodes)
                for run in advance.runs:
                    room -= run.is_claimed
                advances.append(advance)
        self._being_claimed += first_room - room
        return advances

    def _plan_one(self, row: DueSchedule, known: KnownDefinition, now: int, room: int) -> Advance:
        """The plan of one schedule. One that cannot be planned is noted and looked at later; the others go on."""
        if known.rule is None:
            return _failed(row, now, known.error or "the rule cannot be read")
        try:
            made = plan(
                facts_of(row, known.definition, known.rule, blackout=known.blackout), now, self._node.clock.uniform
            )
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

    def _write(self, rows: list[DueSchedule], advances: list[Advance]) -> Batch:
        writing = asyncio.get_running_loop().create_task(self._record(advances), name="evertick record")
        return Batch(rows, advances, writing, had_lease=self._node.has_lease)

    async def _record(self, advances: list[Advance]) -> Recorded:
        return await self._node.store.record_fires(self._node.app, self._node.id, advances)

    async def _start(self, batch: Batch, known: dict[int, KnownDefinition]) -> None:
        recorded = batch.answer.result()
        keys = {row.id: row.key for row in batch.rows}
        left_out, fused = set(recorded.left_out), list[Claimed]()
        for advance in batch.taken() if recorded.fence else ():
            schedule = advance.schedule_id
            for run in advance.runs:
                if run.is_claimed and run.id not in left_out:
                    fused.append(_claimed(run, keys[schedule], known[schedule].args, recorded))
        for turn in _turns(fused):
            await asyncio.sleep(0)
            self._being_claimed -= len(turn)
            self._worker.start(turn, had_lease=batch.had_lease)

    def _follow_up(self, batch: Batch) -> None:
        """Whom it concerns: the work loop, the runs that are replaced, the hooks."""
        taken = batch.taken()
        if any(not run.is_claimed for advance in taken for run in advance.runs):
            self._worker.queue_has_grown()
        duplicates = set(batch.answer.result().duplicates)
        for advance in taken:
            # One whose unique key is taken does not run, and replaces nobody.
            if advance.replaces_live and not any(run.id in duplicates for run in advance.runs):
                self._worker.stop_schedule(advance.schedule_id)
        is_told = bool(duplicates) or self._node.hooks.wants("scheduled")
        to_tell = taken if is_told else [advance for advance in taken if advance.gaps]
        if to_tell:
            keys = {row.id: row.key for row in batch.rows}
            for advance in to_tell:
                self._tell(keys[advance.schedule_id], advance, duplicates)

    def _tell(self, key: str, advance: Advance, duplicates: set[str]) -> None:
        for run in advance.runs:
            if run.id not in duplicates:
                self._tell_scheduled(key, run)
        for gap in gaps_with_duplicates(advance.gaps, advance.runs, duplicates):
            level = logging.INFO if gap.reason.partition(" ")[0] in _EXPECTED else logging.WARNING
            moments = "the moment" if gap.count == 1 else f"{gap.count} moments up to"
            log.log(level, "%s: %s %s: %s (%s)", key, moments, from_us(gap.last_at), gap.verdict, gap.reason)
            tell_gap(self._node, key, gap)

    def _tell_scheduled(self, key: str, run: NewRun) -> None:
        if self._node.hooks.wants("scheduled"):
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

    def _rest_after(self, due: Due, written: list[Batch]) -> float | None:
        self.ticked_at = self._node.clock.elapsed()
        self._has_company = not all(all(batch.answer.result().taken) for batch in written)
        if self._has_company:
            return 0.01
        if len(due.schedules) == _BATCHES_AHEAD * self._node.batch_size:
            log.info("a tick took all the %d schedules it may read; the next follows at once", len(due.schedules))
            return 0.0
        # What was due when we looked is no longer in `next_at`; its next moment is in its plan.
        planned = (advance.next_at for batch in written for advance in batch.advances)
        next_at = min((at for at in (due.next_at, *planned) if at is not None), default=None)
        if next_at is None:
            return None
        since = self.ticked_at - self._looked_at[-1]
        return max((next_at - due.now) / 1e6 - since, self._gather_seconds(written) - since, 0.0005)

    def _gather_seconds(self, written: list[Batch]) -> float:
        """How long after the last look the next comes at the soonest. Never so long that a schedule could owe two."""
        for batch in written:
            for advance in batch.advances:
                if advance.next_fire_at is not None and advance.fire_at is not None:
                    self._closest_us = min(self._closest_us, advance.next_fire_at - advance.fire_at)
        looks = self._looked_at
        is_busy = len(looks) == _GATHER_AFTER and looks[-1] - looks[0] < _GATHER_AFTER * _GATHER_SECONDS
        return min(_GATHER_SECONDS, self._closest_us / 2e6) if is_busy else 0.0


def _turns(items: list[T]) -> Iterator[list[T]]:
    return (items[begin : begin + _TURN] for begin in range(0, len(items), _TURN))


def advance_of(row: DueSchedule, known: KnownDefinition, made: Plan, runs: tuple[NewRun, ...]) -> Advance:
    """The plan with the guard of what it was made from."""
    return Advance(
        schedule_id=row.id,
        version=row.version,
        fire_at=row.fire_at,
        at=row.at,
        live=row.live if guards_live(known.definition) else None,
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


def _failed(row: DueSchedule, now: int, error: str) -> Advance:
    wait = min(MINUTE << min(row.failures, 6), HOUR)
    return Advance(
        schedule_id=row.id, version=row.version, fire_at=row.fire_at, at=row.at, next_at=now + wait, error=error
    )


def _claimed(run: NewRun, key: str, args: bytes, recorded: Recorded) -> Claimed:
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
        schedule_key=key,
        cause=run.cause,
        queue=run.queue,
        priority=run.priority,
        labels=run.labels,
    )


def tell_gap(node: LocalNode, key: str, gap: NewGap) -> None:
    kind: EventKind = "missed" if gap.verdict == "missed" else "skipped"
    if node.hooks.wants(kind):
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
