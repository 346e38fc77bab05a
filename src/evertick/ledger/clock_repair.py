"""What a wrong clock has left in a ledger: found, and put right.

While the store's clock was ahead, moments were recorded that have not come, cursors went far ahead, and what was tried
again was put off to that time. A cursor is compared with what its rule gives from now, so nothing need be known of the
wrong time; rows are known by the time at which they say that they were written.

A schedule is repaired like an edit that changes nothing: guarded, its cursor restarted from now, its version raised.
The gap that was recorded for moments to come is cut at now, with the reason `clock`: what has passed meanwhile did not
run, and the ledger says so.
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

# Clocks are put right by less than this every day, and a moment that has run does not run again.
_CLOCK_MARGIN = MINUTE
_PAGE = 1_000
_BITE = 5_000
_AHEAD, _FAR = timedelta(microseconds=CLOCK_AHEAD), timedelta(microseconds=CLOCK_FAR)
# Far more than a clock that is wrong for days leaves.
_BITES_MOST = 100_000

# What is wrong with a schedule: its next moment, when it is looked at, what its rule counts from, its pause.
Wrong = Literal["cursor", "look", "start", "pause"]


class Astray(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that stands still, or fires at other times than its rule says, because a clock was wrong."""

    key: str
    wrong: Wrong
    # Its next moment as it is stored; None: none at all.
    stored_at: datetime | None
    # When its rule has the next one; of a pause its end, if it is to have one.
    expected_at: datetime | None

    def words(self) -> str:
        stored = "never" if self.stored_at is None else f"at {self.stored_at:%Y-%m-%d %H:%M:%S} UTC"
        expected = "" if self.expected_at is None else f"{self.expected_at:%Y-%m-%d %H:%M:%S} UTC"
        match self.wrong:
            case "cursor":
                return f"it would fire again {stored}, although its rule has a moment at {expected}"
            case "look":
                return f"its moment {stored} would not be looked at for more than a day after it is due"
            case "start":
                return f"its rule counts from a time that was wrong, so that it would fire again {stored}"
            case "pause":
                return "it was paused while the clock was wrong" + (f", and would resume {stored}" if expected else "")


def passed_over(inputs: PlanInputs, now: int) -> int | None:
    """The first moment to come that the cursor lies behind. None: there is none."""
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
    """Whether the next look at the schedule is long after its moment is due."""
    if inputs.pause is not None or inputs.fire_at is None or inputs.at is None:
        return False
    begin = max(now, inputs.fire_at)
    opens = begin if inputs.blackout is None else inputs.blackout.next_open(begin)
    if opens is None:
        return False
    # A day: a plan that failed is tried again within an hour.
    latest: int | None = opens + (inputs.rule.bounds.jitter or 0) + inputs.definition.pace + DAY
    if inputs.blackout is not None and latest is not None:
        latest = inputs.blackout.next_open(min(latest, LATEST))
    return latest is not None and inputs.at > latest


async def astray_of(
    store: Store, app: str, stored: StoredSchedule, rule: When, blackout: Calendar | None, now: int
) -> Astray | None:
    """Whether the cursor of a schedule lies where its rule has it from now on."""
    inputs = plan_inputs_of(stored, stored.definition, rule, blackout=blackout)
    expected = passed_over(inputs, now)
    if expected is not None and stored.fingerprint != fingerprint_of(rule, blackout):
        # Other rules of a zone or another calendar move a cursor, too; not by so much.
        expected = expected if stored.fire_at is None or stored.fire_at - expected > DAY else None
    if expected is not None and isinstance(rule, Once):
        # It has run already, at a time that was wrong or by hand.
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
    """All schedules of an app, or the first of them by key."""
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
    """The latest time, still to come, at which something of an app says that it was written; by a look at the newest of
    what is mostly written. None: there is none, as it should be."""
    now = from_us(await store.now() + CLOCK_AHEAD)
    # What waits may honestly have a moment that is years away.
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
    """Whether a run waits for a time to which a wrong clock has put it off. `ahead`: see `written_ahead`."""
    if run.state is not State.WAITING or run.due_at <= now:
        return False
    if run.created_at - now > _AHEAD:
        return True
    # What is written then is of about the time when it was put off.
    is_of_then = ahead is not None and run.due_at - now > (ahead - now) / 2
    return bool(run.attempts or run.losses) and (is_of_then or run.due_at - now > _FAR)


class ClockRepairer(Editor):
    """Finds what a wrong clock has left, and puts it right. Nodes may go on running."""

    async def traces(self) -> ClockTraces:
        return await self._mender().clock_traces(self._app, limit=_BITE)

    def _mender(self) -> ClockRepair:
        if not isinstance(self._store, ClockRepair):
            raise Refused("this store cannot put times right; its maker must offer `ClockRepair`")
        return self._store

    # --- schedules

    async def schedules(self, traces: ClockTraces) -> AsyncIterator[Astray]:
        """Those to be repaired, also by what the traces tell of the wrong time."""
        calendars = await load_calendars(self._store, self._app)
        async for stored, now in _stored_with_time(self._store, self._app):
            found = _by_traces(stored, calendars, now, traces)
            found = found or await _astray(self._store, self._app, stored, calendars, now)
            if found is not None:
                yield found

    async def repair(self, found: Astray, traces: ClockTraces) -> None:
        """Guarded like any other change; one that is right by now, or gone, stays as it is."""

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
        return self._looking_now(current) if looks_too_late(inputs, current.time) else None

    def _restarting(self, current: CurrentSchedule, rule: When) -> Change:
        """Like an edit: settled up to now, and the cursor of the rule from now."""
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

    def _looking_now(self, current: CurrentSchedule) -> Change:
        """What is owed stays owed, and is planned at once."""
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
        """What is no schedule, in bites, until nothing is left. Hears how many rows were mended until then."""
        mended: dict[str, int] = {}
        gaps: Sequence[GapAhead] = traces.gaps
        for _ in range(_BITES_MOST):
            cuts = await self._cuts(gaps)
            bite = await self._mender().mend_times(self._app, cuts, traces=traces, limit=_BITE)
            if not any(bite.values()):
                break
            for kind, count in bite.items():
                mended[kind] = mended.get(kind, 0) + count
            on_step(sum(mended.values()))
            gaps = (await self.traces()).gaps
        return mended

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
    # The last of its moments, so that a stretch begins and ends at one.
    moment = rule.previous_us(last + 1)
    last = last if moment is None else max(moment, gap.first_at)
    count = max(rule.count_us(gap.first_at, last, COUNT_LIMIT), 1)
    return GapCut(id=gap.id, last_at=last, count=count, is_exact=count < COUNT_LIMIT)


def _by_traces(
    stored: StoredSchedule, calendars: Mapping[str, Calendar], now: int, traces: ClockTraces
) -> Astray | None:
    """What was paused, or given what it counts from, while the clock was wrong."""
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
    """The same pause, as long as it was to be, from now on."""
    if pause.at <= now + CLOCK_AHEAD:
        return pause
    until = None if pause.until is None else now + max(pause.until - pause.at, 0)
    return msgspec.structs.replace(pause, at=now, until=until)


def _restarted(stored: StoredSchedule, rule: When, now: int, traces: ClockTraces) -> When | None:
    """The rule counted from now, if it counts from a time at which the clock was wrong; None: it does not."""
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
