"""The options of schedules, and the definitions made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypedDict, TypeVar, overload

import msgspec

from evertick.definition.settings import check_key, check_labels, check_one_of, check_queue, refuse_other_names
from evertick.definition.task import (
    TASK_OTHER_NAMES,
    Task,
    TaskOptions,
    check_priority,
    check_unique_for,
    check_unique_until,
)
from evertick.errors import EvertickError, InvalidArguments, InvalidSetting, InvalidWhen
from evertick.job.arguments import ARGUMENTS_MAX_BYTES
from evertick.job.context import Context
from evertick.model import (
    BLACKOUT_FATES,
    CATCH_UPS,
    OVERLAPS,
    SCHEDULE_MODES,
    UNIQUE_UNTIL,
    BlackoutFate,
    CatchUp,
    Definition,
    Overlap,
    ScheduleMode,
    UniqueUntil,
)
from evertick.model.every_node import check_every_node
from evertick.text.values import check_whole, encode_data, shown
from evertick.when.base import JitterMode, check_name
from evertick.when.calendar import Calendar
from evertick.when.duration import Duration, duration_us
from evertick.when.every import Since
from evertick.when.moment import MILLISECOND

__all__ = [
    "CronOptions",
    "EveryOptions",
    "OnceOptions",
    "PolicyOptions",
    "RuleOptions",
    "TaskDecorator",
    "WhenOptions",
    "blackout_given",
    "make_definition",
    "refuse_rule_option",
    "refuse_task_options",
    "split",
    "split_added",
]

P = ParamSpec("P")
R = TypeVar("R")

_CATCH_UP_LIMIT_MAX = 10_000
_PAUSE_AFTER_MAX = 1_000


class RuleOptions(TypedDict, total=False):
    """Options of every rule of time."""

    tz: str | None
    start: datetime | None
    end: datetime | None
    max_fires: int | None
    jitter: Duration | None
    jitter_mode: JitterMode
    calendar: str | Calendar | None


class PolicyOptions(TypedDict, total=False):
    """Options of every schedule."""

    args: Mapping[str, Any]
    queue: str
    priority: int
    catch_up: CatchUp
    catch_up_limit: int
    pace: Duration
    grace: Duration | None
    overlap: Overlap
    expires: Duration | None
    labels: Mapping[str, str]
    unique: str | None
    unique_until: UniqueUntil
    unique_for: Duration | None
    pause_after: int | None
    blackout: str | Calendar | None
    blackout_fate: BlackoutFate
    mode: ScheduleMode


class CronOptions(RuleOptions, PolicyOptions, TaskOptions, total=False):
    dst: str
    days: str
    anchored: bool | str | datetime | None


class EveryOptions(RuleOptions, PolicyOptions, TaskOptions, total=False):
    since: Since


class OnceOptions(PolicyOptions, TaskOptions, total=False):
    tz: str | None
    jitter: Duration | None
    jitter_mode: JitterMode
    calendar: str | Calendar | None


class WhenOptions(PolicyOptions, TaskOptions, total=False):
    """Options beside a complete rule."""


class TaskDecorator(Protocol):
    """Makes a task of a function. Evertick passes a first parameter annotated as `Context`; the caller does not."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


_KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "cron": (CronOptions, ("key", "name")),
    "every": (EveryOptions, ("after", "key", "name")),
    "once": (OnceOptions, ("after", "key", "name")),
    "when": (WhenOptions, ("key", "name")),
}
Apart = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
# Names in other libraries for the same options.
_OTHER_NAMES = {
    **TASK_OTHER_NAMES,
    **dict.fromkeys(("timezone", "zone"), "tz"),
    **dict.fromkeys(("id", "job_id", "schedule_id"), "key"),
    **dict.fromkeys(("start_date", "start_time"), "start"),
    **dict.fromkeys(("end_date", "end_time"), "end"),
    **dict.fromkeys(("kwargs", "arguments", "params"), "args"),
    **dict.fromkeys(("misfire_grace_time", "starting_deadline"), "grace"),
    **dict.fromkeys(("unique_key", "dedupe"), "unique"),
    "coalesce": "catch_up='latest': of the moments that were missed, only the last",
    "tags": "labels",
}


