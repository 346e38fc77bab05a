"""The rules, retry policies and calendars of a file.

A job has exactly one of `cron`, `every`, `once` and `when`, with the options of that rule. A retry policy is one of
those of `evertick.policy` with its first wait and its options:

    { constant = "30s", attempts = 3 }
    { linear = "10s", increment = "10s", limit = "5m", attempts = 5 }
    { exponential = "1s", factor = 2, limit = "1h", attempts = 5, jitter = 0.2 }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

from evertick.config.layer import Table
from evertick.config.problem import Problems, phrased, toml_words
from evertick.definition.options import CronOptions, EveryOptions, OnceOptions, PolicyOptions
from evertick.definition.task import TaskOptions
from evertick.errors import EvertickError, InvalidSetting, InvalidWhen
from evertick.model.retry import Constant, Exponential, Linear, RetryPolicy
from evertick.text.did_you_mean import alike, nearest
from evertick.when import Calendar, Cron, Every, Once, When, parse_when
from evertick.when.cron import rule as cron_rule
from evertick.when.entry import read_entry
from evertick.when.moment import from_us, moment_of, moment_text, to_us
from evertick.when.zone import zone_named

__all__ = ["RULES", "RULE_DEFAULTS", "RULE_OPTIONS", "make_rule", "read_calendar", "read_retry"]

RULES = ("cron", "every", "once", "when")
_BESIDE = {*PolicyOptions.__annotations__, *TaskOptions.__annotations__}
_CRON = tuple(name for name in CronOptions.__annotations__ if name not in _BESIDE)
_EVERY = ("after", *(name for name in EveryOptions.__annotations__ if name not in _BESIDE))
_ONCE = tuple(name for name in OnceOptions.__annotations__ if name not in _BESIDE)
# The options of each. A sentence takes those of its rule, once it is parsed.
_TAKEN = {"cron": _CRON, "every": _EVERY, "once": _ONCE, "when": tuple(dict.fromkeys((*_CRON, *_EVERY)))}
RULE_OPTIONS = tuple(dict.fromkeys((*_CRON, *_EVERY, *_ONCE)))
# Keys that [defaults] may have.
RULE_DEFAULTS = ("tz", "dst", "jitter", "jitter_mode", "calendar")
_MOMENTS = ("start", "end")


def make_rule(
    kind: str,
    value: Any,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    calendars: Mapping[str, Calendar],
    tz: str,
) -> When:
    """The rule, with the defaults that fit its kind. `tz` is the zone of times without one.

    A calendar that is not among these is looked up in the ledger when the rule is stored.
    """
    for name in options:
        if name not in _TAKEN[kind]:
            problem = f"{name}: a job with {kind!r} does not take it; it takes {', '.join(_TAKEN[kind])}"
            raise InvalidSetting(problem, setting=name)
    given = {name: each for name, each in defaults.items() if name in _TAKEN[kind]} | dict(options)
    zone = zone_named(given.get("tz", tz))
    if kind != "when" and isinstance(given.get("calendar"), str):
        given["calendar"] = calendars.get(given["calendar"], given["calendar"])
    for name in _MOMENTS:
        if name in given:
            given[name] = _moment(given[name], zone, name)
    if given.get("after") not in (None, "end"):
        raise InvalidSetting(f"after: {given['after']!r:.60} is not 'end'", setting="after")
    match kind:
        case "cron":
            return cron_rule(_text(value, kind), **_fitting(given, _text(value, kind), options))
        case "every":
            return Every(value, **given)
        case "once":
            return _once(value, zone, given)
        case _:
            return _sentence(_text(value, kind), given, options, calendars)


def _text(value: Any, kind: str) -> str:
    if not isinstance(value, str):
        example = "0 3 * * *" if kind == "cron" else "weekdays at 18:30"
        raise InvalidWhen(f'{kind}: {toml_words(value):.60} is not text; write it in quotes, like {kind} = "{example}"')
    return value


def _fitting(given: dict[str, Any], text: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The options without a default `dst` for an interval like `@every 90s`, which does not take it."""
    is_interval = text.strip().lower().startswith("@every")
    return {name: each for name, each in given.items() if not is_interval or name != "dst" or name in own}


def _once(value: Any, zone: ZoneInfo, given: dict[str, Any]) -> Once:
    if isinstance(value, str) and value.strip().startswith("+"):
        return Once(after=value.strip()[1:], **given)
    return Once(_moment(value, zone, "once"), **given)


