"""Making up for the past: runs for moments of a schedule that got none.

A backfill is driven by its caller, one guarded write after another; nothing about it is stored but its runs. So if the
caller dies, what is made is made, and asking again goes on where it stopped: a moment that has a run is left out by the
ledger's own key, (schedule, moment), which also keeps two callers from making the same run.

The guard is that of every fire: version, cursor and, where runs are made one at a time, the live runs must be as they
were read. The cursor, `fires` and what the schedule owes stay as they are.
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

# Moments of one call, unless the caller says otherwise: a typing error in a date must not make a million runs.
BACKFILL_MOST = 10_000
_COUNT_MOST = 10**9
# Runs that one transaction makes, and runs that one look asks about.
_BATCH = 100
_LOOKED_AT = 500
_PAGE = 10_000
# How often to look whether a run has ended: soon at first, for a backfill is as fast as its jobs and these looks.
_LOOK_FIRST_SECONDS, _LOOK_MOST_SECONDS = 0.002, 1.0
# A round is lost only to another writer's success; beyond this something else is wrong.
_ROUNDS_MAX = 50
_LIVE_LOOKED_AT = 1_000


class BackfillStep(msgspec.Struct, frozen=True, kw_only=True):
    """How far a backfill has come. The last one has `is_over`, and is what awaiting a backfill answers."""

    key: str
    # Moments of the rule in the stretch, and those of them that had a run already.
    moments: int
    left_out: int
    # Runs made by this call; of these, not ended yet, ended, and ended as failed or lost.
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
        """Runs that are still to be made."""
        return self.moments - self.left_out - self.made


class Backfill:
    """A backfill that was asked for: `await` it to its end, or go through its steps with `async for`.

    It begins with that, and goes on only as long: leaving the loop ends it, and keeps the runs that were made.
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
        # Not the frame itself, which would keep alive all that the caller has.
        self._code, self._instruction = frame.f_code, frame.f_lasti
        self._is_begun = False

    def __aiter__(self) -> AsyncIterator[BackfillStep]:
        self._is_begun = True
        return self._steps()

    def __await__(self) -> Generator[Any, None, BackfillStep]:
        return self.to_the_end().__await__()

    async def to_the_end(self, on_step: Callable[[BackfillStep], None] | None = None) -> BackfillStep:
        """The last step; `on_step` is called with each."""
        last, hearers = None, [each for each in (self._on_step, on_step) if each is not None]
        async for step in self:
            last = step
            for hear in hearers:
                hear(step)
        assert last is not None, "a backfill has a last step"
        return last

    def __del__(self) -> None:
        if not self._is_begun:
            log_unawaited(self._owner, "backfill", self._code, self._instruction)


class _Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a backfill, checked. Times in microseconds."""

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

    One at a time and in order, each when the one before has ended and nothing else of the schedule is live or due;
    with overlap="allow" all at once. `pace` is the least time between two of them. Works while it is paused.
    `on_step` is called with each step where it is awaited, and in `sync`, there on the event loop's thread.
    """
    if overlap not in (None, "allow"):
        raise InvalidInput(f"overlap: {shown(overlap)} must be None (one at a time) or 'allow' (side by side)")
    wish = _Wish(
        key=check_key(key),
        first=to_us(start),
        last=to_us(end),
        is_alone=overlap is None,
        pace=0 if pace is None else duration_us(pace, what="pace"),
        args=args,
        is_dry_run=dry_run,
        limit=check_limit(limit),
    )
    if wish.last < wish.first:
        raise InvalidInput(f"end {moment_text(wish.last)} is before start {moment_text(wish.first)}; swap them")
    frame = sys._getframe(2)
    return Backfill(lambda: _backfill(source, wish), source, frame, on_step)


