"""Schedules declared in code, and how they meet what is stored.

Starting compares a hash per declaration. Equal: nothing is written, cursor and pause stay. Changed: an edit like any
other. What was edited at run time stays in force, shown as an override, until the code changes.
"""

from __future__ import annotations

import logging
import sys
from hashlib import blake2b

import msgspec

from evertick.edit import Addition, Editor
from evertick.errors import AlreadyDeclared
from evertick.model import Definition
from evertick.store.base import DeclaredBy, Store, StoredSchedule
from evertick.when import Calendar, When, parse_when

__all__ = ["Declaration", "Declarations", "calling_place"]

log = logging.getLogger("evertick.declare")


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the code says it. The rule is not bound yet: that happens when it is stored."""

    key: str
    rule: When
    definition: Definition
    place: str
    # The zone of a rule that names none.
    tz: str = "UTC"
    # The blackout, where the code gives a calendar and not only the name of one.
    blackout: Calendar | None = None

    @property
    def rule_text(self) -> str:
        """The rule as written, with the zone it means: what decides whether it is still the same rule."""
        return self.rule.text if self.rule.is_zone_given else f"{self.rule.text}; default tz={self.tz}"

    @property
    def hash(self) -> str:
        calendars = ["" if each is None else each.version for each in (self.rule.calendar, self.blackout)]
        said = [self.rule_text, *calendars, msgspec.to_builtins(self.definition)]
        return blake2b(msgspec.json.encode(said, order="sorted"), digest_size=8).hexdigest()


class Declarations:
    """All schedules that this process declares."""

    def __init__(self) -> None:
        self._by_key: dict[str, Declaration] = {}

    def add(self, declaration: Declaration) -> None:
        known = self._by_key.get(declaration.key)
        if known is not None:
            raise AlreadyDeclared(
                f"schedule {declaration.key!r} is declared twice: at {known.place} and at {declaration.place}; "
                "give one of them another key="
            )
        self._by_key[declaration.key] = declaration

    def hashes(self) -> dict[str, str]:
        return {key: declaration.hash for key, declaration in self._by_key.items()}

    async def store_all(self, store: Store, app: str, editor: Editor, node_name: str) -> None:
        """Bring what is stored in line with the code."""
        if not self._by_key:
            return
        stored = {each.key: each for each in await store.stored_schedules(app, keys=list(self._by_key))}
        new = [self._addition(each, node_name) for key, each in self._by_key.items() if key not in stored]
        if new:
            await editor.add(new)
        for key, found in stored.items():
            await self._meet(self._by_key[key], found, editor, node_name)

    async def _meet(self, declaration: Declaration, found: StoredSchedule, editor: Editor, node_name: str) -> None:
        declared = self._addition(declaration, node_name).declared
        if found.declared is None or found.declared.hash != declaration.hash:
            log.info("schedule %r was stored otherwise: it is now as the code at %s says", found.key, declaration.place)
            if declaration.rule.calendar is not None:
                await editor.put_calendar(declaration.rule.calendar)
            # The same rule stays anchored where it was: a delay that has passed must not begin anew because a priority
            # was changed.
            rule = declaration.rule
            if found.declared is not None and found.declared.rule == declaration.rule_text:
                rule = parse_when(found.declared.definition.when)
            await editor.edit(
                found.key,
                lambda _: declaration.definition,
                rule=rule,
                declared=declared,
                blackout=declaration.blackout,
            )
        if found.pause is not None and found.pause.is_undeclared:
            log.info("schedule %r is declared again: resumed", found.key)
            await editor.resume(found.key)

    def _addition(self, declaration: Declaration, node_name: str) -> Addition:
        definition = declaration.definition
        declared = DeclaredBy(
            node_name=node_name, hash=declaration.hash, rule=declaration.rule_text, definition=definition
        )
        return Addition(
            key=declaration.key,
            rule=declaration.rule,
            definition=definition,
            declared=declared,
            blackout=declaration.blackout,
        )


def calling_place(depth: int) -> str:
    """File and line of the code that called, `depth` frames above the caller of this function."""
    frame = sys._getframe(depth + 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
