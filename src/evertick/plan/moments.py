"""Which moments a schedule owes, since when, and the rows that they become. Pure.

A moment is *owed* if it is at or after the cursor and its due time is over. The due time is the moment plus its jitter,
or the end of the blackout that holds it. *Lateness* is the time since then.
"""

from __future__ import annotations

from collections.abc import Callable

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.inputs import FRESH, LATE, Fire, PlanInputs
from evertick.when.base import COUNT_LIMIT, When
from evertick.when.calendar import Calendar
from evertick.when.moment import LATEST

__all__ = [
    "cursor_after",
    "drawn_jitter",
    "due_at",
    "gap_before",
    "gap_until",
    "is_in_blackout",
    "is_noticed_in_time",
    "is_past_grace",
    "make_fire",
    "make_gap",
    "newest_begun",
    "newest_owed",
]


def cursor_after(
    rule: When, key: str, after: int, uniform: Callable[[], float], blackout: Calendar | None = None
) -> tuple[int | None, int | None]:
    """The cursor of a rule from `after` on: its first moment, and when that is due (None: never)."""
    fire_at = rule.next_us(after)
    if fire_at is None:
        return None, None
    if blackout is not None and not blackout.permits(fire_at):
        return fire_at, blackout.next_open(fire_at)
    due = fire_at + drawn_jitter(rule, key, fire_at, uniform)
    return fire_at, due if blackout is None else blackout.next_open(due)


def newest_begun(inputs: PlanInputs, now: int) -> int | None:
    """The newest moment since the cursor that has come; jitter may still delay it."""
    if inputs.fire_at is None or inputs.fire_at > now:
        return None
    if inputs.counts_from_end:
        return inputs.fire_at
    newest = inputs.rule.previous_us(now + 1)
    # After a change of the zone or the calendar the cursor may no longer be a moment of the rule; it is still owed.
    return inputs.fire_at if newest is None else max(newest, inputs.fire_at)


def newest_owed(inputs: PlanInputs, now: int) -> int | None:
    newest = newest_begun(inputs, now)
    if newest is None or inputs.fire_at is None or _due_at_latest(inputs, newest) <= now:
        return newest
    # Jitter is less than the distance between fires, so the previous one is due.
    earlier = inputs.rule.previous_us(newest) if newest > inputs.fire_at else None
    return None if earlier is None else max(earlier, inputs.fire_at)


def _due_at_latest(inputs: PlanInputs, moment: int) -> int:
    """The latest due time of the moment: a delay that is not drawn yet counts with its maximum.

    With 0 instead, a moment with a long drawn delay would count as missed.
    """
    if inputs.rule.bounds.jitter_mode == "fresh" and moment != inputs.fire_at and not is_in_blackout(inputs, moment):
        return moment + inputs.rule.jitter_cap_us(moment)
    return due_at(inputs, moment)


def due_at(inputs: PlanInputs, moment: int) -> int:
    """The due time of the moment: after its jitter, and not before the end of a blackout."""
    blackout = inputs.blackout
    if blackout is None:
        return _delayed(inputs, moment)
    if blackout.permits(moment):
        if (
            moment == inputs.fire_at
            and inputs.at is not None
            and inputs.at > moment
            and not blackout.permits(inputs.at - 1)
        ):
            return inputs.at  # its drawn delay fell into the blackout that ended then
        moment = _delayed(inputs, moment)
    opens = blackout.next_open(moment)
    return LATEST if opens is None else opens


def _delayed(inputs: PlanInputs, moment: int) -> int:
    """The moment plus its jitter. Stable jitter is computed; a drawn delay of the cursor's moment is in `at`.

    A time in `at` beyond the maximum jitter is not a drawn delay: the pace of catch-up has set it.
    """
    bounds = inputs.rule.bounds
    if not bounds.jitter:
        return moment
    if bounds.jitter_mode == "stable":
        return moment + inputs.rule.jitter_us(moment, inputs.key)
    if moment != inputs.fire_at or inputs.at is None:
        return moment
    is_drawn = moment <= inputs.at < moment + inputs.rule.jitter_cap_us(moment)
    return inputs.at if is_drawn else moment


def drawn_jitter(rule: When, key: str, moment: int, uniform: Callable[[], float]) -> int:
    if not rule.bounds.jitter:
        return 0
    if rule.bounds.jitter_mode == "stable":
        return rule.jitter_us(moment, key)
    return int(rule.jitter_cap_us(moment) * uniform())


def is_in_blackout(inputs: PlanInputs, moment: int) -> bool:
    return inputs.blackout is not None and not inputs.blackout.permits(moment)


def is_past_grace(inputs: PlanInputs, moment: int, now: int) -> bool:
    grace = inputs.definition.grace
    return grace is not None and now - due_at(inputs, moment) > grace


def is_noticed_in_time(inputs: PlanInputs, moment: int, now: int) -> bool:
    """Whether the moment runs with catch_up "skip": within its grace time, or else within `FRESH`."""
    return inputs.definition.grace is not None or now - due_at(inputs, moment) <= FRESH


def make_fire(inputs: PlanInputs, moment: int, now: int, *, is_blocked: bool, is_late: bool = False) -> Fire:
    due = due_at(inputs, moment)
    is_late = is_late or now - due > LATE or is_in_blackout(inputs, moment)
    return Fire(fire_at=moment, due_at=due, is_late=is_late, is_blocked=is_blocked)


def gap_before(inputs: PlanInputs, moment: int, verdict: Verdict, reason: Reason) -> tuple[NewGap, ...]:
    """The gap of the owed moments before this one, if there are any."""
    assert inputs.fire_at is not None
    if moment <= inputs.fire_at:
        return ()
    last = inputs.rule.previous_us(moment)
    return () if last is None or last < inputs.fire_at else (make_gap(inputs, inputs.fire_at, last, verdict, reason),)


def gap_until(inputs: PlanInputs, until: int, verdict: Verdict, reason: Reason) -> tuple[NewGap, ...]:
    """The gap of all moments from the cursor to `until` inclusive, if there are any."""
    if inputs.fire_at is None or inputs.fire_at > until or inputs.is_spent:
        return ()
    if inputs.counts_from_end:
        return (make_gap(inputs, inputs.fire_at, inputs.fire_at, verdict, reason),)
    last = inputs.rule.previous_us(until + 1)
    return (make_gap(inputs, inputs.fire_at, max(last or 0, inputs.fire_at), verdict, reason),)


def make_gap(inputs: PlanInputs, first: int, last: int, verdict: Verdict, reason: Reason) -> NewGap:
    count = 1 if first == last else max(inputs.rule.count_us(first, last, COUNT_LIMIT), 1)
    return NewGap(
        first_at=first, last_at=last, count=count, verdict=verdict, reason=reason, is_exact=count < COUNT_LIMIT
    )
