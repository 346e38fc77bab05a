"""What is said of a file, in its words: it has keys and values, not calls and arguments."""

from __future__ import annotations

import msgspec

__all__ = ["in_file", "jobs_told", "toml_text"]

_PHRASES = {
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
    for phrase, instead in _PHRASES.items():
        text = text.replace(phrase, instead)
    return text


def toml_text(text: str) -> str:
    """In quotes, as a file has it."""
    return msgspec.json.encode(text).decode()


def jobs_told(count: int, disabled: int = 0) -> str:
    """How many there are, and how many of them the file has switched off."""
    words = "1 job" if count == 1 else f"{count} jobs"
    if not disabled:
        return words
    which = "" if count == 1 else f"{'all' if disabled == count else disabled} of them "
    return f"{words}, {which}disabled"
