"""Findings about runs: parked, waiting or blocked for long, failed, lost, and dispatched ones without a worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity, counted, named
from evertick.doctor.thresholds import HELD_BACK_LONG, Thresholds
from evertick.explain.dispatched_run import is_away, is_heard, queue_words
from evertick.explain.words import driver_wanted
from evertick.model import Dispatched, Message, Node, Reason, Run, State
from evertick.model.every_node import own_queue
from evertick.store.base import FAILED_LIMIT, Pulse
from evertick.text.error_line import error_summary
from evertick.text.time_span import span

__all__ = [
    "about_blocked",
    "about_dispatched",
    "about_ended",
    "about_parked",
    "about_waiting",
    "blockers_of",
    "is_unheard",
]

_LIMITS = (Reason.CONCURRENCY, Reason.RATE)


def about_parked(parked: Sequence[Run], living: Sequence[Node] = ()) -> Iterator[Finding]:
    """One finding per task and reason."""
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
            fix=f"{fix}, or cancel {'it' if len(runs) == 1 else 'them'} with `evertick cancel {runs[0].id}`",
            about=tuple(run.id for run in runs),
        )


def _parked_because(task: str, reason: str, runs: Sequence[Run], living: Sequence[Node]) -> tuple[str, str]:
    """The reason and the fix."""
    error = error_summary(runs[0].error)
    if reason == Reason.UNKNOWN_TASK:
        driver = driver_wanted(task, living)
        if driver is not None:
            return f"no live node has the driver {driver} of task {task} enabled", f"enable {driver} on a node"
        return f"no live node knows task {task}", "start a node that knows it"
    if reason == Reason.UNREADABLE:
        return f"the stored definition of task {task} cannot be read ({error})", "enqueue it again"
    problem = f"{_their(runs)} arguments do not fit task {task}" + (f" ({error})" if error else "")
    return problem, "correct the task"


def about_waiting(
    waiting: Sequence[Run], living: Sequence[Node], now: datetime, thresholds: Thresholds
) -> Iterator[Finding]:
    """Runs that are overdue: no node works on their queue or knows their task, or all slots are taken. Without a live
    node there is another finding."""
    long_due = [run for run in waiting if thresholds.of_lag(now - run.due_at) is not None] if living else []
    queues = {queue for node in living for queue in (*node.queues, own_queue(node.id))}
    for queue in sorted({run.queue for run in long_due} - queues):
        runs = [run for run in long_due if run.queue == queue]
        yield _waiting_long(
            runs,
            now,
            thresholds,
            check="unserved_queue",
            why=f"and no live node works on {_their(runs)} queue {queue!r}",
            fix=f"start a node with queues=[{queue!r}], or enqueue the runs on another queue",
        )
    served = [run for run in long_due if run.queue in queues]
    if able := [run for run in served if _is_able(run, living)]:
        yield _waiting_long(
            able,
            now,
            thresholds,
            check="waiting_long",
            why=f"although live nodes can run them ({_tasks(able)})",
            fix="all slots are taken (see `evertick top`): raise concurrency=, or start more nodes",
        )
    if unknown := [run for run in served if not _is_able(run, living)]:
        yield _waiting_long(
            unknown,
            now,
            thresholds,
            check="unknown_task",
            why=f"and no live node of their queue knows their task ({_tasks(unknown)})",
            fix="start a node that knows it, or cancel them with `evertick cancel`",
        )


def _tasks(runs: Sequence[Run]) -> str:
    return named(sorted({run.task for run in runs}))


def _waiting_long(
    runs: Sequence[Run], now: datetime, thresholds: Thresholds, *, check: str, why: str, fix: str
) -> Finding:
    longest = max(now - run.due_at for run in runs)
    count = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
    return Finding(
        severity=thresholds.of_lag(longest) or Severity.WARNING,
        check=check,
        what=f"{count} due and waiting, the oldest for {span(longest)}, {why}",
        fix=fix,
        about=tuple(run.id for run in runs),
    )


def blockers_of(blocked: Sequence[Run]) -> tuple[str, ...]:
    """The ids of the runs that these wait for."""
    return tuple({run.blocked_on: None for run in blocked if run.blocked_on and run.reason not in _LIMITS})


def about_blocked(blocked: Sequence[Run], blockers: Mapping[str, Run], now: datetime) -> Iterator[Finding]:
    """One finding per limit that runs wait for, and one per stuck run that others wait for."""
    limited: dict[tuple[str, str], list[Run]] = defaultdict(list)
    queued: dict[str, list[Run]] = defaultdict(list)
    for run in blocked:
        if run.reason in _LIMITS:
            limited[run.reason or "", run.blocked_on or ""].append(run)
        elif run.blocked_on is not None:
            queued[run.blocked_on].append(run)
    for (limit, key), runs in sorted(limited.items()):
        if now - min(run.due_at for run in runs) > HELD_BACK_LONG:
            yield _held_back(limit, key, runs, now)
    for id_, runs in sorted(queued.items()):
        stuck = _stuck_in(blockers.get(id_), now)
        if stuck is not None:
            yield Finding(
                severity=Severity.WARNING,
                check="queued_behind_stuck",
                what=f"{_count(runs)} for the end of run {id_} of {runs[0].schedule_key or runs[0].task}, {stuck}",
                fix=f"`evertick why {id_}` shows what that run lacks; or cancel it with `evertick cancel {id_}`",
                about=(id_, *(run.id for run in runs)),
            )


def _held_back(limit: str, key: str, runs: Sequence[Run], now: datetime) -> Finding:
    if limit == Reason.RATE:
        why = f"the rate limit of {key!r} is reached"
        fix = "more runs are enqueued than the rate allows: raise rate=, or enqueue fewer"
    else:
        why = f"the concurrency limit of {key!r} is reached"
        fix = "`evertick top` shows the long-running jobs: give them a timeout=, raise concurrency=, or cancel them"
    return Finding(
        severity=Severity.WARNING,
        check="held_back_long",
        what=f"{_count(runs)} for a limit, the oldest for {_minutes(runs, now)}: {why}",
        fix=fix,
        about=tuple(run.id for run in runs),
    )


def _stuck_in(blocker: Run | None, now: datetime) -> str | None:
    """Why a run that others wait for is stuck; None: it is not, or it has ended."""
    match None if blocker is None else blocker.state:
        case State.PARKED:
            return "which is parked"
        case State.BLOCKED if blocker is not None and blocker.reason in _LIMITS:
            is_long = now - blocker.due_at > HELD_BACK_LONG
            return f"which itself waits for the {blocker.reason} of {blocker.blocked_on!r}" if is_long else None
        case State.WAITING if blocker is not None and now - blocker.due_at > HELD_BACK_LONG:
            return "which is overdue and was not started"
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


# --- ended runs ------------------------------------------------------------------------------------------------------


def about_ended(pulse: Pulse, thresholds: Thresholds) -> Iterator[Finding]:
    """Failed and lost runs of the last hour. The outcome of a lost run is unknown, so it must not be rerun blindly."""
    failed, lost = sum(pulse.failed.values()), sum(pulse.lost.values())
    severity = thresholds.of_failed(failed + lost)
    if severity is not None and failed:
        yield Finding(
            severity=severity,
            check="failed_runs",
            what=f"{counted(failed, 'run', FAILED_LIMIT)} failed in the last hour: {named(pulse.failed, 3)}",
            fix="`evertick failed` has their errors; `evertick rerun --failed --verdict failed` runs them again",
            about=tuple(pulse.failed),
        )
    if severity is not None and lost:
        was = "was" if lost == 1 else "were"
        yield Finding(
            severity=severity,
            check="lost_runs",
            what=f"{counted(lost, 'run', FAILED_LIMIT)} {was} lost in the last hour: {named(pulse.lost, 3)}",
            fix="the outcome of a lost run is unknown, and its job must not run twice: list them with `evertick failed "
            "--verdict lost`, and check the effects of each before `evertick rerun RUN`",
            about=tuple(pulse.lost),
        )


# --- dispatched runs -------------------------------------------------------------------------------------------------


def about_dispatched(
    dispatched: Sequence[Run],
    unsent: Mapping[str, Message],
    living: Sequence[Node],
    now: datetime,
    thresholds: Thresholds,
) -> Iterator[Finding]:
    """One finding per queue and problem. `unsent`: the unsent messages of these runs."""
    unreachable: dict[str, list[tuple[Run, Dispatched]]] = defaultdict(list)
    untaken: dict[str, list[tuple[Run, Dispatched]]] = defaultdict(list)
    unread: dict[str, list[tuple[Run, Dispatched]]] = defaultdict(list)
    for run in dispatched:
        if (dispatch := run.dispatched) is None:
            continue
        if is_unheard(dispatch, living, now):
            unread[dispatch.to].append((run, dispatch))
        elif dispatch.taken_at is None:
            message, pushed_at = unsent.get(run.id), dispatch.pushed_at
            if message is not None and message.attempts and thresholds.of_lag(now - dispatch.at) is not None:
                unreachable[dispatch.to].append((run, dispatch))
            elif pushed_at is not None and now - pushed_at >= _taken_within(dispatch, pushed_at, thresholds):
                untaken[queue_words(dispatch)].append((run, dispatch))
    yield from (_unreachable(queue, runs, unsent, living) for queue, runs in sorted(unreachable.items()))
    yield from (_untaken(queue, runs, now, thresholds) for queue, runs in sorted(untaken.items()))
    for queue, runs in sorted(unread.items()):
        late = max(now - dispatch.until for _, dispatch in runs if dispatch.until is not None)
        if (severity := thresholds.of_lag(late)) is not None:
            yield _unread(queue, runs, late, severity)


def is_unheard(given: Dispatched, living: Sequence[Node], now: datetime) -> bool:
    """Whether the report of its worker is overdue, and no live node can read it."""
    return given.until is not None and given.until < now and bool(living) and not is_heard(given.to, living)


def _taken_within(dispatch: Dispatched, pushed_at: datetime, thresholds: Thresholds) -> timedelta:
    """How long it may wait for a worker: less than the time after which it is sent again, which restarts the wait."""
    most = thresholds.lag_warning
    return most if dispatch.until is None else min(most, (dispatch.until - pushed_at) / 2)


def _unreachable(
    queue: str, runs: Sequence[tuple[Run, Dispatched]], unsent: Mapping[str, Message], living: Sequence[Node]
) -> Finding:
    message = unsent[runs[0][0].id]
    error = error_summary(message.error) or "no error is known"
    tries = "1 try" if message.attempts == 1 else f"{message.attempts} tries"
    problem = "which is unreachable" if is_away(runs[0][1], living) else "which has not accepted the message"
    return Finding(
        severity=Severity.WARNING,
        check="queue_away",
        what=f"{_count_dispatched(runs)} {queue!r}, {problem}: {tries} so far ({error})",
        fix="start the queue again, or correct its address; the runs are sent when it is back, and none is lost",
        about=tuple(run.id for run, _ in runs),
    )


def _untaken(queue: str, runs: Sequence[tuple[Run, Dispatched]], now: datetime, thresholds: Thresholds) -> Finding:
    served_by = next((dispatch.served_by for _, dispatch in runs if dispatch.served_by is not None), None)
    worker = "a worker that takes them" if served_by is None else f"a worker that takes them, `{served_by}`"
    longest = max(now - dispatch.pushed_at for _, dispatch in runs if dispatch.pushed_at is not None)
    return Finding(
        severity=thresholds.of_lag(longest) or Severity.WARNING,
        check="untaken_runs",
        what=f"{_count_dispatched(runs)} a worker of {queue}, the oldest for {span(longest)}",
        fix=f"start {worker}, or more of them; `evertick why RUN` shows when one is sent again",
        about=tuple(run.id for run, _ in runs),
    )


def _unread(queue: str, runs: Sequence[tuple[Run, Dispatched]], late: timedelta, severity: Severity) -> Finding:
    return Finding(
        severity=severity,
        check="reports_unheard",
        what=f"{_count_dispatched(runs)} a report of the workers of {queue!r}, which no live node reads, the oldest "
        f"overdue by {span(late)}: no worker is declared silent",
        fix="let a node reach the queue (its log has the error), or start one with jobs for it",
        about=tuple(run.id for run, _ in runs),
    )


def _count_dispatched(runs: Sequence[tuple[Run, Dispatched]]) -> str:
    return "1 dispatched run waits for" if len(runs) == 1 else f"{len(runs)} dispatched runs wait for"
