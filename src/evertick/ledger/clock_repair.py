"""Finds and repairs the effects of a wrong store clock.

While the clock was ahead, future moments were recorded, cursors moved far ahead, and retries were postponed. A wrong
cursor is found by comparing it with its rule from now; wrong rows are found by the time of their writing.

A schedule is repaired like an edit that changes nothing: guarded, with the cursor restarted from now and a new version.
A gap of future moments is cut at now, with the reason `clock`, since the moments until now did not run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from evertick.errors import EvertickError, NotFound, Refused
from evertick.ledger.editor import CurrentSchedule, Editor
from evertick.ledger.parsed_rules import blackout_of, fingerprint_of, load_calendars, rule_of
from evertick.ledger.planning import plan_inputs_of
from evertick.model import Pause, Reason, Run, State
from evertick.plan.inputs import PlanInputs
from evertick.plan.overrides import apart
from evertick.store.base import (
    CLOCK_AHEAD,
    CLOCK_FAR,
    Advance,
    Change,
    ClockRepair,
    ClockTraces,
    GapAhead,
    GapCut,
    RunFilter,
    ScheduleFilter,
    Store,
    StoredSchedule,
)
from evertick.when import Calendar, Every, Once, When, from_us
from evertick.when.base import COUNT_LIMIT
from evertick.when.moment import DAY, LATEST, MINUTE
from evertick.when.once import moved_to

__all__ = [
    "Astray",
    "ClockRepairer",
    "astray_in",
    "astray_of",
    "is_put_off",
    "looks_too_late",
    "passed_over",
    "written_ahead",
]

# Ordinary corrections of a clock are smaller, and a moment never runs twice.
_CLOCK_MARGIN = MINUTE
_PAGE = 1_000
_BATCH = 5_000
_AHEAD, _FAR = timedelta(microseconds=CLOCK_AHEAD), timedelta(microseconds=CLOCK_FAR)
# Far more than a clock that was wrong for days causes.
_BATCHES_MAX = 100_000

# The wrong part of a schedule: its next moment, the time of its next plan, the start of its rule, its pause.
Wrong = Literal["cursor", "look", "start", "pause"]


class Astray(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that does not fire, or at wrong times, because a clock was wrong."""

    key: str
    wrong: Wrong
    # Its next moment as stored; None: none.
    stored_at: datetime | None
    # The next moment by its rule; of a pause: its corrected end, if it has one.
    expected_at: datetime | None

    def words(self) -> str:
        stored = "never" if self.stored_at is None else f"at {self.stored_at:%Y-%m-%d %H:%M:%S} UTC"
        expected = "" if self.expected_at is None else f"{self.expected_at:%Y-%m-%d %H:%M:%S} UTC"
        match self.wrong:
            case "cursor":
                return f"it would fire again {stored}, although its rule has a moment at {expected}"
            case "look":
                return f"its moment {stored} would not be planned for more than a day after it is due"
            case "start":
                return f"its rule counts from a wrong time, so it would fire again {stored}"
            case "pause":
                return "it was paused while the clock was wrong" + (f", and would resume {stored}" if expected else "")


def passed_over(inputs: PlanInputs, now: int) -> int | None:
    """The first future moment that the cursor has passed. None: there is none."""
    if inputs.pause is not None:
        return None  # a resume restarts the cursor
    inputs = apart(inputs)
    if inputs.is_spent:
        return None
    if inputs.fire_at is not None and inputs.fire_at <= now:
        return None  # owed
    expected = inputs.rule.next_us(now + _CLOCK_MARGIN)
    if expected is None:
        return None
    # A rule that counts from the end of a run has no cursor while one is live.
    is_passed = not inputs.counts_from_end if inputs.fire_at is None else inputs.fire_at > expected
    return inputs.rule.next_us(now) if is_passed else None


