"""Rows of the ledger for a listing: past rows, newest first, and planned runs.

A run is planned while its moment and its due time are in the future and it was not tried: it was enqueued with a delay,
moved, or is held by a blackout. A run that was cancelled or started before its moment is past.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from evertick.definition.settings import check_key, check_labels
from evertick.model import IDLE_STATES, Gap, Run, State, Verdict
from evertick.operations.context import Context
from evertick.store.base import RunFilter, ScheduleFilter, Store
from evertick.when import from_us, to_us

__all__ = ["COUNTED_MOST", "Question", "Timeline", "timeline"]

# At most this many planned runs are counted, and early runs searched.
COUNTED_MOST = 1_000


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A checked filter of rows. `with_gaps`: include moments without a run."""

    key: str | None = None
    task: str | None = None
    states: tuple[State, ...] | None = None
    verdicts: tuple[Verdict, ...] | None = None
    labels: dict[str, str] = {}
    since: datetime | None = None
    until: datetime | None = None
    with_gaps: bool = False

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key, what="schedule")
        if self.task is not None:
            check_key(self.task, what="task")
        check_labels(self.labels)

    def _states_in(self, wanted: frozenset[State]) -> list[State]:
        return [state for state in State if state in wanted and (self.states is None or state in self.states)]

    @property
    def idle(self) -> list[State]:
        """The wanted states of waiting runs; none if a verdict is wanted."""
        return [] if self.verdicts is not None else self._states_in(IDLE_STATES)

    @property
    def begun(self) -> list[State]:
        return self._states_in(frozenset(State) - IDLE_STATES)


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    happened: list[Run | Gap]
    # Soonest first, up to the larger of the limit and COUNTED_MOST.
    planned: list[Run]


async def timeline(context: Context, question: Question, limit: int) -> Timeline:
    """Up to `limit` past rows, and the planned runs, by the clock of the store."""
    store, app = context.store, context.app
    now = from_us(await store.now())
    since, until = question.since, question.until
    wanted = _filter(question)

    async def runs(
        since: datetime | None, until: datetime | None, most: int, states: Sequence[State] | None = None
    ) -> list[Run]:
        given = {} if states is None else {"states": tuple(states), "is_oldest_first": tuple(states) == idle}
        span = {"since": None if since is None else to_us(since), "until": None if until is None else to_us(until)}
        return await store.runs(app, msgspec.structs.replace(wanted, **span, **given, limit=most))

    idle = tuple(question.idle)
    rows: list[Run | Gap] = []
    if question.with_gaps:
        rows += await _gaps(store, app, question, limit)
    if since is None or since <= now:
        rows += await runs(since, now if until is None else min(until, now), limit)
    planned: list[Run] = []
    if until is None or until > now:
        later = now if since is None else max(since, now)
        most = max(limit, COUNTED_MOST)
        if idle:
            waiting = await runs(later, until, most, idle)
            planned = [run for run in waiting if _is_planned(run, now)]
            rows += [run for run in waiting if run.fire_at > now and not _is_planned(run, now)]
        if question.begun:
            begun = await runs(later, until, most, question.begun)
            rows += [run for run in begun if run.fire_at > now]
    rows.sort(key=lambda row: _happened_at(row, now), reverse=True)
    return Timeline(happened=rows[:limit], planned=planned)


def _filter(question: Question) -> RunFilter:
    return RunFilter(
        schedule_key=question.key,
        task=question.task,
        states=question.states,
        verdicts=question.verdicts,
        labels=question.labels,
        since=None if question.since is None else to_us(question.since),
        until=None if question.until is None else to_us(question.until),
    )


def _is_planned(run: Run, now: datetime) -> bool:
    return min(run.fire_at, run.due_at) > now and run.attempts == 0 and run.losses == 0


def _happened_at(row: Run | Gap, now: datetime) -> datetime:
    if isinstance(row, Gap):
        return min(row.last_at, row.recorded_at)
    if row.fire_at <= now:
        return row.fire_at
    return row.started_at or row.finished_at or min(row.due_at, now)


async def _gaps(store: Store, app: str, question: Question, limit: int) -> list[Gap]:
    """The gaps; for a task, those of its schedules."""
    keys = [question.key] if question.task is None else await _keys_of(store, app, question.task, question.key)
    found: list[Gap] = []
    for key in keys:
        wanted = msgspec.structs.replace(_filter(question), schedule_key=key, task=None, limit=limit)
        found += await store.gaps(app, wanted)
    return found


async def _keys_of(store: Store, app: str, task: str, key: str | None) -> list[str | None]:
    found: list[str | None] = []
    wanted = ScheduleFilter(with_counts=False)
    while True:
        page = await store.schedules(app, wanted)
        found += [each.key for each in page if each.task == task and key in (None, each.key)]
        if len(page) < wanted.limit:
            return found
        wanted = msgspec.structs.replace(wanted, after_key=page[-1].key)