async def _backfill(source: ContextSource, wish: _Wish) -> AsyncIterator[BackfillStep]:
    context = await source.context()
    stored, rule = await _backfilled(context, wish)
    moments = _moments(wish, rule)
    recorded = await _recorded(context, stored.id, wish.first, wish.last, set(moments))
    todo = deque(moment for moment in moments if moment not in recorded)
    made = _Made(BackfillStep(key=wish.key, moments=len(moments), left_out=len(moments) - len(todo)))
    encoded = None if wish.args is None else context.encode_arguments(stored.definition.task, wish.args)
    if not wish.is_dry_run:
        async for step in _make_all(context, wish, stored.definition.when, todo, made, encoded):
            yield step
    yield made.step(is_dry_run=wish.is_dry_run, is_over=True)


async def _make_all(
    context: Context, wish: _Wish, when: str, todo: deque[int], made: _Made, args: bytes | None
) -> AsyncIterator[BackfillStep]:
    maker = Backfiller(context.store, context.app, context.clock, key=wish.key, when=when)
    look = _Looking()
    while todo:
        chunk = [todo[place] for place in range(min(len(todo), 1 if wish.is_alone or wish.pace else _BATCH))]
        began = context.clock.elapsed()
        backfilled = await maker.make(chunk, args=args, is_alone=wish.is_alone)
        # Those that wait are the last ones: they wait for each other, or all for the same.
        settled = [todo.popleft() for _ in chunk if todo[0] not in backfilled.waiting]
        if settled:
            made.add(settled, backfilled.runs)
            context.wake_runs()
            look.start_over()
            yield made.step()
        if wish.is_alone:
            async for step in _until_ended(context, made):
                yield step
        if not settled:
            await look.rest()
        elif todo and wish.pace and backfilled.runs:
            await asyncio.sleep(max(wish.pace / 1e6 - (context.clock.elapsed() - began), 0))
        if await made.look(context.store, context.app):
            yield made.step()
    async for step in _until_ended(context, made):
        yield step


async def _until_ended(context: Context, made: _Made) -> AsyncIterator[BackfillStep]:
    """Until none of the runs is live any more."""
    look = _Looking()
    while made.live:
        if await made.look(context.store, context.app):
            look.start_over()
            yield made.step()
        else:
            await look.rest()


async def _backfilled(context: Context, wish: _Wish) -> tuple[StoredSchedule, When]:
    """The schedule and its rule, if it can be backfilled with this wish."""
    stored = await stored_schedule(context, wish.key)
    now, kept = await context.store.now(), context.settings.retention
    if wish.last > now:
        raise InvalidInput(
            f"end: {moment_text(wish.last)} is still to come",
            setting="end",
            fix="backfill is for the past, give now at the latest",
        )
    if wish.first < now - kept:
        raise InvalidInput(
            f"start: {moment_text(wish.first)} is longer ago than history is kept ({duration_text(kept)}): runs "
            "would be forgotten at once, and made again next time",
            setting="start",
            fix="begin later, or raise retention",
        )
    if stored.definition.mode == "every-node":
        raise Refused(
            f"{wish.key!r} runs on every node, and those of the past are gone, so there is nothing to backfill; "
            "trigger it instead"
        )
    rule = rule_of(stored, await load_calendars(context.store, context.app))
    if rule.is_after_end:
        raise Refused(
            f"{wish.key!r} counts from the end of its runs, so that it has no fixed moments to backfill; "
            "trigger it instead"
        )
    return stored, rule


async def _recorded(context: Context, schedule: int, first: int, last: int, wanted: set[int]) -> set[int]:
    """Those of the moments that have a run. In pages: an earlier rule may have left many others there."""
    found: set[int] = set()
    while True:
        page = await context.store.recorded_moments(context.app, schedule, first=first, last=last, limit=_PAGE)
        found |= wanted.intersection(page)
        if len(page) < _PAGE:
            return found
        first = page[-1] + 1