def looks_too_late(inputs: PlanInputs, now: int) -> bool:
    """Whether the next plan of the schedule is long after its moment is due."""
    if inputs.pause is not None or inputs.fire_at is None or inputs.at is None:
        return False
    begin = max(now, inputs.fire_at)
    opens = begin if inputs.blackout is None else inputs.blackout.next_open(begin)
    if opens is None:
        return False
    # A day, since a failed plan is retried within an hour.
    latest: int | None = opens + (inputs.rule.bounds.jitter or 0) + inputs.definition.pace + DAY
    if inputs.blackout is not None and latest is not None:
        latest = inputs.blackout.next_open(min(latest, LATEST))
    return latest is not None and inputs.at > latest


async def astray_of(
    store: Store, app: str, stored: StoredSchedule, rule: When, blackout: Calendar | None, now: int
) -> Astray | None:
    """Check the cursor of a schedule against its rule. None: it is right."""
    inputs = plan_inputs_of(stored, stored.definition, rule, blackout=blackout)
    expected = passed_over(inputs, now)
    if expected is not None and stored.fingerprint != fingerprint_of(rule, blackout):
        # A change of the zone or the calendar moves a cursor too, but by less than a day.
        expected = expected if stored.fire_at is None or stored.fire_at - expected > DAY else None
    if expected is not None and isinstance(rule, Once):
        # It may have run already, at a wrong time or early.
        is_done = await store.recorded_moments(app, stored.id, first=expected, last=expected, limit=1)
        expected = None if is_done else expected
    if expected is None and not looks_too_late(inputs, now):
        return None
    return Astray(
        key=stored.key,
        wrong="look" if expected is None else "cursor",
        stored_at=None if stored.fire_at is None else from_us(stored.fire_at),
        expected_at=None if expected is None else from_us(expected),
    )


async def astray_in(store: Store, app: str, *, most: int | None = None) -> AsyncIterator[Astray]:
    """The wrong schedules of an app, or of its first `most` schedules by key."""
    calendars = await load_calendars(store, app)
    async for stored, now in _stored_with_time(store, app, most):
        found = await _astray(store, app, stored, calendars, now)
        if found is not None:
            yield found


async def _stored_with_time(
    store: Store, app: str, most: int | None = None
) -> AsyncIterator[tuple[StoredSchedule, int]]:
    """Schedules by key, each with the store's time when it was read."""
    after, left = None, most
    while left is None or left > 0:
        limit = _PAGE if left is None else min(_PAGE, left)
        page = await store.schedules(app, ScheduleFilter(after_key=after, limit=limit, with_counts=False))
        now = await store.now()
        for stored in await store.stored_schedules(app, keys=[each.key for each in page]):
            yield stored, now
        if len(page) < limit:
            return
        after, left = page[-1].key, None if left is None else left - len(page)


async def _astray(
    store: Store, app: str, stored: StoredSchedule, calendars: Mapping[str, Calendar], now: int
) -> Astray | None:
    try:
        rule = rule_of(stored, calendars)
        blackout = blackout_of(stored, rule, calendars)
    except EvertickError:
        return None
    return await astray_of(store, app, stored, rule, blackout, now)


async def written_ahead(store: Store, app: str) -> datetime | None:
    """The latest future time at which a row of an app was written, among its newest rows. None: none is wrong."""
    now = from_us(await store.now() + CLOCK_AHEAD)
    # Without waiting runs, whose moments may be years away.
    begun = (State.RUNNING, State.DISPATCHED, State.DONE)
    runs, gaps = await store.runs(app, RunFilter(states=begun, limit=20)), await store.gaps(app, RunFilter(limit=5))
    nodes = await store.nodes(app)
    times = [
        *(at for run in runs for at in (run.created_at, run.started_at, run.finished_at) if at is not None),
        *(gap.recorded_at for gap in gaps),
        *(at for node in nodes for at in (node.started_at, node.beat_at, node.died_at) if at is not None),
    ]
    return max((at for at in times if at > now), default=None)


