"""What can be wrong with runs: parked ones, ones that wait though there are nodes, ones blocked for long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity, named
from evertick.explain.words import driver_wanted
from evertick.model import Node, Reason, Run, State
from evertick.model.every_node import own_queue
from evertick.text.error_line import what_was_raised

__all__ = ["about_blocked", "about_parked", "about_waiting", "blockers_of"]

_WAITED_LONG = timedelta(minutes=1)
# Waiting for a limit is what limits are for; this long, more is coming than it lets through, or somebody never ends.
_HELD_BACK_LONG = timedelta(hours=1)
_LIMITS = (Reason.CONCURRENCY, Reason.RATE)


def about_parked(parked: Sequence[Run], living: Sequence[Node] = ()) -> Iterator[Finding]:
    """One finding per task and reason: a thousand runs are parked for the same one."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in parked:
        groups[run.task, run.reason or ""].append(run)
    for (task, reason), runs in sorted(groups.items()):
        count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
        why, fix = _parked_because(task, reason, runs, living)
        yield Finding(
            severity=Severity.WARNING,
            check="parked_runs",
            what=f"{count}{_of_schedules(runs)} parked: {why}",
            fix=f"{fix}, or give {'it' if len(runs) == 1 else 'them'} up with `evertick cancel {runs[0].id}`",
            about=tuple(run.id for run in runs),
        )


def _parked_because(task: str, reason: str, runs: Sequence[Run], living: Sequence[Node]) -> tuple[str, str]:
    """Why, and what helps."""
    error = what_was_raised(runs[0].error)
    if reason == Reason.UNKNOWN_TASK:
        driver = driver_wanted(task, living)
        if driver is not None:
            return f"no live node has the driver {driver} of task {task} enabled", f"enable {driver} on a node"
        return f"no live node knows task {task}", "start a node that knows it"
    if reason == Reason.UNREADABLE:
        return f"what the ledger has of task {task} makes no sense ({error})", "run it anew"
    misfit = f"{_their(runs)} arguments do not fit task {task}" + (f" ({error})" if error else "")
    return misfit, "mend the task"


def about_waiting(waiting: Sequence[Run], living: Sequence[Node], now: datetime) -> Iterator[Finding]:
    """Runs that are due for long: no node works on their queue, or all are busy."""
    long_due = [run for run in waiting if now - run.due_at > _WAITED_LONG]
    if not living or not long_due:
        return
    queues = {queue for node in living for queue in (*node.queues, own_queue(node.id))}
    unserved = sorted({run.queue for run in long_due} - queues)
    for queue in unserved:
        runs = [run for run in long_due if run.queue == queue]
        yield Finding(
            severity=Severity.WARNING,
            check="unserved_queue",
            what=f"{_words(runs, now)}, and no live node works on {_their(runs)} queue {queue!r}",
            fix=f"start a node with queues=[{queue!r}], or put the runs into another queue",
            about=tuple(run.id for run in runs),
        )
    able = [run for run in long_due if _is_able(run, living)]
    if able:
        tasks = named(sorted({run.task for run in able}))
        yield Finding(
            severity=Severity.WARNING,
            check="waiting_long",
            what=f"{_words(able, now)}, though live nodes could run them ({tasks})",
            fix="all slots are taken (see `evertick top`): raise concurrency=, or start more nodes",
            about=tuple(run.id for run in able),
        )


def blockers_of(blocked: Sequence[Run]) -> tuple[str, ...]:
    """The runs that these wait for."""
    return tuple({run.blocked_on: None for run in blocked if run.blocked_on and run.reason not in _LIMITS})


def about_blocked(blocked: Sequence[Run], blockers: Mapping[str, Run], now: datetime) -> Iterator[Finding]:
    """One finding per limit that has held runs back for long, and one per stuck run that others wait for."""
    limited: dict[tuple[str, str], list[Run]] = defaultdict(list)
    queued: dict[str, list[Run]] = defaultdict(list)
    for run in blocked:
        if run.reason in _LIMITS:
            limited[run.reason or "", run.blocked_on or ""].append(run)
        elif run.blocked_on is not None:
            queued[run.blocked_on].append(run)
    for (limit, key), runs in sorted(limited.items()):
        if now - min(run.due_at for run in runs) > _HELD_BACK_LONG:
            yield _held_back(limit, key, runs, now)
    for id_, runs in sorted(queued.items()):
        stuck = _stuck_in(blockers.get(id_), now)
        if stuck is not None:
            yield Finding(
                severity=Severity.WARNING,
                check="queued_behind_stuck",
                what=f"{_count(runs)} for the end of run {id_} of {runs[0].schedule_key or runs[0].task}, {stuck}",
                fix=f"see to that run (`evertick show {id_}`), or give it up with `evertick cancel {id_}`",
                about=(id_, *(run.id for run in runs)),
            )


def _held_back(limit: str, key: str, runs: Sequence[Run], now: datetime) -> Finding:
    if limit == Reason.RATE:
        why = f"as many of {key!r} have started as the rate allows"
        fix = "more comes than the rate lets through: raise rate=, or enqueue less"
    else:
        why = f"as many of {key!r} are at work as may be at once"
        fix = "see what runs so long with `evertick top`: give it a timeout=, raise concurrency=, or cancel it"
    return Finding(
        severity=Severity.WARNING,
        check="held_back_long",
        what=f"{_count(runs)} for a limit, the oldest for {_minutes(runs, now)}: {why}",
        fix=fix,
        about=tuple(run.id for run in runs),
    )


def _stuck_in(blocker: Run | None, now: datetime) -> str | None:
    """How a run that others wait for gets nowhere; None: it does, or has ended by now."""
    match None if blocker is None else blocker.state:
        case State.PARKED:
            return "which is parked"
        case State.BLOCKED if blocker is not None and blocker.reason in _LIMITS:
            is_long = now - blocker.due_at > _HELD_BACK_LONG
            return f"which itself waits for the {blocker.reason} of {blocker.blocked_on!r}" if is_long else None
        case State.WAITING if blocker is not None and now - blocker.due_at > _HELD_BACK_LONG:
            return "which is due for long and was not started"
        case _:
            return None


def _count(runs: Sequence[Run]) -> str:
    return "1 run waits" if len(runs) == 1 else f"{len(runs)} runs wait"


def _minutes(runs: Sequence[Run], now: datetime) -> str:
    return f"{max((now - run.due_at).total_seconds() for run in runs) / 60:.0f} min"


def _is_able(run: Run, living: Sequence[Node]) -> bool:
    return any(run.task in node.tasks and run.queue in (*node.queues, own_queue(node.id)) for node in living)


def _of_schedules(runs: Sequence[Run]) -> str:
    keys = sorted({run.schedule_key for run in runs if run.schedule_key is not None})
    return f" of {named(keys)}" if keys else ""


def _their(runs: Sequence[Run]) -> str:
    return "its" if len(runs) == 1 else "their"


def _words(runs: Sequence[Run], now: datetime) -> str:
    longest = max((now - run.due_at).total_seconds() for run in runs)
    count = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
    return f"{count} due and waiting, the oldest for {longest / 60:.0f} min"
