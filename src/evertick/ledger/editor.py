"""Changes of schedules by users: add, edit, pause, resume, remove, trigger, rerun.

A change first settles the old definition up to now, then restarts the cursor from now. So it does not fire old moments,
and no moment gets lost without a record. The write is guarded; after a concurrent change it starts again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from evertick.clock import Clock
from evertick.errors import EvertickError, InvalidInput, NotFound, Refused, StoreUnavailable
from evertick.ledger.parsed_rules import blackout_named, blackout_of, fingerprint_of, load_calendars, rule_of
from evertick.ledger.planning import able_nodes, fan_out, plan_inputs_of, run_of, unique_key_on
from evertick.model import Cause, Definition, NewGap, NewRun, Node, Occurrence, Pause, Reason, RerunOverlap, Run, State
from evertick.model.every_node import is_own_queue, node_of_queue
from evertick.plan.allowed_rules import ScheduleLimits, check_rule
from evertick.plan.inputs import FRESH, Fire
from evertick.plan.moments import cursor_after
from evertick.plan.overlap import admit, guards_live, takes_place
from evertick.plan.overrides import Settled, apart, pending, settle_decisions, time_of, without_decided
from evertick.plan.settlement import settle
from evertick.store.base import (
    Advance,
    Change,
    DeclaredBy,
    Failing,
    Source,
    Store,
    StoredSchedule,
)
from evertick.text.error_line import error_summary
from evertick.when import Calendar, Every, Once, When, parse_when, to_us
from evertick.when.moment import moment_text

__all__ = [
    "ROUNDS_MAX",
    "Addition",
    "CurrentSchedule",
    "Editor",
    "current_schedule_of",
    "interval_from_end",
    "never_settles",
    "no_schedule",
    "soonest",
    "undeclared_note",
]

# A round fails only if another writer succeeded; more failures than this have another cause.
ROUNDS_MAX = 50
_PAGE = 500
_USERS_MOST = 1_000_000
# The pause note of a schedule that is no longer declared, by the source of its declaration.
_UNDECLARED: dict[Source, str] = {
    "code": "no longer declared by {name}; declare it again to resume it, or remove it",
    "file": "no longer in the configuration of {name}; put it back to resume it, or remove it with "
    "`evertick apply --prune`; if another file has it, give one of the two an `app` or a `name` of its own under "
    "[node]",
}


def undeclared_note(node_name: str, source: Source) -> str:
    return _UNDECLARED[source].format(name=node_name)


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to add: its unbound rule, and the rest of its definition."""

    key: str
    rule: When
    definition: Definition
    declared: DeclaredBy | None = None
    # The calendar of its blackout, unless only its name was given.
    blackout: Calendar | None = None


class CurrentSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a schedule, from which a change is made."""

    time: int
    stored: StoredSchedule
    # None if the stored rule cannot be read (its calendar is gone); then there is nothing to settle.
    rule: When | None
    blackout: Calendar | None = None
    # The nodes for its runs, with mode "every-node".
    nodes: Sequence[Node] = ()


class _ChangedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule and blackout of a schedule after a change."""

    rule: When | None
    blackout: Calendar | None
    # Moments that a blackout holds stay owed.
    keeps_held: bool = False
    # The change ends a blackout that holds moments.
    lets_go: bool = False