def split(options: Mapping[str, Any], call: str, given: str = "") -> Apart:
    """The options of the rule, of the schedule and of the task, separately.

    `call` is the decorator that takes them, and `given` its first argument, for errors.
    """
    kind, beside = _KINDS[call]
    unknown = {name: value for name, value in options.items() if name not in kind.__annotations__}
    _refuse_unknown(unknown, sorted([*kind.__annotations__, *beside]), call, f"{call}({given})")
    return _apart(options)


def split_added(options: Mapping[str, Any], key: str) -> Apart:
    """`split` for `add`, which itself rejects options of rules and tasks."""
    known = ["key", "when", "task", *PolicyOptions.__annotations__]
    unknown = {name: value for name, value in options.items() if name not in CronOptions.__annotations__}
    _refuse_unknown(unknown, known, "add", f"add({key!r})")
    return _apart(options)


def _refuse_unknown(unknown: Mapping[str, Any], known: list[str], call: str, where: str) -> None:
    for name in unknown:
        # An option of another decorator is not a misspelling, so no similar name is suggested.
        own = _OTHER_NAMES.get(name, name)
        takers = [f"{other}()" for other, (kind, more) in _KINDS.items() if own in (*kind.__annotations__, *more)]
        if takers and own not in known:
            take = f"{takers[0]} takes" if len(takers) == 1 else f"{', '.join(takers[:-1])} and {takers[-1]} take"
            it = "it" if own == name else f"it as {own}"
            raise InvalidSetting(f"{where}: {name}: {take} {it}", fix=f"{call}() takes {', '.join(known)}")
    refuse_other_names(unknown, known, _OTHER_NAMES, "option", call, where=where)


def _apart(options: Mapping[str, Any]) -> Apart:
    policies, tasks = set(PolicyOptions.__annotations__), set(TaskOptions.__annotations__)
    return (
        {name: value for name, value in options.items() if name not in policies | tasks},
        {name: value for name, value in options.items() if name in policies},
        {name: value for name, value in options.items() if name in tasks},
    )


def make_definition(task: str, options: Mapping[str, Any], base: Definition | None = None) -> Definition:
    """Check the options of a schedule and make its definition, from `base` for an update."""
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _CHECKS:
            _refuse_change(name, value, task)
        try:
            changes[name] = _CHECKS[name](value)
        except EvertickError as error:
            error.setting = name
            raise
    changes |= _unique(options, base)
    _check_fate(options, base)
    made = msgspec.structs.replace(base or Definition(task=task, when=""), task=task, **changes)
    check_every_node(made)
    return made


def blackout_given(options: Mapping[str, Any]) -> Calendar | None:
    """The calendar of the blackout, unless it is only a name."""
    given = options.get("blackout")
    return given if isinstance(given, Calendar) else None


def refuse_task_options(options: Mapping[str, Any], task: str) -> None:
    if options:
        raise InvalidSetting(f"{next(iter(options))}: set it where the task {task!r} is made, not on a schedule")


def refuse_rule_option(name: str, rule: str = "Cron") -> Never:
    raise InvalidSetting(f"{name}: it belongs to the rule", fix=f"write it there, in when={rule}(…)")


