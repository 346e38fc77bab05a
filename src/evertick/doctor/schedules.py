"""Schedules, their calendars and the clock: rules that cannot fire, overdue or colliding ones, holidays that end."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise
from statistics import fmean

from evertick.doctor.finding import Finding, Severity, named
from evertick.doctor.thresholds import (
    CALENDAR_ENDS_SOON,
    CLOCK_APART,
    ENDED_TOGETHER,
    HERD,
    HOLIDAYS_LEAST,
    PAUSE_OVERDUE,
    RUNS_LEAST,
    Thresholds,
)
from evertick.explain.all_schedules import ParsedSchedule
from evertick.explain.words import REMEDY, driver_wanted, is_left_behind
from evertick.ledger.clock_repair import Astray, is_put_off
from evertick.model import Node, Run, Schedule, State, blockers_of_loop
from evertick.plan.forecast import collisions_of
from evertick.plan.spread import spread_rule
from evertick.text.time_span import span
from evertick.when import Calendar, Once, When, from_us, to_us
from evertick.when.every import Every
from evertick.when.moment import DAY

__all__ = ["about_calendars", "about_clock", "about_late_runs", "about_overdue", "about_schedules", "about_wrong_clock"]

_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}")
_HERD_SCHEDULES_MOST = 5_000
_DISTANCES = 20


def about_schedules(
    surveyed: Sequence[ParsedSchedule], ended: Sequence[Run], living: Sequence[Node], now: datetime
) -> Iterator[Finding]:
    for each in surveyed:
        yield from _about_rule(each, now)
        yield from _about_stop(each)
    yield from _about_drift(surveyed, living)
    yield from _about_left_over(surveyed)
    yield from _about_overdue_pauses(surveyed, now)
    yield from _about_tasks(surveyed, living)
    yield from _about_overlap(surveyed, ended, living, now)
    yield from _about_herds(surveyed, now)


# --- one schedule ----------------------------------------------------------------------------------------------------


def _about_rule(each: ParsedSchedule, now: datetime) -> Iterator[Finding]:
    key, schedule = each.schedule.key, each.schedule
    if each.rule is None:
        yield Finding(
            severity=Severity.ERROR,
            check="unreadable_rule",
            what=f"the rule of {key} cannot be used: {each.rule_error}",
            fix=f"define what it lacks, or give it another rule with `evertick update {key} --when RULE`",
            about=(key,),
        )
    elif schedule.error:
        yield Finding(
            severity=Severity.ERROR,
            check="plan_error",
            what=f"{key} could not be planned: {schedule.error}",
            fix=f"it is tried again by itself; `evertick why {key}` tells when",
            about=(key,),
        )
    elif not schedule.is_paused and schedule.next_fire_at is None and each.astray is None:
        yield from _about_end(each, each.rule, now)


def _about_end(each: ParsedSchedule, rule: When, now: datetime) -> Iterator[Finding]:
    """One that has no next moment: over as it was meant to be, or never again by a mistake."""
    key, schedule = each.schedule.key, each.schedule
    if isinstance(rule, Once) or rule.is_after_end:
        return
    if schedule.last_state not in (None, State.DONE):
        return
    is_spent = rule.bounds.max_fires is not None and schedule.fires >= rule.bounds.max_fires
    is_ended = rule.bounds.end is not None and rule.bounds.end < to_us(now)
    if is_spent or is_ended:
        why = "it has fired as often as it may" if is_spent else "its end has passed"
        yield Finding(
            severity=Severity.NOTE,
            check="over",
            what=f"{key} is over: {why}",
            fix=f"remove it with `evertick remove {key}`, or leave it: it costs nothing",
            about=(key,),
        )
        return
    calendar = f" that calendar {rule.bounds.calendar!r} permits" if rule.bounds.calendar else ""
    yield Finding(
        severity=Severity.WARNING,
        check="never_again",
        what=f"{key} never fires again: its rule ({schedule.when}) has no further moment{calendar}",
        fix=f"give it another rule or calendar with `evertick update {key}`, or remove it",
        about=(key,),
    )


def _about_stop(each: ParsedSchedule) -> Iterator[Finding]:
    """One that stands still until a person sees to it. A pause by hand is none."""
    key, schedule = each.schedule.key, each.schedule
    if each.is_failing:
        yield Finding(
            severity=Severity.WARNING,
            check="failing",
            what=f"{key} was paused because it fails: {schedule.pause_note.partition('; mend it')[0]}",
            fix=f"correct what it runs (`evertick failed {key}` has its errors), then `evertick resume {key}`",
            about=(key,),
        )
    elif schedule.last_state is State.PARKED and not schedule.is_paused and _waits_for_parked(each):
        yield Finding(
            severity=Severity.WARNING,
            check="behind_parked",
            what=f"{key} waits behind a parked run, {schedule.last_run_id}: nothing of it runs until that has ended",
            fix=f"make that run possible (`evertick why {key}` tells what it lacks), or give it up with "
            f"`evertick cancel {schedule.last_run_id}`",
            about=(key,),
        )


def _waits_for_parked(each: ParsedSchedule) -> bool:
    """Mostly the next fire takes the place of a parked run; not where all are wanted, or where its end is awaited."""
    is_after_end = isinstance(each.rule, Every) and each.rule.is_after_end
    return is_after_end or (each.schedule.catch_up == "all" and each.schedule.overlap != "allow")


# --- many ------------------------------------------------------------------------------------------------------------


def _about_drift(surveyed: Sequence[ParsedSchedule], living: Sequence[Node]) -> Iterator[Finding]:
    for each in surveyed:
        key = each.schedule.key
        if is_left_behind(key, each.declared, living):
            who = named(sorted({node.name for node in living if key in node.declares}))
            yield Finding(
                severity=Severity.WARNING,
                check="left_behind",
                what=f"schedule {key} ({each.schedule.when}) is not as live nodes declare it ({who}): what a node that "
                "has gone declared is still in force",
                fix=REMEDY,
                about=(key,),
            )


def _about_left_over(surveyed: Sequence[ParsedSchedule]) -> Iterator[Finding]:
    """Paused by Evertick itself, since nothing declares it any more: it costs nothing, and may be missed."""
    left = [each for each in surveyed if each.is_left_over]
    for source, where, fix in (
        (
            "file",
            "in no configuration any more",
            "put it back into the file, or remove it with `evertick apply --prune`",
        ),
        ("code", "declared by no code any more", "declare it again, or remove it with `evertick remove KEY`"),
    ):
        keys = [each.schedule.key for each in left if each.schedule.declared_in == source]
        if keys:
            those = "1 schedule is" if len(keys) == 1 else f"{len(keys)} schedules are"
            yield Finding(
                severity=Severity.NOTE,
                check="left_over",
                what=f"{those} paused, {where}: {named(keys)}",
                fix=fix,
                about=tuple(keys),
            )


def _about_overdue_pauses(surveyed: Sequence[ParsedSchedule], now: datetime) -> Iterator[Finding]:
    stuck = [
        each.schedule.key
        for each in surveyed
        if each.schedule.paused_until is not None and now - each.schedule.paused_until > PAUSE_OVERDUE
    ]
    if stuck:
        yield Finding(
            severity=Severity.WARNING,
            check="pause_not_ended",
            what=f"the pause of {named(stuck)} was to end, and no node has ended it",
            fix="start a node of this app, or resume it with `evertick resume`",
            about=tuple(stuck),
        )


def about_overdue(
    due: Sequence[Schedule], living: Sequence[Node], now: datetime, thresholds: Thresholds
) -> Iterator[Finding]:
    """Schedules whose moments no node has recorded."""
    late = {each.key: now - each.next_due_at for each in due if not each.is_paused and each.next_due_at is not None}
    late = {key: waited for key, waited in late.items() if thresholds.of_lag(waited) is not None}
    if not late:
        return
    longest = max(late.values())
    those = f"{len(late)} {'schedule is' if len(late) == 1 else 'schedules are'} overdue by up to"
    who = named(each.name for each in living)
    yield Finding(
        severity=thresholds.of_lag(longest) or Severity.WARNING,
        check="stalled_node" if living else "overdue",
        what=f"{those} {span(longest)} ({named(late)})"
        + (f", though {who} beats: {_held_up_by(living)}" if living else ""),
        fix="the log of the node names the job that blocks it, and shows the stack; make that job a plain function "
        "(def), which runs in a thread"
        if living
        else "start a node of this app",
        about=tuple(late),
    )


def _held_up_by(living: Sequence[Node]) -> str:
    """By what the nodes themselves say; the schedules that are late are those that wait for it."""
    blocking = [
        f"{name} blocks the event loop of {node.name}"
        for node in living
        for name, tick in blockers_of_loop(node).items()
        if tick.next_at is None
    ]
    return named(blocking) or "something may block the event loop there, and the ledger does not tell what"


def _about_tasks(surveyed: Sequence[ParsedSchedule], living: Sequence[Node]) -> Iterator[Finding]:
    if not living:
        return
    known = {task for node in living for task in node.tasks}
    unknown: dict[str, list[str]] = defaultdict(list)
    for each in surveyed:
        if not each.schedule.is_paused and each.schedule.next_fire_at is not None and each.schedule.task not in known:
            unknown[each.schedule.task].append(each.schedule.key)
    for task, keys in sorted(unknown.items()):
        driver = driver_wanted(task, living)
        why = (
            f"no live node knows task {task}"
            if driver is None
            else f"no live node has the driver {driver} of task {task}"
        )
        fix = "start a node that knows it" if driver is None else f"enable {driver} on a node"
        yield Finding(
            severity=Severity.WARNING,
            check="unknown_task",
            what=f"{why} of {named(keys)}: its runs will be parked",
            fix=f"{fix}, or pause the schedule",
            about=(task, *keys),
        )


def _about_overlap(
    surveyed: Sequence[ParsedSchedule], ended: Sequence[Run], living: Sequence[Node], now: datetime
) -> Iterator[Finding]:
    """Under overlap "skip" a schedule that comes sooner than its runs end skips moments as a rule."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in ended:
        if run.schedule_key is not None and run.started_at is not None and run.finished_at is not None:
            runs[run.schedule_key].append(run)
    blockers = {name for node in living for name in blockers_of_loop(node)}
    for each in surveyed:
        key, own = each.schedule.key, runs.get(each.schedule.key, [])
        if each.schedule.overlap != "skip" or each.expected is None or len(own) < RUNS_LEAST:
            continue
        # Not `minimum_distance`: what comes closer only on the day a clock is turned is no rule.
        moments = each.expected.rule.upcoming(now, _DISTANCES)
        apart = min((later - earlier for earlier, later in pairwise(moments)), default=None)
        seconds = fmean(_length(run) for run in own)
        if apart is None or apart.total_seconds() >= seconds:
            continue
        others = sorted(blockers - {key}) if key not in blockers else []
        beside = others or _ended_together(own, ended, apart.total_seconds())
        what = (
            f"{key} fires every {apart.total_seconds():g} s at its closest, and its runs take {seconds:.1f} s: moments "
            "are skipped (overlap is 'skip')"
        )
        fix = "fire less often, make it faster, or choose overlap='queue' or Every(…, after='end')"
        if others:
            what += f"; but {named(others)} has blocked the event loop of its node, for which its runs had to wait"
            fix = "see to what blocks the event loop first"
        elif beside:
            what += (
                f"; but they end together with runs of {named(beside)} on the same node, so that one of them may block "
                "the event loop for the others: the ledger does not tell which"
            )
            fix = (
                "the log of the node names what blocks its event loop for more than 5 s; jobs that block are to be "
                f"plain functions (def), which run in threads. If nothing does: {fix}"
            )
        yield Finding(severity=Severity.WARNING, check="too_close", what=what, fix=fix, about=(key, *beside))


