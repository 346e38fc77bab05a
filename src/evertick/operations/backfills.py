"""Backfills: runs for past moments of a schedule that have none.

The caller drives a backfill, one guarded write after another. Only its runs are stored, so a second call continues
after a crash. The unique key (schedule, moment) leaves out moments that have a run, also if two callers race.

The guard is that of a fire: version, cursor and, for runs one at a time, the live runs must be unchanged since they
were read. The cursor, `fires` and owed moments stay as they are.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, Literal

import msgspec

from evertick.aio.unawaited import Owner, log_unawaited
from evertick.clock import Clock
from evertick.definition.settings import check_key
from evertick.errors import InvalidInput, NotFound, Refused, StoreUnavailable
from evertick.ledger.parsed_rules import load_calendars, rule_of
from evertick.model import LIVE_STATES, Cause, NewRun, Run, Verdict
from evertick.operations.context import Context, ContextSource, check_limit, stored_schedule
from evertick.store.base import Advance, RunFilter, Store, StoredSchedule
from evertick.text.values import shown
from evertick.when import When, duration_text, from_us, to_us
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import moment_text

__all__ = [
    "BACKFILL_MOST",
    "Backfill",
    "BackfillOverlap",
    "BackfillStep",
    "Backfilled",
    "Backfiller",
    "backfill",
]

BackfillOverlap = Literal["allow"]

# Moments of one call by default: a typing error in a date must not make a million runs.
BACKFILL_MOST = 10_000
_COUNT_MOST = 10**9
# Runs that one transaction makes, and runs that one poll reads.
_BATCH = 100
_POLLED_MOST = 500
_PAGE = 10_000
# The interval of polls for ended runs: short at first, because it limits the speed of a backfill.
_POLL_FIRST_SECONDS, _POLL_MOST_SECONDS = 0.002, 1.0
# A write fails only if another writer succeeded; after this many, something else is wrong.
_ROUNDS_MAX = 50
_LIVE_MOST = 1_000


class BackfillStep(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a backfill. The last step has `is_over`; awaiting a backfill returns it."""

    key: str
    # Moments of the rule in the range, and those of them that already had a run.
    moments: int
    left_out: int
    # Runs made by this call; of these, the live, the ended, and the failed or lost ones.
    made: int = 0
    live: int = 0
    done: int = 0
    failed: int = 0
    # The moment of the newest run that was made.
    fire_at: datetime | None = None
    is_dry_run: bool = False
    is_over: bool = False

    @property
    def to_make(self) -> int:
        """The number of runs that are not made yet."""
        return self.moments - self.left_out - self.made


class Backfill:
    """A backfill: `await` it to its end, or iterate over its steps with `async for`.

    It starts then. Leaving the loop ends it, and keeps the runs that were made.
    """

    def __init__(
        self,
        steps: Callable[[], AsyncIterator[BackfillStep]],
        owner: Owner,
        frame: FrameType,
        on_step: Callable[[BackfillStep], None] | None = None,
    ) -> None:
        self._steps, self._on_step = steps, on_step
        self._owner = owner
        # Not the frame, which would keep the variables of the caller alive.
        self._code, self._instruction = frame.f_code, frame.f_lasti
        self._is_begun = False

    def __aiter__(self) -> AsyncIterator[BackfillStep]:
        self._is_begun = True
        return self._steps()

    def __await__(self) -> Generator[Any, None, BackfillStep]:
        return self.to_the_end().__await__()

    async def to_the_end(self, on_step: Callable[[BackfillStep], None] | None = None) -> BackfillStep:
        """The last step. `on_step` is called with each step."""
        last, listeners = None, [each for each in (self._on_step, on_step) if each is not None]
        async for step in self:
            last = step
            for listener in listeners:
                listener(step)
        assert last is not None, "a backfill has a last step"
        return last

    def __del__(self) -> None:
        if not self._is_begun:
            log_unawaited(self._owner, "backfill", self._code, self._instruction)


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """The checked arguments of a backfill. Times in microseconds."""

    key: str
    first: int
    last: int
    is_alone: bool
    pace: int
    args: Mapping[str, Any] | None
    is_dry_run: bool
    limit: int