def _refuse_change(name: str, value: Any, task: str) -> None:
    if name in TaskOptions.__annotations__:
        refuse_task_options({name: value}, task)
    if name in CronOptions.__annotations__ or name in EveryOptions.__annotations__:
        refuse_rule_option(name)
    refuse_other_names({name: value}, ["when", *sorted(_CHECKS)], _OTHER_NAMES, "option of a schedule")


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidSetting(f"args: {shown(value)} must be a dict of arguments by name", value=shown(value))
    try:
        # Only the signature of the task tells whether bytes are decoded as bytes.
        data = encode_data(dict(value), allows_bytes=True)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"args: arguments must be JSON-like data: {error}") from None
    if len(data) > ARGUMENTS_MAX_BYTES:
        raise InvalidArguments(
            f"args: {len(data)} bytes are more than {ARGUMENTS_MAX_BYTES}", fix="pass a reference instead"
        )
    return dict(value)


def _pace(value: Duration) -> int:
    us = duration_us(value, what="pace")
    if us < MILLISECOND:
        raise InvalidSetting(f"pace: {shown(value)} is less than a millisecond")
    return us


def _unique(options: Mapping[str, Any], base: Definition | None) -> dict[str, Any]:
    """The changes of `unique_until` and `unique_for`. Both need a key, and exclude each other."""
    changes: dict[str, Any] = {}
    unique = options.get("unique", None if base is None else base.unique)
    if "unique_until" in options:
        changes["unique_until"] = check_unique_until(options["unique_until"], unique, options.get("unique_for"))
        changes["unique_for"] = None
    if options.get("unique_for") is not None:
        changes["unique_for"] = check_unique_for(options["unique_for"], unique)
        changes["unique_until"] = "end"
    if options.get("unique", ...) is None:
        changes |= {"unique_until": "end", "unique_for": None}
    return changes


def _duration_or_none(what: str) -> Callable[[Duration | None], int | None]:
    return lambda value: None if value is None else duration_us(value, what=what)


def _pause_after(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _PAUSE_AFTER_MAX:
        raise InvalidSetting(
            f"pause_after: {shown(value)} must be a whole number from 1 to {_PAUSE_AFTER_MAX}, or None"
        )
    return value


def _blackout(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return check_name(value.name if isinstance(value, Calendar) else value, what="blackout")
    except InvalidWhen as refused:
        fix = (
            "pass a Calendar(...), or the name of one that is stored. Hours are in the calendar: "
            "Calendar('nights', exclude=['22:00-06:00'])"
        )
        fix = fix if refused.fix is None else f"{refused.fix}; {fix}"
        raise InvalidWhen(refused.problem, setting="blackout", value=refused.value, fix=fix) from None


def _check_fate(options: Mapping[str, Any], base: Definition | None) -> None:
    """Reject the fate of moments in a blackout where there is no blackout."""
    blackout = options.get("blackout", None if base is None else base.blackout)
    if "blackout_fate" in options and blackout is None:
        raise InvalidSetting(
            f"blackout_fate: {options['blackout_fate']!r} is the fate of moments in a blackout, and there is none",
            setting="blackout_fate",
            value=repr(options["blackout_fate"]),
            fix="give it with blackout=, in the same call or before",
        )


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "args": _arguments,
    "queue": check_queue,
    "priority": check_priority,
    "catch_up": lambda value: check_one_of(value, CATCH_UPS, "catch_up"),
    "catch_up_limit": lambda value: check_whole(value, "catch_up_limit", 1, _CATCH_UP_LIMIT_MAX),
    "pace": _pace,
    "grace": _duration_or_none("grace"),
    "overlap": lambda value: check_one_of(value, OVERLAPS, "overlap"),
    "expires": _duration_or_none("expires"),
    "labels": lambda value: check_labels(dict(value) if isinstance(value, Mapping) else value),
    "unique": lambda value: None if value is None else check_key(value, what="unique"),
    "unique_until": lambda value: "end" if value is None else check_one_of(value, UNIQUE_UNTIL, "unique_until"),
    "unique_for": _duration_or_none("unique_for"),
    "pause_after": _pause_after,
    "blackout": _blackout,
    "blackout_fate": lambda value: check_one_of(value, BLACKOUT_FATES, "blackout_fate"),
    "mode": lambda value: check_one_of(value, SCHEDULE_MODES, "mode"),
}