def _length(run: Run) -> float:
    assert run.started_at is not None
    assert run.finished_at is not None
    return (run.finished_at - run.started_at).total_seconds()


def _ended_together(own: Sequence[Run], ended: Sequence[Run], seconds: float) -> list[str]:
    """The jobs beside which most of the long runs of a schedule ended: on the same node, at the same time. What waits
    for a blocked event loop ends when that goes on, together with what has blocked it."""
    long = [run for run in own if _length(run) > seconds and run.node is not None]
    beside: Counter[str] = Counter()
    for run in long:
        beside.update(
            {
                other.schedule_key or other.task
                for other in ended
                if other.node == run.node
                and other.schedule_key != run.schedule_key
                and other.started_at is not None
                and other.finished_at is not None
                and run.finished_at is not None
                and other.started_at < run.finished_at
                and abs(other.finished_at - run.finished_at) < ENDED_TOGETHER
                and _length(other) > seconds / 2
            }
        )
    return sorted(name for name, count in beside.items() if count * 2 > len(long))


def _about_herds(surveyed: Sequence[ParsedSchedule], now: datetime) -> Iterator[Finding]:
    """The largest herd of the next day, and how its members could go apart."""
    expected = {each.schedule.key: each.expected for each in surveyed[:_HERD_SCHEDULES_MOST] if each.expected}
    since = to_us(now)
    herds = [each for each in collisions_of(expected, since, since + DAY, from_us) if len(each.keys) >= HERD]
    if not herds:
        return
    largest = herds[0]
    yield Finding(
        severity=Severity.WARNING,
        check="herd",
        what=f"{len(largest.keys)} schedules fire at the same instant, first at {largest.at:%Y-%m-%d %H:%M:%S} UTC "
        f"({named(largest.keys)})",
        fix=_spreading({key: expected[key].rule for key in largest.keys}, since),
        about=largest.keys,
    )


