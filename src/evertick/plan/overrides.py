"""Overrides: users skip or move single moments, or run them early. Pure.

An overridden moment is outside of its rule's sequence: the others are planned as if the rule did not have it (`apart`),
and it gets its own row at its time (`with_decisions`, `settle_decisions`). So catch-up, grace, pauses and blackouts
apply to the others as usual, and each moment still ends in exactly one row.

The time of a skipped moment is its own; that of a moved one is its new time. A moment that gets its row before its own
time (moved earlier, run early) is kept as "done" until the cursor is past it, so that the rule does not repeat it.

A rule that counts from the end of a run has no future moments; a skip applies to its next one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evertick.model import NewGap, Occurrence, Reason, Verdict
from evertick.plan.inputs import FRESH, LATE, Fire, Plan, PlanInputs
from evertick.plan.overlap import admit, takes_place
from evertick.when.base import When
from evertick.when.subset import Without

__all__ = [
    "OCCURRENCES_MAX",
    "Settled",
    "apart",
    "done",
    "has_moment",
    "is_past",
    "pending",
    "settle_decisions",
    "skips_next",
    "time_of",
    "with_decisions",
    "without_decided",
]

# Each plan of a schedule reads all of its overrides.
OCCURRENCES_MAX = 100


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of the overrides whose time has come, and the remaining overrides."""

    fires: tuple[Fire, ...] = ()
    gaps: tuple[NewGap, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()


def time_of(occurrence: Occurrence) -> int:
    """When the overridden moment gets its row."""
    return occurrence.fire_at if occurrence.to is None else occurrence.to


def done(fire_at: int) -> Occurrence:
    """An override that marks a moment as recorded."""
    return Occurrence(fire_at=fire_at, kind="done")


def pending(occurrences: Iterable[Occurrence]) -> list[Occurrence]:
    """The overrides that are not done, soonest first."""
    return sorted((each for each in occurrences if each.kind != "done"), key=time_of)


def without_decided(rule: When, occurrences: tuple[Occurrence, ...]) -> When:
    """The rule without the overridden moments."""
    if not occurrences or rule.is_after_end:
        return rule
    return Without(rule, (each.fire_at for each in occurrences))


def apart(inputs: PlanInputs) -> PlanInputs:
    """The inputs without the overridden moments. A moved one still counts for `max_fires`."""
    if inputs.counts_from_end:
        return inputs
    promised = sum(each.kind == "move" for each in inputs.occurrences)
    rule = without_decided(inputs.rule, inputs.occurrences)
    return msgspec.structs.replace(inputs, rule=rule, fires=inputs.fires + promised, occurrences=())


def skips_next(inputs: PlanInputs) -> bool:
    """Whether a user skips the next moment of a rule that counts from the end of a run."""
    return inputs.counts_from_end and any(each.kind == "skip" for each in inputs.occurrences)


def is_past(occurrence: Occurrence, now: int, cursor: int | None) -> bool:
    """Whether the cursor can no longer reach its moment, neither by advancing nor by a restart from now."""
    return occurrence.fire_at <= now and (cursor is None or occurrence.fire_at < cursor)


def has_moment(rule: When, moment: int) -> bool:
    return not rule.is_after_end and rule.next_us(moment - 1) == moment


# --- the tick ----------------------------------------------------------------------------------------------------


def with_decisions(inputs: PlanInputs, made: Plan, now: int) -> Plan:
    """Add the overridden moments whose time has come to the plan of the others."""
    if inputs.pause is not None and not made.ends_pause:
        return made
    if inputs.counts_from_end:
        # The skip was for the next moment, which has its row now.
        return msgspec.structs.replace(made, occurrences=()) if made.gaps or made.fires else made
    paused_until = 0 if inputs.pause is None else inputs.pause.until or 0
    fires, gaps, happened = list[Fire](), list[NewGap](), set[int]()
    for each in pending(inputs.occurrences):
        if time_of(each) > now:
            break
        if time_of(each) < paused_until:
            row: Fire | NewGap | None = _gap(each, Verdict.SKIPPED, Reason.PAUSED)
        elif each.kind == "skip":
            row = _gap(each, Verdict.SKIPPED, Reason.BY_HAND)
        else:
            row = _moved(inputs, each, now, [*made.fires, *fires])
        if row is not None:
            happened.add(each.fire_at)
        if isinstance(row, Fire):
            fires.append(row)
        elif row is not None:
            gaps.append(row)
    remaining = _remaining(inputs.occurrences, happened, now, made.next_fire_at)
    is_blocked = any(fire.is_blocked for fire in fires)
    return msgspec.structs.replace(
        made,
        fires=(*made.fires, *fires),
        gaps=(*made.gaps, *gaps),
        next_at=_next_look(inputs, made.next_at, remaining, now, has_fired=bool(made.fires or fires)),
        replaces_live=made.replaces_live
        or (bool(fires) and takes_place(inputs.definition.overlap, inputs.live, is_blocked=is_blocked)),
        occurrences=None if remaining == inputs.occurrences else remaining,
    )


def _moved(inputs: PlanInputs, moved: Occurrence, now: int, beside: list[Fire]) -> Fire | NewGap | None:
    """The row of a moved moment whose time has come; None: it waits for the next plan.

    Its new time counts. Neither jitter nor a blackout delays it, since the user chose this time.
    """
    definition, late = inputs.definition, now - time_of(moved)
    most = inputs.rule.bounds.max_fires
    if most is not None and inputs.fires + len(beside) >= most:
        return _gap(moved, Verdict.SKIPPED, Reason.LIMIT)
    if definition.grace is not None and late > definition.grace:
        return _gap(moved, Verdict.MISSED, Reason.GRACE)
    if definition.grace is None and definition.catch_up == "skip" and late > FRESH:
        return _gap(moved, Verdict.MISSED, Reason.DOWNTIME)
    if beside and definition.overlap != "allow":
        return None
    admitted = admit(definition.overlap, inputs.live)
    if admitted is None:
        is_behind = definition.catch_up == "all" and late > definition.pace
        return None if is_behind else _gap(moved, Verdict.SKIPPED, Reason.OVERLAP)
    return _fire(moved, now, is_blocked=admitted == "blocked")


def _next_look(
    inputs: PlanInputs, at: int | None, remaining: tuple[Occurrence, ...], now: int, *, has_fired: bool
) -> int | None:
    """When to plan again: at once for a moment that could not be recorded beside another fire, else after `pace`."""
    again = now + (1 if has_fired else inputs.definition.pace)
    times = [again if time_of(each) <= now else time_of(each) for each in remaining if each.kind != "done"]
    return min([*times, *([] if at is None else [at])], default=None)


def _remaining(
    occurrences: tuple[Occurrence, ...], happened: set[int], now: int, cursor: int | None
) -> tuple[Occurrence, ...]:
    kept = list[Occurrence]()
    for each in occurrences:
        if each.kind != "done" and each.fire_at not in happened:
            kept.append(each)
        elif not is_past(each, now, cursor):
            kept.append(done(each.fire_at))
    return tuple(kept)


# --- when a schedule changes -------------------------------------------------------------------------------------


def settle_decisions(
    inputs: PlanInputs, now: int, reason: Reason, *, rule: When | None, cursor: int | None, fresh: int, is_alone: bool
) -> Settled:
    """Settle the overrides of a definition that is about to change.

    Overrides whose time has come are settled like other moments. Future ones stay if their own moment is over or the
    new rule has it too. `rule` None: there is no new rule; future ones are dropped, and if their own moment is over, it
    is in the gap with the reason.
    """
    if inputs.counts_from_end:
        has_come = inputs.fire_at is not None and inputs.fire_at <= now
        stays = not has_come and rule is not None and rule.is_after_end
        return Settled(occurrences=inputs.occurrences if stays else ())
    fires, gaps, kept = list[Fire](), list[NewGap](), list[Occurrence]()
    for each in inputs.occurrences:
        if each.kind == "done":
            kept += [] if is_past(each, now, cursor) else [each]
        elif time_of(each) <= now:
            row = _settled(inputs, each, now, reason, fresh=fresh, is_alone=is_alone and not fires)
            kept += [] if is_past(each, now, cursor) else [done(each.fire_at)]
            if isinstance(row, Fire):
                fires.append(row)
            else:
                gaps.append(row)
        elif each.fire_at <= now and (rule is None or rule.is_after_end):
            gaps.append(_gap(each, Verdict.SKIPPED, reason))
        elif rule is not None and (each.fire_at <= now or has_moment(rule, each.fire_at)):
            kept.append(each)
    return Settled(fires=tuple(fires), gaps=tuple(gaps), occurrences=tuple(kept))


def _settled(
    inputs: PlanInputs, each: Occurrence, now: int, reason: Reason, *, fresh: int, is_alone: bool
) -> Fire | NewGap:
    pause, definition, late = inputs.pause, inputs.definition, now - time_of(each)
    if pause is not None and (pause.until is None or time_of(each) < pause.until):
        return _gap(each, Verdict.SKIPPED, Reason.UNDECLARED if pause.is_undeclared else Reason.PAUSED)
    if each.kind == "skip":
        return _gap(each, Verdict.SKIPPED, Reason.BY_HAND)
    admitted = admit(definition.overlap, inputs.live)
    is_in_time = late <= fresh and (definition.grace is None or late <= definition.grace)
    may_run = is_alone or definition.overlap == "allow"
    if admitted is None or not is_in_time or not may_run or inputs.is_spent:
        return _gap(each, Verdict.SKIPPED, reason)
    return _fire(each, now, is_blocked=admitted == "blocked")


# --- small questions ---------------------------------------------------------------------------------------------


def _fire(moved: Occurrence, now: int, *, is_blocked: bool) -> Fire:
    due_at = time_of(moved)
    return Fire(fire_at=moved.fire_at, due_at=due_at, is_late=now - due_at > LATE, is_blocked=is_blocked)


def _gap(occurrence: Occurrence, verdict: Verdict, reason: Reason) -> NewGap:
    moment = occurrence.fire_at
    return NewGap(first_at=moment, last_at=moment, count=1, verdict=verdict, reason=reason)
