"""Settles the owed moments before a definition changes, and at the end of a pause. Pure.

overrides.py settles overridden moments.
"""

from __future__ import annotations

import msgspec

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.blackout import gap_of_blackout, outside_blackout
from evertick.plan.inputs import FRESH, Fire, PlanInputs
from evertick.plan.moments import (
    due_at,
    gap_before,
    gap_until,
    is_past_grace,
    make_fire,
    make_gap,
    newest_begun,
    newest_owed,
)
from evertick.plan.overlap import admit
from evertick.plan.overrides import skips_next
from evertick.when.calendar import Calendar

__all__ = ["end_pause", "settle"]


def settle(
    inputs: PlanInputs, now: int, reason: Reason, *, fresh: int = FRESH, is_opened: bool = False
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    """Settle the old definition: a moment that was due just now still runs, the others become a gap with the reason.

    An edit seconds after a moment must not lose it; an edit after a long downtime must not start old work. A moment
    that jitter still delays: an edit keeps its run, at the same due time; a pause or a removal adds it to the gap.
    `fresh`: how long ago "just now" may be; -1: nothing runs. Moments in a blackout are a gap, unless the change ends
    the blackout (`is_opened`): then the newest one runs.
    """
    if inputs.pause is not None and inputs.pause.until is not None and inputs.pause.until <= now:
        paused, inputs = end_pause(inputs, inputs.pause.until)
        fires, gaps = settle(inputs, now, reason, fresh=fresh, is_opened=is_opened)
        return fires, paused + gaps
    if inputs.pause is not None:
        reason = Reason.UNDECLARED if inputs.pause.is_undeclared else Reason.PAUSED
        return (), gap_until(inputs, now, Verdict.SKIPPED, reason)
    begun = newest_begun(inputs, now)
    if begun is None or inputs.fire_at is None or inputs.is_spent:
        return (), ()
    if skips_next(inputs):
        return (), (make_gap(inputs, begun, begun, Verdict.SKIPPED, Reason.BY_HAND),)
    if inputs.blackout is not None:
        return _settle_blackout(inputs, inputs.blackout, now, reason, fresh=fresh, is_opened=is_opened)
    return _settle_owed(inputs, now, reason, fresh=fresh)


def _settle_blackout(
    inputs: PlanInputs, blackout: Calendar, now: int, reason: Reason, *, fresh: int, is_opened: bool
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    is_closed, dropped = not blackout.permits(now), tuple[NewGap, ...]()
    if inputs.definition.blackout_fate == "drop":
        dropped = gap_of_blackout(inputs, now)
        if dropped and inputs.counts_from_end:
            return (), dropped
        inputs = outside_blackout(inputs)
    begun = newest_begun(inputs, now)
    if begun is None or inputs.fire_at is None:
        return (), dropped
    admitted = admit(inputs.definition.overlap, inputs.live)
    if is_opened and admitted is not None and inputs.definition.blackout_fate != "drop":
        fire = Fire(fire_at=begun, due_at=now, is_late=True, is_blocked=admitted == "blocked")
        return (fire,), gap_before(inputs, begun, Verdict.SKIPPED, reason)
    if is_closed:
        return (), (make_gap(inputs, inputs.fire_at, begun, Verdict.SKIPPED, reason), *dropped)
    fires, gaps = _settle_owed(inputs, now, reason, fresh=fresh)
    return fires, gaps + dropped


def _settle_owed(
    inputs: PlanInputs, now: int, reason: Reason, *, fresh: int
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    begun = newest_begun(inputs, now)
    assert begun is not None
    assert inputs.fire_at is not None
    chosen = begun if reason is Reason.EDITED else newest_owed(inputs, now)
    admitted = admit(inputs.definition.overlap, inputs.live)
    is_stale = fresh < 0 or chosen is None or now - due_at(inputs, chosen) > fresh
    if chosen is None or is_stale or admitted is None or is_past_grace(inputs, chosen, now):
        return (), (make_gap(inputs, inputs.fire_at, begun, Verdict.SKIPPED, reason),)
    fire = make_fire(inputs, chosen, now, is_blocked=admitted == "blocked")
    gaps = gap_before(inputs, chosen, Verdict.SKIPPED, reason)
    if chosen < begun:
        gaps += (make_gap(inputs, begun, begun, Verdict.SKIPPED, reason),)
    return (fire,), gaps


def end_pause(inputs: PlanInputs, until: int) -> tuple[tuple[NewGap, ...], PlanInputs]:
    """The gap of the moments before `until`, and the inputs from there on, without the pause."""
    gaps = gap_until(inputs, until - 1, Verdict.SKIPPED, Reason.PAUSED)
    cursor = inputs.fire_at
    if cursor is not None and cursor < until:
        cursor = inputs.rule.next_us(until - 1)
    # `at` was the end of the pause, not a drawn delay.
    return gaps, msgspec.structs.replace(inputs, fire_at=cursor, at=None, pause=None)
