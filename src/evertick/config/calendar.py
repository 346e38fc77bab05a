"""Calendars as data: `[calendars.NAME]` with `include`, `exclude` and `tz`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evertick.config.problem import Problems, phrased
from evertick.config.table import Table
from evertick.errors import EvertickError
from evertick.text.did_you_mean import nearest
from evertick.when import Calendar
from evertick.when.entry import read_entry
from evertick.when.zone import zone_named

__all__ = ["read_calendar"]

_KEYS = ("include", "exclude", "tz")


def read_calendar(table: Table, environ: Mapping[str, str], problems: Problems) -> Calendar | None:
    """The calendar of a table; None where something is wrong with it, which is then among the problems."""
    before, name = len(problems), str(table.path[-1])
    given = table.read(environ, problems)
    for key, value in given.items():
        _check(table, key, value, problems)
    if len(problems) > before:
        return None
    try:
        return Calendar(name, **given)
    except EvertickError as wrong:
        problems.add(table.place(), table.key(), phrased(wrong, f"calendar {name!r}: "))
        return None


def _check(table: Table, key: str, value: Any, problems: Problems) -> None:
    def refuse(said: str, *inner: int) -> None:
        problems.add(table.place(key, *inner), table.key(key), said)

    if key not in _KEYS:
        refuse(f"no such key; {nearest(key, _KEYS, what='there are')}")
        return
    if key != "tz" and not isinstance(value, list):
        refuse(f'{value!r:.60} is no list; write it in brackets, like ["sat", "2026-12-24"]')
        return
    # Each entry by itself, since a list of holidays goes over many lines.
    for number, entry in enumerate([value] if key == "tz" else value):
        try:
            zone_named(entry) if key == "tz" else read_entry(entry)
        except EvertickError as wrong:
            refuse(phrased(wrong, "tz: ", value=entry), *(() if key == "tz" else (number,)))
