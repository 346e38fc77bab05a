"""Why a schedule does what it does, in words: the next fire and why then, the last moments, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from evertick.errors import EvertickError, NotFound
from evertick.explain.dispatched_run import dispatched_words, unsent_messages, who_was_lost
from evertick.explain.drift import REMEDY, is_left_behind
from evertick.explain.no_node import driver_wanted, living_of, nobody_runs, somebody_wanted
from evertick.explain.node_names import node_names
from evertick.ledger.clock_repair import astray_of, is_put_off
from evertick.ledger.fan_out import able_nodes, overlap_on
from evertick.ledger.parsed_rules import blackout_of, load_calendars, rule_of
from evertick.model import Cause, Gap, Message, Node, Reason, Run, Schedule, State, Verdict
from evertick.model.every_node import is_own_queue, node_of_queue
from evertick.store.base import RunFilter, ScheduleFilter, Store, StoredSchedule
from evertick.text.error_line import what_was_raised
from evertick.when import Calendar, When, from_us, to_us

__all__ = ["Why", "ended_words", "explain_schedule", "live_words", "reason_words", "silent_for", "time_words"]

# A node beats five times in a lease: by this share of it a beat is late.
_SILENT_SHARE = 1 / 4
_BEATS_IN_LEASE = 5

# As many as one backfill makes.
_BACKFILLED_MOST = 10_000
_NODES_NAMED = 10
_LIVE_NAMED = 3
_DEFAULT_QUEUE = "default"
_REPAIR = "put it right, then run `evertick db repair-clock`"

# How a gap begins that is the gap of one node.
_OVERLAP_ON = overlap_on("")

_REASONS: dict[str, str] = {
    Reason.CLOCK: "the clock was wrong when it was recorded; `evertick db repair-clock` has put its times right",
    Reason.COALESCED: "a newer moment ran instead (catch-up is 'latest')",
    Reason.OVERLAP: "an earlier run of the schedule was still live",
    Reason.GRACE: "noticed later than the grace time allows",
    Reason.LIMIT: "more moments were owed than catch-up makes up for",
    Reason.DOWNTIME: "no node was there in time, and catch-up is 'skip'",
    Reason.PAUSED: "the schedule was paused",
    Reason.EDITED: "the schedule was edited before anybody noticed",
    Reason.REMOVED: "the schedule was removed",
    Reason.UNDECLARED: "no code declared the schedule at that time",
    Reason.REPLACED: "a newer fire took its place",
    Reason.EXPIRED: "it was not started in time",
    Reason.REQUESTED: "somebody asked for it",
    Reason.TIMEOUT: "it took longer than its timeout",
    Reason.ERROR: "the job raised an error",
    Reason.NODE_DIED: "its node died",
    Reason.NODE_GONE: "it was for one node alone, which has left or died",
    Reason.NO_NODE: "it is for every node, and no live one knew the task",
    Reason.SHUTDOWN: "its node was shut down, and it must not run twice, or elsewhere",
    Reason.UNREACHABLE: "its node could not reach the store",
    Reason.NO_SLOT: "the node that had claimed it had no slot free for it in time",
    Reason.NOT_TAKEN: "no worker took it in its time",
    Reason.NO_PROGRESS: "its worker fell silent",
    Reason.UNDELIVERED: "the queue that it was to be dispatched to did not take it",
    Reason.DUPLICATE: "another run has its unique key",
    Reason.BLACKOUT: "the blackout of the schedule was closed, and drops what comes then",
    Reason.BY_HAND: "somebody decided that it should not run",
    Reason.UNDONE: "somebody took back that it runs early",
    Reason.LATE: "it ran late, or for moments before it that nobody noticed in time",
}


def reason_words(reason: str) -> str:
    """Why a run ended, or a moment had none, in words."""
    return _REASONS.get(reason, reason)


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, part by part; `str()` of it is the whole."""

    key: str
    # When it fires next and why then (or why it does not).
    next: str
    # What became of the last moments.
    last: str
    # What it waits for now.
    now: str
    # What else a person should know: overrides, differing declarations, errors.
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"Next: {self.next}", f"Last: {self.last}", f"Now:  {self.now}", *(f"Note: {n}" for n in self.notes)]
        )


