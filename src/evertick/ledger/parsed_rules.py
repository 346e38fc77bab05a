"""A cache of parsed definitions and their rules, by text.

A text has the same meaning in all schedules, so entries are never stale, and equal definitions are parsed once. Two
kinds are cached by (schedule, version) instead: definitions with a calendar, whose change raises the version, and those
whose rule is not bound.

The cache is bounded, since a store may have a million different schedules. Parsing a definition with a known rule takes
3 us; a new rule 9 us (interval) to 22 us (cron), or 4 us if only its start is new (when/family.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from evertick.aio.cooperative import in_turns
from evertick.errors import EvertickError, InvalidWhen
from evertick.model import Definition
from evertick.plan.overlap import guards_live
from evertick.store.base import DueSchedule, Store, StoredSchedule
from evertick.when import Calendar, When, parse_when
from evertick.when.family import Families
from evertick.when.zone import zone_fingerprint

__all__ = [
    "KnownDefinition",
    "Rules",
    "blackout_named",
    "blackout_of",
    "fingerprint_of",
    "load_calendars",
    "rule_in_force",
    "rule_of",
]

_KNOWN_MAX = 10_000
_RULES_MAX = 30_000

_definitions = msgspec.json.Decoder(Definition)


class KnownDefinition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A parsed definition with its rule, or with the error."""

    definition: Definition
    # As JSON, for runs.
    args: bytes
    rule: When | None = None
    blackout: Calendar | None = None
    # See `fingerprint_of`.
    fingerprint: str = ""
    # `overlap.guards_live`, cached because each fire needs it.
    guards_live: bool = False
    error: str | None = None


async def load_calendars(store: Store, app: str) -> dict[str, Calendar]:
    return {name: Calendar.from_json(content) for name, content in (await store.calendars(app)).items()}


async def rule_in_force(store: Store, app: str, key: str) -> When | None:
    """The rule of a schedule; None if it has none or it cannot be read."""
    for stored in await store.stored_schedules(app, keys=[key]):
        try:
            return rule_of(stored, await load_calendars(store, app))
        except EvertickError:
            return None
    return None


def rule_of(stored: StoredSchedule, calendars: Mapping[str, Calendar]) -> When:
    """The bound rule of a stored schedule."""
    rule = parse_when(stored.definition.when, calendars)
    return rule.bind(key=stored.key, created=stored.created_at, calendars=calendars)


def blackout_of(stored: StoredSchedule, rule: When, calendars: Mapping[str, Calendar]) -> Calendar | None:
    """The calendar of the schedule's blackout, in the zone of its rule."""
    return blackout_named(stored.definition.blackout, stored.key, rule, calendars)


def blackout_named(name: str | None, key: str, rule: When, calendars: Mapping[str, Calendar]) -> Calendar | None:
    if name is None:
        return None
    if name not in calendars:
        problem = f"the blackout {name!r} of {key!r} is a calendar that is not defined"
        raise InvalidWhen(problem, value=repr(name), fix="define it first")
    return calendars[name].in_zone(rule.zone)


def fingerprint_of(rule: When, blackout: Calendar | None) -> str:
    """A hash of the inputs of a cursor: zone rules, the calendar of the rule, the blackout."""
    if blackout is None:
        return rule.fingerprint
    zone = blackout.zone.key
    parts = f"{rule.fingerprint} {zone}={zone_fingerprint(zone)} {blackout.name}={blackout.version}"
    return blake2b(parts.encode(), digest_size=8).hexdigest()


class Rules:
    """The cache of a node."""

    def __init__(self, store: Store, app: str) -> None:
        self._store = store
        self._app = app
        self._known: dict[str | tuple[int, int], KnownDefinition] = {}
        # Complete rules by their text: different definitions mostly share a few rules.
        self._rules: dict[str, When] = {}
        self._families = Families()

    async def of(self, due: list[DueSchedule]) -> dict[int, KnownDefinition]:
        """The parsed definitions of these schedules, by id, without those that cannot be read."""
        found: dict[int, KnownDefinition] = {}
        new: list[DueSchedule] = []
        for row in due:
            known = self._known.get(row.definition) or self._known.get((row.id, row.version))
            if known is None:
                new.append(row)
            else:
                found[row.id] = known
        return found | await self._learn(new) if new else found

    async def _learn(self, rows: list[DueSchedule]) -> dict[int, KnownDefinition]:
        readable = [(row, definition) for row in rows if (definition := _read(row.definition)) is not None]
        needs_calendars = any(_names_calendar(definition) for _, definition in readable)
        calendars = await load_calendars(self._store, self._app) if needs_calendars else {}
        if len(self._known) + len(readable) > _KNOWN_MAX:
            self._known.clear()
        if len(self._rules) > _RULES_MAX:
            self._rules.clear()
        learned = await in_turns(readable, lambda new: self._remember(*new, calendars))
        return {row.id: known for (row, _), known in zip(readable, learned, strict=True)}

    def _remember(self, row: DueSchedule, definition: Definition, calendars: dict[str, Calendar]) -> KnownDefinition:
        # Several new schedules may have equal definitions.
        known = self._known.get(row.definition)
        if known is None:
            known, is_shared = self._know(row, definition, calendars)
            self._known[row.definition if is_shared else (row.id, row.version)] = known
        return known

    def _know(
        self, row: DueSchedule, definition: Definition, calendars: dict[str, Calendar]
    ) -> tuple[KnownDefinition, bool]:
        """Parse a definition; returns also whether the result is the same for all schedules."""
        args = msgspec.json.encode(definition.args)
        try:
            rule, is_shared = self._rule(row, definition, calendars)
            blackout = blackout_named(definition.blackout, row.key, rule, calendars)
        except EvertickError as error:
            return KnownDefinition(definition=definition, args=args, error=str(error)), False
        fingerprint = fingerprint_of(rule, blackout)
        known = KnownDefinition(
            definition=definition,
            args=args,
            rule=rule,
            blackout=blackout,
            fingerprint=fingerprint,
            guards_live=guards_live(definition),
        )
        return known, is_shared and blackout is None

    def _rule(self, row: DueSchedule, definition: Definition, calendars: dict[str, Calendar]) -> tuple[When, bool]:
        rule = self._rules.get(definition.when)
        if rule is not None:
            return rule, True
        is_plain = "calendar=" not in definition.when
        rule = self._families.rule(definition.when) if is_plain else parse_when(definition.when, calendars)
        if rule.is_complete and rule.is_zone_given and rule.calendar is None:
            # Bound already: it does not depend on key and creation time.
            self._rules[definition.when] = rule
            return rule, True
        return rule.bind(key=row.key, created=row.created_at, calendars=calendars), False


def _names_calendar(definition: Definition) -> bool:
    return definition.blackout is not None or "calendar=" in definition.when


def _read(text: str) -> Definition | None:
    """None: this code cannot read it."""
    try:
        return _definitions.decode(text)
    except msgspec.MsgspecError:
        return None
