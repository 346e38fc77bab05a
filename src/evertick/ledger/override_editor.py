"""Overrides of single moments by users: skip the next, move one, run the next early, undo one.

An override is stored with the schedule until its time has come (see plan/overrides.py). Owed moments stay owed. The
cursor stays on the first future moment without an override.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from evertick.errors import Refused
from evertick.ledger.editor import ROUNDS_MAX, CurrentSchedule, Editor, interval_from_end, never_settles, soonest
from evertick.ledger.planning import plan_inputs_of, run_of
from evertick.model import IDLE_STATES, LIVE_STATES, Cause, NewGap, NewRun, Occurrence, Reason, Run, Verdict
from evertick.plan.inputs import Fire
from evertick.plan.moments import cursor_after
from evertick.plan.overlap import admit, takes_place
from evertick.plan.overrides import (
    OCCURRENCES_MAX,
    done,
    has_moment,
    is_past,
    pending,
    skips_next,
    time_of,
    without_decided,
)
from evertick.store.base import Advance, RunFilter
from evertick.when import When, from_us, to_us

__all__ = ["OverrideEditor"]

log = logging.getLogger("evertick.decide")


class _Override(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to write: the new overrides, and a run or gap that is recorded at once."""

    about: int
    occurrences: tuple[Occurrence, ...]
    run: NewRun | None = None
    gap: NewGap | None = None
    is_blocked: bool = False
    # The early run to withdraw.
    withdrawn: str | None = None
    # The next moment of a rule that counts from the end of its runs, if it is known again.
    counted: int | None = None


