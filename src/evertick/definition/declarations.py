"""Schedules declared in code or in a configuration, and how they are stored.

A start compares a hash per declaration. An equal hash writes nothing; cursor and pause stay. A changed hash is an edit.
Fields edited at run time stay in force, shown as overrides, until the code changes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from evertick.errors import AlreadyDeclared, InvalidWhen
from evertick.ledger.editor import ROUNDS_MAX, Addition, Editor, never_settles
from evertick.model import Definition
from evertick.store.base import DeclaredBy, Source, Store, StoredSchedule
from evertick.when import Calendar, When, parse_when

__all__ = [
    "Declaration",
    "Declarations",
    "addition_of",
    "calling_place",
    "declared_by",
    "is_otherwise",
    "rule_to_store",
]

log = logging.getLogger("evertick.declare")


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A declared schedule. Its rule is bound when it is stored."""

    key: str
    rule: When
    definition: Definition
    place: str
    # The zone of a rule that names none.
    tz: str = "UTC"
    # The calendar of its blackout, unless the code gives only its name.
    blackout: Calendar | None = None
    # Its origin: the code of a program, or the file of a configuration.
    source: Source = "code"

    @property
    def rule_text(self) -> str:
        """The rule as written, with its zone; a declaration with the same text has the same rule."""
        return self.rule.text if self.rule.is_zone_given else f"{self.rule.text}; default tz={self.tz}"

    @property
    def hash(self) -> str:
        calendars = ["" if each is None else each.version for each in (self.rule.calendar, self.blackout)]
        content = [self.rule_text, *calendars, msgspec.to_builtins(self.definition)]
        return blake2b(msgspec.json.encode(content, order="sorted"), digest_size=8).hexdigest()


class Declarations:
    """All schedules that this process declares."""

    def __init__(self) -> None:
        self._by_key: dict[str, Declaration] = {}

    def __iter__(self) -> Iterator[Declaration]:
        return iter(self._by_key.values())

    def add(self, declaration: Declaration) -> None:
        known = self._by_key.get(declaration.key)
        if known is not None:
            raise AlreadyDeclared(
                f"schedule {declaration.key!r} is declared twice: at {known.place} and at {declaration.place}",
                setting="key",
                value=repr(declaration.key),
                fix="give one of them another key=",
            )
        self._by_key[declaration.key] = declaration

    def without_file(self) -> Declarations:
        """The declarations of the code only."""
        own = Declarations()
        for each in self:
            if each.source == "code":
                own.add(each)
        return own

    def hashes(self) -> dict[str, str]:
        return {key: declaration.hash for key, declaration in self._by_key.items()}

    async def store_all(self, store: Store, app: str, editor: Editor, node_name: str) -> None:
        """Store all declarations: add, edit and resume schedules as needed."""
        if not self._by_key:
            return
        await self._check_calendars(store, app)
        left = dict(self._by_key)
        for _ in range(ROUNDS_MAX):
            stored = {each.key: each for each in await store.stored_schedules(app, keys=list(left))}
            new = [addition_of(each, node_name) for key, each in left.items() if key not in stored]
            taken = await editor.add(new) if new else []
            await self._put_calendars(stored.values(), editor)
            for key, found in stored.items():
                await self._meet(left[key], found, editor, node_name)
            # Another node added these meanwhile, so the declaration becomes an edit.
            left = {added.key: left[added.key] for added, is_ours in zip(new, taken, strict=True) if not is_ours}
            if not left:
                return
        raise never_settles(next(iter(left)))

    async def _check_calendars(self, store: Store, app: str) -> None:
        """Reject unknown calendars before any write, with the place that names them."""
        given = {
            each.name
            for declaration in self
            for each in (declaration.rule.calendar, declaration.blackout)
            if each is not None
        }
        named = [
            (declaration, name)
            for declaration in self
            for name in (declaration.rule.bounds.calendar, declaration.definition.blackout)
        ]
        wanted = [(declaration, name) for declaration, name in named if name is not None and name not in given]
        kept = await store.calendars(app) if wanted else {}
        for declaration, name in wanted:
            if name not in kept:
                where = f"{declaration.place}: schedule {declaration.key!r}"
                problem = f"{where}: calendar {name!r} is not defined"
                raise InvalidWhen(problem, value=repr(name), fix="define it first")

    async def _put_calendars(self, stored: Iterable[StoredSchedule], editor: Editor) -> None:
        """Store the calendars of changed declarations, once each, since an edit may keep its rule."""
        changed = [new for each in stored if is_otherwise(new := self._by_key[each.key], each)]
        given = [each for new in changed for each in (new.rule.calendar, new.blackout) if each is not None]
        for calendar in {each.name: each for each in given}.values():
            await editor.put_calendar(calendar)

    async def _meet(self, declaration: Declaration, found: StoredSchedule, editor: Editor, node_name: str) -> None:
        if is_otherwise(declaration, found):
            source = "code" if declaration.source == "code" else "configuration"
            log.info("schedule %r: updated to the %s at %s", found.key, source, declaration.place)
            await editor.edit(
                found.key,
                lambda _: declaration.definition,
                rule=rule_to_store(declaration, found),
                declared=declared_by(declaration, node_name),
                blackout=declaration.blackout,
            )
        if found.pause is not None and found.pause.is_undeclared:
            log.info("schedule %r: declared again; resumed", found.key)
            await editor.resume(found.key)


def is_otherwise(declaration: Declaration, found: StoredSchedule) -> bool:
    """Whether the stored schedule is from another declaration, or from none."""
    return found.declared is None or found.declared.hash != declaration.hash


def rule_to_store(declaration: Declaration, found: StoredSchedule) -> When:
    """The rule. An unchanged rule keeps its anchor, so that changing a priority does not restart a delay."""
    if found.declared is not None and found.declared.rule == declaration.rule_text:
        return parse_when(found.declared.definition.when)
    return declaration.rule


def declared_by(declaration: Declaration, node_name: str) -> DeclaredBy:
    return DeclaredBy(
        node_name=node_name,
        hash=declaration.hash,
        rule=declaration.rule_text,
        definition=declaration.definition,
        source=declaration.source,
    )


def addition_of(declaration: Declaration, node_name: str) -> Addition:
    return Addition(
        key=declaration.key,
        rule=declaration.rule,
        definition=declaration.definition,
        declared=declared_by(declaration, node_name),
        blackout=declaration.blackout,
    )


def calling_place(depth: int) -> str:
    """File and line of the code that called, `depth` frames above the caller of this function."""
    frame = sys._getframe(depth + 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
