"""The core loop: what is due, what it is owed, and both written down.

Reading and planning happen outside of any transaction. What is written is guarded by what was read, so that of several
nodes with the same idea one is taken and the others find nothing left to do.
"""

from __future__ import annotations

import logging

import msgspec

from evertick.edit import facts_of, run_of
from evertick.engine.node import LocalNode
from evertick.engine.work import Worker
from evertick.events import Event, EventKind
from evertick.facts import Facts, Fire, Plan, guards_live
from evertick.fan_out import fan_out
from evertick.model import Claimed, NewGap, NewRun, Node, Reason
from evertick.plan import plan
from evertick.rules import KnownSchedule, Rules, fingerprint_of
from evertick.store.base import Advance, Due, DueSchedule, Recorded
from evertick.unique import gaps_with_duplicates
from evertick.when.moment import HOUR, MINUTE, from_us

__all__ = ["Recorder", "advance_of"]

log = logging.getLogger("evertick.fire")

# Gaps that somebody has asked for, in advance or by a policy.
_EXPECTED = frozenset({Reason.OVERLAP, Reason.DUPLICATE, Reason.BY_HAND, Reason.BLACKOUT})


class Recorder:
    """Turns due moments into rows of the ledger."""

    def __init__(self, node: LocalNode, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        self._rules = Rules(node.store, node.app)
        self.ticked_at: float | None = None

    async def step(self) -> float | None:
        """One tick: look, plan, record, start what was recorded as already ours."""
        due = await self._node.store.due_schedules(self._node.app, self._node.batch_size)
        known = await self._rules.of(due.schedules)
        nodes = await self._nodes(due, known)
        async with self._node.claiming:
            advances = self._plan(due, known, nodes)
            had_lease = self._node.has_lease
            recorded = await self._record(advances)
            self._start(advances, recorded, known, had_lease=had_lease)
        self._follow_up(advances, recorded, known)
        return self._rest_after(due, advances, recorded)

    async def _nodes(self, due: Due, known: dict[int, KnownSchedule]) -> list[Node]:
        """Who is there for what runs on every node; read only when such a schedule is due, and then afresh."""
        is_asked = any(
            row.id in known and known[row.id].stored.definition.mode == "every-node" for row in due.schedules
        )
        return await self._node.store.nodes(self._node.app) if is_asked else []

    def _plan(self, due: Due, known: dict[int, KnownSchedule], nodes: list[Node]) -> list[Advance]:
        room = 0 if self._node.is_draining or not self._worker.queue_is_short else self._node.hold.free
        advances = []
        for row in due.schedules:
            if row.id in known:
                advance = fan_out(
                    self._plan_one(row, known[row.id], due.now, room), known[row.id].stored.definition, nodes
                )
                room -= sum(run.is_claimed for run in advance.runs)
                advances.append(advance)
        return advances

    def _plan_one(self, row: DueSchedule, known: KnownSchedule, now: int, room: int) -> Advance:
        """The plan of one schedule. One that cannot be planned is noted and looked at later; the others go on."""
        stored = known.stored
        if known.rule is None:
            return _failed(row, now, known.error or "the rule cannot be read")
        facts = facts_of(stored, known.rule, row, blackout=known.blackout)
        try:
            made = plan(facts, now, self._node.clock.uniform)
        except Exception as error:
            log.exception("the schedule %r cannot be planned", stored.key)
            return _failed(row, now, f"{type(error).__name__}: {error}")
        runs = tuple(self._run(known, fire, room - number) for number, fire in enumerate(made.fires))
        return advance_of(row, facts, made, runs)

    def _run(self, known: KnownSchedule, fire: Fire, room: int) -> NewRun:
        run = run_of(self._node.clock.new_id(), known.stored, fire)
        terms = self._node.terms.get(run.task)
        # The fused claim: inserted as already running here, where a slot is free and nothing waits ahead of it. A run
        # that may expire goes through a claim, which judges that by the store's time; so does one with a limit, which
        # a claim alone passes, and one with a unique key, which may end with its first claim.
        if known.stored.definition.mode == "every-node":
            return run
        if terms is None or room <= 0 or fire.is_blocked or run.expires is not None:
            return run
        if run.queue not in self._node.queues or self._node.is_limited(run.task) or run.unique_key is not None:
            return run
        return msgspec.structs.replace(run, is_claimed=True, timeout=terms.timeout, at_most_once=terms.at_most_once)

    async def _record(self, advances: list[Advance]) -> Recorded | None:
        if not advances:
            return None
        return await self._node.store.record_fires(self._node.app, self._node.id, advances)

    def _start(
        self,
        advances: list[Advance],
        recorded: Recorded | None,
        known: dict[int, KnownSchedule],
        *,
        had_lease: bool,
    ) -> None:
        if recorded is None or not recorded.fence:
            return
        left_out, fused = set(recorded.left_out), list[Claimed]()
        for advance, is_taken in zip(advances, recorded.taken, strict=True):
            if is_taken:
                stored = known[advance.schedule_id].stored
                fused += (
                    _claimed(run, stored.key, msgspec.json.encode(stored.definition.args), recorded)
                    for run in advance.runs
                    if run.is_claimed and run.id not in left_out
                )
        self._worker.start(fused, had_lease=had_lease)

    def _follow_up(self, advances: list[Advance], recorded: Recorded | None, known: dict[int, KnownSchedule]) -> None:
        """Whom it concerns: the work loop, the runs that are replaced, the hooks."""
        if recorded is None:
            return
        duplicates = set(recorded.duplicates)
        for advance, is_taken in zip(advances, recorded.taken, strict=True):
            if not is_taken:
                continue
            if any(not run.is_claimed for run in advance.runs):
                self._worker.queue_has_grown()
            # One whose unique key is taken does not run, and replaces nobody.
            if advance.replaces_live and not any(run.id in duplicates for run in advance.runs):
                self._worker.stop_schedule(advance.schedule_id)
            self._tell(known[advance.schedule_id].stored.key, advance, duplicates)

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

    def _rest_after(self, due: Due, advances: list[Advance], recorded: Recorded | None) -> float | None:
        self.ticked_at = self._node.clock.elapsed()
        if len(due.schedules) == self._node.batch_size:
            log.info("a tick took its full batch of %d schedules; the next follows at once", self._node.batch_size)
            return 0.0
        if recorded is not None and not all(recorded.taken):
            return 0.01
        # What was due when we looked is no longer in `next_at`; its next moment is in its plan.
        next_at = min(
            (at for at in (due.next_at, *(each.next_at for each in advances)) if at is not None), default=None
        )
        return None if next_at is None else max((next_at - due.now) / 1e6, 0.0005)


def advance_of(row: DueSchedule, facts: Facts, made: Plan, runs: tuple[NewRun, ...]) -> Advance:
    """The plan with the guard of what it was made from."""
    return Advance(
        schedule_id=row.id,
        version=row.version,
        fire_at=row.fire_at,
        at=row.at,
        live=row.live if guards_live(facts.definition) else None,
        runs=runs,
        gaps=made.gaps,
        next_fire_at=made.next_fire_at,
        next_at=made.next_at,
        after_end=made.after_end,
        replaces_live=made.replaces_live,
        ends_pause=made.ends_pause,
        occurrences=made.occurrences,
        fingerprint=fingerprint_of(facts.rule, facts.blackout),
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