class OverrideEditor(Editor):
    """Skips, moves and runs single moments."""

    async def skip_next(self, key: str, *, note: str = "") -> int:
        """Skip the next moment without an override; returns it."""

        async def make(current: CurrentSchedule) -> _Override:
            moment = _next_moment(current)
            return _Override(
                about=moment, occurrences=_put(current, Occurrence(fire_at=moment, kind="skip", note=note))
            )

        moment = (await self._decide(key, make)).about
        log.info("schedule %r: moment %s will be skipped: %s", key, from_us(moment), note or "no note")
        return moment

    async def move(self, key: str, fire_at: int, *, to: int, note: str = "") -> None:
        """Run the moment at another time. Replaces an earlier override of it."""

        async def make(current: CurrentSchedule) -> _Override:
            _check_move(current, fire_at, to)
            moved = Occurrence(fire_at=fire_at, kind="move", to=to, note=note)
            return _Override(about=fire_at, occurrences=_put(current, moved))

        await self._decide(key, make)
        log.info("schedule %r: moment %s moved to %s: %s", key, from_us(fire_at), from_us(to), note or "no note")

    async def run_early(self, key: str) -> str:
        """Run the next moment without an override now, instead of at its time; returns the run's id."""
        run_id = self._clock.new_id()

        async def make(current: CurrentSchedule) -> _Override:
            stored = current.stored
            if stored.pause is not None:
                raise Refused(
                    f"{key!r} is paused, so its next moment does not run", fix="use trigger() to run its task now"
                )
            if stored.definition.mode == "every-node":
                raise Refused(
                    f"{key!r} runs on every node, so its next moment cannot be taken out",
                    fix="use trigger() to run it now",
                )
            moment = _next_moment(current)
            admitted = admit(stored.definition.overlap, stored.live)
            if admitted is None:
                overlap = stored.definition.overlap
                raise Refused(f"{key!r} has a live run, and its overlap is {overlap!r}: not run early")
            fire = Fire(fire_at=moment, due_at=current.time, is_blocked=admitted == "blocked")
            kept = () if interval_from_end(current.rule) is not None else _put(current, done(moment))
            run = run_of(run_id, stored, stored.definition, fire)
            return _Override(about=moment, occurrences=kept, run=run, is_blocked=fire.is_blocked)

        moment = (await self._decide(key, make)).about
        log.info("schedule %r: moment %s runs early", key, from_us(moment))
        return run_id

    async def undo(self, key: str, fire_at: int | None = None) -> Occurrence:
        """Undo an override before its time: that of `fire_at`, by default the next one.

        An early run comes first: it can be undone until a node has claimed it; its moment then runs at its own time.
        """
        taken = Occurrence(fire_at=0, kind="done")

        async def make(current: CurrentSchedule) -> _Override:
            nonlocal taken
            live = await self._live(current)
            early = _early(live, current.time, fire_at)
            if early is not None and _is_untouched(early):
                taken = done(to_us(early.fire_at))
                return _withdrawn(current, early, is_alone=len(live) == 1)
            taken = _to_undo(current, fire_at, early)
            rest = tuple(each for each in current.stored.occurrences if each != taken)
            if taken.fire_at > current.time or interval_from_end(current.rule) is not None:
                return _Override(about=taken.fire_at, occurrences=rest)
            # It no longer runs at its new time, and its own time is over.
            moment, cursor = taken.fire_at, current.stored.fire_at
            if cursor is not None and moment > cursor:
                rest = _sorted([*rest, done(moment)])
            gap = NewGap(first_at=moment, last_at=moment, count=1, verdict=Verdict.SKIPPED, reason=Reason.BY_HAND)
            return _Override(about=moment, occurrences=rest, gap=gap)

        await self._decide(key, make)
        log.info("schedule %r: %s of %s undone", key, taken.kind, from_us(taken.fire_at))
        return taken

    # --- writing an override

    async def _live(self, current: CurrentSchedule) -> list[Run]:
        """The live runs, latest moments first, so that early runs are among them."""
        return await self._store.runs(self._app, RunFilter(schedule_key=current.stored.key, states=LIVE_STATES))

    async def _decide(self, key: str, make: Callable[[CurrentSchedule], Awaitable[_Override]]) -> _Override:
        for _ in range(ROUNDS_MAX):
            current = await self._current(key)
            override = await make(current)
            recorded = await self._store.record_fires(self._app, None, [self._advance(current, override)])
            if override.run is not None and override.run.id in recorded.duplicates:
                moment = from_us(override.about)
                raise Refused(
                    f"{key!r}: another run has its unique key, so the moment {moment} was skipped (duplicate)"
                )
            if recorded.taken[0]:
                return override
        raise never_settles(key)

    def _advance(self, current: CurrentSchedule, override: _Override) -> Advance:
        stored, overlap = current.stored, current.stored.definition.overlap
        fire_at, at = self._cursor(current, override)
        # While a run is live there is no cursor; its end sets it.
        is_awaited = stored.fire_at is None and stored.pause is None and override.counted is None
        after_end = interval_from_end(current.rule) if override.run is not None or is_awaited else None
        return Advance(
            schedule_id=stored.id,
            version=stored.version,
            fire_at=stored.fire_at,
            at=stored.at,
            live=None if override.run is None or overlap == "allow" else stored.live,
            runs=() if override.run is None else (override.run,),
            gaps=() if override.gap is None else (override.gap,),
            next_fire_at=fire_at if after_end is None else None,
            next_at=at if after_end is None else None,
            after_end=after_end,
            replaces_live=override.run is not None
            and takes_place(overlap, stored.live, is_blocked=override.is_blocked),
            occurrences=override.occurrences,
            undoes_run=override.withdrawn,
            fingerprint=stored.fingerprint,
        )

    def _cursor(self, current: CurrentSchedule, override: _Override) -> tuple[int | None, int | None]:
        """The cursor: an owed moment, else the first future moment without an override."""
        stored, rule = current.stored, current.rule
        fire_at, at = stored.fire_at, stored.at
        counts_from_end = interval_from_end(rule) is not None
        if override.counted is not None:
            fire_at, at = override.counted, override.counted
        if rule is not None and not counts_from_end and (fire_at is None or fire_at > current.time):
            rest = without_decided(rule, override.occurrences)
            first, due_at = cursor_after(rest, stored.key, current.time, self._clock.uniform, current.blackout)
            if _is_spent(current, override):
                first, due_at = None, None
            # A drawn delay stays; the time of another override does not.
            is_same = first == fire_at and at is not None and first is not None and at >= first
            fire_at, at = first, at if is_same else due_at
        if stored.pause is not None:
            return fire_at, stored.at
        return fire_at, at if counts_from_end else soonest(at, override.occurrences)


def _rule(current: CurrentSchedule) -> When:
    if current.rule is None:
        raise Refused(
            f"the rule of {current.stored.key!r} cannot be read, so it has no moments", fix="correct it with update()"
        )
    return current.rule


def _is_spent(current: CurrentSchedule, override: _Override) -> bool:
    most = _rule(current).bounds.max_fires
    promised = sum(each.kind == "move" for each in override.occurrences)
    made = (override.run is not None) - (override.withdrawn is not None)
    return most is not None and current.stored.fires + promised + made >= most


def _next_moment(current: CurrentSchedule) -> int:
    """The next moment without an override."""
    stored, rule, key = current.stored, _rule(current), current.stored.key
    if interval_from_end(rule) is not None:
        return _next_counted(current)
    promised = sum(each.kind == "move" for each in stored.occurrences)
    most = rule.bounds.max_fires
    if most is not None and stored.fires + promised >= most:
        raise Refused(f"{key!r} has no next moment: max_fires is reached")
    found = without_decided(rule, stored.occurrences).next_us(current.time)
    if found is None:
        raise Refused(f"{key!r} has no next moment: its rule has none without an override")
    return found


