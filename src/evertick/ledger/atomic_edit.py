"""Applies many changes to schedules in one transaction, for example those of a configuration file.

The user has reviewed the plan of the changes, so each schedule must still have the version from which the plan was
made. If only its cursor has moved, the changes are computed again from there. Calendars are part of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from evertick.aio.cooperative import in_turns
from evertick.errors import Refused
from evertick.ledger.editor import ROUNDS_MAX, Addition, CurrentSchedule, Editor, current_schedule_of, never_settles
from evertick.ledger.parsed_rules import load_calendars
from evertick.model import Definition, Pause
from evertick.store.base import Change, DeclaredBy, NewCalendar, StoredSchedule
from evertick.when import Calendar, When

__all__ = ["BatchEditor", "Edit", "Halt", "ScheduleBatch", "Version"]

Version = tuple[int, int]
_REVIEW = "review the plan again"


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """The new definition of a schedule. Without a rule, the old rule stays with its anchor."""

    key: str
    definition: Definition
    rule: When | None = None
    declared: DeclaredBy | None = None
    # Whether the edit ends a pause.
    resumes: bool = False


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to pause until it is declared again."""

    key: str
    note: str
    is_disabled: bool = False


class ScheduleBatch(msgspec.Struct, frozen=True, kw_only=True):
    """All changes, and the versions from which they were planned."""

    additions: tuple[Addition, ...] = ()
    edits: tuple[Edit, ...] = ()
    halts: tuple[Halt, ...] = ()
    removals: tuple[str, ...] = ()
    # New and changed calendars; the schedules that use them are among the edits.
    calendars: tuple[Calendar, ...] = ()
    # By key, the id and version of each changed schedule, as it was read.
    versions: dict[str, Version] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.additions or self.edits or self.halts or self.removals or self.calendars)


class BatchEditor(Editor):
    """Changes many schedules of one app in one transaction."""

    async def change_together(self, wanted: ScheduleBatch) -> None:
        """Apply all changes, or none. Raises Refused if a schedule has changed since they were planned."""
        rules = {edit.key: edit.rule for edit in wanted.edits if edit.rule is not None and edit.declared is not None}
        await self._check_limits({added.key: added.rule for added in wanted.additions} | rules)
        calendars = [
            NewCalendar(name=each.name, version=each.version, content=each.to_json().encode())
            for each in wanted.calendars
        ]
        for _ in range(ROUNDS_MAX):
            changes = await self._changes(wanted)
            taken = await self._store.change_schedules(self._app, changes, all_or_none=True, calendars=calendars)
            if all(taken):
                return
            _refuse_taken(changes, taken)
        raise never_settles(changes[taken.index(False)].key)

    async def _changes(self, wanted: ScheduleBatch) -> list[Change]:
        own = {each.name: each for each in wanted.calendars}
        before = await load_calendars(self._store, self._app)
        after = before | own
        found = {each.key: each for each in await self._read(wanted)}
        nodes = await self._store.nodes(self._app) if any(_is_on_every(each) for each in found.values()) else ()
        time = await self._store.now()
        now = {
            key: current_schedule_of(each, time, before, nodes if _is_on_every(each) else ())
            for key, each in found.items()
        }
        return [
            *(self._removing(now[key]) for key in wanted.removals),
            *(self._halting(now[halt.key], halt) for halt in wanted.halts),
            *await in_turns(wanted.edits, lambda edit: self._edit(now[edit.key], edit, after)),
            *await in_turns(wanted.additions, lambda added: self._adding(added, time, after)),
        ]

    async def _read(self, wanted: ScheduleBatch) -> list[StoredSchedule]:
        """The schedules to change. Raises Refused if one has another version than in the plan."""
        keys = list(wanted.versions)
        found = await self._store.stored_schedules(self._app, keys=keys) if keys else []
        versions = {each.key: (each.id, each.version) for each in found}
        for key, version in wanted.versions.items():
            if versions.get(key) != version:
                what = "was changed" if key in versions else "was removed"
                raise Refused(f"schedule {key!r} {what} since the plan was made: nothing was applied", fix=_REVIEW)
        return found

    def _edit(self, current: CurrentSchedule, edit: Edit, calendars: Mapping[str, Calendar]) -> Change:
        return self._editing(
            current,
            lambda _: edit.definition,
            calendars,
            rule=edit.rule,
            declared=edit.declared,
            resumes=edit.resumes,
        )

    def _halting(self, current: CurrentSchedule, halt: Halt) -> Change:
        pause = Pause(at=current.time, note=halt.note, is_undeclared=True, is_disabled=halt.is_disabled)
        return self._pausing(current, pause)


def _is_on_every(stored: StoredSchedule) -> bool:
    return stored.definition.mode == "every-node"


def _refuse_taken(changes: Sequence[Change], taken: Sequence[bool]) -> None:
    """Raise Refused if a key of an addition is taken; the next round checks the other changes."""
    for change, is_taken in zip(changes, taken, strict=True):
        if change.kind == "add" and not is_taken:
            raise Refused(
                f"schedule {change.key!r} was added since the plan was made: nothing was applied", fix=_REVIEW
            )
