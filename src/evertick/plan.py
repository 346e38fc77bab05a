"""The heart of the semantics: what is owed to a schedule now, and where its cursor goes. Pure.

`plan` answers the tick of the engine, `settle` closes the account of a definition that is about to change, `admit` says
what becomes of a run triggered by hand. They read no clock and no store: the store's time, the cursor and the live
runs come in, rows and a cursor come out, and the caller writes both in one transaction guarded by what came in.

The work is bounded whatever the downtime: the newest owed moment is found by looking back from now, the others are
counted, not listed, and end in one gap per reason.

Words used below: a moment is *owed* when it is at or after the cursor and its due time has come: the moment plus its
jitter, or where a blackout holds it, when that opens. Its *lateness* is how long ago that was. What people decided
about single moments stands outside of all this (occurrence.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evertick.facts import FRESH, LATE, Facts, Fire, Plan, admit
from evertick.model import NewGap, Reason, Verdict
from evertick.occurrence import apart, skips_next, with_decisions
from evertick.when.base import COUNT_LIMIT, When
from evertick.when.calendar import Calendar
from evertick.when.every import Every
from evertick.when.moment import EARLIEST, LATEST
from evertick.when.subset import Within

__all__ = ["FRESH", "LATE", "Facts", "Fire", "Plan", "admit", "cursor_after", "plan", "settle"]


def plan(facts: Facts, now: int, uniform: Callable[[], float]) -> Plan:
    """What a schedule that wants to be looked at is owed at `now`."""
    if not facts.occurrences:
        return _plan_rule(facts, now, uniform)
    rest = apart(facts)
    made = with_decisions(facts, _plan_rule(rest, now, uniform), now)
    return _restarted(facts, rest.rule, made, now, uniform)


def _restarted(facts: Facts, rule: When, made: Plan, now: int, uniform: Callable[[], float]) -> Plan:
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


def _plan_rule(facts: Facts, now: int, uniform: Callable[[], float]) -> Plan:
    if facts.pause is None:
        return _plan_running(facts, now, uniform)
    if facts.pause.until is None or facts.pause.until > now:
        return Plan(next_fire_at=facts.fire_at, next_at=facts.pause.until)
    gaps, resumed = _end_pause(facts, facts.pause.until)
    if isinstance(facts.rule, Every) and facts.rule.is_after_end and facts.fire_at is None:
        # It had no cursor to keep over the pause: the count begins where the pause ends.
        made = Plan() if facts.is_spent else Plan(after_end=facts.rule.interval_us)
    else:
        made = _plan_running(resumed, now, uniform)
    return msgspec.structs.replace(made, gaps=gaps + made.gaps, ends_pause=True)


def cursor_after(
    rule: When, key: str, after: int, uniform: Callable[[], float], blackout: Calendar | None = None
) -> tuple[int | None, int | None]:
    """The cursor of a rule that starts afresh: its first moment after `after`, and when that is due (None: never)."""
    fire_at = rule.next_us(after)
    if fire_at is None:
        return None, None
    if blackout is not None and not blackout.permits(fire_at):
        return fire_at, blackout.next_open(fire_at)
    due_at = fire_at + _jitter(rule, key, fire_at, uniform)
    return fire_at, due_at if blackout is None else blackout.next_open(due_at)


# --- the tick ----------------------------------------------------------------------------------------------------


def _plan_running(facts: Facts, now: int, uniform: Callable[[], float]) -> Plan:
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
    held = _newest_held(facts, now)
    if held is None:
        return _plan_owed(facts, now, uniform)
    if facts.definition.blackout_fate == "drop":
        return _drop_held(facts, now, uniform)
    return _make_up(facts, held, now, uniform)


def _plan_owed(facts: Facts, now: int, uniform: Callable[[], float]) -> Plan:
    """What is owed by the rule, and catch-up decides about."""
    assert facts.fire_at is not None
    catch_up, newest = facts.definition.catch_up, _newest_owed(facts, now)
    if newest is None:
        return Plan(next_fire_at=facts.fire_at, next_at=_looked_too_early(facts, now, uniform))
    if skips_next(facts):
        gap = _gap(facts, newest, newest, Verdict.SKIPPED, Reason.BY_HAND)
        return _moved_past(facts, newest, uniform, gaps=(gap,))
    # A rule that counts from the end of a run never owes more than one moment.
    match "latest" if facts.counts_from_end and catch_up == "all" else catch_up:
        case "latest":
            return _catch_up_latest(facts, newest, now, uniform, rest=(Verdict.SKIPPED, Reason.COALESCED))
        case "skip":
            if not _is_noticed_in_time(facts, newest, now):
                gap = _gap(facts, facts.fire_at, newest, Verdict.MISSED, Reason.DOWNTIME)
                return _moved_past(facts, newest, uniform, gaps=(gap,))
            return _catch_up_latest(facts, newest, now, uniform, rest=(Verdict.MISSED, Reason.DOWNTIME))
        case "all":
            return _catch_up_all(facts, newest, now, uniform)


def _move_counted(facts: Facts, rule: Every, fire_at: int, now: int, uniform: Callable[[], float]) -> Plan | None:
    """A cursor counted from the end of a run knows nothing of bounds, calendar and drawn jitter yet; None: it stays."""
    allowed = rule.next_us(fire_at - rule.interval_us)
    if allowed is None:
        return Plan()
    is_drawn = rule.bounds.jitter_mode == "stable" or facts.at != fire_at
    if allowed == fire_at and is_drawn:
        return None
    at = allowed + _jitter(rule, facts.key, allowed, uniform)
    return None if allowed == fire_at and at <= now else Plan(next_fire_at=allowed, next_at=at)


def _catch_up_latest(
    facts: Facts, newest: int, now: int, uniform: Callable[[], float], *, rest: tuple[Verdict, Reason]
) -> Plan:
    """The newest owed moment runs for all of them."""
    assert facts.fire_at is not None
    if _is_past_grace(facts, newest, now):
        gap = _gap(facts, facts.fire_at, newest, Verdict.MISSED, Reason.GRACE)
        return _moved_past(facts, newest, uniform, gaps=(gap,))
    admitted = admit(facts.definition.overlap, facts.live)
    if admitted is None:
        # The newest did not run either, so nothing was coalesced into it: overlap is the reason for all.
        gap = _gap(facts, facts.fire_at, newest, Verdict.SKIPPED, Reason.OVERLAP)
        return _moved_past(facts, newest, uniform, gaps=(gap,))
    gaps = _gap_before(facts, newest, *rest)
    fire = _fire(facts, newest, now, is_blocked=admitted == "blocked", is_late=bool(gaps))
    return _moved_past(facts, newest, uniform, fires=(fire,), gaps=gaps)


def _catch_up_all(facts: Facts, newest: int, now: int, uniform: Callable[[], float]) -> Plan:
    """One owed moment at a time, oldest first, and not before its forerunner has ended where overlap is skip."""
    gaps, facts = _give_up_oldest(facts, newest, now)
    oldest = facts.fire_at
    if oldest is None or oldest > newest:
        return msgspec.structs.replace(_moved_past(facts, newest, uniform), gaps=gaps)
    is_behind = oldest < newest or _is_held(facts, oldest) or now - _due_at(facts, oldest) > facts.definition.pace
    admitted = admit(facts.definition.overlap, facts.live)
    if admitted is None and is_behind:
        return Plan(gaps=gaps, next_fire_at=oldest, next_at=now + facts.definition.pace)
    if admitted is None:
        gap = _gap(facts, oldest, oldest, Verdict.SKIPPED, Reason.OVERLAP)
        moved = _moved_past(facts, oldest, uniform, gaps=(*gaps, gap))
    else:
        fire = _fire(facts, oldest, now, is_blocked=admitted == "blocked")
        moved = _moved_past(facts, oldest, uniform, fires=(fire,), gaps=gaps)
    if moved.next_at is not None and moved.next_at <= now:
        return msgspec.structs.replace(moved, next_at=now + facts.definition.pace)
    return moved


def _give_up_oldest(facts: Facts, newest: int, now: int) -> tuple[tuple[NewGap, ...], Facts]:
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


def _first_within_grace(facts: Facts, since: int) -> int | None:
    """The first moment due at `since` or later: jitter may carry the moment just before `since` over it."""
    begin = since
    if facts.blackout is not None and not (facts.blackout.permits(since) and facts.blackout.permits(since - 1)):
        # What a blackout held is due when that opened: at `since`, or later.
        closed = since if not facts.blackout.permits(since) else since - 1
        begin = (facts.blackout.previous_open(closed) or EARLIEST) + 1
    first = facts.rule.next_us(begin - 1)
    earlier = facts.rule.previous_us(begin if first is None else first)
    return earlier if earlier is not None and _due_at(facts, earlier) >= since else first


def _cut_before(facts: Facts, first_kept: int | None, newest: int, reason: Reason) -> tuple[Facts, list[NewGap]]:
    assert facts.fire_at is not None
    if first_kept is not None and first_kept <= facts.fire_at:
        return facts, []
    last_dropped = newest if first_kept is None or first_kept > newest else facts.rule.previous_us(first_kept)
    if last_dropped is None or last_dropped < facts.fire_at:
        return facts, []
    gap = _gap(facts, facts.fire_at, last_dropped, Verdict.MISSED, reason)
    return msgspec.structs.replace(facts, fire_at=facts.rule.next_us(last_dropped)), [gap]


# --- blackouts ---------------------------------------------------------------------------------------------------


def _newest_held(facts: Facts, now: int) -> int | None:
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


def _held_rule(facts: Facts, until: int) -> When:
    """The moments from the cursor to `until` that the blackout holds."""
    assert facts.blackout is not None
    assert facts.fire_at is not None
    return Within(facts.rule, facts.blackout.inverse(facts.fire_at, until))


def _make_up(facts: Facts, held: int, now: int, uniform: Callable[[], float]) -> Plan:
    """The blackout has opened: what it held runs, and what was owed before it with them.

    With "latest" a moment that came since it opened stands for those before, if catch-up lets it run.
    """
    if skips_next(facts):
        return _plan_owed(facts, now, uniform)
    if facts.definition.blackout_fate == "all" and not facts.counts_from_end:
        return _catch_up_all(facts, held, now, uniform)
    chosen, newest = held, _newest_owed(facts, now)
    if newest is not None and newest > held and facts.definition.catch_up != "all":
        is_missed = facts.definition.catch_up == "skip" and not _is_noticed_in_time(facts, newest, now)
        chosen = held if is_missed or _is_past_grace(facts, newest, now) else newest
    return _catch_up_latest(facts, chosen, now, uniform, rest=(Verdict.SKIPPED, Reason.COALESCED))


def _drop_held(facts: Facts, now: int, uniform: Callable[[], float]) -> Plan:
    """The moments of the blackout are one gap; the others are planned as if those did not exist."""
    assert facts.fire_at is not None
    if facts.counts_from_end:
        reason = Reason.BY_HAND if skips_next(facts) else Reason.BLACKOUT
        gap = _gap(facts, facts.fire_at, facts.fire_at, Verdict.SKIPPED, reason)
        return _moved_past(facts, facts.fire_at, uniform, gaps=(gap,))
    rest, made = _without_held(facts), Plan()
    if rest.fire_at is not None and rest.fire_at <= now:
        made = _plan_owed(rest, now, uniform)
    most = facts.rule.bounds.max_fires
    if most is not None and facts.fires + len(made.fires) >= most:
        # Of what comes after its last fire nothing is owed.
        return msgspec.structs.replace(made, gaps=made.gaps + _gap_of_held(facts, made.fires[-1].fire_at))
    until = now if made.next_fire_at is None else min(now, made.next_fire_at - 1)
    gaps = made.gaps + _gap_of_held(facts, until)
    fire_at, at = cursor_after(facts.rule, facts.key, until, uniform, facts.blackout)
    if fire_at == made.next_fire_at:
        at = made.next_at
    return msgspec.structs.replace(made, gaps=gaps, next_fire_at=fire_at, next_at=at)


def _without_held(facts: Facts) -> Facts:
    """The facts with only those moments that the blackout lets be."""
    assert facts.blackout is not None
    assert facts.fire_at is not None
    rule, fire_at = Within(facts.rule, facts.blackout), facts.fire_at
    if facts.blackout.permits(fire_at):
        return msgspec.structs.replace(facts, rule=rule)
    # `at` was the end of the blackout: the delay of another moment is drawn anew.
    return msgspec.structs.replace(facts, rule=rule, fire_at=rule.next_us(fire_at), at=None)


def _gap_of_held(facts: Facts, until: int) -> tuple[NewGap, ...]:
    """What the blackout has held and drops, from the cursor up to and including `until`."""
    newest = _newest_held(facts, until)
    if newest is None or facts.fire_at is None:
        return ()
    if facts.counts_from_end:
        return (_gap(facts, newest, newest, Verdict.SKIPPED, Reason.BLACKOUT),)
    held = msgspec.structs.replace(facts, rule=_held_rule(facts, until))
    first = facts.fire_at if _is_held(facts, facts.fire_at) else held.rule.next_us(facts.fire_at)
    return (_gap(held, newest if first is None else first, newest, Verdict.SKIPPED, Reason.BLACKOUT),)


def _is_held(facts: Facts, moment: int) -> bool:
    return facts.blackout is not None and not facts.blackout.permits(moment)


# --- pause and edit ----------------------------------------------------------------------------------------------


def _end_pause(facts: Facts, until: int) -> tuple[tuple[NewGap, ...], Facts]:
    """The moments before `until` were paused; from there on it is as if it had never been."""
    gaps = _gap_until(facts, until - 1, Verdict.SKIPPED, Reason.PAUSED)
    cursor = facts.fire_at
    if cursor is not None and cursor < until:
        cursor = facts.rule.next_us(until - 1)
    # `at` was the end of the pause, not when the moment is due: its delay is drawn anew.
    return gaps, msgspec.structs.replace(facts, fire_at=cursor, at=None, pause=None)


def settle(
    facts: Facts, now: int, reason: Reason, *, fresh: int = FRESH, is_opened: bool = False
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    """Close the account of the old definition: what was due just now still runs, the rest is a gap with the reason.

    An edit made seconds after a moment must not swallow it because the tick had not come by yet; an edit after a long
    downtime must not start old work. A moment that jitter still delays has come, too: an edit lets it become a run, due
    when it was to be; a pause and a removal put it into the gap. `fresh` is how long ago "just now" may be; -1: nothing
    runs any more. What a blackout holds is a gap, unless the change itself ends the blackout (`is_opened`): then the
    newest of it runs. Decisions about single moments are not part of it (`settle_decisions`).
    """
    if facts.pause is not None and facts.pause.until is not None and facts.pause.until <= now:
        paused, facts = _end_pause(facts, facts.pause.until)
        fires, gaps = settle(facts, now, reason, fresh=fresh, is_opened=is_opened)
        return fires, paused + gaps
    if facts.pause is not None:
        reason = Reason.UNDECLARED if facts.pause.is_undeclared else Reason.PAUSED
        return (), _gap_until(facts, now, Verdict.SKIPPED, reason)
    begun = _newest_begun(facts, now)
    if begun is None or facts.fire_at is None or facts.is_spent:
        return (), ()
    if skips_next(facts):
        return (), (_gap(facts, begun, begun, Verdict.SKIPPED, Reason.BY_HAND),)
    if facts.blackout is not None:
        return _settle_blackout(facts, facts.blackout, now, reason, fresh=fresh, is_opened=is_opened)
    return _settle_owed(facts, now, reason, fresh=fresh)


def _settle_blackout(
    facts: Facts, blackout: Calendar, now: int, reason: Reason, *, fresh: int, is_opened: bool
) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    is_closed, dropped = not blackout.permits(now), tuple[NewGap, ...]()
    if facts.definition.blackout_fate == "drop":
        dropped = _gap_of_held(facts, now)
        if dropped and facts.counts_from_end:
            return (), dropped
        facts = _without_held(facts)
    begun = _newest_begun(facts, now)
    if begun is None or facts.fire_at is None:
        return (), dropped
    admitted = admit(facts.definition.overlap, facts.live)
    if is_opened and admitted is not None and facts.definition.blackout_fate != "drop":
        fire = Fire(fire_at=begun, due_at=now, is_late=True, is_blocked=admitted == "blocked")
        return (fire,), _gap_before(facts, begun, Verdict.SKIPPED, reason)
    if is_closed:
        return (), (_gap(facts, facts.fire_at, begun, Verdict.SKIPPED, reason), *dropped)
    fires, gaps = _settle_owed(facts, now, reason, fresh=fresh)
    return fires, gaps + dropped


def _settle_owed(facts: Facts, now: int, reason: Reason, *, fresh: int) -> tuple[tuple[Fire, ...], tuple[NewGap, ...]]:
    begun = _newest_begun(facts, now)
    assert begun is not None
    assert facts.fire_at is not None
    chosen = begun if reason is Reason.EDITED else _newest_owed(facts, now)
    admitted = admit(facts.definition.overlap, facts.live)
    if chosen is None or admitted is None or now - _due_at(facts, chosen) > fresh or _is_past_grace(facts, chosen, now):
        return (), (_gap(facts, facts.fire_at, begun, Verdict.SKIPPED, reason),)
    fire = _fire(facts, chosen, now, is_blocked=admitted == "blocked")
    gaps = _gap_before(facts, chosen, Verdict.SKIPPED, reason)
    if chosen < begun:
        gaps += (_gap(facts, begun, begun, Verdict.SKIPPED, reason),)
    return (fire,), gaps


# --- small questions ---------------------------------------------------------------------------------------------


def _newest_begun(facts: Facts, now: int) -> int | None:
    """The newest moment from the cursor on that has come, though jitter may still delay it."""
    if facts.fire_at is None or facts.fire_at > now:
        return None
    if facts.counts_from_end:
        return facts.fire_at
    newest = facts.rule.previous_us(now + 1)
    # The rules of the zone or the calendar may have changed: the promised moment is no longer one of the rule's, and is
    # owed all the same.
    return facts.fire_at if newest is None else max(newest, facts.fire_at)


def _newest_owed(facts: Facts, now: int) -> int | None:
    newest = _newest_begun(facts, now)
    if newest is None or facts.fire_at is None or _due_at_latest(facts, newest) <= now:
        return newest
    # Jitter is less than the distance between fires, so the one before it is due.
    earlier = facts.rule.previous_us(newest) if newest > facts.fire_at else None
    return None if earlier is None else max(earlier, facts.fire_at)


def _due_at_latest(facts: Facts, moment: int) -> int:
    """When the moment is due at the latest: a delay that is not drawn yet may be as long as its cap.

    Were it none at all, a tick a moment too late would take a drawn delay near its cap for a missed moment.
    """
    if facts.rule.bounds.jitter_mode == "fresh" and moment != facts.fire_at and not _is_held(facts, moment):
        return moment + facts.rule.jitter_cap_us(moment)
    return _due_at(facts, moment)


def _due_at(facts: Facts, moment: int) -> int:
    """When the moment is due: after its jitter, and not before a blackout that holds it has opened."""
    blackout = facts.blackout
    if blackout is None:
        return _delayed(facts, moment)
    if blackout.permits(moment):
        if (
            moment == facts.fire_at
            and facts.at is not None
            and facts.at > moment
            and not blackout.permits(facts.at - 1)
        ):
            return facts.at  # its drawn delay had led into the blackout that ended there
        moment = _delayed(facts, moment)
    opens = blackout.next_open(moment)
    return LATEST if opens is None else opens


def _delayed(facts: Facts, moment: int) -> int:
    """The moment plus its jitter: drawn, it is in `at` for the cursor's own moment; stable, it is recomputed."""
    bounds = facts.rule.bounds
    if not bounds.jitter:
        return moment
    if bounds.jitter_mode == "stable":
        return moment + facts.rule.jitter_us(moment, facts.key)
    if moment == facts.fire_at and facts.at is not None and moment <= facts.at < moment + bounds.jitter:
        return facts.at
    return moment


