"""Making runs for moments of the past, through the guard of their schedule.

The guard is that of every fire: version, cursor and, where runs are made one at a time, the live runs must be as they
were read. The cursor, `fires` and what the schedule owes stay as they are. A moment that has a run is left out by the
ledger's own key, so that the same wish can be made any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evertick.clock import Clock
from evertick.errors import NotFound, Refused, StoreUnavailable
from evertick.model import LIVE_STATES, Cause, NewRun
from evertick.store.base import Advance, RunFilter, Store, StoredSchedule

__all__ = ["Backfilled", "Backfiller"]

# A round is lost only to another writer's success; beyond this something else is wrong.
_ROUNDS_MAX = 50
_LIVE_LOOKED_AT = 1_000


class Backfilled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish: the runs that were made, and the moments that have to wait.

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
