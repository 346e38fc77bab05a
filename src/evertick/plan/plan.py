"""The heart of the semantics: what is owed to a schedule now, and where its cursor goes. Pure.

`plan` answers the tick of the engine. It reads no clock and no store: the store's time, the cursor and the live runs
come in, rows and a cursor come out, and the caller writes both in one transaction guarded by what came in. What becomes
of a definition that changes is in settlement.py.

The work is bounded whatever the downtime: the newest owed moment is found by looking back from now, the others are
counted, not listed, and end in one gap per reason.

Which moments are owed, and since when, is answered by moments.py, and which of them a blackout holds by blackout.py.
What people decided about single moments stands outside of all this (overrides.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evertick.model import NewGap, Reason, Verdict
from evertick.plan.blackout import gap_of_held, newest_held, without_held
from evertick.plan.inputs import FRESH, LATE, Fire, Plan, PlanInputs
from evertick.plan.moments import (
    cursor_after,
    drawn_jitter,
    due_at,
    gap_before,
    is_held,
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

# Catch-up "all" looks this often per distance between two moments: after a moment was recorded, and while it waits for
# the live run to end. So a run that takes up to nine tenths of the distance still catches up.
_BEHIND_SHARE, _WAITING_SHARE = 2, 10


def plan(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    """What a schedule that wants to be looked at is owed at `now`."""
    return _plan_ordinary(facts, now) or plan_closely(facts, now, uniform)


def _plan_ordinary(facts: PlanInputs, now: int) -> Plan | None:
    """What nearly every tick finds: one moment has come, the next has not, and nothing stands against a run.

    None: look closely. Says what that would say, at a third of its cost: there is nothing to search, count or draw.
    """
    fire_at, definition, rule = facts.fire_at, facts.definition, facts.rule
    if fire_at is None or not 0 <= now - fire_at <= FRESH or not _has_plain_moments(rule):
        return None
    if facts.pause is not None or facts.occurrences or facts.blackout is not None or definition.grace is not None:
        return None
    if facts.live and definition.overlap != "allow":
        return None
    following = rule.next_us(fire_at)
    if following is not None and following <= now:
        return None
    fire = Fire(fire_at=fire_at, due_at=fire_at, is_late=now - fire_at > LATE)
    return Plan(fires=(fire,), next_fire_at=following, next_at=following)


def _has_plain_moments(rule: When) -> bool:
    """Whether each is due when it comes, however many there were before, and whatever became of them."""
    bounds = rule.bounds
    return bounds.max_fires is None and not rule.is_after_end and not bounds.jitter and rule.calendar is None


def plan_closely(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    if not facts.occurrences:
        return _plan_rule(facts, now, uniform)
    rest = apart(facts)
    made = with_decisions(facts, _plan_rule(rest, now, uniform), now)
    return _restarted(facts, rest.rule, made, now, uniform)


def _restarted(facts: PlanInputs, rule: When, made: Plan, now: int, uniform: Callable[[], float]) -> Plan:
    """A fire that was promised to a moved moment and did not come of it is given back to the rule."""
    most, occurrences = rule.bounds.max_fires, made.occurrences
    if most is None or occurrences is None or made.next_fire_at is not None or made.after_end is not None:
        return made
    promised = sum(each.kind == "move" for each in occurrences)
    if facts.fires + len(made.fires) + promised >= most:
        return made
    fire_at, at = cursor_after(rule, facts.key, now, uniform, facts.blackout)
    looks = [time for time in (at, made.next_at) if time is not None]
    return msgspec.structs.replace(made, next_fire_at=fire_at, next_at=min(looks, default=None))


def _plan_rule(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    if facts.pause is None:
        return _plan_running(facts, now, uniform)
    if facts.pause.until is None or facts.pause.until > now:
        return Plan(next_fire_at=facts.fire_at, next_at=facts.pause.until)
    gaps, resumed = end_pause(facts, facts.pause.until)
    if isinstance(facts.rule, Every) and facts.rule.is_after_end and facts.fire_at is None:
        # It had no cursor to keep over the pause: the count begins where the pause ends.
        made = Plan() if facts.is_spent else Plan(after_end=facts.rule.interval_us)
    else:
        made = _plan_running(resumed, now, uniform)
    return msgspec.structs.replace(made, gaps=gaps + made.gaps, ends_pause=True)


# --- the tick ----------------------------------------------------------------------------------------------------


def _plan_running(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    if facts.fire_at is None or facts.is_spent:
        return Plan()
    if facts.blackout is not None and not facts.blackout.permits(now):
        # Nothing fires while it is closed, not even what was owed before. What is held is recorded when it opens.
        opens = facts.blackout.next_open(max(now, facts.fire_at))
        return Plan(next_fire_at=facts.fire_at, next_at=opens)
    if isinstance(facts.rule, Every) and facts.rule.is_after_end:
        moved = _move_counted(facts, facts.rule, facts.fire_at, now, uniform)
        if moved is not None:
            return moved
    held = newest_held(facts, now)
    if held is None:
        return _plan_owed(facts, now, uniform)
    if facts.definition.blackout_fate == "drop":
        return _drop_held(facts, now, uniform)
    return _make_up(facts, held, now, uniform)


def _plan_owed(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    """What is owed by the rule, and catch-up decides about."""
    assert facts.fire_at is not None
    catch_up, newest = facts.definition.catch_up, newest_owed(facts, now)
    if newest is None:
        return Plan(next_fire_at=facts.fire_at, next_at=_looked_too_early(facts, now, uniform))
    if skips_next(facts):
        gap = make_gap(facts, newest, newest, Verdict.SKIPPED, Reason.BY_HAND)
        return _moved_past(facts, newest, uniform, gaps=(gap,))
    # A rule that counts from the end of a run never owes more than one moment.
    match "latest" if facts.counts_from_end and catch_up == "all" else catch_up:
        case "latest":
            return _catch_up_latest(facts, newest, now, uniform, rest=(Verdict.SKIPPED, Reason.COALESCED))
        case "skip":
            if not is_noticed_in_time(facts, newest, now):
                gap = make_gap(facts, facts.fire_at, newest, Verdict.MISSED, Reason.DOWNTIME)
                return _moved_past(facts, newest, uniform, gaps=(gap,))
            return _catch_up_latest(facts, newest, now, uniform, rest=(Verdict.MISSED, Reason.DOWNTIME))
        case "all":
            return _catch_up_all(facts, newest, now, uniform)


def _move_counted(facts: PlanInputs, rule: Every, fire_at: int, now: int, uniform: Callable[[], float]) -> Plan | None:
    """A cursor counted from the end of a run knows nothing of bounds, calendar and drawn jitter yet; None: it stays."""
    allowed = rule.next_us(fire_at - rule.interval_us)
    if allowed is None:
        return Plan()
    is_drawn = rule.bounds.jitter_mode == "stable" or facts.at != fire_at
    if allowed == fire_at and is_drawn:
        return None
    at = allowed + drawn_jitter(rule, facts.key, allowed, uniform)
    return None if allowed == fire_at and at <= now else Plan(next_fire_at=allowed, next_at=at)


def _catch_up_latest(
    facts: PlanInputs, newest: int, now: int, uniform: Callable[[], float], *, rest: tuple[Verdict, Reason]
) -> Plan:
    """The newest owed moment runs for all of them."""
    assert facts.fire_at is not None
    if is_past_grace(facts, newest, now):
        gap = make_gap(facts, facts.fire_at, newest, Verdict.MISSED, Reason.GRACE)
        return _moved_past(facts, newest, uniform, gaps=(gap,))
    admitted = admit(facts.definition.overlap, facts.live)
    if admitted is None:
        # The newest did not run either, so nothing was coalesced into it: overlap is the reason for all.
        gap = make_gap(facts, facts.fire_at, newest, Verdict.SKIPPED, Reason.OVERLAP)
        return _moved_past(facts, newest, uniform, gaps=(gap,))
    gaps = gap_before(facts, newest, *rest)
    fire = make_fire(facts, newest, now, is_blocked=admitted == "blocked", is_late=bool(gaps))
    return _moved_past(facts, newest, uniform, fires=(fire,), gaps=gaps)


def _catch_up_all(facts: PlanInputs, newest: int, now: int, uniform: Callable[[], float]) -> Plan:
    """One owed moment at a time, oldest first, and not before its forerunner has ended where overlap is skip."""
    gaps, facts = _give_up_oldest(facts, newest, now)
    oldest = facts.fire_at
    if oldest is None or oldest > newest:
        return msgspec.structs.replace(_moved_past(facts, newest, uniform), gaps=gaps)
    is_behind = oldest < newest or is_held(facts, oldest) or now - due_at(facts, oldest) > facts.definition.pace
    if facts.live & STUCK:
        # Whoever wants all of them does not want one to take the place of another: the parked one is waited for.
        is_behind, facts = True, msgspec.structs.replace(facts, live=facts.live & ~STUCK)
    admitted = admit(facts.definition.overlap, facts.live)
    if admitted is None and is_behind:
        return Plan(gaps=gaps, next_fire_at=oldest, next_at=now + _pace(facts, oldest, _WAITING_SHARE))
    if admitted is None:
        gap = make_gap(facts, oldest, oldest, Verdict.SKIPPED, Reason.OVERLAP)
        moved = _moved_past(facts, oldest, uniform, gaps=(*gaps, gap))
    else:
        fire = make_fire(facts, oldest, now, is_blocked=admitted == "blocked")
        moved = _moved_past(facts, oldest, uniform, fires=(fire,), gaps=gaps)
    if moved.next_at is not None and moved.next_at <= now:
        return msgspec.structs.replace(moved, next_at=now + _pace(facts, oldest, _BEHIND_SHARE))
    return moved


def _pace(facts: PlanInputs, moment: int, share: int) -> int:
    """How long to wait before the next look while behind: at most this share of the distance to the following moment.

    One moment is taken per look, so a pace as long as that distance would never catch up.
    """
    following = facts.rule.next_us(moment)
    pace = facts.definition.pace
    return pace if following is None else min(pace, max((following - moment) // share, 1))


def _give_up_oldest(facts: PlanInputs, newest: int, now: int) -> tuple[tuple[NewGap, ...], PlanInputs]:
    """Drop what is past its grace, then what is beyond the newest `catch_up_limit`."""
    gaps: list[NewGap] = []
    if facts.definition.grace is not None:
        first_kept = _first_within_grace(facts, now - facts.definition.grace)
        facts, gap = _cut_before(facts, first_kept, newest, Reason.GRACE)
        gaps += gap
    limit, oldest = facts.definition.catch_up_limit, facts.fire_at
    if oldest is None or oldest > newest or facts.rule.count_us(oldest, newest, limit + 1) <= limit:
        return tuple(gaps), facts
    first_kept = newest
    for _ in range(limit - 1):
        earlier = facts.rule.previous_us(first_kept)
        if earlier is None or earlier < oldest:
            break
        first_kept = earlier
    facts, gap = _cut_before(facts, first_kept, newest, Reason.LIMIT)
    return (*gaps, *gap), facts


def _first_within_grace(facts: PlanInputs, since: int) -> int | None:
    """The first moment due at `since` or later: jitter may carry the moment just before `since` over it."""
    begin = since
    if facts.blackout is not None and not (facts.blackout.permits(since) and facts.blackout.permits(since - 1)):
        # What a blackout held is due when that opened: at `since`, or later.
        closed = since if not facts.blackout.permits(since) else since - 1
        begin = (facts.blackout.previous_open(closed) or EARLIEST) + 1
    first = facts.rule.next_us(begin - 1)
    earlier = facts.rule.previous_us(begin if first is None else first)
    return earlier if earlier is not None and due_at(facts, earlier) >= since else first


def _cut_before(
    facts: PlanInputs, first_kept: int | None, newest: int, reason: Reason
) -> tuple[PlanInputs, list[NewGap]]:
    assert facts.fire_at is not None
    if first_kept is not None and first_kept <= facts.fire_at:
        return facts, []
    last_dropped = newest if first_kept is None or first_kept > newest else facts.rule.previous_us(first_kept)
    if last_dropped is None or last_dropped < facts.fire_at:
        return facts, []
    gap = make_gap(facts, facts.fire_at, last_dropped, Verdict.MISSED, reason)
    return msgspec.structs.replace(facts, fire_at=facts.rule.next_us(last_dropped)), [gap]


# --- blackouts ---------------------------------------------------------------------------------------------------


def _make_up(facts: PlanInputs, held: int, now: int, uniform: Callable[[], float]) -> Plan:
    """The blackout has opened: what it held runs, and what was owed before it with them.

    With "latest" a moment that came since it opened stands for those before, if catch-up lets it run.
    """
    if skips_next(facts):
        return _plan_owed(facts, now, uniform)
    if facts.definition.blackout_fate == "all" and not facts.counts_from_end:
        return _catch_up_all(facts, held, now, uniform)
    chosen, newest = held, newest_owed(facts, now)
    if newest is not None and newest > held and facts.definition.catch_up != "all":
        is_missed = facts.definition.catch_up == "skip" and not is_noticed_in_time(facts, newest, now)
        chosen = held if is_missed or is_past_grace(facts, newest, now) else newest
    return _catch_up_latest(facts, chosen, now, uniform, rest=(Verdict.SKIPPED, Reason.COALESCED))


def _drop_held(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> Plan:
    """The moments of the blackout are one gap; the others are planned as if those did not exist."""
    assert facts.fire_at is not None
    if facts.counts_from_end:
        reason = Reason.BY_HAND if skips_next(facts) else Reason.BLACKOUT
        gap = make_gap(facts, facts.fire_at, facts.fire_at, Verdict.SKIPPED, reason)
        return _moved_past(facts, facts.fire_at, uniform, gaps=(gap,))
    rest, made = without_held(facts), Plan()
    if rest.fire_at is not None and rest.fire_at <= now:
        made = _plan_owed(rest, now, uniform)
    most = facts.rule.bounds.max_fires
    if most is not None and facts.fires + len(made.fires) >= most:
        # Of what comes after its last fire nothing is owed.
        return msgspec.structs.replace(made, gaps=made.gaps + gap_of_held(facts, made.fires[-1].fire_at))
    until = now if made.next_fire_at is None else min(now, made.next_fire_at - 1)
    gaps = made.gaps + gap_of_held(facts, until)
    fire_at, at = cursor_after(facts.rule, facts.key, until, uniform, facts.blackout)
    if fire_at == made.next_fire_at:
        at = made.next_at
    return msgspec.structs.replace(made, gaps=gaps, next_fire_at=fire_at, next_at=at)


# --- the cursor ------------------------------------------------------------------------------------------------------


def _looked_too_early(facts: PlanInputs, now: int, uniform: Callable[[], float]) -> int:
    assert facts.fire_at is not None
    if facts.at is not None and facts.at > now:
        return facts.at
    return max(facts.fire_at + drawn_jitter(facts.rule, facts.key, facts.fire_at, uniform), now + 1)


def _moved_past(
    facts: PlanInputs,
    moment: int,
    uniform: Callable[[], float],
    *,
    fires: tuple[Fire, ...] = (),
    gaps: tuple[NewGap, ...] = (),
) -> Plan:
    """The plan that puts the cursor behind `moment`."""
    is_blocked = any(fire.is_blocked for fire in fires)
    replaces = bool(fires) and takes_place(facts.definition.overlap, facts.live, is_blocked=is_blocked)
    most = facts.rule.bounds.max_fires
    if most is not None and facts.fires + len(fires) >= most:
        return Plan(fires=fires, gaps=gaps, replaces_live=replaces)
    if isinstance(facts.rule, Every) and facts.rule.is_after_end:
        return Plan(fires=fires, gaps=gaps, after_end=facts.rule.interval_us, replaces_live=replaces)
    fire_at, at = cursor_after(facts.rule, facts.key, moment, uniform, facts.blackout)
    return Plan(fires=fires, gaps=gaps, next_fire_at=fire_at, next_at=at, replaces_live=replaces)