async def explain_schedule(store: Store, app: str, key: str) -> Why:
    found = await store.schedules(app, ScheduleFilter(keys=(key,)))
    if not found:
        raise NotFound(f"there is no schedule {key!r} in app {app!r}; `evertick list` shows those there are")
    schedule, now = found[0], from_us(await store.now())
    stored = await store.stored_schedules(app, keys=[key])
    rule, blackout, rule_error = await _rule(store, app, stored)
    runs = await store.runs(app, RunFilter(schedule_key=key, limit=20))
    gaps = await store.gaps(app, RunFilter(schedule_key=key, limit=5))
    made_up_for = await _made_up_for(store, app, key, gaps[:1])
    nodes = await store.nodes(app)
    living = living_of(nodes)
    messages = await unsent_messages(store, app, [run for run in runs if run.is_live][:_LIVE_NAMED])
    return Why(
        key=key,
        next=_next(schedule, rule, blackout, runs, now),
        last=_last(runs, gaps, rule, made_up_for),
        now=_now(schedule, runs, nodes, now, rule, messages),
        notes=(
            *await _clock(store, app, stored, rule, blackout),
            *_decisions(schedule, rule),
            *_notes(schedule, living, rule_error),
            *_drift(stored, living),
        ),
    )


async def _clock(
    store: Store, app: str, stored: Sequence[StoredSchedule], rule: When | None, blackout: Calendar | None
) -> list[str]:
    """That a wrong clock makes it stand still."""
    if not stored or rule is None:
        return []
    astray = await astray_of(store, app, stored[0], rule, blackout, await store.now())
    return [] if astray is None else [f"the clock was wrong: {astray.words()}; {_REPAIR}"]


async def _rule(
    store: Store, app: str, stored: Sequence[StoredSchedule]
) -> tuple[When | None, Calendar | None, str | None]:
    """The rule and the blackout, or why they cannot be read."""
    if not stored:
        return None, None, None
    try:
        calendars = await load_calendars(store, app)
        rule = rule_of(stored[0], calendars)
        return rule, blackout_of(stored[0], rule, calendars), None
    except EvertickError as error:
        return None, None, str(error)


async def _made_up_for(store: Store, app: str, key: str, gaps: list[Gap]) -> int:
    """How many moments of the gap were backfilled. Other runs in its stretch are not for moments of its own."""
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
            return f"{time_words(min(moved), rule)}, where somebody has moved its moment to. ({words})"
        return f"never: {_end_words(schedule, rule)}. ({words})"
    if blackout is not None and not blackout.permits(to_us(schedule.next_fire_at)):
        return f"{_held_words(schedule, rule, blackout, schedule.next_fire_at)} ({words})"
    due = schedule.next_due_at or schedule.next_fire_at
    delay = (due - schedule.next_fire_at).total_seconds()
    late = ""
    if due <= now:
        late = "; that has passed, so it is noticed as soon as a node looks"
    elif delay >= 0.001:
        late = f", delayed by {delay:.1f} s (jitter, or the pace of catching up)"
    return f"{time_words(schedule.next_fire_at, rule)}{late}, because of its rule: {words}"


def _held_words(schedule: Schedule, rule: When | None, blackout: Calendar, moment: datetime) -> str:
    opens = blackout.next_open(to_us(moment))
    until = "for good" if opens is None else f"until {time_words(from_us(opens), rule)}"
    fate = {
        "drop": "it and what else comes until then is dropped",
        "latest": "then the newest of what came until then runs for all of it",
        "all": "then what came until then runs, one by one",
    }[schedule.blackout_fate]
    return f"{time_words(moment, rule)} falls into the blackout {blackout.name!r}, which is closed {until}: {fate}."


def _decisions(schedule: Schedule, rule: When | None) -> list[str]:
    """What people decided about single moments to come."""
    notes = []
    for each in schedule.occurrences:
        what = "is to be skipped" if each.to is None else f"is moved to {time_words(each.to, rule)}"
        notes.append(f"the moment {time_words(each.fire_at, rule)} {what}{f': {each.note}' if each.note else ''}")
    return notes


def _end_words(schedule: Schedule, rule: When | None) -> str:
    if rule is not None and rule.bounds.max_fires is not None and schedule.fires >= rule.bounds.max_fires:
        return f"it has fired {schedule.fires} times, which is the most that it may"
    if rule is not None and rule.bounds.calendar is not None:
        return f"its rule has no further moment that calendar {rule.bounds.calendar!r} permits"
    return "its rule has no further moment"