def backfill(
    source: ContextSource,
    key: str,
    start: datetime,
    end: datetime,
    *,
    overlap: BackfillOverlap | None = None,
    pace: Duration | None = None,
    args: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    limit: int = BACKFILL_MOST,
    on_step: Callable[[BackfillStep], None] | None = None,
) -> Backfill:
    """Make runs for the moments from `start` to `end` that have none: `await` it, or `async for step in` it.

    One at a time and in order, each when the one before has ended and no other run of the schedule is live or due; with
    overlap="allow" all at once. `pace` is the least time between two runs. Works while the schedule is paused.
    `on_step` is called with each step if it is awaited, and in `sync`, on the thread of the event loop.
    """
    if overlap not in (None, "allow"):
        raise InvalidInput(
            f"overlap: {shown(overlap)} must be None (one at a time) or 'allow' (side by side)",
            setting="overlap",
            value=shown(overlap),
        )
    request = _Request(
        key=check_key(key),
        first=to_us(start),
        last=to_us(end),
        is_alone=overlap is None,
        pace=0 if pace is None else duration_us(pace, what="pace"),
        args=args,
        is_dry_run=dry_run,
        limit=check_limit(limit),
    )
    if request.last < request.first:
        raise InvalidInput(
            f"end {moment_text(request.last)} is before start {moment_text(request.first)}",
            setting="end",
            fix="swap them",
        )
    frame = sys._getframe(2)
    return Backfill(lambda: _backfill(source, request), source, frame, on_step)


async def _backfill(source: ContextSource, request: _Request) -> AsyncIterator[BackfillStep]:
    context = await source.context()
    stored, rule = await _schedule_and_rule(context, request)
    moments = _moments(request, rule)
    recorded = await _moments_with_runs(context, stored.id, request.first, request.last, set(moments))
    todo = deque(moment for moment in moments if moment not in recorded)
    tracker = _RunTracker(BackfillStep(key=request.key, moments=len(moments), left_out=len(moments) - len(todo)))
    encoded = None if request.args is None else context.encode_arguments(stored.definition.task, request.args)
    if not request.is_dry_run:
        async for step in _make_all(context, request, stored.definition.when, todo, tracker, encoded):
            yield step
    yield tracker.step(is_dry_run=request.is_dry_run, is_over=True)


async def _make_all(
    context: Context, request: _Request, when: str, todo: deque[int], tracker: _RunTracker, args: bytes | None
) -> AsyncIterator[BackfillStep]:
    maker = Backfiller(context.store, context.app, context.clock, key=request.key, when=when)
    poll = _Poll()
    while todo:
        chunk = [todo[place] for place in range(min(len(todo), 1 if request.is_alone or request.pace else _BATCH))]
        began = context.clock.elapsed()
        backfilled = await maker.make(chunk, args=args, is_alone=request.is_alone)
        # The waiting moments are the last of the chunk.
        settled = [todo.popleft() for _ in chunk if todo[0] not in backfilled.waiting]
        if settled:
            tracker.add(settled, backfilled.runs)
            context.wake_runs()
            poll.reset()
            yield tracker.step()
        if request.is_alone:
            async for step in _until_ended(context, tracker):
                yield step
        if not settled:
            await poll.sleep()
        elif todo and request.pace and backfilled.runs:
            await asyncio.sleep(max(request.pace / 1e6 - (context.clock.elapsed() - began), 0))
        if await tracker.poll(context.store, context.app):
            yield tracker.step()
    async for step in _until_ended(context, tracker):
        yield step


async def _until_ended(context: Context, tracker: _RunTracker) -> AsyncIterator[BackfillStep]:
    """Wait until all runs have ended."""
    poll = _Poll()
    while tracker.live:
        if await tracker.poll(context.store, context.app):
            poll.reset()
            yield tracker.step()
        else:
            await poll.sleep()


