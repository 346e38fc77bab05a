"""The changes that all declarations together make in the ledger: planned first, then written in one step.

A node that starts brings the ledger in line with what it declares by itself. This is for people who want to see the
plan first, and for schedules that are declared no more, which a node only pauses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from evertick.aio.cooperative import in_turns
from evertick.definition.declarations import (
    Declaration,
    Declarations,
    addition_of,
    declared_by,
    is_otherwise,
    rule_to_store,
)
from evertick.engine.node import declarer_of
from evertick.ledger.atomic_edit import BatchEditor, Edit, Halt, ScheduleBatch
from evertick.ledger.editor import undeclared_note
from evertick.ledger.parsed_rules import blackout_named, load_calendars, rule_of
from evertick.operations.change_preview import (
    ScheduleSnapshot,
    checked_days,
    looked_at,
    notes_of_rule,
    plan_edit,
    plan_stop,
)
from evertick.operations.context import Context
from evertick.plan.allowed_rules import check_rule
from evertick.plan.change_preview import ChangePlan, Side, plan_change
from evertick.store.base import Store, StoredSchedule
from evertick.store.rows import overrides_of
from evertick.when import Calendar, to_us

__all__ = ["DeclaredPlan", "apply_declared", "plan_declared"]

_USERS_MOST = 10_000


class DeclaredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes, one plan for each schedule, by key."""

    adds: tuple[ChangePlan, ...] = ()
    # Also those that a changed calendar moves, and those that are resumed.
    changes: tuple[ChangePlan, ...] = ()
    pauses: tuple[ChangePlan, ...] = ()
    removes: tuple[ChangePlan, ...] = ()
    # Keys of those that are as they are declared.
    unchanged: tuple[str, ...] = ()
    # Keys of those that a configuration of these nodes declared and does no more; they stay unless they are pruned.
    left: tuple[str, ...] = ()
    # By key, those of them that live nodes declare all the same, and the names of these nodes: one for each of them.
    # A node may go by the same file and not have read it yet, or by another file.
    living: dict[str, tuple[str, ...]] = {}
    # By key, the options that were changed by hand since it was declared: they stay so, unless they are taken back.
    edited: dict[str, tuple[str, ...]] = {}
    # Names of the calendars that are new or changed.
    calendars: tuple[str, ...] = ()
    # The changes themselves.
    together: ScheduleBatch = ScheduleBatch()

    @property
    def is_empty(self) -> bool:
        return self.together.is_empty

    @property
    def plans(self) -> tuple[ChangePlan, ...]:
        return (*self.adds, *self.changes, *self.pauses, *self.removes)

    def words(self) -> str:
        """In one sentence: "schedules: 2 added, 1 changed, 5 unchanged; fires: 28 added, 14 moved"."""
        counts = [
            f"{len(those):,} {verb}"
            for those, verb in (
                (self.adds, "added"),
                (self.changes, "changed"),
                (self.pauses, "paused"),
                (self.removes, "removed"),
                (self.unchanged, "unchanged"),
            )
            if those
        ]
        fires = [
            f"{count:,} {verb}"
            for count, verb in (
                (sum(_added(plan) for plan in self.plans), "added"),
                (sum(len(plan.moves) for plan in self.plans), "moved"),
                (sum(_removed(plan) for plan in self.plans), "removed"),
            )
            if count
        ]
        # Where rules that fire too often to be listed are compared, so many are at least meant.
        least = "" if all(_is_counted(plan) for plan in self.plans) else "at least "
        changed = f"; fires: {least}{', '.join(fires)}" if fires else ""
        return f"schedules: {', '.join(counts) or 'none'}{changed}"


def _added(plan: ChangePlan) -> int:
    """Where nothing fired before, each is new: they are counted, however few of them are listed."""
    return len(plan.adds) if plan.fires_old else plan.fires_new


def _removed(plan: ChangePlan) -> int:
    return len(plan.removes) if plan.fires_new else plan.fires_old


def _is_counted(plan: ChangePlan) -> bool:
    return plan.is_complete or not (plan.fires_old and plan.fires_new)


async def plan_declared(
    context: Context,
    *,
    declarations: Declarations | None = None,
    tz: str | None = None,
    disabled: Collection[str] = (),
    dropped: Collection[str] = (),
    own_node: str = "",
    calendars: Mapping[str, Calendar] | None = None,
    prune: bool = False,
    take_back: bool = False,
    days: int = 14,
) -> DeclaredPlan:
    """The plan. Nothing is written.

    `declarations` in place of those that are here, and `tz` in place of the zone of rules that name none.
    `disabled`: keys that are known and not declared for now. `dropped`: those that the node with the id `own_node`
    has declared and is about to declare no more; they are paused unless another live node declares them.
    `calendars`: those to be kept besides the ones that the rules bring. With `prune`, what a configuration of the
    same nodes has declared and does no more is removed; with `take_back`, changes by hand are
    taken back.
    """
    declared = context.declarations if declarations is None else declarations
    planning = _Planning(
        app=context.app,
        tz=tz or context.settings.tz,
        declarer=declarer_of(context.settings.node_name),
        declarations={each.key: each for each in declared},
        disabled=frozenset(disabled),
        dropped=frozenset(dropped),
        own_node=own_node,
        undoes_run=take_back,
        last=checked_days(days),
    )
    return await planning.plan(context.store, calendars or {}, prune)


