"""Rules as text, as in stores, configuration files and on the command line.

    cron 0 9 * * 1-5; tz=Europe/Berlin; calendar=business      a bare "0 9 * * 1-5" or "@daily" is cron, too
    every 90s; since=start; start=2026-01-01T00:00:00Z         also "@every 90s"
    once 2026-01-01T00:00:00Z                                  or "once +10m", counted from the creation
    weekdays at 18:30 in Europe/Berlin                         English, which becomes cron or every: see english.py

Options follow after `;` as name=value, in any order, each once; they are the options of the rule's constructor. The
`text` of any rule parses to an equal rule. Parsing takes bounded time; it raises InvalidWhen or InvalidDuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from evertick.errors import InvalidWhen
from evertick.text.values import shown
from evertick.when.base import When
from evertick.when.calendar import Calendar
from evertick.when.cron import Cron
from evertick.when.english import read_english
from evertick.when.every import Every
from evertick.when.moment import from_us, moment_of
from evertick.when.once import Once

__all__ = ["TEXT_LONGEST", "parse_when"]

TEXT_LONGEST = 2_000
_SHOWN = 60
_MAX_FIRES_DIGITS = 12
# A sentence has a word of three letters or a preposition, which no duration has. "every 5x" is a wrong duration.
_WORD = re.compile(r"[a-z]{3}|\b(?:at|on|in|to)\b", re.IGNORECASE)

_JITTER = {"jitter", "jitter_mode", "calendar", "tz"}
_BOUNDS = _JITTER | {"start", "end", "max_fires"}
_OPTIONS = {
    "cron": _BOUNDS | {"anchored", "days", "dst", "key"},
    "every": _BOUNDS | {"since", "after"},
    "once": _JITTER,
}


def parse_when(text: str, calendars: Mapping[str, Calendar] | None = None) -> When:
    """Parse a rule. A calendar that is not in `calendars` stays a name, which `bind` resolves."""
    if not isinstance(text, str):
        problem = f"{shown(text)} is not the text of a rule"
        raise InvalidWhen(problem, value=shown(text), fix="pass a string like 'every 90s'")
    if len(text) > TEXT_LONGEST:
        problem = f"a rule of {len(text)} characters is too long"
        raise InvalidWhen(problem, value=shown(text), fix=f"write at most {TEXT_LONGEST}")
    head, *rest = text.split(";")
    kind, body, tz = _read_head(head.strip())
    options = _options(kind, rest)
    if tz is not None:
        if "tz" in options:
            problem = f"option 'tz' is given twice, as 'in {tz[:_SHOWN]}' too"
            raise InvalidWhen(problem, value=shown(tz), fix="keep one of them")
        options["tz"] = tz
    if "calendar" in options:
        options["calendar"] = (calendars or {}).get(options["calendar"], options["calendar"])
    match kind:
        case "cron":
            return Cron(body, **options)
        case "every":
            return Every(body, **options)
        case _:
            return _once(body, options)


def _read_head(head: str) -> tuple[str, str, str | None]:
    """The kind of the rule, its body, and the zone that an English sentence names."""
    first, _, rest = head.partition(" ")
    word = first.lower()
    if word in _OPTIONS and not (word == "every" and _WORD.search(rest)):
        return word, rest.strip(), None
    if word == "@every":
        return "every", rest.strip(), None
    if not head:
        raise InvalidWhen(
            "'' is not a rule",
            value="''",
            fix="begin with 'cron', 'every' or 'once', or write a cron expression or 'weekdays at 18:30'",
        )
    # No cron expression begins with two letters: its first field has no names, and H is one letter.
    return read_english(head) if head[:2].isalpha() and len(head) > 1 else ("cron", head, None)


def _once(body: str, options: dict[str, Any]) -> Once:
    if body.startswith("+"):
        return Once(after=body[1:], **options)
    return Once(_moment("once", body), **options)


def _options(kind: str, parts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not value:
            problem = f"option {part.strip()[:_SHOWN]!r} has no value"
            raise InvalidWhen(problem, value=shown(part.strip()), fix="write it as name=value")
        if name not in _OPTIONS[kind]:
            known = ", ".join(sorted(_OPTIONS[kind]))
            problem = f"option {name[:_SHOWN]!r} is not known to {kind!r}"
            raise InvalidWhen(problem, value=shown(name), fix=f"it takes {known}")
        if name in found:
            raise InvalidWhen(f"option {name!r} is given twice", value=shown(name), fix="keep one of them")
        found[name] = _READERS[name](name, value) if name in _READERS else value
    return found


def _moment(name: str, text: str) -> datetime:
    return from_us(moment_of(text, what=name))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_FIRES_DIGITS):
        raise InvalidWhen(f"{name}: {text[:_SHOWN]!r} is not a whole number", setting=name, value=shown(text))
    return int(text)


_READERS: dict[str, Callable[[str, str], object]] = {"start": _moment, "end": _moment, "max_fires": _number}
