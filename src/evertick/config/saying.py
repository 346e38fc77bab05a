"""What is said of a file, in its words: it has keys and values, not calls and arguments."""

from __future__ import annotations

import re
from datetime import date, time
from typing import Any

import msgspec

__all__ = ["in_file", "jobs_told", "toml_text", "toml_words"]

# As Python writes a value that something is said of.
_YES_NO = re.compile(r"^(True|False)\b")
_PHRASES = {
    "; run the task when your program starts": (
        ", and the start of a daemon is no boot; have the system start it once at every boot, by a systemd unit of "
        'Type=oneshot, as shown under "At every boot" in how-to "Come from cron"'
    ),
    "pass a timedelta, a number of seconds, or text like '90s' or '1h30m'": (
        'write a number of seconds, or text like "90s" or "1h30m"'
    ),
    "sentences and cron expressions are for @scheduler.when(...)": "sentences and cron expressions are for `when`",
    "give the key with unique=": "give the key with `unique`",
    "give it with blackout=, in the same call or before": "give it with `blackout`",
    "pass a Calendar(...), or the name of one that is stored. Hours are in the calendar: "
    "Calendar('nights', exclude=['22:00-06:00'])": (
        'write the name of a calendar, with its hours under [calendars.NAME]: exclude = ["22:00-06:00"]'
    ),
    "or pass concurrency=0": "or write concurrency = 0",
    "give concurrency= too": "give `concurrency`, too",
    "give rate= too": "give `rate`, too",
    "must be a dict of": "must be a table of",
    "use Every without it, and overlap='skip'": 'use `every` without it, and overlap = "skip"',
    "pass an IANA name like": "write an IANA name like",
    "pass a string or a Calendar": "write it in quotes",
    "'] of the task or allow_private of the node": "'] beside url, or allow_private = true under [http]",
    "'] of the task": "'] beside url",
    "; pass a whole number": "; write a whole number",
    "; pass a number": "; write a number",
}


def in_file(text: str) -> str:
    text = _YES_NO.sub(lambda found: found[0].lower(), text)
    for phrase, instead in _PHRASES.items():
        text = text.replace(phrase, instead)
    return text


def toml_text(text: str) -> str:
    """In quotes, as a file has it."""
    return msgspec.json.encode(text).decode()


def toml_words(value: Any) -> str:
    """A value as a file has it, for what is said of it."""
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


def jobs_told(count: int, disabled: int = 0) -> str:
    """How many there are, and how many of them the file has switched off."""
    words = "1 job" if count == 1 else f"{count} jobs"
    if not disabled:
        return words
    which = "" if count == 1 else f"{'all' if disabled == count else disabled} of them "
    return f"{words}, {which}disabled"