def _spreading(rules: Mapping[str, When], since: int) -> str:
    found = [(text, key) for key, rule in rules.items() if (text := spread_rule(rule, key, since)) is not None]
    more = "`evertick forecast` shows them all"
    if not found:
        return f"give them jitter=, or fewer of them the same minute; {more}"
    # The rule that most of them have says best what is meant.
    alike = Counter(instead for instead, _ in found)
    instead, key = min(found, key=lambda pair: ("jitter=" in pair[0], -alike[pair[0]]))
    return f"spread them by H or jitter, like {key}: {instead!r} instead of {rules[key].text!r}; {more}"


# --- calendars -------------------------------------------------------------------------------------------------------


def about_calendars(
    calendars: Mapping[str, Calendar], surveyed: Sequence[ParsedSchedule], now: datetime
) -> Iterator[Finding]:
    """Of those that a schedule uses, in its rule or as its blackout."""
    users: dict[str, list[str]] = {}
    for each in surveyed:
        bound = None if each.rule is None else each.rule.bounds.calendar
        for name in {bound, each.schedule.blackout} - {None}:
            users.setdefault(str(name), []).append(each.schedule.key)
    for name, keys in sorted(users.items()):
        last = _last_day(calendars[name]) if name in calendars else None
        if last is None:
            continue
        left = (last - now.astimezone(calendars[name].zone).date()).days
        users_words = f"it is used by {named(keys)}"
        if left < 0:
            yield Finding(
                severity=Severity.WARNING,
                check="calendar_expired",
                what=f"the last date of calendar {name} was {last}, and it goes on as if there were no holidays since; "
                f"{users_words}",
                fix=_RENEW.format(name=name),
                about=(name, *keys),
            )
        elif left <= CALENDAR_ENDS_SOON.days:
            in_days = "today" if not left else f"in {left} {'day' if left == 1 else 'days'}"
            yield Finding(
                severity=Severity.NOTE,
                check="calendar_expires",
                what=f"calendar {name} has dates up to {last} only, which ends {in_days}; {users_words}",
                fix=_RENEW.format(name=name),
                about=(name, *keys),
            )


