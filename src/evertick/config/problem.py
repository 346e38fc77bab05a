"""The problems of a configuration, in one report. It names the keys and values of the file.

Errors of other rooms name arguments of Python calls. `phrased` writes them for a file, by their fields.
"""

from __future__ import annotations

from datetime import date, time
from typing import Any

import msgspec

from evertick.errors import EvertickError, InvalidConfiguration, InvalidDuration
from evertick.model.retry import ATTEMPTS_MAX
from evertick.text.regular_file import NotRegular

__all__ = ["PROBLEMS_MAX", "Problems", "fix_for", "phrased", "toml_text", "toml_words"]

# A file with more problems is probably not a configuration.
PROBLEMS_MAX = 100
_LINE_LONGEST = 1_000
# Sorts after every path.
_LAST = "\uffff"


class _Words(msgspec.Struct, frozen=True):
    """The fix of an error for a file, and its problem where that differs too."""

    fix: str = ""
    problem: str = ""


_UNIQUE = _Words("give the key with `unique`")
_DURATION = _Words('write a number of seconds, or text like "90s" or "1h30m"')
# By setting, for errors that have a fix or a value.
_WORDS = {
    "after": _Words('use `every` without it, and overlap = "skip"'),
    "args": _Words(problem="{value} must be a table of arguments by name"),
    "attempts": _Words(f"write a whole number from 1 (no retry) to {ATTEMPTS_MAX}"),
    "blackout": _Words(
        'write the name of a calendar, with its hours under [calendars.NAME]: exclude = ["22:00-06:00"]'
    ),
    "blackout_fate": _Words("give it with `blackout`"),
    "calendar": _Words("write it in quotes"),
    "concurrency_key": _Words("give `concurrency`, too"),
    "cron": _Words(
        'have the system start it once at every boot, by a systemd unit of Type=oneshot, as shown under "At every '
        'boot" in how-to "Come from cron"',
        "cron {value} is not a moment, and the start of a daemon is not a boot",
    ),
    "factor": _Words("write a number from 1 to 1000"),
    "jitter": _Words("write a number from 0 to 1"),
    "labels": _Words(problem="{value} must be a table of at most 50 names with their values"),
    "queues": _Words("name one, or write concurrency = 0"),
    "rate_key": _Words("give `rate`, too"),
    "tz": _Words("write an IANA name like 'Europe/Berlin' or 'UTC'"),
    "unique_for": _UNIQUE,
    "unique_until": _UNIQUE,
    "when": _Words("sentences and cron expressions are for `when`"),
}


def phrased(error: EvertickError, *beginnings: str, value: object = None) -> str:
    """The error for a file, without these beginnings and the name of its setting. `value`: the value in the file."""
    problem = error.problem
    for each in (*beginnings, f"{error.setting}: "):
        problem = problem.removeprefix(each)
    if isinstance(value, bool) and problem.startswith(str(value)):
        problem = toml_words(value) + problem.removeprefix(str(value))
    words = _words_for(error)
    if words is None:
        return problem if error.fix is None else f"{problem}; {error.fix}"
    given = error.value.lower() if error.value in ("True", "False") else error.value
    templates = (words.problem or "{problem}", words.fix)
    return "; ".join(each.format(problem=problem, value=given) for each in templates if each)


def _words_for(error: EvertickError) -> _Words | None:
    if error.setting is None or error.fix is error.value is None:
        return None
    is_duration = isinstance(error, InvalidDuration) and error.setting != "when"
    return _DURATION if is_duration else _WORDS.get(error.setting)


def fix_for(error: OSError) -> str:
    """How to correct a path that cannot be read."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "make it, or correct the path"
        case IsADirectoryError() | NotRegular():
            return "name a file"
        case PermissionError():
            return "let this user read it"
        case _:
            return "correct the path, or let this user read it"


def toml_text(text: str) -> str:
    """In quotes, as a file has it."""
    return msgspec.json.encode(text).decode()


def toml_words(value: Any) -> str:
    """A value as a file has it, for an error."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return (
                f"{{ {', '.join(f'{name} = {toml_words(each)}' for name, each in value.items())} }}" if value else "{}"
            )
        case list():
            return f"[{', '.join(map(toml_words, value))}]"
        case date() | time():
            return str(value)
        case _:
            return repr(value)


class _Problem(msgspec.Struct, frozen=True):
    place: str
    line: str

    def order(self) -> tuple[str, int]:
        """By file and line; what stands in no file comes after all that does."""
        file, _, number = self.place.rpartition(":")
        return (file, int(number)) if number.isdigit() else (_LAST if not file else self.place, 0)


class Problems:
    """A bounded list of lines, each "place: key: what is wrong; what to write"."""

    def __init__(self) -> None:
        self._found: dict[_Problem, None] = {}
        self._left_out = 0

    def add(self, place: str, key: str, text: str) -> None:
        line = ": ".join(part for part in (place, key, text) if part)[:_LINE_LONGEST]
        problem = _Problem(place, line)
        if problem in self._found:
            return
        if len(self._found) < PROBLEMS_MAX:
            self._found[problem] = None
        else:
            self._left_out += 1

    def __len__(self) -> int:
        return len(self._found) + self._left_out

    def lines(self) -> tuple[str, ...]:
        more = (f"and {self._left_out} more",) if self._left_out else ()
        return (*(each.line for each in sorted(self._found, key=_Problem.order)), *more)

    def raise_any(self, warnings: tuple[str, ...] = ()) -> None:
        """With what else was found, if anything is wrong."""
        if self._found:
            raise InvalidConfiguration(self.lines(), warnings)
