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


def passed_over(facts: PlanInputs, now: int) -> int | None:
    """The first moment to come that the cursor lies behind. None: there is none."""
    if facts.pause is not None:
        return None  # a resume restarts the cursor
    facts = apart(facts)
    if facts.is_spent:
        return None
    if facts.fire_at is not None and facts.fire_at <= now:
        return None  # owed
    expected = facts.rule.next_us(now + CLOCK_MARGIN)
    if expected is None:
        return None
    # A rule that counts from the end of a run has no cursor while one is live.
    is_passed = not facts.counts_from_end if facts.fire_at is None else facts.fire_at > expected
    return facts.rule.next_us(now) if is_passed else None


def looks_too_late(facts: PlanInputs, now: int) -> bool:
    """Whether the next look at the schedule is long after its moment is due."""
    if facts.pause is not None or facts.fire_at is None or facts.at is None:
        return False
    begin = max(now, facts.fire_at)
    opens = begin if facts.blackout is None else facts.blackout.next_open(begin)
    if opens is None:
        return False
    # A day: a plan that failed is tried again within an hour.
    latest: int | None = opens + (facts.rule.bounds.jitter or 0) + facts.definition.pace + DAY
    if facts.blackout is not None and latest is not None:
        latest = facts.blackout.next_open(min(latest, LATEST))
    return latest is not None and facts.at > latest