def _last(runs: list[Run], gaps: list[Gap], rule: When | None, made_up_for: int) -> str:
    finished = [run for run in runs if not run.is_live]
    last_run = finished[0] if finished else None
    last_gap = gaps[0] if gaps else None
    if last_run is None and last_gap is None:
        return "none of its runs has ended yet" if runs else "nothing has come of it yet"
    parts = []
    if last_gap is not None and (last_run is None or last_gap.last_at >= last_run.fire_at):
        parts.append(_gap_words(last_gap, rule, made_up_for))
        if last_run is not None:
            parts.append(f"the run before, of {time_words(last_run.fire_at, rule)}, {ended_words(last_run, rule)}")
    elif last_run is not None:
        parts.append(f"the run of {time_words(last_run.fire_at, rule)} {ended_words(last_run, rule)}")
        if last_gap is not None:
            parts.append(f"before it, {_gap_words(last_gap, rule, made_up_for)}")
    return "; ".join(parts)


def ended_words(run: Run, rule: When | None) -> str:
    verdict = "" if run.verdict is None else run.verdict.value
    words = verdict if run.verdict is Verdict.SUCCEEDED else f"ended as {verdict}"
    if run.reason is not None:
        words += f": {reason_words(run.reason)}"
    if run.reason == Reason.LATE and run.started_at is not None:
        words += f" (started {time_words(run.started_at, rule)})"
    if run.verdict is Verdict.FAILED and run.error:
        words += f" ({what_was_raised(run.error)})"
    if run.attempts > 1:
        words += f", after {run.attempts} attempts"
    return words + _losses(run)


def _losses(run: Run) -> str:
    """Nothing in a verdict tells that an earlier claim was lost; people should know it ran twice."""
    # Of a lost one the last was its end, and is told as such.
    again = run.losses - (run.verdict is Verdict.LOST)
    if again <= 0:
        return ""
    words = f"; {who_was_lost(run)} was lost {'once' if again == 1 else f'{again} times'}"
    return words if run.verdict is Verdict.CANCELLED else f"{words} before, and it was run again"


def _gap_words(gap: Gap, rule: When | None, made_up_for: int) -> str:
    reason = reason_words(gap.reason)
    if gap.reason.startswith(_OVERLAP_ON):
        name = gap.reason.removeprefix(_OVERLAP_ON)
        return f"the moment {time_words(gap.first_at, rule)} was {gap.verdict.value} on {name}, still at an earlier one"
    if gap.count == 1:
        since = ", and has been backfilled since" if made_up_for else ""
        return f"the moment {time_words(gap.first_at, rule)} was {gap.verdict.value}: {reason}{since}"
    count = str(gap.count) if gap.is_exact else f"at least {gap.count}"
    stretch = f"from {time_words(gap.first_at, rule)} to {time_words(gap.last_at, rule)}"
    since = f"; {made_up_for} of them have been backfilled since" if made_up_for else ""
    return f"{count} moments {stretch} were {gap.verdict.value}: {reason}{since}"


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


def _heard_of(living: list[Node], now: datetime) -> list[Node]:
    """Whose lease holds. A node that was killed alone is never judged dead, since nobody is left to do it."""
    return [node for node in living if node.lease_until >= now]


def _idle_words(schedule: Schedule, living: list[Node], now: datetime) -> str:
    heard = _heard_of(living, now)
    if not heard:
        return f"no node is alive{_silent_nodes(living, living, now)}: nothing will fire until one is started"
    if schedule.is_paused or schedule.next_fire_at is None:
        return "it waits for nothing"
    knowing = [node for node in heard if schedule.task in node.tasks]
    if not knowing:
        return f"it waits; {nobody_runs(schedule.task, heard)[0]}"
    is_doubtful = all(silent_for(node, now) for node in knowing)
    return "it waits for its next moment" + (_silent_nodes(knowing, living, now) if is_doubtful else "")


def _silent_nodes(silent: list[Node], living: list[Node], now: datetime) -> str:
    """The last that was heard, and how many others."""
    if not silent:
        return ""
    last = max(silent, key=lambda node: node.beat_at)
    more = f", and {len(silent) - 1} more for longer" if len(silent) > 1 else ""
    return f" ({node_names(living)[last.id]} is {silent_for(last, now)}{more})"


