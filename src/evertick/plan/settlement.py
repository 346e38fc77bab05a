"""Closing the account of a definition that is about to change, and of a pause that ends. Pure.

What people decided about single moments is settled apart (overrides.py).
"""

from __future__ import annotations

import msgspec

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.blackout import gap_of_held, without_held
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
    facts: PlanInputs, now: int, reason: Reason, *, fresh: int = FRESH, is_opened: bool = False
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    """Close the account of the old definition: what was due just now still runs, the rest is a gap with the reason.

    An edit made seconds after a moment must not swallow it because the tick had not come by yet; an edit after a long
    downtime must not start old work. A moment that jitter still delays has come, too: an edit lets it become a run, due
    when it was to be; a pause and a removal put it into the gap. `fresh` is how long ago "just now" may be; -1: nothing
    runs any more. What a blackout holds is a gap, unless the change itself ends the blackout (`is_opened`): then the
    newest of it runs. Decisions about single moments are not part of it (`settle_decisions`).
    """
    if facts.pause is not None and facts.pause.until is not None and facts.pause.until <= now:
        paused, facts = end_pause(facts, facts.pause.until)
        fires, gaps = settle(facts, now, reason, fresh=fresh, is_opened=is_opened)
        return fires, paused + gaps
    if facts.pause is not None:
        reason = Reason.UNDECLARED if facts.pause.is_undeclared else Reason.PAUSED
        return (), gap_until(facts, now, Verdict.SKIPPED, reason)
    begun = newest_begun(facts, now)
    if begun is None or facts.fire_at is None or facts.is_spent:
        return (), ()
    if skips_next(facts):
        return (), (make_gap(facts, begun, begun, Verdict.SKIPPED, Reason.BY_HAND),)
    if facts.blackout is not None:
        return _settle_blackout(facts, facts.blackout, now, reason, fresh=fresh, is_opened=is_opened)
    return _settle_owed(facts, now, reason, fresh=fresh)


def _settle_blackout(
    facts: PlanInputs, blackout: Calendar, now: int, reason: Reason, *, fresh: int, is_opened: bool
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    is_closed, dropped = not blackout.permits(now), tuple[NewGap, ...]()
    if facts.definition.blackout_fate == "drop":
        dropped = gap_of_held(facts, now)
        if dropped and facts.counts_from_end:
            return (), dropped
        facts = without_held(facts)
    begun = newest_begun(facts, now)
    if begun is None or facts.fire_at is None:
        return (), dropped
    admitted = admit(facts.definition.overlap, facts.live)
    if is_opened and admitted is not None and facts.definition.blackout_fate != "drop":
        fire = Fire(fire_at=begun, due_at=now, is_late=True, is_blocked=admitted == "blocked")
        return (fire,), gap_before(facts, begun, Verdict.SKIPPED, reason)
    if is_closed:
        return (), (make_gap(facts, facts.fire_at, begun, Verdict.SKIPPED, reason), *dropped)
    fires, gaps = _settle_owed(facts, now, reason, fresh=fresh)
    return fires, gaps + dropped


def _settle_owed(
    facts: PlanInputs, now: int, reason: Reason, *, fresh: int
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    begun = newest_begun(facts, now)
    assert begun is not None
    assert facts.fire_at is not None
    chosen = begun if reason is Reason.EDITED else newest_owed(facts, now)
    admitted = admit(facts.definition.overlap, facts.live)
    if chosen is None or admitted is None or now - due_at(facts, chosen) > fresh or is_past_grace(facts, chosen, now):
        return (), (make_gap(facts, facts.fire_at, begun, Verdict.SKIPPED, reason),)
    fire = make_fire(facts, chosen, now, is_blocked=admitted == "blocked")
    gaps = gap_before(facts, chosen, Verdict.SKIPPED, reason)
    if chosen < begun:
        gaps += (make_gap(facts, begun, begun, Verdict.SKIPPED, reason),)
    return (fire,), gaps


def end_pause(facts: PlanInputs, until: int) -> tuple[tuple[NewGap, ...], PlanInputs]:
    """The moments before `until` were paused; from there on it is as if it had never been."""
    gaps = gap_until(facts, until - 1, Verdict.SKIPPED, Reason.PAUSED)
    cursor = facts.fire_at
    if cursor is not None and cursor < until:
        cursor = facts.rule.next_us(until - 1)
    # `at` was the end of the pause, not when the moment is due: its delay is drawn anew.
    return gaps, msgspec.structs.replace(facts, fire_at=cursor, at=None, pause=None)