def _moment(value: Any, zone: ZoneInfo, what: str) -> datetime:
    """A moment as a TOML date or as text; without an offset it is in the zone."""
    moment = value
    if isinstance(value, str):
        try:
            return from_us(moment_of(value, what=what))
        except InvalidWhen:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                moment = None
    if not isinstance(moment, datetime):
        kind = "a day without a time" if isinstance(value, date) else "a time without a day"
        found = kind if isinstance(value, date | time) else "not a moment"
        also = ', or "+10m" counted from the first start' if what == "once" else ""
        raise InvalidWhen(
            f"{what}: {str(value)[:60]!r} is {found}; write 2026-01-31T09:00:00Z or 2026-01-31T09:00:00{also}",
            setting=what,
        )
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _sentence(text: str, given: dict[str, Any], own: Mapping[str, Any], calendars: Mapping[str, Calendar]) -> When:
    """The rule of a sentence. Options are appended to it; its own options override defaults."""
    plain = parse_when(text)
    inside = {part.partition("=")[0].strip() for part in text.split(";")[1:]} | (
        {"tz"} if plain.is_zone_given else set()
    )
    taken = _TAKEN["cron" if isinstance(plain, Cron) else "every" if isinstance(plain, Every) else "once"]
    added = {name: each for name, each in given.items() if name in own or (name not in inside and name in taken)}
    written = [f"{name}={_written(each)}" for name, each in added.items() if each is not None]
    return parse_when("; ".join([text, *written]), calendars)


def _written(value: Any) -> str:
    return moment_text(to_us(value)) if isinstance(value, datetime) else str(value)


# Each with the name of its first wait in code.
_POLICIES: dict[str, tuple[type[RetryPolicy], str]] = {
    "constant": (Constant, "interval"),
    "linear": (Linear, "initial"),
    "exponential": (Exponential, "initial"),
}
_OPTIONS = {
    "constant": ("attempts", "jitter"),
    "linear": ("increment", "limit", "attempts", "jitter"),
    "exponential": ("factor", "limit", "attempts", "jitter"),
}
# Valid values of options that are no durations.
_RIGHT = {"attempts": 1, "jitter": 0, "factor": 1}
_OPTIONAL = {"constant": ("jitter",), "linear": ("jitter",), "exponential": _OPTIONS["exponential"]}


def read_retry(value: Any, refuse: Callable[..., None]) -> RetryPolicy | None:
    """The policy; None if it is invalid. `refuse` takes each problem, and its key if it has one."""
    if not isinstance(value, dict):
        refuse(f'{value!r:.60} is not a retry policy; write it like {{ exponential = "1s", attempts = 5 }}')
        return None
    kinds = [name for name in _POLICIES if name in value]
    if len(kinds) != 1:
        _refuse_kinds(kinds, value, refuse)
        return None
    return _made(kinds[0], value, refuse)


def _refuse_kinds(kinds: list[str], value: dict[str, Any], refuse: Callable[..., None]) -> None:
    """Report that no kind is given, perhaps because it is misspelt, or that several are."""
    known = dict.fromkeys([*_POLICIES, *(name for options in _OPTIONS.values() for name in options)])
    for name in value:
        if name not in known:
            refuse(f"no such key; {nearest(name, known, what='there are')}", name)
    if kinds:
        refuse(f"{' and '.join(kinds)} say how long to wait; keep one of them")
    elif value.keys() <= known.keys():
        example = '{ constant = "30s", attempts = 3 }'
        refuse(f"write exactly one of {', '.join(_POLICIES)} with its first wait, like {example}")


def _made(kind: str, value: dict[str, Any], refuse: Callable[..., None]) -> RetryPolicy | None:
    unknown = [name for name in value if name not in (kind, *_OPTIONS[kind])]
    for name in unknown:
        refuse(f"no such key; {nearest(name, _OPTIONS[kind], what=f'beside {kind} there are')}", name)
    # A misspelt option is not reported as missing too.
    known = {*value, *(alike(name, _OPTIONS[kind]) for name in unknown)}
    missing = [name for name in _OPTIONS[kind] if name not in known and name not in _OPTIONAL[kind]]
    if missing:
        refuse(f"{kind} needs {', '.join(missing)}, too")
    if unknown or missing:
        return None
    policy, first = _POLICIES[kind]
    options = {first if name == kind else name: each for name, each in value.items()}
    reported: set[str] = set()
    while True:
        try:
            made = policy(**options)
            return None if reported else made
        except EvertickError as wrong:
            name = wrong.setting or first
            refuse(phrased(wrong, value=options.get(name)), kind if name == first else name)
            if name in reported or name not in options:
                return None
            # A valid value in its place shows the other problems.
            options[name] = _RIGHT.get(name, "1s")
            reported.add(name)


_KEYS = ("include", "exclude", "tz")


def read_calendar(table: Table, environ: Mapping[str, str], problems: Problems) -> Calendar | None:
    """The calendar of a table; None if it has problems, which are reported."""
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
    def refuse(problem: str, *inner: int) -> None:
        problems.add(table.place(key, *inner), table.key(key), problem)

    if key not in _KEYS:
        refuse(f"no such key; {nearest(key, _KEYS, what='there are')}")
        return
    if key != "tz" and not isinstance(value, list):
        refuse(f'{value!r:.60} is no list; write it in brackets, like ["sat", "2026-12-24"]')
        return
    # Entry by entry, since a list of holidays spans many lines.
    for number, entry in enumerate([value] if key == "tz" else value):
        try:
            zone_named(entry) if key == "tz" else read_entry(entry)
        except EvertickError as wrong:
            refuse(phrased(wrong, value=entry), *(() if key == "tz" else (number,)))