async def _schedule_and_rule(context: Context, request: _Request) -> tuple[StoredSchedule, When]:
    """The schedule and its rule. Refuses a schedule that cannot be backfilled."""
    stored = await stored_schedule(context, request.key)
    now, kept = await context.store.now(), context.settings.retention
    if request.last > now:
        raise InvalidInput(
            f"end: {moment_text(request.last)} is in the future",
            setting="end",
            fix="pass a past moment, or now",
        )
    if request.first < now - kept:
        raise InvalidInput(
            f"start: {moment_text(request.first)} is older than the retention of history ({duration_text(kept)}), so "
            "its runs would be deleted at once",
            setting="start",
            fix="start later, or raise retention",
        )
    if stored.definition.mode == "every-node":
        problem = f"{request.key!r} runs on every node, and the nodes of the past are gone, so it cannot be backfilled"
        raise Refused(problem, setting="key", fix="trigger it instead")
    rule = rule_of(stored, await load_calendars(context.store, context.app))
    if rule.is_after_end:
        problem = f"{request.key!r} counts from the end of its runs, so it has no fixed moments to backfill"
        raise Refused(problem, setting="key", fix="trigger it instead")
    return stored, rule


async def _moments_with_runs(context: Context, schedule: int, first: int, last: int, wanted: set[int]) -> set[int]:
    """The moments that have a run. Read in pages, because runs of an earlier rule may be in the range, too."""
    found: set[int] = set()
    while True:
        page = await context.store.recorded_moments(context.app, schedule, first=first, last=last, limit=_PAGE)
        found |= wanted.intersection(page)
        if len(page) < _PAGE:
            return found
        first = page[-1] + 1