class Editor:
    """Changes the schedules of one app."""

    def __init__(self, store: Store, app: str, clock: Clock, tz: str, limits: ScheduleLimits | None = None) -> None:
        self._store = store
        self._app = app
        self._clock = clock
        self._tz = tz
        self._limits = limits or ScheduleLimits()

    async def add(self, additions: Sequence[Addition], *, all_or_none: bool = False) -> list[bool]:
        """Add schedules; False if the key is taken. A new schedule owes no past moments."""
        taken = {
            stored.key for stored in await self._store.stored_schedules(self._app, keys=[a.key for a in additions])
        }
        if taken and all_or_none:
            return [added.key not in taken for added in additions]
        await self._check_limits({added.key: added.rule for added in additions if added.key not in taken})
        for added in additions:
            for calendar in (added.rule.calendar, added.blackout):
                if calendar is not None and added.key not in taken:
                    await self._put_if_new(calendar)
        now = await self._store.now()
        calendars = await load_calendars(self._store, self._app)
        changes = [self._adding(added, now, calendars) for added in additions]
        return await self._store.change_schedules(self._app, changes, all_or_none=all_or_none)

    def _adding(self, added: Addition, now: int, calendars: Mapping[str, Calendar]) -> Change:
        check_rule(added.definition, added.rule)
        rule = added.rule.bind(key=added.key, created=now, tz=self._tz, calendars=calendars)
        # Only a one-shot may fire at the current moment (`Once(after="0s")`); other rules fire later.
        since = now - 1 if isinstance(rule, Once) else now
        blackout = blackout_named(added.definition.blackout, added.key, rule, calendars)
        fire_at, at = cursor_after(rule, added.key, since, self._clock.uniform, blackout)
        definition = msgspec.structs.replace(added.definition, when=rule.text)
        return Change(
            key=added.key,
            kind="add",
            definition=definition,
            declared=_declaring(added.declared, definition),
            created_at=now,
            fire_at=fire_at,
            at=at,
            fingerprint=fingerprint_of(rule, blackout),
        )

    async def put_calendar(self, calendar: Calendar) -> None:
        """Store a named calendar, and recompute the cursors of the schedules that use it.

        A second call with the same calendar updates schedules that the first one did not reach.
        """
        if not await self._put_if_new(calendar):
            await self._move(await self._left_behind(calendar.name))

    async def _put_if_new(self, calendar: Calendar) -> bool:
        """The same, but does nothing if it is stored already: thousands of rules may carry the same calendar."""
        content = calendar.to_json().encode()
        if (await self._store.calendars(self._app)).get(calendar.name) == content:
            return False
        await self._store.put_calendar(self._app, calendar.name, calendar.version, content)
        await self._move(await self._store.calendar_users(self._app, calendar.name, limit=_USERS_MOST))
        return True

    async def _move(self, keys: Sequence[str]) -> None:
        for key in keys:
            # A schedule that was removed meanwhile needs no update.
            with contextlib.suppress(NotFound):
                await self.edit(key, lambda definition: definition)

    async def _left_behind(self, name: str) -> list[str]:
        """The schedules whose cursor was computed with another version of the calendar."""
        calendars = await load_calendars(self._store, self._app)
        samples = list((await self._store.fingerprints(self._app)).values())
        found = await self._store.stored_schedules(self._app, ids=samples)
        if all(_is_current(sample, calendars) for sample in found):
            return []
        users = await self._store.calendar_users(self._app, name, limit=_USERS_MOST)
        left: list[str] = []
        for start in range(0, len(users), _PAGE):
            page = await self._store.stored_schedules(self._app, keys=users[start : start + _PAGE])
            left += [stored.key for stored in page if not _is_current(stored, calendars)]
        return left

    async def refresh_cursors(self) -> int:
        """Recompute cursors that were computed with other zone rules than this machine has; returns how many.

        One schedule of each fingerprint is checked for all that share it. A schedule that owes moments is skipped: it
        is planned with the new rules anyway, and its moments must not be settled like those of an edit.
        """
        calendars = await load_calendars(self._store, self._app)
        refreshed = 0
        for fingerprint, sample in (await self._store.fingerprints(self._app)).items():
            found = await self._store.stored_schedules(self._app, ids=[sample])
            if not all(_is_current(stored, calendars) for stored in found):
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
        blackout: Calendar | None = None,
    ) -> None:
        """Change the definition, and the rule if one is given. The cursor restarts from now; a pause stays.

        `blackout` is the calendar of the new definition's blackout, unless only its name was given.
        """
        stored = (await self._current(key)).stored  # an unknown schedule must not change a calendar
        if rule is not None and not _is_known_rule(stored, rule):
            await self._check_limits({key: rule})
        for calendar in (None if rule is None else rule.calendar, blackout):
            if calendar is not None:
                await self._put_if_new(calendar)
        calendars = await load_calendars(self._store, self._app)

        def make(current: CurrentSchedule) -> Change:
            return self._editing(current, change, calendars, rule=rule, declared=declared)

        await self._change(key, make)

    def _editing(
        self,
        current: CurrentSchedule,
        change: Callable[[Definition], Definition],
        calendars: Mapping[str, Calendar],
        *,
        rule: When | None = None,
        declared: DeclaredBy | None = None,
        resumes: bool = False,
    ) -> Change:
        """The change of a definition. With `resumes` it ends a pause."""
        stored = current.stored
        created = stored.created_at if rule is None else current.time
        written = parse_when(stored.definition.when, calendars) if rule is None else rule
        bound = written.bind(key=stored.key, created=created, tz=self._tz, calendars=calendars)
        definition = msgspec.structs.replace(change(stored.definition), when=bound.text)
        check_rule(definition, bound)
        closes = blackout_named(definition.blackout, stored.key, bound, calendars)
        is_resumed = resumes and stored.pause is not None
        if is_resumed and not _is_over(stored.pause, current.time):
            settled = self._settle_into(current, _ChangedSchedule(rule=bound, blackout=closes), Reason.PAUSED)
        else:
            settled = self._settle_edit(current, bound, closes)
        if stored.pause is not None and not is_resumed:
            settled = msgspec.structs.replace(settled, next_at=stored.pause.until, after_end=None)
        return Change(
            key=stored.key,
            kind="resume" if is_resumed else "edit",
            settle=settled,
            definition=definition,
            pause=None if is_resumed else stored.pause,
            declared=_declaring(declared, definition),
        )

    async def pause(
        self,
        key: str,
        *,
        note: str = "",
        until: int | None = None,
        is_undeclared: bool = False,
        is_failing: bool = False,
        unless: Callable[[StoredSchedule], bool] = lambda _: False,
    ) -> bool:
        """Stop recording fires. Runs that are recorded already, and their retries, continue.

        False: nothing was changed, because `unless` was true for the current schedule.
        """
        is_made = True

        def make(current: CurrentSchedule) -> Change | None:
            nonlocal is_made
            is_made = not unless(current.stored)
            if not is_made:
                return None
            if until is not None and until <= current.time:
                raise Refused(
                    f"cannot pause {key!r} until a moment that has passed",
                    setting="until",
                    value=moment_text(until),
                    fix="give a later one, or none",
                )
            pause = Pause(at=current.time, note=note, until=until, is_undeclared=is_undeclared, is_failing=is_failing)
            return self._pausing(current, pause)

        await self._change(key, make)
        return is_made

    def _pausing(self, current: CurrentSchedule, pause: Pause) -> Change:
        settled = self._settle(current, Reason.PAUSED)
        settled = msgspec.structs.replace(settled, next_at=pause.until, after_end=None)
        return Change(key=current.stored.key, kind="pause", settle=settled, pause=pause)

    async def pause_failing(self, failing: Failing) -> str | None:
        """Pause a schedule that failed too often; returns the note. None: it was changed or paused meanwhile."""
        error = error_summary(failing.error) or failing.reason or failing.verdict
        runs = "its last run has" if failing.count == 1 else f"{failing.count} runs in a row have"
        note = f"{runs} failed, the last error: {error}"

        def has_changed(stored: StoredSchedule) -> bool:
            return stored.id != failing.schedule_id or stored.version != failing.version or stored.pause is not None

        try:
            is_paused = await self.pause(failing.key, note=note, is_failing=True, unless=has_changed)
        except NotFound:
            return None
        return note if is_paused else None

    async def pause_undeclared(self, key: str, node_name: str, source: Source = "code") -> bool:
        """Pause a schedule that the program under `node_name` no longer declares. False: it was changed meanwhile."""
        note = undeclared_note(node_name, source)
        return await self.pause(key, note=note, is_undeclared=True, unless=lambda stored: stored.pause is not None)

    async def resume(self, key: str, *, unless: Callable[[Pause], bool] = lambda _: False) -> bool:
        """Continue from now, or from the end of a pause that is over; the paused moments become one gap.

        False if it was not paused, or if `unless` was true.
        """
        was_paused = False

        def make(current: CurrentSchedule) -> Change | None:
            nonlocal was_paused
            pause = current.stored.pause
            was_paused = pause is not None and not unless(pause)
            if pause is not None and pause.until is not None and _is_over(pause, current.time):
                # From the end of the pause, or from a later cursor of an edit: moments since then are owed.
                owed_from = max(pause.until, current.stored.fire_at or 0)
                current = msgspec.structs.replace(current, time=min(owed_from - 1, current.time))
            return Change(key=key, kind="resume", settle=self._settle(current, Reason.PAUSED)) if was_paused else None

        await self._change(key, make)
        return was_paused

    async def remove(self, key: str) -> None:
        """Remove the schedule. Cancels its waiting runs and those that no worker has taken; its history stays."""

        def make(current: CurrentSchedule) -> Change:
            pause = current.stored.pause
            is_undeclared = pause is not None and pause.is_undeclared
            declared = current.stored.declared
            if declared is not None and not is_undeclared:
                where = "code" if declared.source == "code" else "the configuration"
                raise Refused(
                    f"schedule {key!r} is declared in {where} ({declared.node_name}) and would come back at the next "
                    "start",
                    setting="key",
                    value=repr(key),
                    fix=f"pause it instead, or remove it from the {where.removeprefix('the ')} first",
                )
            return self._removing(current)

        await self._change(key, make)

    def _removing(self, current: CurrentSchedule) -> Change:
        settled = self._settle(current, Reason.REMOVED, fresh=-1)
        return Change(key=current.stored.key, kind="remove", settle=settled)

    async def trigger(self, key: str, *, args: bytes | None = None) -> str:
        """Run the schedule's task now, paused or not; returns the run's id. Overlap applies.

        With mode "every-node" it runs on each node that is not still running it; returns the id of the first run.
        """
        run_id = self._clock.new_id()

        def make(current: CurrentSchedule) -> NewRun:
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

        return (await self._run_by_hand(key, make))[0]

    async def rerun(self, old: Run, *, args: bytes, overlap: RerunOverlap | None = None) -> str:
        """Run an ended run again; returns the new run's id.

        The overlap of its schedule applies, unless `overlap` is given: "queue" puts it behind all live runs, "allow"
        runs it beside them.
        """
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

        def make(current: CurrentSchedule) -> NewRun:
            return msgspec.structs.replace(again, due_at=current.time)

        await self._check_node_lives(old)
        if old.schedule_key is not None:
            # Its schedule may be gone, or removed between two rounds.
            with contextlib.suppress(NotFound):
                await self._run_by_hand(old.schedule_key, make, as_if=overlap)
                return again.id
        now = await self._store.now()
        await self._store.enqueue(self._app, [msgspec.structs.replace(again, due_at=now)])
        return again.id

    # --- how a change is made

    async def _check_limits(self, rules: Mapping[str, When]) -> None:
        """Reject rules that the scheduler does not accept, before any write."""
        if self._limits.are_none or not rules:
            return
        now = await self._store.now()
        calendars = await load_calendars(self._store, self._app)
        for key, rule in rules.items():
            own = {} if rule.calendar is None else {rule.calendar.name: rule.calendar}
            bound = rule.bind(key=key, created=now, tz=self._tz, calendars={**calendars, **own})
            self._limits.check(key, bound, now)

    async def _change(self, key: str, make: Callable[[CurrentSchedule], Change | None]) -> None:
        for _ in range(ROUNDS_MAX):
            change = make(await self._current(key))
            if change is None or (await self._store.change_schedules(self._app, [change]))[0]:
                return
        raise never_settles(key)

    async def _check_node_lives(self, old: Run) -> None:
        """Raise Refused if the run was bound to a node that is gone."""
        if not is_own_queue(old.queue):
            return
        node = node_of_queue(old.queue)
        if not any(each.id == node and each.died_at is None for each in await self._store.nodes(self._app)):
            problem = f"the run was bound to node {node}, which is gone"
            raise Refused(problem, setting="run", value=old.id, fix="trigger its schedule to run it on every live node")

    async def _run_by_hand(
        self, key: str, make: Callable[[CurrentSchedule], NewRun], *, as_if: RerunOverlap | None = None
    ) -> list[str]:
        """Record a manual run under the guard of its schedule. Raises Refused if overlap does not admit it.

        Returns its id, or the ids of the runs on the nodes.
        """
        for _ in range(ROUNDS_MAX):
            current = await self._current(key)
            run, definition = make(current), current.stored.definition
            advance = _advance_by_hand(current, run, as_if)
            if run.cause is Cause.TRIGGER and definition.mode == "every-node":
                if not able_nodes(current.nodes, run.task):
                    problem = f"{key!r} runs on every node, and no live node knows task {run.task!r}"
                    raise Refused(problem, setting="key", value=key, fix="start a node that knows it")
                advance = fan_out(advance, definition, current.nodes)
            recorded = await self._store.record_fires(self._app, None, [advance])
            if recorded.taken[0]:
                return [each.id for each in advance.runs if each.id not in recorded.duplicates]
            if recorded.duplicates:
                raise _key_taken(key, definition)
        raise never_settles(key)

    async def _current(self, key: str) -> CurrentSchedule:
        found = await self._store.stored_schedules(self._app, keys=[key])
        if not found:
            raise no_schedule(self._app, key)
        calendars = await load_calendars(self._store, self._app)
        is_on_every = found[0].definition.mode == "every-node"
        nodes = await self._store.nodes(self._app) if is_on_every else ()
        return current_schedule_of(found[0], await self._store.now(), calendars, nodes)

    def _settle(self, current: CurrentSchedule, reason: Reason, *, fresh: int = FRESH) -> Advance:
        """Settle the owed moments of a schedule whose rule and blackout stay."""
        changed = _ChangedSchedule(rule=current.rule, blackout=current.blackout)
        return self._settle_into(current, changed, reason, fresh=fresh)

    def _settle_edit(self, current: CurrentSchedule, rule: When, blackout: Calendar | None) -> Advance:
        """Settle the owed moments of the old definition, except those that a blackout holds.

        They stay held if the rule stays and the new blackout is closed too (a calendar may change during a blackout).
        If the edit ends the blackout, the newest of them runs.
        """
        stored, now = current.stored, current.time
        changed = _ChangedSchedule(rule=rule, blackout=blackout)
        is_behind = stored.fire_at is not None and stored.fire_at <= now and stored.pause is None
        if not is_behind or stored.definition.blackout is None:
            return self._settle_into(current, changed, Reason.EDITED)
        if blackout is not None and not blackout.permits(now):
            keeps = rule.text == stored.definition.when
            return self._settle_into(current, msgspec.structs.replace(changed, keeps_held=keeps), Reason.EDITED)
        # The old calendar is not known any more. If the next plan is far ahead, the blackout was closed.
        is_held = stored.at is None or stored.at > now + stored.definition.pace
        return self._settle_into(current, msgspec.structs.replace(changed, lets_go=is_held), Reason.EDITED)

    def _settle_into(
        self, current: CurrentSchedule, changed: _ChangedSchedule, reason: Reason, *, fresh: int = FRESH
    ) -> Advance:
        """Settle the owed moments of the old definition, with the cursor of the new one."""
        stored, now, rule, blackout = current.stored, current.time, changed.rule, changed.blackout
        fires: tuple[Fire, ...] = ()
        gaps: tuple[NewGap, ...] = ()
        fire_at: int | None = None
        at: int | None = None
        if changed.keeps_held:
            fire_at, at = stored.fire_at, None if blackout is None else blackout.next_open(now)
        elif current.rule is not None:
            inputs = apart(plan_inputs_of(stored, stored.definition, current.rule, blackout=current.blackout))
            fires, gaps = settle(inputs, now, reason, fresh=fresh, is_opened=changed.lets_go)
        settled = self._settle_decisions(current, changed, reason, cursor=fire_at, fresh=fresh, is_alone=not fires)
        if rule is not None and interval_from_end(rule) is None and not changed.keeps_held:
            rest = without_decided(rule, settled.occurrences)
            fire_at, at = cursor_after(rest, stored.key, now, self._clock.uniform, blackout)
        fires += settled.fires
        advance = Advance(
            schedule_id=stored.id,
            version=stored.version,
            fire_at=stored.fire_at,
            at=stored.at,
            live=stored.live if fires and guards_live(stored.definition) else None,
            runs=tuple(run_of(self._clock.new_id(), stored, stored.definition, fire) for fire in fires),
            gaps=gaps + settled.gaps,
            next_fire_at=fire_at,
            next_at=soonest(at, settled.occurrences),
            after_end=None if changed.keeps_held else interval_from_end(rule),
            replaces_live=bool(fires)
            and guards_live(stored.definition)
            and takes_place(stored.definition.overlap, stored.live, is_blocked=any(fire.is_blocked for fire in fires)),
            occurrences=None if settled.occurrences == stored.occurrences else settled.occurrences,
            fingerprint="" if rule is None else fingerprint_of(rule, blackout),
        )
        return fan_out(advance, stored.definition, current.nodes)

    def _settle_decisions(
        self,
        current: CurrentSchedule,
        changed: _ChangedSchedule,
        reason: Reason,
        *,
        cursor: int | None,
        fresh: int,
        is_alone: bool,
    ) -> Settled:
        stored, known = current.stored, current.rule or changed.rule
        if not stored.occurrences or known is None:
            return Settled(occurrences=stored.occurrences)
        rule = None if reason is Reason.REMOVED else changed.rule
        inputs = plan_inputs_of(stored, stored.definition, known)
        return settle_decisions(inputs, current.time, reason, rule=rule, cursor=cursor, fresh=fresh, is_alone=is_alone)


