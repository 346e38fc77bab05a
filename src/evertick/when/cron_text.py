"""A cron expression as text: five, six or seven fields, or a nickname.

Pure. All checks of the text are here: its length, its characters, its fields, and that it fires on at least one day
between 1970 and 2099.
"""

from __future__ import annotations

import re
from typing import Self

import msgspec

from evertick.errors import InvalidWhen
from evertick.text.values import shown
from evertick.when.cron_day import Days, DaysRule, days_of
from evertick.when.cron_search import Clock
from evertick.when.field import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, YEAR, Field, Kind, parse_field

__all__ = ["NICKNAMES", "Expression", "check_text", "parse_expression"]

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_LONGEST = 1_000
_SHOWN = 60
_KINDS: dict[int, tuple[Kind, ...]] = {
    5: (MINUTE, HOUR, DAY, MONTH, WEEKDAY),
    6: (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY),
    7: (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY, YEAR),
}
# "15 minutes", "1h30m"
_INTERVAL = re.compile(r"(?:\d+ ?[a-z]+ ?)+", re.ASCII | re.IGNORECASE)
_ON_THE_MINUTE = parse_field(SECOND, "0")
_EVERY_YEAR = parse_field(YEAR, "*")


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """The seven fields. Defaults: second 0, any year."""

    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    year: Field

    @property
    def fields(self) -> tuple[Field, ...]:
        return (self.second, self.minute, self.hour, self.day, self.month, self.weekday, self.year)

    @property
    def text(self) -> str:
        """The canonical text, without second and year if they are the defaults."""
        fields = list(self.fields)
        if self.year == _EVERY_YEAR:
            fields.pop()
            if self.second == _ON_THE_MINUTE:
                fields.pop(0)
        return " ".join(field.text for field in fields)

    @property
    def is_fixed(self) -> bool:
        """Whether it has fixed times of day: none of second, minute and hour begins with a star."""
        return not any(field.begins_with_star for field in (self.second, self.minute, self.hour))

    @property
    def is_spread(self) -> bool:
        return any(field.is_spread for field in self.fields)

    def settled(self, key: str) -> Self:
        """The expression with the values of this key in place of `H`."""
        names = self.__struct_fields__
        return type(self)(**{name: getattr(self, name).settled(key) for name in names})

    def clock(self) -> Clock:
        return Clock(self.second.mask(), self.minute.mask(), self.hour.mask())

    def days(self, rule: DaysRule) -> Days:
        return days_of(self.day, self.month, self.weekday, None if self.year.is_any else self.year, rule)

    def check_possible(self, rule: DaysRule) -> None:
        """Reject a combination of fields that no day matches."""
        if self.days(rule).next(0) is not None:
            return
        narrow = [field for field in (self.day, self.month, self.weekday, self.year) if not field.is_any]
        fields = " with ".join(f"{field.text!r} in the {field.kind.name} field" for field in narrow)
        raise InvalidWhen(f"{fields} never comes: there is no such day between 1970 and 2099")


def check_text(text: object) -> str:
    """Check length and characters; returns the text without surrounding space."""
    if not isinstance(text, str):
        fix = "write an expression like '0 9 * * mon-fri'"
        raise InvalidWhen(f"cron: {shown(text)} is not text", value=shown(text), fix=fix)
    if len(text) > _LONGEST:
        problem = f"cron {text[:_SHOWN] + '…'!r}: longer than {_LONGEST} characters"
        raise InvalidWhen(problem, value=shown(text), fix="split it into schedules")
    stripped = text.strip(" \t\r\n")
    odd = next((letter for letter in stripped if not (" " <= letter <= "~" or letter == "\t")), None)
    if odd is not None:
        raise InvalidWhen(f"cron {_shown(text)}: the character {odd!r} cannot be in an expression", value=shown(text))
    return stripped


def _refuse_other_rules(text: str, tokens: list[str]) -> None:
    """Reject sentences and intervals with a fix of their own."""
    joined = " ".join(tokens)
    if len(tokens) not in _KINDS and _INTERVAL.fullmatch(joined):
        fix = f"write {'every ' + joined[:_SHOWN]!r}"
        raise InvalidWhen(f"cron {_shown(text)}: this is an interval", value=shown(text), fix=fix)
    if joined[:2].isalpha() and len(tokens[0]) > 1 and "*" not in joined:
        raise InvalidWhen(
            f"cron {_shown(text)}: this is a sentence, not an expression",
            value=shown(text),
            fix="pass it to @scheduler.when(...) or parse_when",
        )


def parse_expression(text: str) -> tuple[Expression, DaysRule | None]:
    """The expression, and the day rule if the text itself asks for one (`+` before the day of week)."""
    tokens = check_text(text).split()
    kinds = _KINDS.get(len(tokens))
    _refuse_other_rules(text, tokens)
    if kinds is None:
        raise InvalidWhen(
            f"cron {_shown(text)}: {len(tokens)} {'field' if len(tokens) == 1 else 'fields'}",
            value=shown(text),
            fix="write 5 (minute hour day-of-month month day-of-week), 6 (second first) or 7 (second first, year last)",
        )
    rule: DaysRule | None = None
    at = kinds.index(WEEKDAY)
    if tokens[at].startswith("+"):
        tokens[at], rule = tokens[at][1:], "and"
    try:
        fields = {kind: parse_field(kind, token) for kind, token in zip(kinds, tokens, strict=True)}
    except InvalidWhen as error:
        problem = f"cron {_shown(text)}: {error.problem}"
        raise InvalidWhen(problem, value=error.value, fix=error.fix) from None
    expression = Expression(
        second=fields.get(SECOND, _ON_THE_MINUTE),
        minute=fields[MINUTE],
        hour=fields[HOUR],
        day=fields[DAY],
        month=fields[MONTH],
        weekday=fields[WEEKDAY],
        year=fields.get(YEAR, _EVERY_YEAR),
    )
    return expression, rule


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