_RENEW = (
    "store it anew with the holidays of the next years, under the same name (`evertick calendar import-holidays {name} "
    "--help`, `evertick calendar set {name}`, or holiday_calendar in code); its schedules go by it at once"
)


def _last_day(calendar: Calendar) -> date | None:
    """The last date that it has, if it has many that do not come every year."""
    entries = [*(calendar.include or ()), *calendar.exclude]
    days = [date.fromisoformat(max(found)) for entry in entries if (found := _DATE.findall(entry))]
    if len(days) < HOLIDAYS_LEAST:
        return None
    # A single date, as the New Year's Day after the list, is no list of that year.
    years = Counter(day.year for day in days)
    year = max((year for year, count in years.items() if count > 1), default=max(years))
    return max(day for day in days if day.year == year)


# --- clock -----------------------------------------------------------------------------------------------------------


_REPAIR = "put the clock right and keep it so with NTP, then run `evertick db repair-clock`"


def about_clock(store_now: datetime, own_now: datetime, nodes: Sequence[Node]) -> Iterator[Finding]:
    """The store's time against that of this machine, and against the beats."""
    apart = abs(store_now - own_now)
    if apart > CLOCK_APART:
        yield Finding(
            severity=Severity.WARNING,
            check="clock",
            what=f"the clock of this machine and that of the store are {apart.total_seconds():.1f} s apart",
            fix="keep both right with NTP; the store's clock decides what is due",
        )
    beat = max((node.beat_at - store_now for node in nodes if node.died_at is None), default=timedelta(0))
    if beat > CLOCK_APART:
        yield Finding(
            severity=Severity.WARNING,
            check="clock_step",
            what=f"a node has beaten {beat.total_seconds():.1f} s in the future: the clock was put back since",
            fix="nothing is lost, but moments may come twice on the clock; keep it right with NTP, which does not step",
        )