def _is_over(pause: Pause | None, now: int) -> bool:
    """Whether a pause is over that no plan has ended yet."""
    return pause is not None and pause.until is not None and pause.until <= now


def current_schedule_of(
    stored: StoredSchedule, time: int, calendars: Mapping[str, Calendar], nodes: Sequence[Node]
) -> CurrentSchedule:
    try:
        rule = rule_of(stored, calendars)
        blackout = blackout_of(stored, rule, calendars)
    except EvertickError:
        rule, blackout = None, None
    return CurrentSchedule(time=time, stored=stored, rule=rule, blackout=blackout, nodes=nodes)


def _advance_by_hand(current: CurrentSchedule, run: NewRun, as_if: RerunOverlap | None) -> Advance:
    """Add a run if overlap admits it. The cursor stays, unless it counts from the end of this run."""
    stored, overlap = current.stored, current.stored.definition.overlap
    is_guarded = guards_live(stored.definition)
    is_free = as_if == "allow" or not is_guarded
    # Behind all runs that are live at the write: the store finds the last one, if there is one.
    is_last = as_if == "queue" and overlap != "allow"
    admitted = "blocked" if is_last else "free" if is_free else admit(overlap, stored.live)
    if admitted is None:
        raise Refused(
            f"{stored.key!r} has a live run, and its overlap is {overlap!r}",
            setting="overlap",
            value=overlap,
            fix="pass overlap='queue' to run it after that one, or overlap='allow' to run it beside it"
            if run.cause is Cause.RERUN
            else "wait until that run has ended, or cancel it",
        )
    is_blocked = admitted == "blocked"
    guarded_run = msgspec.structs.replace(
        run,
        schedule_id=stored.id,
        version=stored.version,
        state=State.BLOCKED if is_blocked else State.WAITING,
        **_unique_of(stored, run, as_if),
    )
    # A rule that counts from the end of a run counts from this one; an owed moment stays owed.
    is_owed = stored.fire_at is not None and stored.fire_at <= current.time
    after_end = None if is_owed or stored.pause is not None else interval_from_end(current.rule)
    return Advance(
        schedule_id=stored.id,
        version=stored.version,
        fire_at=stored.fire_at,
        at=stored.at,
        live=None if is_free or is_last else stored.live,
        runs=(guarded_run,),
        next_fire_at=stored.fire_at if after_end is None else None,
        next_at=stored.at if after_end is None else None,
        after_end=after_end,
        replaces_live=as_if is None and is_guarded and takes_place(overlap, stored.live, is_blocked=is_blocked),
        fingerprint=stored.fingerprint,
    )


