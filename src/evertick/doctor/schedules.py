"""What can be wrong with schedules: ones that cannot fire, are overdue, come too close, or all come at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean

from evertick.doctor.finding import Finding, Severity, named
from evertick.explain.all_schedules import ParsedSchedule
from evertick.explain.words import REMEDY, driver_wanted, is_left_behind
from evertick.model import Node, Run, State, blockers_of_loop
from evertick.plan.forecast import collisions_of
from evertick.plan.spread import spread_rule
from evertick.when import Once, When, from_us, to_us
from evertick.when.every import Every
from evertick.when.moment import DAY

__all__ = ["about_schedules"]

# A node looks at least every 15 seconds; whatever is this late, nobody looks at.
_OVERDUE = timedelta(minutes=1)
# So many schedules at one instant are a herd.
_HERD = 10
_HERD_SCHEDULES_MOST = 5_000
_RUNS_LEAST = 3
_DISTANCES = 20
# What a blocked event loop has held up is written down together when it goes on.
_TOGETHER = timedelta(seconds=0.5)


def about_schedules(
    surveyed: Sequence[ParsedSchedule], ended: Sequence[Run], living: Sequence[Node], now: datetime
) -> Iterator[Finding]:
    for each in surveyed:
        yield from _about_rule(each, now)
        yield from _about_standing(each)
    yield from _about_drift(surveyed, living)
    yield from _about_left_over(surveyed)
    yield from _about_lateness(surveyed, living, now)
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


def _about_standing(each: ParsedSchedule) -> Iterator[Finding]:
    """One that stands still until a person sees to it. A pause that somebody has asked for is none."""
    key, schedule = each.schedule.key, each.schedule
    if each.is_failing:
        yield Finding(
            severity=Severity.WARNING,
            check="failing",
            what=f"{key} was paused because it fails: {schedule.pause_note.partition('; mend it')[0]}",
            fix=f"mend what it runs (`evertick failed {key}` has its errors), then `evertick resume {key}`",
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
    """What stands still because nobody knows it any more: it costs nothing, and somebody may miss it."""
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


def _about_lateness(surveyed: Sequence[ParsedSchedule], living: Sequence[Node], now: datetime) -> Iterator[Finding]:
    schedules = [each.schedule for each in surveyed]
    stuck = [each for each in schedules if each.paused_until is not None and now - each.paused_until > _OVERDUE]
    if stuck:
        yield Finding(
            severity=Severity.WARNING,
            check="pause_not_ended",
            what=f"the pause of {named(each.key for each in stuck)} was to end, and nobody has ended it",
            fix="start a node of this app, or resume it with `evertick resume`",
            about=tuple(each.key for each in stuck),
        )
    overdue = [
        each
        for each in schedules
        if not each.is_paused and each.next_due_at is not None and now - each.next_due_at > _OVERDUE
    ]
    if overdue:
        longest = max((now - each.next_due_at).total_seconds() for each in overdue if each.next_due_at is not None)
        late = f"{len(overdue)} {'schedule is' if len(overdue) == 1 else 'schedules are'} overdue by up to"
        who = named(each.name for each in living)
        yield Finding(
            severity=Severity.WARNING,
            check="stalled_node" if living else "overdue",
            what=f"{late} {longest / 60:.0f} min ({named(each.key for each in overdue)})"
            + (f", though {who} beats: {_held_up_by(living)}" if living else ""),
            fix="the log of the node names the job that blocks it, and shows the stack; make that job a plain function "
            "(def), which runs in a thread"
            if living
            else "start a node of this app",
            about=tuple(each.key for each in overdue),
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
        if each.schedule.overlap != "skip" or each.expected is None or len(own) < _RUNS_LEAST:
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
                and abs(other.finished_at - run.finished_at) < _TOGETHER
                and _length(other) > seconds / 2
            }
        )
    return sorted(name for name, count in beside.items() if count * 2 > len(long))


def _about_herds(surveyed: Sequence[ParsedSchedule], now: datetime) -> Iterator[Finding]:
    """The largest herd of the next day, and how its members could go apart."""
    expected = {each.schedule.key: each.expected for each in surveyed[:_HERD_SCHEDULES_MOST] if each.expected}
    since = to_us(now)
    herds = [each for each in collisions_of(expected, since, since + DAY, from_us) if len(each.keys) >= _HERD]
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