class Backfilled(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that were made, and the moments that have to wait.

    Of neither are moments that have a run already.
    """

    runs: tuple[str, ...] = ()
    waiting: tuple[int, ...] = ()


class Backfiller:
    """Makes runs for moments of one schedule, whose rule is `when`."""

    def __init__(self, store: Store, app: str, clock: Clock, *, key: str, when: str) -> None:
        self._store = store
        self._app = app
        self._clock = clock
        self._key = key
        self._when = when

    async def make(self, moments: Sequence[int], *, args: bytes | None, is_alone: bool) -> Backfilled:
        """Runs for these moments, or which of them have to wait.

        `is_alone`: only where nothing of the schedule is live or due; where its overlap is "allow", only where no other
        backfill of it is live. In any case one whose unique key is taken waits.
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
        raise StoreUnavailable(f"{self._key!r} changed {_ROUNDS_MAX} times while it was backfilled; try again")

    async def _schedule(self) -> StoredSchedule:
        found = await self._store.stored_schedules(self._app, keys=[self._key])
        if not found:
            raise NotFound(f"the schedule {self._key!r} was removed while it was backfilled")
        if found[0].definition.when != self._when:
            raise Refused(f"the rule of {self._key!r} was changed while it was backfilled; ask again for the new one")
        return found[0]

    async def _is_occupied(self, stored: StoredSchedule, now: int) -> bool:
        if stored.definition.overlap == "allow":
            live = RunFilter(schedule_key=stored.key, states=LIVE_STATES, limit=_LIVE_LOOKED_AT)
            return any(run.cause is Cause.BACKFILL for run in await self._store.runs(self._app, live))
        # A fire that is due goes first: made now, our run would have it skipped.
        is_due = stored.pause is None and stored.at is not None and stored.at <= now
        return stored.live != 0 or is_due

    def _run(self, stored: StoredSchedule, moment: int, now: int, args: bytes | None) -> NewRun:
        definition = stored.definition
        return NewRun(
            id=self._clock.new_id(),
            task=definition.task,
            cause=Cause.BACKFILL,
            fire_at=moment,
            # Due from now on, or it would expire before it could start.
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


class _Made:
    """The runs of a backfill, and how they fare."""

    def __init__(self, first: BackfillStep) -> None:
        self._step = first
        self._live: deque[str] = deque()

    @property
    def live(self) -> int:
        return len(self._live)

    def add(self, moments: list[int], runs: tuple[str, ...]) -> None:
        # The others have got a run from another caller meanwhile.
        self._live.extend(runs)
        self._step = msgspec.structs.replace(
            self._step,
            made=self._step.made + len(runs),
            left_out=self._step.left_out + len(moments) - len(runs),
            fire_at=from_us(moments[-1]) if runs else self._step.fire_at,
        )

    async def look(self, store: Store, app: str) -> bool:
        """Look at some of the live runs, the others next time; True if any has ended."""
        ids = [self._live.popleft() for _ in range(min(len(self._live), _LOOKED_AT))]
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


class _Looking:
    """How long to wait before the next look: longer each time nothing has happened."""

    def __init__(self) -> None:
        self._seconds = _LOOK_FIRST_SECONDS

    def start_over(self) -> None:
        self._seconds = _LOOK_FIRST_SECONDS

    async def rest(self) -> None:
        await asyncio.sleep(self._seconds)
        self._seconds = min(self._seconds * 1.5, _LOOK_MOST_SECONDS)


def _is_live(run: Run | None) -> bool:
    """One that history has forgotten already has ended, too."""
    return run is not None and run.is_live


def _moments(wish: _Wish, rule: When) -> list[int]:
    count = rule.count_us(wish.first, wish.last, _COUNT_MOST)
    if count > wish.limit:
        raise InvalidInput(
            f"{wish.key!r} has {count:,} moments from {moment_text(wish.first)} to {moment_text(wish.last)}, and at "
            f"most {wish.limit:,} are backfilled at once; choose a shorter stretch, or raise limit"
        )
    found, at = list[int](), rule.next_us(wish.first - 1)
    while at is not None and at <= wish.last:
        # Counting is a lower bound where a calendar has very many stretches; the limit holds all the same.
        if len(found) == wish.limit:
            raise InvalidInput(f"{wish.key!r} has more than {wish.limit:,} moments there; choose a shorter stretch")
        found.append(at)
        at = rule.next_us(at)
    return found