def about_wrong_clock(ahead: datetime | None, astray: Sequence[Astray]) -> Iterator[Finding]:
    """The traces of a clock that was wrong. `ahead`: see `written_ahead`."""
    if astray:
        those = "1 schedule stands" if len(astray) == 1 else f"{len(astray)} schedules stand"
        first = astray[0]
        yield Finding(
            severity=Severity.ERROR,
            check="clock_left_behind",
            what=f"{those} still because the clock was wrong ({named(each.key for each in astray)}); {first.key}: "
            f"{first.words()}",
            fix=_REPAIR,
            about=tuple(each.key for each in astray),
        )
    if ahead is not None:
        yield Finding(
            severity=Severity.WARNING,
            check="clock_was_ahead",
            what=f"the ledger has rows that were written at {ahead:%Y-%m-%d %H:%M:%S} UTC, which is still to come: the "
            "store's clock was ahead",
            fix=_REPAIR,
        )


def about_late_runs(waiting: Sequence[Run], ahead: datetime | None, now: datetime) -> Iterator[Finding]:
    """Runs that wait for a time to which a wrong clock has put them off."""
    late = [run for run in waiting if is_put_off(run, now, ahead)]
    if late:
        count = "1 run waits" if len(late) == 1 else f"{len(late)} runs wait"
        yield Finding(
            severity=Severity.ERROR,
            check="clock_runs_wait",
            what=f"{count} for a time to which a wrong clock has put {'it' if len(late) == 1 else 'them'} off, "
            f"the first for {min(run.due_at for run in late):%Y-%m-%d %H:%M:%S} UTC",
            fix=_REPAIR,
            about=tuple(run.id for run in late),
        )