def _next_counted(current: CurrentSchedule) -> int:
    stored, key = current.stored, current.stored.key
    if stored.fire_at is None:
        raise Refused(
            f"the next moment of {key!r} is not known: it counts from the end of its run", fix="wait for the end"
        )
    if stored.fire_at <= current.time:
        raise Refused(f"the next moment of {key!r} has come already", fix="wait for its run")
    if skips_next(plan_inputs_of(stored, stored.definition, _rule(current))):
        raise Refused(f"the next moment of {key!r} is skipped already", fix="undo that with undo() first")
    return stored.fire_at


def _check_move(current: CurrentSchedule, fire_at: int, to: int) -> None:
    key, now, rule = current.stored.key, current.time, _rule(current)
    if interval_from_end(rule) is not None:
        raise Refused(
            f"the moments of {key!r} count from the end of its runs, so there is none to move", fix="use trigger()"
        )
    if to <= now:
        raise Refused(
            f"cannot move a moment of {key!r} to {from_us(to)}, which has passed", fix="use run_early() for now"
        )
    if to == fire_at:
        raise Refused(f"{from_us(to)} is that moment's own time", fix="use undo() to undo an override of it")
    known = next((each for each in current.stored.occurrences if each.fire_at == fire_at), None)
    if known is not None and known.kind == "done":
        raise Refused(f"the moment {from_us(fire_at)} of {key!r} already has its run")
    if known is not None and known.kind == "move" and time_of(known) > now:
        return
    if fire_at <= now:
        raise Refused(f"the moment {from_us(fire_at)} of {key!r} has passed", fix=_nearest(rule, fire_at, now))
    if not has_moment(rule, fire_at):
        raise Refused(f"{from_us(fire_at)} is not a moment of {key!r}", fix=_nearest(rule, fire_at, now))


def _nearest(rule: When, moment: int, now: int) -> str:
    around = [rule.previous_us(moment), rule.next_us(max(moment, now))]
    words = [f"{from_us(each, rule.zone)}" for each in around if each is not None and each > now]
    return f"the nearest to come: {' and '.join(words)}" if words else "it has none to come"


def _is_untouched(run: Run) -> bool:
    """Whether the run is idle and has no attempts or losses."""
    return run.state in IDLE_STATES and run.attempts == 0 and run.losses == 0


def _early(live: list[Run], now: int, fire_at: int | None) -> Run | None:
    """The early run of a future moment: of the given one, or of the first that can be undone."""
    found = [
        run
        for run in live
        if run.cause is Cause.FIRE and to_us(run.fire_at) > now and fire_at in (None, to_us(run.fire_at))
    ]
    return min(found, key=lambda run: (not _is_untouched(run), run.fire_at), default=None)


def _withdrawn(current: CurrentSchedule, early: Run, *, is_alone: bool) -> _Override:
    """Withdraw an early run that has not begun; its moment belongs to the schedule again."""
    moment = to_us(early.fire_at)
    rest = tuple(each for each in current.stored.occurrences if each != done(moment))
    counts_from_end = interval_from_end(current.rule) is not None
    return _Override(
        about=moment, occurrences=rest, withdrawn=early.id, counted=moment if counts_from_end and is_alone else None
    )


def _to_undo(current: CurrentSchedule, fire_at: int | None, begun: Run | None) -> Occurrence:
    key, waiting = current.stored.key, pending(current.stored.occurrences)
    if begun is not None and (fire_at is not None or not waiting):
        raise Refused(
            f"the moment {begun.fire_at} of {key!r} runs early, and its run {begun.id} has begun: too late to undo it",
            fix="cancel() stops the run",
        )
    if fire_at is not None and not any(each.fire_at == fire_at for each in waiting):
        shown = ", ".join(str(from_us(each.fire_at)) for each in waiting[:10]) or "no moment"
        raise Refused(f"{from_us(fire_at)} of {key!r} has no override", fix=f"overrides exist for: {shown}")
    counts_from_end = interval_from_end(current.rule) is not None
    undoable = [each for each in waiting if time_of(each) > current.time or counts_from_end]
    if fire_at is None and not undoable:
        raise Refused(f"{key!r} has no overrides of future moments, so there is nothing to undo")
    for each in undoable:
        if fire_at is None or each.fire_at == fire_at:
            return each
    raise Refused(f"the time of {from_us(fire_at or 0)} of {key!r} has come: too late to undo it")


def _put(current: CurrentSchedule, new: Occurrence) -> tuple[Occurrence, ...]:
    cursor = current.stored.fire_at
    kept = [
        each
        for each in current.stored.occurrences
        if each.fire_at != new.fire_at and not (each.kind == "done" and is_past(each, current.time, cursor))
    ]
    if len(kept) >= OCCURRENCES_MAX:
        raise Refused(
            f"{current.stored.key!r} has {len(kept)} overridden moments, which is the limit",
            fix="undo some with undo(), or pause it",
        )
    return _sorted([*kept, new])


def _sorted(occurrences: list[Occurrence]) -> tuple[Occurrence, ...]:
    return tuple(sorted(occurrences, key=lambda each: each.fire_at))