def _slot_wanted(run: Run, living: list[Node]) -> str:
    """Of what nobody has, each half is named only if it is missing."""
    knowing = [node for node in living if run.task in node.tasks]
    if any(run.queue in node.queues for node in knowing):
        return "a free slot"
    if knowing:
        return f"a node that knows task {run.task!r} to work on queue {run.queue!r}"
    driver = driver_wanted(run.task, living)
    able = f"knows task {run.task!r}" if driver is None else f"has the driver {driver!r} of task {run.task!r} enabled"
    is_served = any(run.queue in node.queues for node in living)
    return f"a node that {able}" + ("" if is_served else f" and works on queue {run.queue!r}")


def _queue_wanted(run: Run, living: list[Node]) -> str:
    """What to do where the queue alone is missing: the node that knows the task may be taught it."""
    knowing = [node for node in living if run.task in node.tasks]
    if not knowing or any(run.queue in node.queues for node in knowing):
        return ""
    name, queues = node_names(living)[knowing[0].id], ", ".join(map(repr, knowing[0].queues))
    return f"; node {name} knows it and works on {queues} alone: add {run.queue!r} to its node.queues, and restart it"


def _nobody_there(run: Run, nodes: list[Node], now: datetime) -> str:
    queue, living = "" if run.queue == _DEFAULT_QUEUE else f" and on queue {run.queue!r}", living_of(nodes)
    silent = _silent_nodes(living, living, now)
    return f"no node is alive{silent}; it needs one {somebody_wanted(run.task, nodes)}{queue}"


def live_words(run: Run, nodes: list[Node], now: datetime, rule: When | None, message: Message | None = None) -> str:
    """`nodes`: also the dead. `message`: the one that is still to dispatch the run, if there is one."""
    return _doing(run, nodes, now, rule, message) + _failed_before(run)


def _failed_before(run: Run) -> str:
    """What came of the attempt before: why there is another. What is parked tells its error itself."""
    if not run.attempts or not run.error or run.state is State.PARKED:
        return ""
    return f"; attempt {run.attempts} failed: {what_was_raised(run.error)}"


def _in_phase(run: Run) -> str:
    """The innermost of those that have not ended, as far as the ledger has heard."""
    names = [phase.name for phase in run.phases if phase.seconds is None]
    return f", in phase {names[-1]!r}" if names else ""


def _doing(run: Run, nodes: list[Node], now: datetime, rule: When | None, message: Message | None) -> str:
    living = living_of(nodes)
    if run.dispatched is not None:
        return dispatched_words(
            run, run.dispatched, message, living, lambda moment: time_words(moment, rule)
        ) + _losses(run)
    match run.state:
        case State.RUNNING:
            since = "" if run.started_at is None else f" since {time_words(run.started_at, rule)}"
            progress = "" if run.progress is None else f", at {run.progress:.0%} {run.progress_text or ''}".rstrip()
            asked = ", asked to cancel" if run.is_cancel_requested else ""
            where, phase = _where(run, living, now, rule), _in_phase(run)
            return f"run {run.id} (attempt {run.attempts + 1}) runs{since}{where}{progress}{phase}{asked}{_losses(run)}"
        case State.WAITING if run.reason == Reason.NEWER_FORMAT:
            return f"run {run.id} waits for a node of a newer release, as the one that has recorded it"
        case State.WAITING if is_put_off(run, now):
            return f"run {run.id} waits for {time_words(run.due_at, rule)}, as the clock was wrong; {_REPAIR}"
        case State.WAITING if run.due_at > now:
            return f"run {run.id} waits for its {'retry' if run.attempts else 'time'} at {time_words(run.due_at, rule)}"
        case State.WAITING if is_own_queue(run.queue):
            name = node_names(living).get(node_of_queue(run.queue))
            whose = f"a free slot of node {name}" if name else "its node, which is gone: it is about to be lost"
            return f"run {run.id} waits for {whose} since {time_words(run.due_at, rule)}"
        case State.WAITING:
            since, heard = f"since {time_words(run.due_at, rule)}", _heard_of(living, now)
            if not heard:
                return f"run {run.id} waits {since}: {_nobody_there(run, nodes, now)}"
            return f"run {run.id} waits for {_slot_wanted(run, heard)} {since}{_queue_wanted(run, heard)}"
        case State.BLOCKED if run.reason == Reason.CONCURRENCY:
            return f"run {run.id} waits for its turn: as many runs of {run.blocked_on!r} are at work as may be at once"
        case State.BLOCKED if run.reason == Reason.RATE:
            return (
                f"run {run.id} waits for its turn: as many runs of {run.blocked_on!r} have started as its rate allows"
            )
        case State.BLOCKED:
            return f"run {run.id} waits for the end of run {run.blocked_on}"
        case State.PARKED if run.reason == Reason.UNKNOWN_TASK:
            why, fix = nobody_runs(run.task, nodes)
            return f"run {run.id} is parked: {why}; {fix}"
        case State.PARKED if run.reason == Reason.UNREADABLE:
            return f"run {run.id} is parked: {run.error}; cancel it, and enqueue it anew"
        case State.PARKED:
            misfit = f"its arguments do not fit task {run.task!r} ({run.error or ''})"
            return f"run {run.id} is parked: {misfit}; cancel it, or mend the task"
        case _:
            return f"run {run.id} is {run.state.value}"


