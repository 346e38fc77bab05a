"""Limits of a task: how many of its runs may run at once, and how many may start in a period. Pure.

A limit counts by key. By default the key is the task. A template such as "customer-{customer}" makes the key from the
arguments of each run, and all tasks of the app with the same template share the limit. In the ledger the key has its
kind as a prefix, which keeps rates, concurrencies, task names and templates apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from evertick.errors import InvalidDuration, InvalidSetting
from evertick.text.values import shown
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import DAY, MILLISECOND

__all__ = [
    "CONCURRENCY_MAX",
    "EXACT_MOST",
    "RATE_MAX",
    "Concurrency",
    "LimitKind",
    "Rate",
    "Subject",
    "make_concurrency",
    "make_rate",
    "shown_key",
]

LimitKind = Literal["concurrency", "rate"]

CONCURRENCY_MAX = 10_000
RATE_MAX = 1_000_000
# Up to this many per period each start is recorded with its own time; above it, starts are grouped.
EXACT_MOST = 1_000
# A longer key, or one that a database cannot store, is shortened and gets a hash.
KEY_LONGEST = 200
_PERIOD_LEAST, _PERIOD_MOST = 10 * MILLISECOND, 31 * DAY
_TEXT_LONGEST = 200
_PERIODS = {"s": "1s", "sec": "1s", "second": "1s", "m": "1m", "min": "1m", "minute": "1m"}
_PERIODS |= {"h": "1h", "hour": "1h", "d": "1d", "day": "1d"}
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(.{1,64}?)\s*", re.ASCII)
_PART = re.compile(r"\{(\w*)\}|([^{}]+)|(.)", re.DOTALL)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that a limit counts together."""

    task: str
    # None: all runs of the task, and no others.
    text: str | None = None
    # The defaults of the arguments in the text, as they appear in the key.
    defaults: dict[str, str] = {}

    @property
    def varies(self) -> bool:
        """Whether runs of the task may have different keys."""
        return self.text is not None and "{" in self.text

    def key(self, kind: LimitKind, args: str | None) -> str:
        """The key of a run with these arguments (JSON), as in the ledger."""
        if self.text is None:
            return f"{kind}={self.task}"
        return f"{kind}:{_cut(self._filled(args) if self.varies else self.text)}"

    def _filled(self, args: str | None) -> str:
        assert self.text is not None
        given = _arguments(args)
        parts = []
        for name, literal, _ in _PART.findall(self.text):
            parts.append(literal or (_value_text(given[name]) if name in given else self.defaults.get(name, "null")))
        return "".join(parts)


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """At most `most` runs at once."""

    most: int
    of: Subject

    def key(self, args: str | None) -> str:
        return self.of.key("concurrency", args)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """At most `most` starts in any `period` of microseconds."""

    most: int
    period: int
    of: Subject

    def key(self, args: str | None) -> str:
        return self.of.key("rate", args)

    @property
    def grain(self) -> int:
        """Starts within this time may share one record, which counts as the last of them."""
        return 0 if self.most <= EXACT_MOST else self.period // EXACT_MOST

    def __str__(self) -> str:
        return f"{self.most}/{duration_text(self.period)}"


def make_concurrency(most: Any, text: Any, task: str, defaults: Mapping[str, Any]) -> Concurrency | None:
    """Check the settings. `defaults`: the task's arguments with their defaults; `...` for required ones."""
    if most is None:
        _refuse_key_alone(text, task, "concurrency")
        return None
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= CONCURRENCY_MAX:
        raise InvalidSetting(
            f"task {task!r}: concurrency: {shown(most)} must be a whole number from 1 to {CONCURRENCY_MAX}",
            setting="concurrency",
            value=shown(most),
            fix="leave it out for no limit",
        )
    return Concurrency(most=most, of=_subject(text, task, "concurrency_key", defaults))


def make_rate(rate: Any, text: Any, task: str, defaults: Mapping[str, Any]) -> Rate | None:
    """Check the settings, e.g. "100/min" or "5/10s"."""
    if rate is None:
        _refuse_key_alone(text, task, "rate")
        return None
    most, period = _parse_rate(rate, task)
    return Rate(most=most, period=period, of=_subject(text, task, "rate_key", defaults))


