"""The moments that fall into a blackout. Pure."""

from __future__ import annotations

import msgspec

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.inputs import PlanInputs
from evertick.plan.moments import is_in_blackout, make_gap
from evertick.when.base import When
from evertick.when.subset import Within

__all__ = ["gap_of_blackout", "newest_in_blackout", "outside_blackout"]


def newest_in_blackout(inputs: PlanInputs, now: int) -> int | None:
    """The newest moment since the cursor that fell into the blackout."""
    if inputs.blackout is None or inputs.fire_at is None or inputs.fire_at > now:
        return None
    if inputs.blackout.permits(inputs.fire_at):
        if inputs.counts_from_end or inputs.blackout.open_until(inputs.fire_at, now + 1) > now:
            return None
        return _rule_in_blackout(inputs, now).previous_us(now + 1)
    if inputs.counts_from_end:
        return inputs.fire_at
    return max(_rule_in_blackout(inputs, now).previous_us(now + 1) or 0, inputs.fire_at)


def outside_blackout(inputs: PlanInputs) -> PlanInputs:
    """The inputs with only the moments outside of the blackout."""
    assert inputs.blackout is not None
    assert inputs.fire_at is not None
    rule, fire_at = Within(inputs.rule, inputs.blackout), inputs.fire_at
    if inputs.blackout.permits(fire_at):
        return msgspec.structs.replace(inputs, rule=rule)
    # `at` was the end of the blackout, not a drawn delay.
    return msgspec.structs.replace(inputs, rule=rule, fire_at=rule.next_us(fire_at), at=None)


def gap_of_blackout(inputs: PlanInputs, until: int) -> tuple[NewGap, ...]:
    """The gap of the moments that the blackout drops, from the cursor to `until` inclusive."""
    newest = newest_in_blackout(inputs, until)
    if newest is None or inputs.fire_at is None:
        return ()
    if inputs.counts_from_end:
        return (make_gap(inputs, newest, newest, Verdict.SKIPPED, Reason.BLACKOUT),)
    closed = msgspec.structs.replace(inputs, rule=_rule_in_blackout(inputs, until))
    first = inputs.fire_at if is_in_blackout(inputs, inputs.fire_at) else closed.rule.next_us(inputs.fire_at)
    return (make_gap(closed, newest if first is None else first, newest, Verdict.SKIPPED, Reason.BLACKOUT),)


def _rule_in_blackout(inputs: PlanInputs, until: int) -> When:
    """The rule with only the moments in the blackout, from the cursor to `until`."""
    assert inputs.blackout is not None
    assert inputs.fire_at is not None
    return Within(inputs.rule, inputs.blackout.inverse(inputs.fire_at, until))
