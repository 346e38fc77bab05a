"""What definitions mean: their rules, remembered by their text.

A text means the same in all schedules and at all times, so what is remembered is never stale, and however many
schedules have equal definitions, it is read once. The exceptions are remembered by (schedule, version) instead: a
definition that names a calendar, which may be changed (that raises the version), and one whose rule is not bound.

Bounded, since a store may hold a million schedules that differ. A definition whose rule is known costs 3 us to read
again, a rule 9 (an interval) to 22 (cron), and 4 where only its start is new (when/family.py).
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
    """A definition with its rule, or with the reason why it has none."""

    definition: Definition
    # As runs have them.
    args: bytes
    rule: When | None = None
    blackout: Calendar | None = None
    # What cursors are computed with.
    fingerprint: str = ""
    # Whether its live runs decide about one more; looked up once, and not for every fire.
    guards_live: bool = False
    error: str | None = None


async def load_calendars(store: Store, app: str) -> dict[str, Calendar]:
    return {name: Calendar.from_json(content) for name, content in (await store.calendars(app)).items()}


async def rule_in_force(store: Store, app: str, key: str) -> When | None:
    """The rule of a schedule, where there is one that can be read."""
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
    """The calendar while which is closed nothing of the schedule fires, as its rule's zone sees it."""
    return blackout_named(stored.definition.blackout, stored.key, rule, calendars)


def blackout_named(name: str | None, key: str, rule: When, calendars: Mapping[str, Calendar]) -> Calendar | None:
    if name is None:
        return None
    if name not in calendars:
        raise InvalidWhen(f"the blackout {name!r} of {key!r} is a calendar that is not defined; define it first")
    return calendars[name].in_zone(rule.zone)


def fingerprint_of(rule: When, blackout: Calendar | None) -> str:
    """What a cursor was computed with: the rules of zones, the calendar of the rule, the blackout."""
    if blackout is None:
        return rule.fingerprint
    zone = blackout.zone.key
    parts = f"{rule.fingerprint} {zone}={zone_fingerprint(zone)} {blackout.name}={blackout.version}"
    return blake2b(parts.encode(), digest_size=8).hexdigest()


class Rules:
    """The definitions this node has met lately."""

    def __init__(self, store: Store, app: str) -> None:
        self._store = store
        self._app = app
        self._known: dict[str | tuple[int, int], KnownDefinition] = {}
        # Complete rules by their text: definitions that differ mostly have one of a few rules.
        self._rules: dict[str, When] = {}
        self._families = Families()

    async def of(self, due: list[DueSchedule]) -> dict[int, KnownDefinition]:
        """What these schedules are defined by, by their ids. One that cannot be read is left out."""
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
        # Equal ones may be new together.
        known = self._known.get(row.definition)
        if known is None:
            known, is_shared = self._know(row, definition, calendars)
            self._known[row.definition if is_shared else (row.id, row.version)] = known
        return known

    def _know(
        self, row: DueSchedule, definition: Definition, calendars: dict[str, Calendar]
    ) -> tuple[KnownDefinition, bool]:
        """What the definition means, and whether it means that in every schedule."""
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
            # Bound already: neither key nor creation change what it means.
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
