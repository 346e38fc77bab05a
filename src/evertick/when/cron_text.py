"""A cron expression as text: five, six or seven fields, or a nickname.

Pure. Text is refused here or nowhere: it is short, its characters are known, every field parses, and there is at least
one day between 1970 and 2099 on which it fires.
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
    """The seven fields. Left out, the second is 0 and the year is any."""

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
        """The canonical text, as short as it can be: seconds and year only where they say something."""
        fields = list(self.fields)
        if self.year == _EVERY_YEAR:
            fields.pop()
            if self.second == _ON_THE_MINUTE:
                fields.pop(0)
        return " ".join(field.text for field in fields)

    @property
    def is_fixed(self) -> bool:
        """Whether it names times of day: none of second, minute and hour begins with a star."""
        return not any(field.begins_with_star for field in (self.second, self.minute, self.hour))

    @property
    def is_spread(self) -> bool:
        return any(field.is_spread for field in self.fields)

    def settled(self, key: str) -> Self:
        """With the values that fall to this key in place of `H`."""
        names = self.__struct_fields__
        return type(self)(**{name: getattr(self, name).settled(key) for name in names})

    def clock(self) -> Clock:
        return Clock(self.second.mask(), self.minute.mask(), self.hour.mask())

    def days(self, rule: DaysRule) -> Days:
        return days_of(self.day, self.month, self.weekday, None if self.year.is_any else self.year, rule)

    def check_possible(self, rule: DaysRule) -> None:
        """Refuse days that never come, naming what cannot be together."""
        if self.days(rule).next(0) is not None:
            return
        narrow = [field for field in (self.day, self.month, self.weekday, self.year) if not field.is_any]
        told = " with ".join(f"{field.text!r} in the {field.kind.name} field" for field in narrow)
        raise InvalidWhen(f"{told} never comes: there is no such day between 1970 and 2099")


def check_text(text: object) -> str:
    """The text without surrounding space, if it can be an expression at all."""
    if not isinstance(text, str):
        raise InvalidWhen(f"cron: {shown(text)} is not text; write an expression like '0 9 * * mon-fri'")
    if len(text) > _LONGEST:
        raise InvalidWhen(f"cron {text[:_SHOWN] + '…'!r}: longer than {_LONGEST} characters; split it into schedules")
    stripped = text.strip(" \t\r\n")
    odd = next((letter for letter in stripped if not (" " <= letter <= "~" or letter == "\t")), None)
    if odd is not None:
        raise InvalidWhen(f"cron {_shown(text)}: the character {odd!r} cannot be in an expression")
    return stripped


def _refuse_other_rules(text: str, tokens: list[str]) -> None:
    """Tell those who wrote a sentence or an interval what takes it: counting its words would not help them."""
    joined = " ".join(tokens)
    if len(tokens) not in _KINDS and _INTERVAL.fullmatch(joined):
        raise InvalidWhen(f"cron {_shown(text)}: this is an interval; write {'every ' + joined[:_SHOWN]!r}")
    if joined[:2].isalpha() and len(tokens[0]) > 1 and "*" not in joined:
        raise InvalidWhen(
            f"cron {_shown(text)}: this is a sentence, no expression; pass it to @scheduler.when(...) or parse_when"
        )


def parse_expression(text: str) -> tuple[Expression, DaysRule | None]:
    """The expression, and the day rule if the text itself asks for one (`+` before the day of week)."""
    tokens = check_text(text).split()
    kinds = _KINDS.get(len(tokens))
    _refuse_other_rules(text, tokens)
    if kinds is None:
        raise InvalidWhen(
            f"cron {_shown(text)}: {len(tokens)} {'field' if len(tokens) == 1 else 'fields'}; write 5 "
            "(minute hour day-of-month month day-of-week), 6 (second first) or 7 (second first, year last)"
        )
    rule: DaysRule | None = None
    at = kinds.index(WEEKDAY)
    if tokens[at].startswith("+"):
        tokens[at], rule = tokens[at][1:], "and"
    try:
        fields = {kind: parse_field(kind, token) for kind, token in zip(kinds, tokens, strict=True)}
    except InvalidWhen as error:
        raise InvalidWhen(f"cron {_shown(text)}: {error}") from None
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
