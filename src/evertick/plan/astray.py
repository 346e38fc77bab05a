"""Whether a schedule will pass over moments of its rule, because its cursor was set while a clock was wrong. Pure.

The cursor is compared with what the rule gives from now. A rule whose next moment is years away has it there, too.
"""

from __future__ import annotations

from evertick.plan.inputs import PlanInputs
from evertick.plan.overrides import apart
from evertick.when.moment import DAY, LATEST, MINUTE

__all__ = ["CLOCK_MARGIN", "looks_too_late", "passed_over"]

# Clocks are put right by less than this every day, and a moment that has run does not run again.
CLOCK_MARGIN = MINUTE


def passed_over(inputs: PlanInputs, now: int) -> int | None:
    """The first moment to come that the cursor lies behind. None: there is none."""
    if inputs.pause is not None:
        return None  # a resume restarts the cursor
    inputs = apart(inputs)
    if inputs.is_spent:
        return None
    if inputs.fire_at is not None and inputs.fire_at <= now:
        return None  # owed
    expected = inputs.rule.next_us(now + CLOCK_MARGIN)
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