def _unique_of(stored: StoredSchedule, run: NewRun, as_if: RerunOverlap | None) -> dict[str, Any]:
    """The unique key of a manual run: that of its schedule, or that of its node."""
    definition = stored.definition
    if definition.mode == "every-node":
        is_minded = is_own_queue(run.queue) and as_if is None
        return {"unique_key": unique_key_on(node_of_queue(run.queue), stored.id, definition) if is_minded else None}
    return {
        "unique_key": definition.unique,
        "unique_until": definition.unique_until,
        "unique_for": definition.unique_for,
    }


def _key_taken(key: str, definition: Definition) -> Refused:
    problem = f"another run has the unique key {definition.unique!r} of {key!r}"
    if definition.mode == "every-node":
        problem = f"{key!r} has a live run there, and its overlap is {definition.overlap!r}"
    return Refused(problem, setting="unique", fix="wait until that run has ended, or cancel it")


def soonest(at: int | None, occurrences: tuple[Occurrence, ...]) -> int | None:
    """When to plan a schedule: at the due time of its cursor, or of an earlier override."""
    times = [time_of(each) for each in pending(occurrences)[:1]]
    return min([*times, *([] if at is None else [at])], default=None)


def _is_current(stored: StoredSchedule, calendars: dict[str, Calendar]) -> bool:
    """Whether the schedule still has its fingerprint. True if it cannot be read."""
    try:
        rule = rule_of(stored, calendars)
        return fingerprint_of(rule, blackout_of(stored, rule, calendars)) == stored.fingerprint
    except InvalidInput:
        return True


def _is_known_rule(stored: StoredSchedule, rule: When) -> bool:
    """Whether the rule is the stored or the declared one, which was checked when it was written."""
    declared = None if stored.declared is None else stored.declared.definition.when
    return rule.text in (stored.definition.when, declared)


def _declaring(declared: DeclaredBy | None, definition: Definition) -> DeclaredBy | None:
    """The declaration with the stored definition: later differences are overrides."""
    return None if declared is None else msgspec.structs.replace(declared, definition=definition)


def interval_from_end(rule: When | None) -> int | None:
    return rule.interval_us if isinstance(rule, Every) and rule.is_after_end else None


def no_schedule(app: str, key: str) -> NotFound:
    return NotFound(
        f"there is no schedule {key!r} in app {app!r}",
        setting="key",
        value=key,
        fix="`evertick list` shows all schedules",
    )


def never_settles(key: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"schedule {key!r}: {ROUNDS_MAX} concurrent changes", setting="key", value=key, fix="try again"
    )
