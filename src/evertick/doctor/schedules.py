"""Findings about schedules, calendars and the clock: invalid rules, overdue or colliding fires, expired holidays."""

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
            fix=f"define the calendar that it names, or set another rule with `evertick update {key} --when RULE`",
            about=(key,),
        )
    elif schedule.error:
        yield Finding(
            severity=Severity.ERROR,
            check="plan_error",
            what=f"{key} could not be planned: {schedule.error}",
            fix=f"a node tries it again; `evertick why {key}` shows when",
            about=(key,),
        )
    elif not schedule.is_paused and schedule.next_fire_at is None and each.astray is None:
        yield from _about_end(each, each.rule, now)


def _about_end(each: ParsedSchedule, rule: When, now: datetime) -> Iterator[Finding]:
    """A schedule without a next moment: over as intended, or by a mistake."""
    key, schedule = each.schedule.key, each.schedule
    if isinstance(rule, Once) or rule.is_after_end:
        return
    if schedule.last_state not in (None, State.DONE):
        return
    is_spent = rule.bounds.max_fires is not None and schedule.fires >= rule.bounds.max_fires
    is_ended = rule.bounds.end is not None and rule.bounds.end < to_us(now)
    if is_spent or is_ended:
        why = "it has reached its maximum of fires" if is_spent else "its end has passed"
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
        fix=f"set another rule or calendar with `evertick update {key}`, or remove it",
        about=(key,),
    )


def _about_stop(each: ParsedSchedule) -> Iterator[Finding]:
    """A schedule that was stopped, but not by hand."""
    key, schedule = each.schedule.key, each.schedule
    if each.is_failing:
        yield Finding(
            severity=Severity.WARNING,
            check="failing",
            what=f"{key} was paused because it fails: {schedule.pause_note}",
            fix=f"correct its task (`evertick failed {key}` has the errors), then `evertick resume {key}`",
            about=(key,),
        )
    elif schedule.last_state is State.PARKED and not schedule.is_paused and _waits_for_parked(each):
        yield Finding(
            severity=Severity.WARNING,
            check="behind_parked",
            what=f"{key} waits for its parked run {schedule.last_run_id}: it runs nothing until that has ended",
            fix=f"`evertick why {key}` shows what that run lacks; or cancel it with "
            f"`evertick cancel {schedule.last_run_id}`",
            about=(key,),
        )


def _waits_for_parked(each: ParsedSchedule) -> bool:
    """Whether the schedule waits for a parked run. By default, the next fire replaces it."""
    is_after_end = isinstance(each.rule, Every) and each.rule.is_after_end
    return is_after_end or (each.schedule.catch_up == "all" and each.schedule.overlap != "allow")


# --- many ------------------------------------------------------------------------------------------------------------


def _about_drift(surveyed: Sequence[ParsedSchedule], living: Sequence[Node]) -> Iterator[Finding]:
    for each in surveyed:
        key = each.schedule.key
        if is_left_behind(key, each.declared, living):
            nodes = named(sorted({node.name for node in living if key in node.declares}))
            yield Finding(
                severity=Severity.WARNING,
                check="left_behind",
                what=f"schedule {key} ({each.schedule.when}) differs from the declaration of live nodes ({nodes}): the "
                "declaration of a node that has ended is in force",
                fix=REMEDY,
                about=(key,),
            )


def _about_left_over(surveyed: Sequence[ParsedSchedule]) -> Iterator[Finding]:
    """Schedules that Evertick paused because they are no longer declared."""
    undeclared = [each for each in surveyed if each.is_left_over]
    for source, where, fix in (
        (
            "file",
            "no longer in a configuration",
            "put it back into the file, or remove it with `evertick apply --prune`",
        ),
        ("code", "no longer declared by code", "declare it again, or remove it with `evertick remove KEY`"),
    ):
        keys = [each.schedule.key for each in undeclared if each.schedule.declared_in == source]
        if keys:
            count = "1 schedule is" if len(keys) == 1 else f"{len(keys)} schedules are"
            yield Finding(
                severity=Severity.NOTE,
                check="left_over",
                what=f"{count} paused and {where}: {named(keys)}",
                fix=fix,
                about=tuple(keys),
            )


