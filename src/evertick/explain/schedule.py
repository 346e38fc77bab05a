"""Explains a schedule: its next fire and the reason, its last moments, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from evertick.errors import EvertickError
from evertick.explain.dispatched_run import unsent_messages
from evertick.explain.run import ended_words, live_words, silent_nodes
from evertick.explain.words import (
    REMEDY,
    REPAIR,
    heard_of,
    is_left_behind,
    living_of,
    node_names,
    reason_words,
    silent_for,
    time_words,
    why_no_node,
)
from evertick.ledger.clock_repair import astray_of
from evertick.ledger.editor import no_schedule
from evertick.ledger.parsed_rules import blackout_of, load_calendars, rule_of
from evertick.ledger.planning import able_nodes, overlap_on
from evertick.model import Cause, Gap, Message, Node, Run, Schedule
from evertick.store.base import RunFilter, ScheduleFilter, Store, StoredSchedule
from evertick.when import Calendar, When, from_us, to_us

__all__ = ["Why", "explain_schedule"]


# The default limit of one backfill.
_BACKFILLED_MOST = 10_000
_NODES_NAMED = 10
_LIVE_NAMED = 3

# The prefix of the reason of a gap on one node.
_OVERLAP_ON = overlap_on("")


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the explanation. `str()` gives the whole text."""

    key: str
    # The next fire and its reason, or why there is none.
    next: str
    # The outcome of the last moments.
    last: str
    # The current live runs, or the event that it waits for.
    now: str
    # Overrides, differing declarations, errors.
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"Next: {self.next}", f"Last: {self.last}", f"Now:  {self.now}", *(f"Note: {n}" for n in self.notes)]
        )


async def explain_schedule(store: Store, app: str, key: str) -> Why:
    found = await store.schedules(app, ScheduleFilter(keys=(key,)))
    if not found:
        raise no_schedule(app, key)
    schedule, now = found[0], from_us(await store.now())
    stored = await store.stored_schedules(app, keys=[key])
    rule, blackout, rule_error = await _rule(store, app, stored)
    runs = await store.runs(app, RunFilter(schedule_key=key, limit=20))
    gaps = await store.gaps(app, RunFilter(schedule_key=key, limit=5))
    backfilled = await _backfilled(store, app, key, gaps[:1])
    nodes = await store.nodes(app)
    living = living_of(nodes)
    messages = await unsent_messages(store, app, [run for run in runs if run.is_live][:_LIVE_NAMED])
    return Why(
        key=key,
        next=_next(schedule, rule, blackout, runs, now),
        last=_last(runs, gaps, rule, backfilled),
        now=_now(schedule, runs, nodes, now, rule, messages),
        notes=(
            *await _clock(store, app, stored, rule, blackout),
            *_overrides(schedule, rule),
            *_notes(schedule, living, rule_error),
            *_drift(stored, living),
        ),
    )


async def _clock(
    store: Store, app: str, stored: Sequence[StoredSchedule], rule: When | None, blackout: Calendar | None
) -> list[str]:
    """A note if a wrong clock has stopped the schedule."""
    if not stored or rule is None:
        return []
    astray = await astray_of(store, app, stored[0], rule, blackout, await store.now())
    return [] if astray is None else [f"the clock was wrong: {astray.words()}; {REPAIR}"]


async def _rule(
    store: Store, app: str, stored: Sequence[StoredSchedule]
) -> tuple[When | None, Calendar | None, str | None]:
    """The rule and the blackout, or the reason why they cannot be parsed."""
    if not stored:
        return None, None, None
    try:
        calendars = await load_calendars(store, app)
        rule = rule_of(stored[0], calendars)
        return rule, blackout_of(stored[0], rule, calendars), None
    except EvertickError as error:
        return None, None, str(error)


async def _backfilled(store: Store, app: str, key: str, gaps: list[Gap]) -> int:
    """How many moments of the gap were backfilled. Other runs in its range are not for its moments."""
    if not gaps:
        return 0
    first, last = to_us(gaps[0].first_at), to_us(gaps[0].last_at)
    found = await store.runs(app, RunFilter(schedule_key=key, since=first, until=last, limit=_BACKFILLED_MOST))
    return sum(run.cause is Cause.BACKFILL for run in found)


def _next(schedule: Schedule, rule: When | None, blackout: Calendar | None, runs: list[Run], now: datetime) -> str:
    words = "its rule cannot be read" if rule is None else rule.explain()
    if schedule.is_paused:
        until = f" until {time_words(schedule.paused_until, rule)}" if schedule.paused_until else ""
        note = f": {schedule.pause_note}" if schedule.pause_note else ""
        since = time_words(schedule.paused_at, rule)
        return f"not before it is resumed; it is paused{until} since {since}{note}. ({words})"
    if schedule.next_fire_at is None:
        live = [run for run in runs if run.is_live]
        if live and "after=end" in schedule.when:
            return f"counted from the end of run {live[0].id}, which is {live[0].state.value}. ({words})"
        moved = [each.to for each in schedule.occurrences if each.to is not None]
        if moved:
            return f"{time_words(min(moved), rule)}, the new time of a moved moment. ({words})"
        return f"never: {_end_words(schedule, rule)}. ({words})"
    if blackout is not None and not blackout.permits(to_us(schedule.next_fire_at)):
        return f"{_held_words(schedule, rule, blackout, schedule.next_fire_at)} ({words})"
    due = schedule.next_due_at or schedule.next_fire_at
    delay = (due - schedule.next_fire_at).total_seconds()
    late = ""
    if due <= now:
        late = " (overdue: a node records it as soon as it can)"
    elif delay >= 0.001:
        late = f", delayed by {delay:.1f} s (jitter or catch-up pace)"
    return f"{time_words(schedule.next_fire_at, rule)}{late}, because of its rule: {words}"