def shown_key(limit_key: str) -> tuple[LimitKind, str]:
    """A key of the ledger for display: its kind, and the text or the task."""
    kind, _, text = limit_key.partition("=" if limit_key.startswith(("concurrency=", "rate=")) else ":")
    return ("rate" if kind == "rate" else "concurrency"), text


def _parse_rate(rate: Any, task: str) -> tuple[int, int]:
    wanted = "write it like '100/min', '5/10s' or '1000/h'"
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if found is None:
        problem = f"task {task!r}: rate: {shown(rate)} is not a rate"
        raise InvalidSetting(problem, setting="rate", value=shown(rate), fix=wanted)
    most, period = int(found[1]), found[2]
    if not 1 <= most <= RATE_MAX:
        problem = f"task {task!r}: rate: {shown(rate)}: the number of starts must be from 1 to {RATE_MAX}"
        raise InvalidSetting(problem, setting="rate", value=shown(rate))
    try:
        us = duration_us(_PERIODS.get(period, period), what="rate")
    except InvalidDuration:
        problem = f"task {task!r}: rate: {shown(rate)}: {shown(period)} is not a period"
        raise InvalidSetting(problem, setting="rate", value=shown(rate), fix=wanted) from None
    if not _PERIOD_LEAST <= us <= _PERIOD_MOST:
        raise InvalidSetting(
            f"task {task!r}: rate: {shown(rate)}: the period must be from {duration_text(_PERIOD_LEAST)} "
            f"to {duration_text(_PERIOD_MOST)}",
            setting="rate",
            value=shown(rate),
        )
    return most, us


def _refuse_key_alone(text: Any, task: str, what: str) -> None:
    if text is not None:
        raise InvalidSetting(
            f"task {task!r}: {what}_key: {shown(text)} has no effect alone",
            setting=f"{what}_key",
            value=shown(text),
            fix=f"give {what}= too",
        )


def _subject(text: Any, task: str, what: str, defaults: Mapping[str, Any]) -> Subject:
    if text is None:
        return Subject(task=task)
    if not isinstance(text, str) or not 1 <= len(text) <= _TEXT_LONGEST or not text.isprintable():
        problem = f"task {task!r}: {what}: {shown(text)} must be text of 1 to {_TEXT_LONGEST} characters"
        raise InvalidSetting(problem, setting=what)
    named = {}
    for name, literal, stray in _PART.findall(text):
        if literal:
            continue
        if stray or name not in defaults:
            known = ", ".join(f"{{{each}}}" for each in defaults) or "none, since the task takes no arguments"
            wrong = stray or f"{{{name}}}"
            problem = f"task {task!r}: {what}: {shown(text)}: {wrong!r} is not an argument"
            raise InvalidSetting(problem, setting=what, value=shown(text), fix=f"known are {known}")
        if defaults[name] is not ...:
            named[name] = _default_text(defaults[name], task, what, name)
    return Subject(task=task, text=text, defaults=named)


def _default_text(value: Any, task: str, what: str, name: str) -> str:
    try:
        return _value_text(msgspec.json.decode(msgspec.json.encode(value)))
    except (TypeError, ValueError, RecursionError):
        raise InvalidSetting(
            f"task {task!r}: {what}: the default of {name!r}, {shown(value)}, cannot be part of a key",
            setting=what,
            value=shown(value),
            fix="use plain data",
        ) from None


def _arguments(args: str | None) -> dict[str, Any]:
    """The arguments; none if they cannot be decoded, since the run is parked for that when it starts."""
    try:
        decoded = msgspec.json.decode(args or "{}")
    except msgspec.MsgspecError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str) -> str:
    # Some databases cannot store zeros and lone surrogates. The hash keeps apart keys that are equal without them.
    plain = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    if plain == text and len(text) <= KEY_LONGEST:
        return text
    mark = blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{plain[: KEY_LONGEST - len(mark) - 1]}~{mark}"