def _about_overdue_pauses(surveyed: Sequence[ParsedSchedule], now: datetime) -> Iterator[Finding]:
    keys = [
        each.schedule.key
        for each in surveyed
        if each.schedule.paused_until is not None and now - each.schedule.paused_until > PAUSE_OVERDUE
    ]
    if keys:
        yield Finding(
            severity=Severity.WARNING,
            check="pause_not_ended",
            what=f"the end of the pause of {named(keys)} has passed, and no node has resumed it",
            fix="start a node of this app, or resume it with `evertick resume`",
            about=tuple(keys),
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
    count = f"{len(late)} {'schedule is' if len(late) == 1 else 'schedules are'} overdue by up to"
    nodes = named(each.name for each in living)
    yield Finding(
        severity=thresholds.of_lag(longest) or Severity.WARNING,
        check="stalled_node" if living else "overdue",
        what=f"{count} {span(longest)} ({named(late)})"
        + (f", although {nodes} sent heartbeats: {_blocked_by(living)}" if living else ""),
        fix="the log of the node has the job that blocks it, with the stack; make that job a plain function (def), "
        "which runs in a thread"
        if living
        else "start a node of this app",
        about=tuple(late),
    )


def _blocked_by(living: Sequence[Node]) -> str:
    """The jobs that block the event loops, from the heartbeats of the nodes."""
    blocking = [
        f"{name} blocks the event loop of {node.name}"
        for node in living
        for name, tick in blockers_of_loop(node).items()
        if tick.next_at is None
    ]
    return named(blocking) or "a job may block the event loop there, and the ledger does not know which"


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
    """With overlap "skip", a schedule that fires faster than its runs end skips moments regularly."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in ended:
        if run.schedule_key is not None and run.started_at is not None and run.finished_at is not None:
            runs[run.schedule_key].append(run)
    blockers = {name for node in living for name in blockers_of_loop(node)}
    for each in surveyed:
        key, own = each.schedule.key, runs.get(each.schedule.key, [])
        if each.schedule.overlap != "skip" or each.expected is None or len(own) < RUNS_LEAST:
            continue
        # Not `minimum_distance`, because moments come closer on the day of a clock change.
        moments = each.expected.rule.upcoming(now, _DISTANCES)
        apart = min((later - earlier for earlier, later in pairwise(moments)), default=None)
        seconds = fmean(_length(run) for run in own)
        if apart is None or apart.total_seconds() >= seconds:
            continue
        others = sorted(blockers - {key}) if key not in blockers else []
        beside = others or _ended_together(own, ended, apart.total_seconds())
        what = (
            f"{key} fires every {apart.total_seconds():g} s at its fastest, and its runs take {seconds:.1f} s: moments "
            "are skipped (overlap is 'skip')"
        )
        fix = "fire less often, make it faster, or use overlap='queue' or Every(…, after='end')"
        if others:
            what += f"; but {named(others)} has blocked the event loop of its node, so its runs had to wait"
            fix = "correct the job that blocks the event loop first"
        elif beside:
            what += (
                f"; but they end together with runs of {named(beside)} on the same node, so one of them may block the "
                "event loop for the others: the ledger does not know which"
            )
            fix = (
                "the log of the node has the jobs that block its event loop for more than 5 s; make them plain "
                f"functions (def), which run in threads. If there are none: {fix}"
            )
        yield Finding(severity=Severity.WARNING, check="too_close", what=what, fix=fix, about=(key, *beside))


def _length(run: Run) -> float:
    assert run.started_at is not None
    assert run.finished_at is not None
    return (run.finished_at - run.started_at).total_seconds()


def _ended_together(own: Sequence[Run], ended: Sequence[Run], seconds: float) -> list[str]:
    """The jobs that ended on the same node and at the same time as most long runs of the schedule.

    Runs that wait for a blocked event loop end together with the job that has blocked it.
    """
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
    """The largest number of schedules at the same instant in the next day, and rules that spread them."""
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
    more = "`evertick forecast` shows all of them"
    if not found:
        return f"give them jitter=, or different minutes; {more}"
    # The suggestion that fits most of them is the example.
    alike = Counter(instead for instead, _ in found)
    instead, key = min(found, key=lambda pair: ("jitter=" in pair[0], -alike[pair[0]]))
    return f"spread them with H or jitter, like {key}: {instead!r} instead of {rules[key].text!r}; {more}"


# --- calendars -------------------------------------------------------------------------------------------------------


def about_calendars(
    calendars: Mapping[str, Calendar], surveyed: Sequence[ParsedSchedule], now: datetime
) -> Iterator[Finding]:
    """Findings about calendars that a schedule uses, in its rule or as its blackout."""
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
                what=f"the last date of calendar {name} was {last}, and later holidays are missing; {users_words}",
                fix=_RENEW.format(name=name),
                about=(name, *keys),
            )
        elif left <= CALENDAR_ENDS_SOON.days:
            in_days = "today" if not left else f"in {left} {'day' if left == 1 else 'days'}"
            yield Finding(
                severity=Severity.NOTE,
                check="calendar_expires",
                what=f"the last date of calendar {name} is {last}, {in_days}; {users_words}",
                fix=_RENEW.format(name=name),
                about=(name, *keys),
            )


_RENEW = (
    "store it again with the holidays of the next years (`evertick calendar import-holidays {name} --help`, `evertick "
    "calendar set {name}`, or holiday_calendar in code); its schedules use them at once"
)


def _last_day(calendar: Calendar) -> date | None:
    """The last date of a calendar with a list of dates; None without such a list."""
    entries = [*(calendar.include or ()), *calendar.exclude]
    days = [date.fromisoformat(max(found)) for entry in entries if (found := _DATE.findall(entry))]
    if len(days) < HOLIDAYS_LEAST:
        return None
    # A single date, like the New Year's Day after the last year, does not count.
    years = Counter(day.year for day in days)
    year = max((year for year, count in years.items() if count > 1), default=max(years))
    return max(day for day in days if day.year == year)


# --- clock -----------------------------------------------------------------------------------------------------------


_REPAIR = "correct the clock and synchronize it with NTP, then run `evertick db repair-clock`"


def about_clock(store_now: datetime, own_now: datetime, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Compares the store's clock with that of this machine, and with the heartbeats."""
    apart = abs(store_now - own_now)
    if apart > CLOCK_APART:
        yield Finding(
            severity=Severity.WARNING,
            check="clock",
            what=f"the clocks of this machine and of the store differ by {apart.total_seconds():.1f} s",
            fix="synchronize both with NTP; the store's clock decides what is due",
        )
    beat = max((node.beat_at - store_now for node in nodes if node.died_at is None), default=timedelta(0))
    if beat > CLOCK_APART:
        yield Finding(
            severity=Severity.WARNING,
            check="clock_step",
            what=f"the last heartbeat of a node is {beat.total_seconds():.1f} s in the future: the clock was set back",
            fix="nothing is lost, but clock times may repeat; synchronize it with NTP, which does not step it",
        )


def about_wrong_clock(ahead: datetime | None, astray: Sequence[Astray]) -> Iterator[Finding]:
    """The traces of a wrong clock. `ahead`: see `written_ahead`."""
    if astray:
        count = "1 schedule is" if len(astray) == 1 else f"{len(astray)} schedules are"
        first = astray[0]
        yield Finding(
            severity=Severity.ERROR,
            check="clock_left_behind",
            what=f"{count} stuck because the clock was wrong ({named(each.key for each in astray)}); {first.key}: "
            f"{first.words()}",
            fix=_REPAIR,
            about=tuple(each.key for each in astray),
        )
    if ahead is not None:
        yield Finding(
            severity=Severity.WARNING,
            check="clock_was_ahead",
            what=f"the ledger has rows with the write time {ahead:%Y-%m-%d %H:%M:%S} UTC, which is in the future: the "
            "store's clock was ahead",
            fix=_REPAIR,
        )


def about_late_runs(waiting: Sequence[Run], ahead: datetime | None, now: datetime) -> Iterator[Finding]:
    """Runs that wait for a time that a wrong clock has set."""
    late = [run for run in waiting if is_put_off(run, now, ahead)]
    if late:
        count = "1 run waits" if len(late) == 1 else f"{len(late)} runs wait"
        yield Finding(
            severity=Severity.ERROR,
            check="clock_runs_wait",
            what=f"{count} for a time that a wrong clock has set, the first for "
            f"{min(run.due_at for run in late):%Y-%m-%d %H:%M:%S} UTC",
            fix=_REPAIR,
            about=tuple(run.id for run in late),
        )