def _where(run: Run, living: list[Node], now: datetime, rule: When | None) -> str:
    """On which node, and what is to be expected if that has fallen silent."""
    if run.node is None:
        return ""
    for node in living:
        if node.id == run.node:
            others = [each for each in living if each is not node and not silent_for(each, now)]
            name, silent = node_names(living)[node.id], silent_for(node, now)
            if not silent:
                return f" on {name}"
            when = _when_judged(node, others, now, rule)
            return f" on {name}, which is {silent} (unless it comes back, the run is {_fate(run)}, {when})"
    return f" on a node that is dead: it is about to be {_fate(run)}"


def _fate(run: Run) -> str:
    """What becomes of a run whose node is gone."""
    return "lost, as it is for that node alone" if is_own_queue(run.queue) else "taken over, or lost if on_lost='fail'"


def silent_for(node: Node, now: datetime) -> str:
    """Of a node that counts as alive, in words: how long ago its last beat is, where the next is late."""
    silent = now - node.beat_at
    return f"silent for {silent.total_seconds():.0f} s" if silent > _SILENT_SHARE * _lease(node) else ""


def _lease(node: Node) -> timedelta:
    return node.lease_until - node.beat_at


def _when_judged(node: Node, others: list[Node], now: datetime, rule: When | None) -> str:
    """Others look for the dead with each of their own beats, but not before they have run for one lease."""
    lease = _lease(node)
    beat = lease / _BEATS_IN_LEASE
    if not others:
        seconds, first = (lease + beat).total_seconds(), lease.total_seconds()
        return f"about {seconds:.0f} s after a node is started, which judges nobody in its first {first:g} s"
    judges_from = min(each.started_at + _lease(each) for each in others)
    judged = max(node.lease_until, judges_from) + beat
    left = (judged - now).total_seconds()
    if left < 1:
        return "as soon as another node looks"
    return f"in about {left:.0f} s, at {time_words(judged, rule).partition(' ')[2]}"


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
        said = "the configuration" if schedule.declared_in == "file" else "the code"
        notes.append(f"edited at run time, unlike {said}: {', '.join(schedule.overrides)}")
    hashes = {node.declares[schedule.key] for node in nodes if schedule.key in node.declares}
    if len(hashes) > 1:
        notes.append("live nodes declare it differently; the last one started has won")
    return notes


def _drift(stored: Sequence[StoredSchedule], nodes: list[Node]) -> list[str]:
    if not any(is_left_behind(each.key, each.declared, nodes) for each in stored):
        return []
    return [f"live nodes declare it otherwise: what a node that has gone declared is still in force; {REMEDY}"]


def time_words(moment: datetime | None, rule: When | None) -> str:
    """By the clock of the rule, and its name; where there is none by that of this machine, with its offset."""
    if moment is None:
        return "-"
    if rule is not None:
        return f"{moment.astimezone(rule.zone):%Y-%m-%d %H:%M:%S} {rule.zone.key}"
    return moment.astimezone().replace(microsecond=0).isoformat(" ").replace("+00:00", " UTC")
