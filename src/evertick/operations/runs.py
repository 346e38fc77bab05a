"""Runs and gaps: reading, cancelling and rerunning."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from evertick.definition.settings import check_key, check_labels
from evertick.engine.node import ended_event
from evertick.errors import InvalidInput, NotFound, Refused
from evertick.explain.run import WhyRun, WhyTask, explain_run, explain_task
from evertick.model import RERUN_OVERLAPS, Attempt, Gap, LogLine, RerunOverlap, Run, State, Verdict
from evertick.operations.context import Context, check_limit, checked, run_id_of
from evertick.store.base import Cancelled, RunFilter
from evertick.text.values import shown
from evertick.when import from_us, to_us

__all__ = [
    "attempts",
    "cancel",
    "check_one_task",
    "gaps",
    "get_run",
    "history",
    "log",
    "rerun",
    "rerun_many",
    "runs",
    "runs_with_prefix",
    "why_run",
    "why_task",
]

logger = logging.getLogger("evertick.scheduler")

_TASKS_SHOWN = 5


E = TypeVar("E", State, Verdict)


def _check_overlap(overlap: Any, known: Sequence[Any] = RERUN_OVERLAPS) -> None:
    if overlap not in known:
        raise InvalidInput(
            f"overlap: {shown(overlap)} is unknown",
            setting="overlap",
            value=shown(overlap),
            fix=f"pass one of {', '.join(map(repr, known))}",
        )


def _check_overlap_or_none(overlap: Any) -> None:
    _check_overlap(overlap, (None, *RERUN_OVERLAPS))


def _check_was_rerun(was_rerun: Any) -> None:
    if not isinstance(was_rerun, bool):
        raise InvalidInput(
            f"was_rerun: {shown(was_rerun)} must be True, False or None", setting="was_rerun", value=shown(was_rerun)
        )


def _several(kind: type[E], given: Sequence[E | str], what: str) -> tuple[E, ...]:
    if isinstance(given, str):
        raise InvalidInput(
            f"{what}: {shown(given)} is one text",
            setting=what,
            value=shown(given),
            fix=f"pass a list, e.g. {what}=[{shown(given)}]",
        )
    for each in given:
        if each not in list(kind):
            raise InvalidInput(
                f"{what}: {shown(each)} is unknown",
                setting=what,
                value=shown(each),
                fix=f"pass some of {', '.join(kind)}",
            )
    return tuple(kind(each) for each in given)


_states = partial(_several, State, what="states")
_verdicts = partial(_several, Verdict, what="verdicts")
_check_schedule = partial(check_key, what="schedule")
_check_task = partial(check_key, what="task")
_of_moments = checked(schedule_key=_check_schedule, since=to_us, until=to_us, limit=check_limit)


@checked(run=run_id_of)
async def cancel(context: Context, run: Run | str) -> bool:
    """Cancel a run: at once if it waits, else by asking it to stop. False if it had already ended."""
    run_id = run_id_of(run)
    answer: Cancelled = (await context.store.cancel(context.app, [run_id], "requested"))[0]
    if answer.answer == "unknown":
        raise _no_run(context.app, run_id)
    if answer.answer == "asked" and context.engine is not None:
        context.engine.cancel([run_id])
    if answer.answer == "ended":
        context.wake_runs()  # runs that it blocked may start
    if answer.answer == "ended" and "cancelled" in context.hooks.wanted:
        context.hooks.tell(ended_event(await get_run(context, run_id), from_us(context.clock.now_us())))
    return answer.answer != "done"


@checked(run=run_id_of, overlap=_check_overlap_or_none)
async def rerun(
    context: Context, run: Run | str, *, args: Mapping[str, Any] | None = None, overlap: RerunOverlap | None = None
) -> Run:
    """Run an ended run again, with its own or the given arguments: a new run for the same moment.

    It obeys the overlap policy of its schedule, or the given one: "queue" waits for all live runs of the schedule,
    "allow" for none. `caused_by` is the old run.
    """
    old = await get_run(context, run_id_of(run))
    if old.is_live:
        raise Refused(
            f"run {old.id!r} has not ended, it is {old.state}",
            setting="run",
            value=old.id,
            fix="rerun it when it has ended",
        )
    return await _rerun(context, old, args, overlap)


@checked(
    schedule_key=_check_schedule,
    task=_check_task,
    verdicts=_verdicts,
    since=to_us,
    until=to_us,
    overlap=_check_overlap,
    limit=check_limit,
)
async def rerun_many(
    context: Context,
    *,
    schedule_key: str | None = None,
    task: str | None = None,
    verdicts: Sequence[Verdict | str] = (Verdict.FAILED, Verdict.LOST),
    labels: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    args: Mapping[str, Any] | None = None,
    overlap: RerunOverlap = "queue",
    limit: int = 100,
) -> list[Run]:
    """Rerun ended runs that were not rerun yet, oldest moment first. Returns the new runs.

    Those of one schedule run one after the other, unless its overlap or the given one is "allow". The caller need not
    wait for them. Each is written separately: after an error, call it again for the rest. `args` replaces the arguments
    of all runs, which must have the same task.
    """
    ended = await runs(
        context,
        schedule_key,
        task=task,
        states=[State.DONE],
        verdicts=verdicts,
        labels=labels,
        was_rerun=False,
        since=since,
        until=until,
        oldest_first=True,
        limit=limit,
    )
    if args is not None:
        check_one_task(ended)
    again, refused = [], Counter[str]()
    for old in ended:
        try:
            again.append(await _rerun(context, old, args, overlap))
        except Refused as refusal:
            refused[refusal.problem] += 1
    for why, count in refused.items():
        logger.warning("app %r: %d of %d runs not rerun: %s", context.app, count, len(ended), why)
    return again


async def _rerun(context: Context, old: Run, args: Mapping[str, Any] | None, overlap: RerunOverlap | None) -> Run:
    encoded = msgspec.json.encode(old.args) if args is None else context.encode_arguments(old.task, args)
    run_id = await context.editor().rerun(old, args=encoded, overlap=overlap)
    context.wake_runs()
    return await get_run(context, run_id)


@checked(
    schedule_key=_check_schedule,
    task=_check_task,
    states=_states,
    verdicts=_verdicts,
    was_rerun=_check_was_rerun,
    since=to_us,
    until=to_us,
    limit=check_limit,
)
async def runs(
    context: Context,
    schedule_key: str | None = None,
    *,
    task: str | None = None,
    states: Sequence[State | str] | None = None,
    verdicts: Sequence[Verdict | str] | None = None,
    labels: Mapping[str, str] | None = None,
    was_rerun: bool | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    oldest_first: bool = False,
    limit: int = 100,
) -> list[Run]:
    """Runs, newest moment first unless `oldest_first`. `since` and `until` bound their nominal moment."""
    wanted = _filter(schedule_key, task, states, verdicts, labels, since, until, limit)
    wanted = msgspec.structs.replace(wanted, was_rerun=was_rerun, is_oldest_first=bool(oldest_first))
    return await context.store.runs(context.app, wanted)


@_of_moments
async def gaps(
    context: Context,
    schedule_key: str | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
) -> list[Gap]:
    """Ranges of moments without a run, newest first."""
    wanted = _filter(schedule_key, None, None, None, None, since, until, limit)
    return await context.store.gaps(context.app, wanted)


@_of_moments
async def history(
    context: Context,
    schedule_key: str | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
) -> list[Run | Gap]:
    """The ledger: runs and gaps together, newest first."""
    both: list[Run | Gap] = [
        *await runs(context, schedule_key, since=since, until=until, limit=limit),
        *await gaps(context, schedule_key, since=since, until=until, limit=limit),
    ]
    both.sort(key=lambda row: row.fire_at if isinstance(row, Run) else row.last_at, reverse=True)
    return both[:limit]


@checked(run_id=run_id_of)
async def get_run(context: Context, run_id: str) -> Run:
    """One run. Raises NotFound."""
    wanted = run_id_of(run_id)
    found = await context.store.runs(context.app, RunFilter(ids=(wanted,)))
    if not found:
        raise _no_run(context.app, wanted)
    return found[0]


async def runs_with_prefix(context: Context, prefix: str, *, limit: int = 2) -> list[Run]:
    """Runs whose id begins with this, newest moment first."""
    return await context.store.runs(context.app, RunFilter(id_prefix=prefix, limit=check_limit(limit)))


@checked(run=run_id_of)
async def why_run(context: Context, run: Run | str) -> WhyRun:
    """The current step of a run and what it waits for, or how it ended, as text."""
    return await explain_run(context.store, run if isinstance(run, Run) else await get_run(context, run))


@checked(task=_check_task)
async def why_task(context: Context, task: str) -> WhyTask:
    """The live runs of a task, and what they wait for, as text."""
    return await explain_task(context.store, context.app, task)


@checked(run=run_id_of)
async def attempts(context: Context, run: Run | str) -> list[Attempt]:
    """The earlier attempts of a run; the last one is in the run itself."""
    return await context.store.attempts(context.app, run_id_of(run))


@checked(run=run_id_of, limit=check_limit)
async def log(context: Context, run: Run | str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
    """The log lines of a run, in order."""
    return await context.store.log(context.app, run_id_of(run), after=after, limit=limit)


def _no_run(app: str, run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id!r} in app {app!r}", setting="run", value=run_id)


def check_one_task(ended: Sequence[Run]) -> None:
    """Refuse the same arguments for runs of several tasks."""
    tasks = sorted({run.task for run in ended})
    if len(tasks) > 1:
        named = ", ".join(tasks[:_TASKS_SHOWN]) + (", …" if len(tasks) > _TASKS_SHOWN else "")
        problem = f"args: these runs are of {len(tasks)} tasks ({named})"
        raise InvalidInput(problem, setting="args", fix="select runs of one task")


def _filter(
    key: str | None,
    task: str | None,
    states: Sequence[State | str] | None,
    verdicts: Sequence[Verdict | str] | None,
    labels: Mapping[str, str] | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> RunFilter:
    return RunFilter(
        schedule_key=key,
        task=task,
        states=None if states is None else _states(states),
        verdicts=None if verdicts is None else _verdicts(verdicts),
        labels=check_labels(labels or {}),
        since=None if since is None else to_us(since),
        until=None if until is None else to_us(until),
        limit=limit,
    )
