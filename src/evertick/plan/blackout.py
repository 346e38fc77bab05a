"""What a blackout holds: the moments that came while it was closed. Pure."""

from __future__ import annotations

import msgspec

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.inputs import PlanInputs
from evertick.plan.moments import is_held, make_gap
from evertick.when.base import When
from evertick.when.subset import Within

__all__ = ["gap_of_held", "newest_held", "without_held"]


def newest_held(facts: PlanInputs, now: int) -> int | None:
    """The newest moment from the cursor on that came while the blackout was closed."""
    if facts.blackout is None or facts.fire_at is None or facts.fire_at > now:
        return None
    if facts.blackout.permits(facts.fire_at):
        if facts.counts_from_end or facts.blackout.open_until(facts.fire_at, now + 1) > now:
            return None
        return _held_rule(facts, now).previous_us(now + 1)
    if facts.counts_from_end:
        return facts.fire_at
    return max(_held_rule(facts, now).previous_us(now + 1) or 0, facts.fire_at)


def without_held(facts: PlanInputs) -> PlanInputs:
    """The facts with only those moments that the blackout lets be."""
    assert facts.blackout is not None
    assert facts.fire_at is not None
    rule, fire_at = Within(facts.rule, facts.blackout), facts.fire_at
    if facts.blackout.permits(fire_at):
        return msgspec.structs.replace(facts, rule=rule)
    # `at` was the end of the blackout: the delay of another moment is drawn anew.
    return msgspec.structs.replace(facts, rule=rule, fire_at=rule.next_us(fire_at), at=None)


def gap_of_held(facts: PlanInputs, until: int) -> tuple[NewGap, ...]:
    """What the blackout has held and drops, from the cursor up to and including `until`."""
    newest = newest_held(facts, until)
    if newest is None or facts.fire_at is None:
        return ()
    if facts.counts_from_end:
        return (make_gap(facts, newest, newest, Verdict.SKIPPED, Reason.BLACKOUT),)
    held = msgspec.structs.replace(facts, rule=_held_rule(facts, until))
    first = facts.fire_at if is_held(facts, facts.fire_at) else held.rule.next_us(facts.fire_at)
    return (make_gap(held, newest if first is None else first, newest, Verdict.SKIPPED, Reason.BLACKOUT),)


def _held_rule(facts: PlanInputs, until: int) -> When:
    """The moments from the cursor to `until` that the blackout holds."""
    assert facts.blackout is not None
    assert facts.fire_at is not None
    return Within(facts.rule, facts.blackout.inverse(facts.fire_at, until))