async def apply_declared(context: Context, plan: DeclaredPlan, *, tz: str | None = None) -> None:
    """Make the changes of a plan, all of them or none. `tz` as it was planned with."""
    if plan.is_empty:
        return
    zone, limits = tz or context.settings.tz, context.settings.schedule_limits
    editor = BatchEditor(context.store, context.app, context.clock, zone, limits)
    await editor.change_together(plan.together)
    context.wake_fires()


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger as it stands, as far as it matters."""

    now: int
    # As they are kept, and as they would be.
    before: dict[str, Calendar]
    after: dict[str, Calendar]
    # By key, what is declared; and what was, and is no more.
    stored: dict[str, StoredSchedule]
    gone: list[StoredSchedule]
    # By key of what is declared no more, the names of the live nodes that declare it all the same.
    living: dict[str, tuple[str, ...]]
    # All that go by a calendar that changes.
    users: list[StoredSchedule]

    def looked(self, stored: StoredSchedule) -> ScheduleSnapshot:
        return looked_at(stored, self.before, self.now)


class _Planning(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations, compared with the ledger."""

    app: str
    tz: str
    declarer: str
    declarations: dict[str, Declaration]
    disabled: frozenset[str]
    dropped: frozenset[str]
    own_node: str
    undoes_run: bool
    last: int

    async def plan(self, store: Store, more: Mapping[str, Calendar], prune: bool) -> DeclaredPlan:
        found = await self._find(store, more)
        halted = [each for each in found.gone if each.pause is None and self._halts(each.key, found)]
        others = [each for each in found.gone if each.key not in self.disabled]
        removed = others if prune else []
        added = [each for key, each in sorted(self.declarations.items()) if key not in found.stored]
        edits = await self._edits(found, {each.key for each in [*halted, *removed]})
        edited = {each.key: each for each in [*found.stored.values(), *found.users] if each.key in edits}
        new = [each for name, each in found.after.items() if found.before.get(name) != each]
        return DeclaredPlan(
            adds=tuple(await in_turns(added, lambda each: self._plan_add(each, found))),
            changes=tuple(await in_turns(edits.values(), lambda edit: self._plan_edit(edited[edit.key], edit, found))),
            pauses=tuple(plan_stop(found.looked(each), "pause", None, self.last) for each in halted),
            removes=tuple(self._plan_prune(found.looked(each)) for each in removed),
            unchanged=tuple(sorted(found.stored.keys() - edits.keys())),
            left=() if prune else tuple(each.key for each in others),
            living={each.key: found.living[each.key] for each in others if each.key in found.living},
            edited=await self._overridden([each for key, each in sorted(found.stored.items()) if key not in edits]),
            calendars=tuple(sorted(each.name for each in new)),
            together=ScheduleBatch(
                additions=tuple(addition_of(each, self.declarer) for each in added),
                edits=tuple(edits.values()),
                halts=tuple(self._halt(each.key) for each in halted),
                removals=tuple(each.key for each in removed),
                calendars=tuple(new),
                versions={each.key: (each.id, each.version) for each in [*edited.values(), *halted, *removed]},
            ),
        )

    def _halts(self, key: str, found: _Found) -> bool:
        return key not in found.living if key in self.dropped else key in self.disabled

    def _halt(self, key: str) -> Halt:
        if key not in self.disabled:
            return Halt(key=key, note=undeclared_note(self.declarer, "file"))
        note = f"disabled in the configuration of {self.declarer}; enable it there to resume it"
        return Halt(key=key, note=note, is_disabled=True)

    async def _find(self, store: Store, more: Mapping[str, Calendar]) -> _Found:
        before = await load_calendars(store, self.app)
        after = before | self._calendars(more)
        changed = [name for name, each in after.items() if before.get(name) != each]
        keys = list(self.declarations)
        stored = await store.stored_schedules(self.app, keys=keys) if keys else []
        gone, now = await self._gone(store), await store.now()
        return _Found(
            before=before,
            after=after,
            stored={each.key: each for each in stored},
            gone=gone,
            living=await self._living(store, gone, now),
            users=await self._users(store, changed),
            now=now,
        )

    def _calendars(self, more: Mapping[str, Calendar]) -> dict[str, Calendar]:
        given = [
            each for declared in self.declarations.values() for each in (declared.rule.calendar, declared.blackout)
        ]
        return dict(more) | {each.name: each for each in given if each is not None}

    async def _gone(self, store: Store) -> list[StoredSchedule]:
        """Those that a configuration has declared and does no more. Never those of code, or made by hand."""
        found = [
            each
            for each in await store.declared_schedules(self.app)
            if each.declared is not None
            and each.declared.source == "file"
            and each.declared.node_name == self.declarer
            and each.key not in self.declarations
        ]
        return sorted(found, key=lambda each: each.key)

    async def _living(self, store: Store, gone: Sequence[StoredSchedule], now: int) -> dict[str, tuple[str, ...]]:
        nodes = await store.nodes(self.app) if gone else []
        # One that was killed stands there until another node sees to it, for ever if there is none: its lease tells.
        living = [
            node
            for node in nodes
            if node.died_at is None and to_us(node.lease_until) >= now and node.id != self.own_node
        ]
        names = {each.key: tuple(sorted(node.name for node in living if each.key in node.declares)) for each in gone}
        return {key: those for key, those in names.items() if those}

    async def _users(self, store: Store, changed: Sequence[str]) -> list[StoredSchedule]:
        keys = {key for name in changed for key in await store.calendar_users(self.app, name, limit=_USERS_MOST)}
        return await store.stored_schedules(self.app, keys=sorted(keys)) if keys else []

    async def _edits(self, found: _Found, leaving: Collection[str]) -> dict[str, Edit]:
        """By key, those that are declared otherwise than stored; and the users of a calendar that changes."""
        stored = [found.stored[key] for key in sorted(found.stored)]
        declared = await in_turns(stored, lambda each: self._edit(self.declarations[each.key], each))
        edits = {edit.key: edit for edit in declared if edit is not None}
        for each in found.users:
            if each.key not in edits and each.key not in leaving:
                edits[each.key] = Edit(key=each.key, definition=each.definition)
        return edits

    async def _overridden(self, stored: Sequence[StoredSchedule]) -> dict[str, tuple[str, ...]]:
        names = await in_turns(stored, overrides_of)
        return {each.key: found for each, found in zip(stored, names, strict=True) if found}

    def _edit(self, declaration: Declaration, found: StoredSchedule) -> Edit | None:
        resumes = found.pause is not None and found.pause.is_undeclared
        is_taken_back = self.undoes_run and bool(overrides_of(found))
        is_same = not is_otherwise(declaration, found) and self._is_ours(declaration, found)
        if is_same and not resumes and not is_taken_back:
            return None
        return Edit(
            key=found.key,
            definition=declaration.definition,
            rule=rule_to_store(declaration, found),
            declared=declared_by(declaration, self.declarer),
            resumes=resumes,
        )

    def _is_ours(self, declaration: Declaration, found: StoredSchedule) -> bool:
        """Whether it stands as one of this source and of these nodes, who may remove it one day."""
        by = found.declared
        return by is not None and (by.node_name, by.source) == (self.declarer, declaration.source)

    def _plan_add(self, declaration: Declaration, found: _Found) -> ChangePlan:
        key, definition, now = declaration.key, declaration.definition, found.now
        check_rule(definition, declaration.rule)
        rule = declaration.rule.bind(key=key, created=now, tz=self.tz, calendars=found.after)
        blackout = blackout_named(definition.blackout, key, rule, found.after)
        new = Side(rule=rule, left=rule.bounds.max_fires, blackout=blackout)
        notes = notes_of_rule(rule, definition)
        return plan_change(key, "add", Side(rule=None), new, since=now, until=now + self.last, notes=notes)

    def _plan_edit(self, stored: StoredSchedule, edit: Edit, found: _Found) -> ChangePlan:
        now, calendars = found.looked(stored), found.after
        if edit.rule is None:
            return plan_edit(now, "calendar", rule_of(stored, calendars), stored.definition, self.last, calendars)
        rule = edit.rule.bind(key=stored.key, created=now.time, tz=self.tz, calendars=calendars)
        if not edit.resumes:
            return plan_edit(now, "update", rule, edit.definition, self.last, calendars)
        # While it is paused nothing fires.
        paused = msgspec.structs.replace(now, rule=None, stored=msgspec.structs.replace(stored, pause=None))
        plan = plan_edit(paused, "update", rule, edit.definition, self.last, calendars)
        return msgspec.structs.replace(plan, when_old="paused, since it was not declared")

    def _plan_prune(self, now: ScheduleSnapshot) -> ChangePlan:
        pause = now.stored.pause
        if now.rule is None or pause is None or pause.until is not None:
            return _pruned(plan_stop(now, "remove", None, self.last))
        # A pause without an end leaves no fires that could go.
        silent = msgspec.structs.replace(now, rule=None, stored=msgspec.structs.replace(now.stored, pause=None))
        plan = _pruned(plan_stop(silent, "remove", None, self.last))
        return msgspec.structs.replace(plan, when_old=f"{now.rule.text}, paused")


def _pruned(plan: ChangePlan) -> ChangePlan:
    """Without the advice that such a schedule cannot be removed by hand: this is the way."""
    return msgspec.structs.replace(
        plan, notes=tuple(note for note in plan.notes if "removing it is refused" not in note)
    )