def _jitter(rule: When, key: str, moment: int, uniform: Callable[[], float]) -> int:
    if not rule.bounds.jitter:
        return 0
    if rule.bounds.jitter_mode == "stable":
        return rule.jitter_us(moment, key)
    return int(rule.jitter_cap_us(moment) * uniform())


def _looked_too_early(facts: Facts, now: int, uniform: Callable[[], float]) -> int:
    assert facts.fire_at is not None
    if facts.at is not None and facts.at > now:
        return facts.at
    return max(facts.fire_at + _jitter(facts.rule, facts.key, facts.fire_at, uniform), now + 1)


def _is_past_grace(facts: Facts, moment: int, now: int) -> bool:
    grace = facts.definition.grace
    return grace is not None and now - _due_at(facts, moment) > grace


def _is_noticed_in_time(facts: Facts, moment: int, now: int) -> bool:
    """Whether catch-up "skip" lets the moment run; with a grace time that says so instead."""
    return facts.definition.grace is not None or now - _due_at(facts, moment) <= FRESH


def _fire(facts: Facts, moment: int, now: int, *, is_blocked: bool, is_late: bool = False) -> Fire:
    due_at = _due_at(facts, moment)
    is_late = is_late or now - due_at > LATE or _is_held(facts, moment)
    return Fire(fire_at=moment, due_at=due_at, is_late=is_late, is_blocked=is_blocked)


