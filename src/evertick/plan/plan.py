"""Plans the runs and gaps that a schedule owes now, and its next cursor. Pure.

`plan` reads no clock and no store. Its inputs are the store's time, the cursor and the live runs; it returns rows and a
new cursor, which the caller writes in one transaction, guarded by the cursor and version of the inputs.

The work is bounded for any downtime: the newest owed moment is found by searching back from now; the others are counted
and become one gap per reason.

moments.py: which moments are owed. blackout.py: which of them a blackout holds. overrides.py: skipped and moved
moments. settlement.py: changes of the definition.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.blackout import gap_of_blackout, newest_in_blackout, outside_blackout
from evertick.plan.inputs import FRESH, LATE, Fire, Plan, PlanInputs
from evertick.plan.moments import (
    cursor_after,
    drawn_jitter,
    due_at,
    gap_before,
    is_in_blackout,
    is_noticed_in_time,
    is_past_grace,
    make_fire,
    make_gap,
    newest_owed,
)
from evertick.plan.overlap import STUCK, admit, takes_place
from evertick.plan.overrides import apart, skips_next, with_decisions
from evertick.plan.settlement import end_pause
from evertick.when.base import When
from evertick.when.every import Every
from evertick.when.moment import EARLIEST

__all__ = ["plan", "plan_closely"]

# How often catch-up "all" plans per interval between two moments: after a moment was recorded, and while it waits for
# the live run to end. So runs that take up to nine tenths of the interval still catch up.
_BEHIND_SHARE, _WAITING_SHARE = 2, 10


def plan(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    """The plan of a due schedule at `now`."""
    return _plan_ordinary(inputs, now) or plan_closely(inputs, now, uniform)


def _plan_ordinary(inputs: PlanInputs, now: int) -> Plan | None:
    """The fast path, for nearly every plan: one moment is due, the next is not, and nothing prevents its run.

    None: use `plan_closely`, which gives the same plan in such a case, at three times the cost.
    """
    fire_at, definition, rule = inputs.fire_at, inputs.definition, inputs.rule
    if fire_at is None or not 0 <= now - fire_at <= FRESH or not _has_plain_moments(rule):
        return None
    if inputs.pause is not None or inputs.occurrences or inputs.blackout is not None or definition.grace is not None:
        return None
    if inputs.live and definition.overlap != "allow":
        return None
    following = rule.next_us(fire_at)
    if following is not None and following <= now:
        return None
    fire = Fire(fire_at=fire_at, due_at=fire_at, is_late=now - fire_at > LATE)
    return Plan(fires=(fire,), next_fire_at=following, next_at=following)


def _has_plain_moments(rule: When) -> bool:
    """Whether each moment is due at once and independent of earlier ones."""
    bounds = rule.bounds
    return bounds.max_fires is None and not rule.is_after_end and not bounds.jitter and rule.calendar is None


def plan_closely(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    if not inputs.occurrences:
        return _plan_rule(inputs, now, uniform)
    rest = apart(inputs)
    made = with_decisions(inputs, _plan_rule(rest, now, uniform), now)
    return _restarted(inputs, rest.rule, made, now, uniform)


def _restarted(inputs: PlanInputs, rule: When, made: Plan, now: int, uniform: Callable[[], float]) -> Plan:
    """If a moved moment did not use its share of `max_fires`, the rule continues."""
    most, occurrences = rule.bounds.max_fires, made.occurrences
    if most is None or occurrences is None or made.next_fire_at is not None or made.after_end is not None:
        return made
    promised = sum(each.kind == "move" for each in occurrences)
    if inputs.fires + len(made.fires) + promised >= most:
        return made
    fire_at, at = cursor_after(rule, inputs.key, now, uniform, inputs.blackout)
    looks = [time for time in (at, made.next_at) if time is not None]
    return msgspec.structs.replace(made, next_fire_at=fire_at, next_at=min(looks, default=None))


def _plan_rule(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    if inputs.pause is None:
        return _plan_running(inputs, now, uniform)
    if inputs.pause.until is None or inputs.pause.until > now:
        return Plan(next_fire_at=inputs.fire_at, next_at=inputs.pause.until)
    gaps, resumed = end_pause(inputs, inputs.pause.until)
    if isinstance(inputs.rule, Every) and inputs.rule.is_after_end and inputs.fire_at is None:
        # It has no cursor during the pause: the interval counts from the end of the pause.
        made = Plan() if inputs.is_spent else Plan(after_end=inputs.rule.interval_us)
    else:
        made = _plan_running(resumed, now, uniform)
    return msgspec.structs.replace(made, gaps=gaps + made.gaps, ends_pause=True)


# --- the tick ----------------------------------------------------------------------------------------------------


def _plan_running(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    if inputs.fire_at is None or inputs.is_spent:
        return Plan()
    if inputs.blackout is not None and not inputs.blackout.permits(now):
        # Nothing fires during a blackout, not even moments from before. They are recorded when it ends.
        opens = inputs.blackout.next_open(max(now, inputs.fire_at))
        return Plan(next_fire_at=inputs.fire_at, next_at=opens)
    if isinstance(inputs.rule, Every) and inputs.rule.is_after_end:
        moved = _move_counted(inputs, inputs.rule, inputs.fire_at, now, uniform)
        if moved is not None:
            return moved
    held = newest_in_blackout(inputs, now)
    if held is None:
        return _plan_owed(inputs, now, uniform)
    if inputs.definition.blackout_fate == "drop":
        return _drop_blackout(inputs, now, uniform)
    return _make_up(inputs, held, now, uniform)


def _plan_owed(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    """The owed moments of the rule, by catch-up."""
    assert inputs.fire_at is not None
    catch_up, newest = inputs.definition.catch_up, newest_owed(inputs, now)
    if newest is None:
        return Plan(next_fire_at=inputs.fire_at, next_at=_looked_too_early(inputs, now, uniform))
    if skips_next(inputs):
        gap = make_gap(inputs, newest, newest, Verdict.SKIPPED, Reason.BY_HAND)
        return _moved_past(inputs, newest, uniform, gaps=(gap,))
    # A rule that counts from the end of a run never owes more than one moment.
    match "latest" if inputs.counts_from_end and catch_up == "all" else catch_up:
        case "latest":
            return _catch_up_latest(inputs, newest, now, uniform, rest=(Verdict.SKIPPED, Reason.COALESCED))
        case "skip":
            if not is_noticed_in_time(inputs, newest, now):
                gap = make_gap(inputs, inputs.fire_at, newest, Verdict.MISSED, Reason.DOWNTIME)
                return _moved_past(inputs, newest, uniform, gaps=(gap,))
            return _catch_up_latest(inputs, newest, now, uniform, rest=(Verdict.MISSED, Reason.DOWNTIME))
        case "all":
            return _catch_up_all(inputs, newest, now, uniform)


def _move_counted(inputs: PlanInputs, rule: Every, fire_at: int, now: int, uniform: Callable[[], float]) -> Plan | None:
    """Apply bounds, calendar and jitter to a cursor that counts from the end of a run; None: it stays."""
    allowed = rule.next_us(fire_at - rule.interval_us)
    if allowed is None:
        return Plan()
    is_drawn = rule.bounds.jitter_mode == "stable" or inputs.at != fire_at
    if allowed == fire_at and is_drawn:
        return None
    at = allowed + drawn_jitter(rule, inputs.key, allowed, uniform)
    return None if allowed == fire_at and at <= now else Plan(next_fire_at=allowed, next_at=at)


def _catch_up_latest(
    inputs: PlanInputs, newest: int, now: int, uniform: Callable[[], float], *, rest: tuple[Verdict, Reason]
) -> Plan:
    """Run the newest owed moment only; the others are coalesced into it."""
    assert inputs.fire_at is not None
    if is_past_grace(inputs, newest, now):
        gap = make_gap(inputs, inputs.fire_at, newest, Verdict.MISSED, Reason.GRACE)
        return _moved_past(inputs, newest, uniform, gaps=(gap,))
    admitted = admit(inputs.definition.overlap, inputs.live)
    if admitted is None:
        # The newest does not run either, so overlap is the reason for all.
        gap = make_gap(inputs, inputs.fire_at, newest, Verdict.SKIPPED, Reason.OVERLAP)
        return _moved_past(inputs, newest, uniform, gaps=(gap,))
    gaps = gap_before(inputs, newest, *rest)
    fire = make_fire(inputs, newest, now, is_blocked=admitted == "blocked", is_late=bool(gaps))
    return _moved_past(inputs, newest, uniform, fires=(fire,), gaps=gaps)


def _catch_up_all(inputs: PlanInputs, newest: int, now: int, uniform: Callable[[], float]) -> Plan:
    """Run one owed moment at a time, oldest first; with overlap "skip" only after the last run has ended."""
    gaps, inputs = _give_up_oldest(inputs, newest, now)
    oldest = inputs.fire_at
    if oldest is None or oldest > newest:
        return msgspec.structs.replace(_moved_past(inputs, newest, uniform), gaps=gaps)
    is_behind = (
        oldest < newest or is_in_blackout(inputs, oldest) or now - due_at(inputs, oldest) > inputs.definition.pace
    )
    if inputs.live & STUCK:
        # All moments must run, so a parked run is not replaced but waited for.
        is_behind, inputs = True, msgspec.structs.replace(inputs, live=inputs.live & ~STUCK)
    admitted = admit(inputs.definition.overlap, inputs.live)
    if admitted is None and is_behind:
        return Plan(gaps=gaps, next_fire_at=oldest, next_at=now + _pace(inputs, oldest, _WAITING_SHARE))
    if admitted is None:
        gap = make_gap(inputs, oldest, oldest, Verdict.SKIPPED, Reason.OVERLAP)
        moved = _moved_past(inputs, oldest, uniform, gaps=(*gaps, gap))
    else:
        fire = make_fire(inputs, oldest, now, is_blocked=admitted == "blocked")
        moved = _moved_past(inputs, oldest, uniform, fires=(fire,), gaps=gaps)
    if moved.next_at is not None and moved.next_at <= now:
        return msgspec.structs.replace(moved, next_at=now + _pace(inputs, oldest, _BEHIND_SHARE))
    return moved


def _pace(inputs: PlanInputs, moment: int, share: int) -> int:
    """The wait before the next plan during catch-up: at most this share of the interval to the following moment.

    Each plan takes one moment, so a longer wait would never catch up.
    """
    following = inputs.rule.next_us(moment)
    pace = inputs.definition.pace
    return pace if following is None else min(pace, max((following - moment) // share, 1))


def _give_up_oldest(inputs: PlanInputs, newest: int, now: int) -> tuple[tuple[NewGap, ...], PlanInputs]:
    """Drop moments past their grace, then all but the newest `catch_up_limit`."""
    gaps: list[NewGap] = []
    if inputs.definition.grace is not None:
        first_kept = _first_within_grace(inputs, now - inputs.definition.grace)
        inputs, gap = _cut_before(inputs, first_kept, newest, Reason.GRACE)
        gaps += gap
    limit, oldest = inputs.definition.catch_up_limit, inputs.fire_at
    if oldest is None or oldest > newest or inputs.rule.count_us(oldest, newest, limit + 1) <= limit:
        return tuple(gaps), inputs
    first_kept = newest
    for _ in range(limit - 1):
        earlier = inputs.rule.previous_us(first_kept)
        if earlier is None or earlier < oldest:
            break
        first_kept = earlier
    inputs, gap = _cut_before(inputs, first_kept, newest, Reason.LIMIT)
    return (*gaps, *gap), inputs


def _first_within_grace(inputs: PlanInputs, since: int) -> int | None:
    """The first moment due at `since` or later, which may be before `since` with jitter."""
    begin = since
    if inputs.blackout is not None and not (inputs.blackout.permits(since) and inputs.blackout.permits(since - 1)):
        # Moments that a blackout held are due at its end: at `since`, or later.
        closed = since if not inputs.blackout.permits(since) else since - 1
        begin = (inputs.blackout.previous_open(closed) or EARLIEST) + 1
    first = inputs.rule.next_us(begin - 1)
    earlier = inputs.rule.previous_us(begin if first is None else first)
    return earlier if earlier is not None and due_at(inputs, earlier) >= since else first


def _cut_before(
    inputs: PlanInputs, first_kept: int | None, newest: int, reason: Reason
) -> tuple[PlanInputs, list[NewGap]]:
    assert inputs.fire_at is not None
    if first_kept is not None and first_kept <= inputs.fire_at:
        return inputs, []
    last_dropped = newest if first_kept is None or first_kept > newest else inputs.rule.previous_us(first_kept)
    if last_dropped is None or last_dropped < inputs.fire_at:
        return inputs, []
    gap = make_gap(inputs, inputs.fire_at, last_dropped, Verdict.MISSED, reason)
    return msgspec.structs.replace(inputs, fire_at=inputs.rule.next_us(last_dropped)), [gap]


# --- blackouts ---------------------------------------------------------------------------------------------------


def _make_up(inputs: PlanInputs, held: int, now: int, uniform: Callable[[], float]) -> Plan:
    """After a blackout: run the moments that it held, and those that were owed before it.

    With "latest" a moment since its end replaces those before, if catch-up lets it run.
    """
    if skips_next(inputs):
        return _plan_owed(inputs, now, uniform)
    if inputs.definition.blackout_fate == "all" and not inputs.counts_from_end:
        return _catch_up_all(inputs, held, now, uniform)
    chosen, newest = held, newest_owed(inputs, now)
    if newest is not None and newest > held and inputs.definition.catch_up != "all":
        is_missed = inputs.definition.catch_up == "skip" and not is_noticed_in_time(inputs, newest, now)
        chosen = held if is_missed or is_past_grace(inputs, newest, now) else newest
    return _catch_up_latest(inputs, chosen, now, uniform, rest=(Verdict.SKIPPED, Reason.COALESCED))


def _drop_blackout(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    """Record the moments of the blackout as one gap; plan the others as if those did not exist."""
    assert inputs.fire_at is not None
    if inputs.counts_from_end:
        reason = Reason.BY_HAND if skips_next(inputs) else Reason.BLACKOUT
        gap = make_gap(inputs, inputs.fire_at, inputs.fire_at, Verdict.SKIPPED, reason)
        return _moved_past(inputs, inputs.fire_at, uniform, gaps=(gap,))
    rest, made = outside_blackout(inputs), Plan()
    if rest.fire_at is not None and rest.fire_at <= now:
        made = _plan_owed(rest, now, uniform)
    most = inputs.rule.bounds.max_fires
    if most is not None and inputs.fires + len(made.fires) >= most:
        # Moments after the last fire of `max_fires` are not owed.
        return msgspec.structs.replace(made, gaps=made.gaps + gap_of_blackout(inputs, made.fires[-1].fire_at))
    until = now if made.next_fire_at is None else min(now, made.next_fire_at - 1)
    gaps = made.gaps + gap_of_blackout(inputs, until)
    fire_at, at = cursor_after(inputs.rule, inputs.key, until, uniform, inputs.blackout)
    if fire_at == made.next_fire_at:
        at = made.next_at
    return msgspec.structs.replace(made, gaps=gaps, next_fire_at=fire_at, next_at=at)


# --- the cursor ------------------------------------------------------------------------------------------------------


def _looked_too_early(inputs: PlanInputs, now: int, uniform: Callable[[], float]) -> int:
    assert inputs.fire_at is not None
    if inputs.at is not None and inputs.at > now:
        return inputs.at
    return max(inputs.fire_at + drawn_jitter(inputs.rule, inputs.key, inputs.fire_at, uniform), now + 1)


def _moved_past(
    inputs: PlanInputs,
    moment: int,
    uniform: Callable[[], float],
    *,
    fires: tuple[Fire, ...] = (),
    gaps: tuple[NewGap, ...] = (),
) -> Plan:
    """The plan that moves the cursor past `moment`."""
    is_blocked = any(fire.is_blocked for fire in fires)
    replaces = bool(fires) and takes_place(inputs.definition.overlap, inputs.live, is_blocked=is_blocked)
    most = inputs.rule.bounds.max_fires
    if most is not None and inputs.fires + len(fires) >= most:
        return Plan(fires=fires, gaps=gaps, replaces_live=replaces)
    if isinstance(inputs.rule, Every) and inputs.rule.is_after_end:
        return Plan(fires=fires, gaps=gaps, after_end=inputs.rule.interval_us, replaces_live=replaces)
    fire_at, at = cursor_after(inputs.rule, inputs.key, moment, uniform, inputs.blackout)
    return Plan(fires=fires, gaps=gaps, next_fire_at=fire_at, next_at=at, replaces_live=replaces)
