"""People's changes to schedules: add, edit, pause, resume, remove, trigger, rerun.

A change first settles the account of the old definition up to now, then restarts the cursor from now, so that it never
fires anything by itself and never loses a moment silently. Read, settle, write guarded; if somebody else was faster,
again from the start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from evertick.clock import Clock
from evertick.errors import EvertickError, InvalidInput, NotFound, Refused, StoreUnavailable
from evertick.model import Cause, Definition, NewGap, NewRun, Pause, Reason, Run, State
from evertick.plan import FRESH, Facts, Fire, admit, cursor_after, settle
from evertick.rules import load_calendars, rule_of
from evertick.store.base import Advance, Change, DeclaredBy, DueSchedule, ScheduleFilter, Store, StoredSchedule
from evertick.when import Calendar, Every, Once, When, parse_when, to_us

__all__ = ["Addition", "Editor", "facts_of", "run_of"]

# A round is lost only to another writer's success; beyond this something else is wrong.
_ROUNDS_MAX = 50
_PAGE = 500


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be added: its rule as it was written, not bound yet, and the rest of its definition."""

    key: str
    rule: When
    definition: Definition
    declared: DeclaredBy | None = None


class _Now(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands: what a change is made from."""

    time: int
    stored: StoredSchedule
    # None when the stored rule cannot be read any more (a calendar is gone): then there is nothing to settle.
    rule: When | None


class Editor:
    """Changes the schedules of one app."""

    def __init__(self, store: Store, app: str, clock: Clock, tz: str) -> None:
        self._store = store
        self._app = app
        self._clock = clock
        self._tz = tz

    async def add(self, additions: Sequence[Addition], *, all_or_none: bool = False) -> list[bool]:
        """Add schedules; False where the key is taken. A new schedule owes nothing of the past."""
        taken = {
            stored.key for stored in await self._store.stored_schedules(self._app, keys=[a.key for a in additions])
        }
        if taken and all_or_none:
            return [added.key not in taken for added in additions]
        for added in additions:
            if added.rule.calendar is not None and added.key not in taken:
                await self.put_calendar(added.rule.calendar)
        now = await self._store.now()
        calendars = await load_calendars(self._store, self._app)
        changes = []
        for added in additions:
            rule = added.rule.bind(key=added.key, created=now, tz=self._tz, calendars=calendars)
            # Only a one-shot may mean this very moment (`Once(after="0s")`); a rhythm begins with the next beat.
            since = now - 1 if isinstance(rule, Once) else now
            fire_at, at = cursor_after(rule, added.key, since, self._clock.uniform)
            definition = msgspec.structs.replace(added.definition, when=rule.text)
            changes.append(
                Change(
                    key=added.key,
                    kind="add",
                    definition=definition,
                    declared=_declaring(added.declared, definition),
                    created_at=now,
                    fire_at=fire_at,
                    at=at,
                    fingerprint=rule.fingerprint,
                )
            )
        return await self._store.change_schedules(self._app, changes, all_or_none=all_or_none)

    async def put_calendar(self, calendar: Calendar) -> None:
        """Keep a named calendar, and let the schedules that use it go by it from now on."""
        content = calendar.to_json().encode()
        if (await self._store.calendars(self._app)).get(calendar.name) == content:
            return
        await self._store.put_calendar(self._app, calendar.name, calendar.version, content)
        after = None
        while page := await self._store.schedules(self._app, ScheduleFilter(after_key=after, with_counts=False)):
            for schedule in page:
                if f"; calendar={calendar.name}" in schedule.when:
                    await self.edit(schedule.key, lambda definition: definition)
            after = page[-1].key

    async def refresh_cursors(self) -> int:
        """Recompute cursors that were computed with other zone rules than this machine has; answers how many.

        One schedule of each fingerprint tells for all that share it. A schedule that owes something now is left alone:
        its tick plans with the new rules anyway, and what it owes must not be settled as if somebody had edited it.
        """
        calendars = await load_calendars(self._store, self._app)
        refreshed = 0
        for fingerprint, sample in (await self._store.fingerprints(self._app)).items():
            if not _is_current(await self._store.stored_schedules(self._app, ids=[sample]), calendars):
                refreshed += await self._refresh(fingerprint)
        return refreshed

    async def _refresh(self, fingerprint: str) -> int:
        refreshed, after, now = 0, 0, await self._store.now()
        while page := await self._store.computed_with(self._app, fingerprint, after=after, limit=_PAGE):
            for stored in page:
                if stored.at is not None and stored.fire_at is not None and min(stored.at, stored.fire_at) > now:
                    await self.edit(stored.key, lambda definition: definition)
                    refreshed += 1
            after = page[-1].id
        return refreshed

    async def edit(
        self,
        key: str,
        change: Callable[[Definition], Definition],
        *,
        rule: When | None = None,
        declared: DeclaredBy | None = None,
    ) -> None:
        """Change the definition, and the rule where one is given. The cursor restarts from now; a pause stays."""
        await self._current(key)  # a schedule that is not there changes no calendar
        if rule is not None and rule.calendar is not None:
            await self.put_calendar(rule.calendar)
        calendars = await load_calendars(self._store, self._app)

        def make(current: _Now) -> Change:
            created = current.stored.created_at if rule is None else current.time
            written = parse_when(current.stored.definition.when, calendars) if rule is None else rule
            bound = written.bind(key=key, created=created, tz=self._tz, calendars=calendars)
            definition = msgspec.structs.replace(change(current.stored.definition), when=bound.text)
            settled = self._settle(current, Reason.EDITED, new_rule=bound)
            if current.stored.pause is not None:
                settled = msgspec.structs.replace(settled, next_at=current.stored.pause.until, after_end=None)
            return Change(
                key=key,
                kind="edit",
                settle=settled,
                definition=definition,
                pause=current.stored.pause,
                declared=_declaring(declared, definition),
            )

        await self._change(key, make)

    async def pause(self, key: str, *, note: str = "", until: int | None = None, is_undeclared: bool = False) -> None:
        """Stop recording fires. Runs that are recorded already, and their retries, go on."""

        def make(current: _Now) -> Change:
            if until is not None and until <= current.time:
                raise Refused(f"cannot pause {key!r} until a moment that has passed; give a later one, or none")
            pause = Pause(at=current.time, note=note, until=until, is_undeclared=is_undeclared)
            settled = self._settle(current, Reason.PAUSED)
            settled = msgspec.structs.replace(settled, next_at=until, after_end=None)
            return Change(key=key, kind="pause", settle=settled, pause=pause)

        await self._change(key, make)

    async def pause_undeclared(self, key: str, node_name: str) -> None:
        """Pause a schedule that the running code of `node_name` no longer declares."""
        note = f"no longer declared by {node_name}; declare it again to resume it, or remove it"
        await self.pause(key, note=note, is_undeclared=True)

    async def resume(self, key: str) -> bool:
        """Go on from now; the paused moments become one gap. False if it was not paused."""
        was_paused = False

        def make(current: _Now) -> Change | None:
            nonlocal was_paused
            was_paused = current.stored.pause is not None
            return Change(key=key, kind="resume", settle=self._settle(current, Reason.PAUSED)) if was_paused else None

        await self._change(key, make)
        return was_paused

    async def remove(self, key: str) -> None:
        """Take the schedule away. Its waiting runs are cancelled, its history stays."""

        def make(current: _Now) -> Change:
            pause = current.stored.pause
            is_undeclared = pause is not None and pause.is_undeclared
            if current.stored.declared is not None and not is_undeclared:
                raise Refused(
                    f"schedule {key!r} is declared in code ({current.stored.declared.node_name}) and would come back "
                    f"at the next start; pause it instead, or remove it from the code first"
                )
            return Change(key=key, kind="remove", settle=self._settle(current, Reason.REMOVED, fresh=-1))

        await self._change(key, make)

    async def trigger(self, key: str, *, args: bytes | None = None) -> str:
        """Run the schedule's task now, by hand, paused or not; answers the run's id. Overlap is obeyed."""
        run_id = self._clock.new_id()

        def make(current: _Now) -> NewRun:
            definition = current.stored.definition
            return NewRun(
                id=run_id,
                task=definition.task,
                cause=Cause.TRIGGER,
                args=args,
                queue=definition.queue,
                priority=definition.priority,
                expires=definition.expires,
                labels=definition.labels,
            )

        await self._run_by_hand(key, make, "not triggered")
        return run_id

    async def rerun(self, old: Run, *, args: bytes) -> str:
        """Run again what has ended, as it was; answers the new run's id. Overlap of its schedule is obeyed."""
        again = NewRun(
            id=self._clock.new_id(),
            task=old.task,
            cause=Cause.RERUN,
            fire_at=to_us(old.fire_at),
            args=args,
            queue=old.queue,
            priority=old.priority,
            expires=None if old.expires_at is None else to_us(old.expires_at) - to_us(old.due_at),
            labels=old.labels,
            caused_by=old.id,
        )

        def make(current: _Now) -> NewRun:
            return msgspec.structs.replace(again, due_at=current.time)

        if old.schedule_key is not None:
            # Its schedule may be gone, also from one round to the next.
            with contextlib.suppress(NotFound):
                await self._run_by_hand(old.schedule_key, make, f"run {old.id} is not rerun")
                return again.id
        now = await self._store.now()
        await self._store.enqueue(self._app, [msgspec.structs.replace(again, due_at=now)])
        return again.id

    # --- how a change is made

    async def _change(self, key: str, make: Callable[[_Now], Change | None]) -> None:
        for _ in range(_ROUNDS_MAX):
            change = make(await self._current(key))
            if change is None or (await self._store.change_schedules(self._app, [change]))[0]:
                return
        raise _never_settles(key)

    async def _run_by_hand(self, key: str, make: Callable[[_Now], NewRun], otherwise: str) -> None:
        """Put a run that no fire has made through the guard of its schedule; what overlap forbids is refused."""
        for _ in range(_ROUNDS_MAX):
            current = await self._current(key)
            stored, overlap = current.stored, current.stored.definition.overlap
            admitted = admit(overlap, stored.live)
            if admitted is None:
                raise Refused(f"{key!r} has a live run, and its overlap is {overlap!r}: {otherwise}")
            run = msgspec.structs.replace(
                make(current),
                schedule_id=stored.id,
                version=stored.version,
                state=State.BLOCKED if admitted == "blocked" else State.WAITING,
            )
            # What counts from the end of the run before counts from the end of this one; an owed moment stays owed.
            is_owed = stored.fire_at is not None and stored.fire_at <= current.time
            after_end = None if is_owed or stored.pause is not None else _interval_from_end(current.rule)
            advance = Advance(
                schedule_id=stored.id,
                version=stored.version,
                fire_at=stored.fire_at,
                at=stored.at,
                live=None if overlap == "allow" else stored.live,
                runs=(run,),
                next_fire_at=stored.fire_at if after_end is None else None,
                next_at=stored.at if after_end is None else None,
                after_end=after_end,
                replaces_live=admitted == "blocked" and overlap == "replace",
                fingerprint=stored.fingerprint,
            )
            recorded = await self._store.record_fires(self._app, None, [advance])
            if recorded.taken[0]:
                return
        raise _never_settles(key)

    async def _current(self, key: str) -> _Now:
        found = await self._store.stored_schedules(self._app, keys=[key])
        if not found:
            raise NotFound(f"there is no schedule {key!r} in app {self._app!r}; `evertick list` shows those there are")
        # Outside of the `try`: a store that is away must not look like a rule that cannot be read.
        calendars = await load_calendars(self._store, self._app)
        try:
            rule = rule_of(found[0], calendars)
        except EvertickError:
            rule = None
        return _Now(time=await self._store.now(), stored=found[0], rule=rule)

    def _settle(self, current: _Now, reason: Reason, *, new_rule: When | None = None, fresh: int = FRESH) -> Advance:
        """What is owed by the old definition, and the cursor of the new one (the old one where none is given)."""
        stored = current.stored
        fires: tuple[Fire, ...] = ()
        gaps: tuple[NewGap, ...] = ()
        if current.rule is not None:
            fires, gaps = settle(facts_of(stored, current.rule), current.time, reason, fresh=fresh)
        rule = new_rule or current.rule
        fire_at, at = None, None
        if rule is not None and _interval_from_end(rule) is None:
            fire_at, at = cursor_after(rule, stored.key, current.time, self._clock.uniform)
        return Advance(
            schedule_id=stored.id,
            version=stored.version,
            fire_at=stored.fire_at,
            at=stored.at,
            live=stored.live if fires else None,
            runs=tuple(run_of(self._clock.new_id(), stored, fire) for fire in fires),
            gaps=gaps,
            next_fire_at=fire_at,
            next_at=at,
            after_end=_interval_from_end(rule),
            replaces_live=any(fire.is_blocked for fire in fires) and stored.definition.overlap == "replace",
            fingerprint="" if rule is None else rule.fingerprint,
        )


def run_of(run_id: str, stored: StoredSchedule, fire: Fire) -> NewRun:
    """The row of a moment that becomes a run."""
    definition = stored.definition
    return NewRun(
        id=run_id,
        task=definition.task,
        cause=Cause.FIRE,
        fire_at=fire.fire_at,
        due_at=fire.due_at,
        schedule_id=stored.id,
        version=stored.version,
        queue=definition.queue,
        priority=definition.priority,
        state=State.BLOCKED if fire.is_blocked else State.WAITING,
        reason=Reason.LATE if fire.is_late else None,
        expires=definition.expires,
        labels=definition.labels,
    )


def facts_of(stored: StoredSchedule, rule: When, row: DueSchedule | None = None) -> Facts:
    """What a plan is made from; the cursor as a tick has read it, where there was one."""
    cursor = row or stored
    return Facts(
        key=stored.key,
        definition=stored.definition,
        rule=rule,
        fire_at=cursor.fire_at,
        at=cursor.at,
        fires=cursor.fires,
        live=cursor.live,
        pause=stored.pause,
    )


def _is_current(sample: list[StoredSchedule], calendars: dict[str, Calendar]) -> bool:
    """Whether the fingerprint of this schedule is what it would be today. One that cannot be read tells nothing."""
    try:
        return all(rule_of(stored, calendars).fingerprint == stored.fingerprint for stored in sample)
    except InvalidInput:
        return True


def _declaring(declared: DeclaredBy | None, definition: Definition) -> DeclaredBy | None:
    """What the code declares, as it came to be stored: later differences are overrides."""
    return None if declared is None else msgspec.structs.replace(declared, definition=definition)


def _interval_from_end(rule: When | None) -> int | None:
    return rule.interval_us if isinstance(rule, Every) and rule.is_after_end else None


def _never_settles(key: str) -> StoreUnavailable:
    return StoreUnavailable(f"{key!r} changed {_ROUNDS_MAX} times while we tried to change it; try again")