def is_put_off(run: Run, now: datetime, ahead: datetime | None = None) -> bool:
    """Whether a wrong clock postponed a run. `ahead`: see `written_ahead`."""
    if run.state is not State.WAITING or run.due_at <= now:
        return False
    if run.created_at - now > _AHEAD:
        return True
    # A postponed run is due at about the time at which the wrong rows were written.
    is_of_then = ahead is not None and run.due_at - now > (ahead - now) / 2
    return bool(run.attempts or run.losses) and (is_of_then or run.due_at - now > _FAR)


class ClockRepairer(Editor):
    """Repairs the effects of a wrong clock. Nodes may continue to run."""

    async def traces(self) -> ClockTraces:
        return await self._repair_store().clock_traces(self._app, limit=_BATCH)

    def _repair_store(self) -> ClockRepair:
        if not isinstance(self._store, ClockRepair):
            raise Refused("this store cannot repair times: it does not implement `ClockRepair`")
        return self._store

    # --- schedules

    async def schedules(self, traces: ClockTraces) -> AsyncIterator[Astray]:
        """The schedules to repair, also by the traces of the wrong time."""
        calendars = await load_calendars(self._store, self._app)
        async for stored, now in _stored_with_time(self._store, self._app):
            found = _by_traces(stored, calendars, now, traces)
            found = found or await _astray(self._store, self._app, stored, calendars, now)
            if found is not None:
                yield found

    async def repair(self, found: Astray, traces: ClockTraces) -> None:
        """Repair a schedule with a guarded change, unless it is right or gone by now."""

        def make(current: CurrentSchedule) -> Change | None:
            return self._repairing(current, found.wrong, traces)

        try:
            await self._change(found.key, make)
        except NotFound:
            return

    def _repairing(self, current: CurrentSchedule, wrong: Wrong, traces: ClockTraces) -> Change | None:
        stored, rule = current.stored, current.rule
        if rule is None:
            return None
        if wrong == "pause":
            return None if stored.pause is None else self._pausing(current, _pause_from(stored.pause, current.time))
        if wrong == "start":
            rule = _restarted(stored, rule, current.time, traces)
            return None if rule is None else self._restarting(current, rule)
        inputs = plan_inputs_of(stored, stored.definition, rule, blackout=current.blackout)
        if passed_over(inputs, current.time) is not None:
            return self._restarting(current, rule)
        return self._planned_now(current) if looks_too_late(inputs, current.time) else None

    def _restarting(self, current: CurrentSchedule, rule: When) -> Change:
        """The change that settles up to now and restarts the cursor from now."""
        stored = current.stored
        definition = msgspec.structs.replace(stored.definition, when=rule.text)
        settled = self._settle(msgspec.structs.replace(current, rule=rule), Reason.CLOCK)
        if stored.pause is not None:
            settled = msgspec.structs.replace(settled, next_at=stored.pause.until, after_end=None)
        declared = stored.declared
        if declared is not None and declared.definition.when == stored.definition.when:
            # Otherwise it would look like an edit by a user.
            same = msgspec.structs.replace(declared.definition, when=rule.text)
            declared = msgspec.structs.replace(declared, definition=same)
        return Change(
            key=stored.key,
            kind="edit",
            settle=settled,
            definition=definition,
            pause=stored.pause,
            declared=declared,
        )

    def _planned_now(self, current: CurrentSchedule) -> Change:
        """The change that plans the schedule at once; owed moments stay owed."""
        stored = current.stored
        settled = Advance(
            schedule_id=stored.id,
            version=stored.version,
            fire_at=stored.fire_at,
            at=stored.at,
            next_fire_at=stored.fire_at,
            next_at=current.time,
            fingerprint=stored.fingerprint,
        )
        return Change(key=stored.key, kind="edit", settle=settled, definition=stored.definition, pause=stored.pause)

    # --- rows

    async def mend_rows(self, traces: ClockTraces, on_step: Callable[[int], None]) -> dict[str, int]:
        """Repair all other rows in batches. `on_step` gets the number of repaired rows so far."""
        repaired: dict[str, int] = {}
        gaps: Sequence[GapAhead] = traces.gaps
        for _ in range(_BATCHES_MAX):
            cuts = await self._cuts(gaps)
            batch = await self._repair_store().mend_times(self._app, cuts, traces=traces, limit=_BATCH)
            if not any(batch.values()):
                break
            for kind, count in batch.items():
                repaired[kind] = repaired.get(kind, 0) + count
            on_step(sum(repaired.values()))
            gaps = (await self.traces()).gaps
        return repaired

    async def _cuts(self, gaps: Sequence[GapAhead]) -> list[GapCut]:
        calendars, now = await load_calendars(self._store, self._app), await self._store.now()
        ids = list({gap.schedule_id: None for gap in gaps})
        rules: dict[int, When] = {}
        for begin in range(0, len(ids), _PAGE):
            for stored in await self._store.stored_schedules(self._app, ids=ids[begin : begin + _PAGE]):
                try:
                    rules[stored.id] = rule_of(stored, calendars)
                except EvertickError:
                    continue
        return [_cut(gap, rules.get(gap.schedule_id), now) for gap in gaps]