def _held_words(schedule: Schedule, rule: When | None, blackout: Calendar, moment: datetime) -> str:
    opens = blackout.next_open(to_us(moment))
    closed = "never opens again" if opens is None else f"is closed until {time_words(from_us(opens), rule)}"
    fate = {
        "drop": "all moments until then are dropped",
        "latest": "then the newest of these moments runs in place of all of them",
        "all": "then all of these moments run, one by one",
    }[schedule.blackout_fate]
    return f"{time_words(moment, rule)} is in the blackout {blackout.name!r}, which {closed}: {fate}."


def _overrides(schedule: Schedule, rule: When | None) -> list[str]:
    """The overrides of future moments."""
    notes = []
    for each in schedule.occurrences:
        change = "will be skipped" if each.to is None else f"is moved to {time_words(each.to, rule)}"
        notes.append(f"the moment {time_words(each.fire_at, rule)} {change}{f': {each.note}' if each.note else ''}")
    return notes


def _end_words(schedule: Schedule, rule: When | None) -> str:
    if rule is not None and rule.bounds.max_fires is not None and schedule.fires >= rule.bounds.max_fires:
        return f"it has fired {schedule.fires} times, its maximum"
    if rule is not None and rule.bounds.calendar is not None:
        return f"its rule has no further moment that calendar {rule.bounds.calendar!r} permits"
    return "its rule has no further moment"


def _last(runs: list[Run], gaps: list[Gap], rule: When | None, backfilled: int) -> str:
    finished = [run for run in runs if not run.is_live]
    last_run = finished[0] if finished else None
    last_gap = gaps[0] if gaps else None
    if last_run is None and last_gap is None:
        return "none of its runs has ended yet" if runs else "it has not fired yet"
    parts = []
    if last_gap is not None and (last_run is None or last_gap.last_at >= last_run.fire_at):
        parts.append(_gap_words(last_gap, rule, backfilled))
        if last_run is not None:
            parts.append(f"the run before, of {time_words(last_run.fire_at, rule)}, {ended_words(last_run, rule)}")
    elif last_run is not None:
        parts.append(f"the run of {time_words(last_run.fire_at, rule)} {ended_words(last_run, rule)}")
        if last_gap is not None:
            parts.append(f"before it, {_gap_words(last_gap, rule, backfilled)}")
    return "; ".join(parts)


def _gap_words(gap: Gap, rule: When | None, backfilled: int) -> str:
    reason = reason_words(gap.reason)
    if gap.reason.startswith(_OVERLAP_ON):
        name = gap.reason.removeprefix(_OVERLAP_ON)
        moment = f"the moment {time_words(gap.first_at, rule)}"
        return f"{moment} was {gap.verdict.value} on {name}: an earlier run was still live there"
    if gap.count == 1:
        since = ", and has been backfilled since" if backfilled else ""
        return f"the moment {time_words(gap.first_at, rule)} was {gap.verdict.value}: {reason}{since}"
    count = str(gap.count) if gap.is_exact else f"at least {gap.count}"
    bounds = f"from {time_words(gap.first_at, rule)} to {time_words(gap.last_at, rule)}"
    since = f"; {backfilled} of them have been backfilled since" if backfilled else ""
    return f"{count} moments {bounds} were {gap.verdict.value}: {reason}{since}"


def _now(
    schedule: Schedule,
    runs: list[Run],
    nodes: list[Node],
    now: datetime,
    rule: When | None,
    messages: Mapping[str, Message],
) -> str:
    live = [run for run in runs if run.is_live]
    if not live:
        return _idle_words(schedule, living_of(nodes), now)
    return "; ".join(live_words(run, nodes, now, rule, messages.get(run.id)) for run in live[:_LIVE_NAMED])


def _idle_words(schedule: Schedule, living: list[Node], now: datetime) -> str:
    leased = heard_of(living, now)
    if not leased:
        return f"no node is alive{silent_nodes(living, living, now)}: nothing will fire until one is started"
    if schedule.is_paused or schedule.next_fire_at is None:
        return "it waits for nothing"
    able = [node for node in leased if schedule.task in node.tasks]
    if not able:
        return f"it waits; {why_no_node(schedule.task, leased)[0]}"
    are_all_silent = all(silent_for(node, now) for node in able)
    return "it waits for its next moment" + (silent_nodes(able, living, now) if are_all_silent else "")


def _notes(schedule: Schedule, nodes: list[Node], rule_error: str | None) -> list[str]:
    notes = []
    if schedule.mode == "every-node":
        able, known = able_nodes(nodes, schedule.task)[:_NODES_NAMED], node_names(nodes)
        names = ", ".join(sorted(known[node.id] for node in able))
        notes.append(f"it runs on every live node that knows its task, now {names or 'none'}")
    if schedule.error:
        notes.append(f"it could not be planned: {schedule.error}")
    if rule_error:
        notes.append(f"its rule cannot be read: {rule_error}")
    if schedule.overrides:
        declarer = "the configuration" if schedule.declared_in == "file" else "the code"
        notes.append(f"edited at run time, so it differs from {declarer}: {', '.join(schedule.overrides)}")
    hashes = {node.declares[schedule.key] for node in nodes if schedule.key in node.declares}
    if len(hashes) > 1:
        notes.append("live nodes declare it differently; the declaration of the last one started is in force")
    return notes


def _drift(stored: Sequence[StoredSchedule], nodes: list[Node]) -> list[str]:
    if not any(is_left_behind(each.key, each.declared, nodes) for each in stored):
        return []
    return [f"live nodes declare it differently: the declaration of a node that has ended is in force; {REMEDY}"]