def _moved_past(
    facts: Facts,
    moment: int,
    uniform: Callable[[], float],
    *,
    fires: tuple[Fire, ...] = (),
    gaps: tuple[NewGap, ...] = (),
) -> Plan:
    """The plan that puts the cursor behind `moment`."""
    replaces = any(fire.is_blocked for fire in fires) and facts.definition.overlap == "replace"
    most = facts.rule.bounds.max_fires
    if most is not None and facts.fires + len(fires) >= most:
        return Plan(fires=fires, gaps=gaps, replaces_live=replaces)
    if isinstance(facts.rule, Every) and facts.rule.is_after_end:
        return Plan(fires=fires, gaps=gaps, after_end=facts.rule.interval_us, replaces_live=replaces)
    fire_at, at = cursor_after(facts.rule, facts.key, moment, uniform, facts.blackout)
    return Plan(fires=fires, gaps=gaps, next_fire_at=fire_at, next_at=at, replaces_live=replaces)


def _gap_before(facts: Facts, moment: int, verdict: Verdict, reason: Reason) -> tuple[NewGap, ...]:
    """The owed moments before this one, if there are any."""
    assert facts.fire_at is not None
    if moment <= facts.fire_at:
        return ()
    last = facts.rule.previous_us(moment)
    return () if last is None or last < facts.fire_at else (_gap(facts, facts.fire_at, last, verdict, reason),)


def _gap_until(facts: Facts, until: int, verdict: Verdict, reason: Reason) -> tuple[NewGap, ...]:
    """All moments from the cursor up to and including `until`, if there are any."""
    if facts.fire_at is None or facts.fire_at > until or facts.is_spent:
        return ()
    if facts.counts_from_end:
        return (_gap(facts, facts.fire_at, facts.fire_at, verdict, reason),)
    last = facts.rule.previous_us(until + 1)
    return (_gap(facts, facts.fire_at, max(last or 0, facts.fire_at), verdict, reason),)


def _gap(facts: Facts, first: int, last: int, verdict: Verdict, reason: Reason) -> NewGap:
    count = 1 if first == last else max(facts.rule.count_us(first, last, COUNT_LIMIT), 1)
    return NewGap(
        first_at=first, last_at=last, count=count, verdict=verdict, reason=reason, is_exact=count < COUNT_LIMIT
    )