class Backfilled(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that were made, and the moments that have to wait. Moments that already have a run are in neither."""

    runs: tuple[str, ...] = ()
    waiting: tuple[int, ...] = ()


class Backfiller:
    """Makes runs for moments of a schedule with the rule `when`."""

    def __init__(self, store: Store, app: str, clock: Clock, *, key: str, when: str) -> None:
        self._store = store
        self._app = app
        self._clock = clock
        self._key = key
        self._when = when

    async def make(self, moments: Sequence[int], *, args: bytes | None, is_alone: bool) -> Backfilled:
        """Make runs for these moments; some may have to wait.

        `is_alone`: wait while a run of the schedule is live or due; with overlap "allow", only while another backfill
        of it is live. A run whose unique key is taken always waits.
        """
        for _ in range(_ROUNDS_MAX):
            stored, now = await self._schedule(), await self._store.now()
            if is_alone and await self._is_occupied(stored, now):
                return Backfilled(waiting=tuple(moments))
            runs = tuple(self._run(stored, moment, now, args) for moment in moments)
            is_guarded = is_alone and stored.definition.overlap != "allow"
            advance = Advance(
                schedule_id=stored.id,
                version=stored.version,
                fire_at=stored.fire_at,
                at=stored.at,
                live=stored.live if is_guarded else None,
                runs=runs,
                next_fire_at=stored.fire_at,
                next_at=stored.at,
                fingerprint=stored.fingerprint,
            )
            recorded = await self._store.record_fires(self._app, None, [advance])
            if recorded.taken[0]:
                left_out, duplicates = set(recorded.left_out), set(recorded.duplicates)
                return Backfilled(
                    runs=tuple(run.id for run in runs if run.id not in left_out),
                    waiting=tuple(moment for moment, run in zip(moments, runs, strict=True) if run.id in duplicates),
                )
        problem = f"{self._key!r} changed {_ROUNDS_MAX} times while it was backfilled"
        raise StoreUnavailable(problem, fix="try again")

    async def _schedule(self) -> StoredSchedule:
        found = await self._store.stored_schedules(self._app, keys=[self._key])
        if not found:
            raise NotFound(f"the schedule {self._key!r} was removed while it was backfilled")
        if found[0].definition.when != self._when:
            problem = f"the rule of {self._key!r} was changed while it was backfilled"
            raise Refused(problem, setting="key", fix="start again with the new rule")
        return found[0]

    async def _is_occupied(self, stored: StoredSchedule, now: int) -> bool:
        if stored.definition.overlap == "allow":
            live = RunFilter(schedule_key=stored.key, states=LIVE_STATES, limit=_LIVE_MOST)
            return any(run.cause is Cause.BACKFILL for run in await self._store.runs(self._app, live))
        # A due fire goes first: overlap would skip it if this run was made now.
        is_due = stored.pause is None and stored.at is not None and stored.at <= now
        return stored.live != 0 or is_due

    def _run(self, stored: StoredSchedule, moment: int, now: int, args: bytes | None) -> NewRun:
        definition = stored.definition
        return NewRun(
            id=self._clock.new_id(),
            task=definition.task,
            cause=Cause.BACKFILL,
            fire_at=moment,
            # Due now, else it would expire before it starts.
            due_at=now,
            schedule_id=stored.id,
            version=stored.version,
            args=args,
            queue=definition.queue,
            priority=definition.priority,
            expires=definition.expires,
            labels=definition.labels,
            unique_key=definition.unique,
            unique_until=definition.unique_until,
            unique_for=definition.unique_for,
        )


class _RunTracker:
    """The runs of a backfill, and their outcomes."""

    def __init__(self, first: BackfillStep) -> None:
        self._step = first
        self._live: deque[str] = deque()

    @property
    def live(self) -> int:
        return len(self._live)

    def add(self, moments: list[int], runs: tuple[str, ...]) -> None:
        # The other moments got a run from another caller meanwhile.
        self._live.extend(runs)
        self._step = msgspec.structs.replace(
            self._step,
            made=self._step.made + len(runs),
            left_out=self._step.left_out + len(moments) - len(runs),
            fire_at=from_us(moments[-1]) if runs else self._step.fire_at,
        )

    async def poll(self, store: Store, app: str) -> bool:
        """Read some of the live runs, the others next time. True if one has ended."""
        ids = [self._live.popleft() for _ in range(min(len(self._live), _POLLED_MOST))]
        found = {run.id: run for run in await store.runs(app, RunFilter(ids=tuple(ids), limit=len(ids)))} if ids else {}
        ended = [run_id for run_id in ids if not _is_live(found.get(run_id))]
        self._live.extend(run_id for run_id in ids if _is_live(found.get(run_id)))
        verdicts = [run.verdict for run_id in ended if (run := found.get(run_id)) is not None]
        self._step = msgspec.structs.replace(
            self._step,
            done=self._step.done + len(ended),
            failed=self._step.failed + sum(verdict in (Verdict.FAILED, Verdict.LOST) for verdict in verdicts),
        )
        return bool(ended)

    def step(self, *, is_dry_run: bool = False, is_over: bool = False) -> BackfillStep:
        return msgspec.structs.replace(self._step, live=len(self._live), is_dry_run=is_dry_run, is_over=is_over)


class _Poll:
    """The interval of polls, which grows while nothing changes."""

    def __init__(self) -> None:
        self._seconds = _POLL_FIRST_SECONDS

    def reset(self) -> None:
        self._seconds = _POLL_FIRST_SECONDS

    async def sleep(self) -> None:
        await asyncio.sleep(self._seconds)
        self._seconds = min(self._seconds * 1.5, _POLL_MOST_SECONDS)


def _is_live(run: Run | None) -> bool:
    """None: it has ended, and was pruned."""
    return run is not None and run.is_live


def _moments(request: _Request, rule: When) -> list[int]:
    count = rule.count_us(request.first, request.last, _COUNT_MOST)
    if count > request.limit:
        raise InvalidInput(
            f"{request.key!r} has {count:,} moments from {moment_text(request.first)} to {moment_text(request.last)}, "
            f"more than the limit of {request.limit:,}",
            setting="limit",
            value=str(request.limit),
            fix="choose a shorter range, or raise limit",
        )
    found, at = list[int](), rule.next_us(request.first - 1)
    while at is not None and at <= request.last:
        # With a calendar of very many ranges, the count above is a lower bound.
        if len(found) == request.limit:
            raise InvalidInput(
                f"{request.key!r} has more than {request.limit:,} moments in this range",
                setting="limit",
                value=str(request.limit),
                fix="choose a shorter range, or raise limit",
            )
        found.append(at)
        at = rule.next_us(at)
    return found