def _cut(gap: GapAhead, rule: When | None, now: int) -> GapCut:
    last = min(gap.last_at, now)
    if gap.first_at > last:
        return GapCut(id=gap.id, last_at=last, count=0, is_exact=True)
    if rule is None or rule.is_after_end:
        return GapCut(id=gap.id, last_at=last, count=1, is_exact=False)
    # A gap ends at one of its moments.
    moment = rule.previous_us(last + 1)
    last = last if moment is None else max(moment, gap.first_at)
    count = max(rule.count_us(gap.first_at, last, COUNT_LIMIT), 1)
    return GapCut(id=gap.id, last_at=last, count=count, is_exact=count < COUNT_LIMIT)


def _by_traces(
    stored: StoredSchedule, calendars: Mapping[str, Calendar], now: int, traces: ClockTraces
) -> Astray | None:
    """A schedule that was paused, or got its start, while the clock was wrong."""
    fire_at = None if stored.fire_at is None else from_us(stored.fire_at)
    pause = stored.pause
    if pause is not None and pause.at > now + CLOCK_AHEAD:
        until = None if pause.until is None else from_us(pause.until)
        right = _pause_from(pause, now).until
        return Astray(
            key=stored.key, wrong="pause", stored_at=until, expected_at=None if right is None else from_us(right)
        )
    try:
        rule = _restarted(stored, rule_of(stored, calendars), now, traces)
    except EvertickError:
        return None
    if rule is None:
        return None
    expected = rule.next_us(now)
    return Astray(
        key=stored.key,
        wrong="start",
        stored_at=fire_at,
        expected_at=None if expected is None else from_us(expected),
    )


def _pause_from(pause: Pause, now: int) -> Pause:
    """The same pause from now on, with the same length."""
    if pause.at <= now + CLOCK_AHEAD:
        return pause
    until = None if pause.until is None else now + max(pause.until - pause.at, 0)
    return msgspec.structs.replace(pause, at=now, until=until)


def _restarted(stored: StoredSchedule, rule: When, now: int, traces: ClockTraces) -> When | None:
    """The rule with now as start, if its start is from a wrong clock; None: it is not."""
    if traces.first_at is None or traces.last_at is None:
        return None
    is_new = stored.created_at > now + CLOCK_AHEAD
    if isinstance(rule, Once) and rule.at_us is not None and is_new and rule.at_us >= stored.created_at:
        return moved_to(rule, now + rule.at_us - stored.created_at)
    start = rule.bounds.start
    if isinstance(rule, Every) and rule.since == "start" and start is not None:
        is_wrong = start == stored.created_at if is_new else traces.first_at <= start <= traces.last_at
        return rule.starting_at(now) if is_wrong else None
    return None
