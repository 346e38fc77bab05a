"""Previews the effect of a change. Nothing here writes."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any, Unpack

import msgspec

from evertick.definition.options import PolicyOptions, blackout_given, make_definition
from evertick.definition.settings import check_key
from evertick.errors import EvertickError, InvalidInput, NotFound
from evertick.ledger.parsed_rules import blackout_named, blackout_of, load_calendars, rule_of
from evertick.model import Definition
from evertick.operations.calendars import check_calendar
from evertick.operations.context import Context, checked, stored_schedule
from evertick.operations.schedules import rule_given
from evertick.plan.allowed_rules import check_rule
from evertick.plan.change_preview import ChangePlan, Kind, OptionChange, Side, plan_change
from evertick.store.base import StoredSchedule
from evertick.text.values import shown
from evertick.when import Calendar, When, parse_when, to_us
from evertick.when.base import check_name
from evertick.when.moment import DAY, moment_text
from evertick.when.zone import zone_named

__all__ = [
    "ScheduleSnapshot",
    "checked_days",
    "looked_at",
    "notes_of_rule",
    "plan_edit",
    "plan_stop",
    "preview_calendar",
    "preview_change",
]

DAYS_MAX = 366
_USERS_MOST = 1_000
_VALUE_SHOWN = 200


def checked_days(days: Any) -> int:
    """The days in microseconds."""
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= DAYS_MAX:
        problem = f"days: {shown(days)} must be a whole number from 1 to {DAYS_MAX}"
        raise InvalidInput(problem, setting="days", value=shown(days))
    return days * DAY


class ScheduleSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule. `rule` None: the rule cannot be parsed, for the reason in `error`."""

    time: int
    stored: StoredSchedule
    rule: When | None
    error: str | None
    calendars: dict[str, Calendar]


@checked(key=check_key, days=checked_days)
async def preview_change(
    context: Context,
    key: str,
    when: When | str | None = None,
    *,
    calendar: Calendar | str | None = None,
    tz: str | None = None,
    pause: bool = False,
    until: datetime | None = None,
    remove: bool = False,
    days: int = 14,
    **policies: Unpack[PolicyOptions],
) -> ChangePlan:
    """The fires of the next days that a change would add, remove and move. Nothing is written.

    Takes the arguments of `update`, another `calendar` or zone for the current rule (`when_new` of the answer is the
    rule for `update`), `pause` with an optional `until`, or `remove`.
    """
    is_edit = when is not None or calendar is not None or tz is not None or bool(policies)
    if pause + remove + is_edit > 1:
        raise InvalidInput("pause, remove and an update are different changes", fix="preview one at a time")
    if until is not None and not pause:
        raise InvalidInput(
            f"until: {shown(until)} goes with pause=True",
            setting="until",
            value=shown(until),
            fix="pass pause=True, or leave out until",
        )
    now, last = await _looked_up(context, key), checked_days(days)
    if pause or remove:
        return plan_stop(now, "pause" if pause else "remove", until, last)
    if calendar is not None and not isinstance(calendar, str):
        check_calendar(calendar)
    return _updated(context, now, _rule_wanted(now, when, calendar, tz), policies, calendar, last)


@checked(calendar=check_calendar, days=checked_days)
async def preview_calendar(context: Context, calendar: Calendar, *, days: int = 14) -> list[ChangePlan]:
    """The effect of `set_calendar` on the schedules that use it: one plan each, by key. Nothing is written."""
    last = checked_days(days)
    plans = []
    for key in await context.store.calendar_users(context.app, calendar.name, limit=_USERS_MOST):
        # The schedule may be removed meanwhile.
        with contextlib.suppress(NotFound):
            now = await _looked_up(context, key)
            calendars = {**now.calendars, calendar.name: calendar}
            new = _bound(context, now, None, calendars)
            plans.append(plan_edit(now, "calendar", new, now.stored.definition, last, calendars))
    return plans


def _updated(
    context: Context,
    now: ScheduleSnapshot,
    wanted: When | None,
    policies: PolicyOptions,
    calendar: Calendar | str | None,
    last: int,
) -> ChangePlan:
    given = (None if wanted is None else wanted.calendar, calendar, blackout_given(policies))
    calendars = {**now.calendars, **{each.name: each for each in given if isinstance(each, Calendar)}}
    rule = _bound(context, now, wanted, calendars)
    if wanted is not None:
        context.settings.schedule_limits.check(now.stored.key, rule, now.time)
    definition = make_definition(now.stored.definition.task, policies, now.stored.definition)
    check_rule(definition, rule)
    context.check_arguments(definition.task, definition.args)
    return plan_edit(now, "update", rule, definition, last, calendars)


def _bound(context: Context, now: ScheduleSnapshot, wanted: When | None, calendars: dict[str, Calendar]) -> When:
    """The rule as the change would store it. An unchanged rule keeps its anchor."""
    created = now.stored.created_at if wanted is None else now.time
    rule = parse_when(now.stored.definition.when, calendars) if wanted is None else wanted
    return rule.bind(key=now.stored.key, created=created, tz=context.settings.tz, calendars=calendars)


async def _looked_up(context: Context, key: str) -> ScheduleSnapshot:
    stored = await stored_schedule(context, key)
    return looked_at(stored, await load_calendars(context.store, context.app), await context.store.now())


def looked_at(stored: StoredSchedule, calendars: dict[str, Calendar], time: int) -> ScheduleSnapshot:
    rule, error = None, None
    try:
        rule = rule_of(stored, calendars)
        blackout_of(stored, rule, calendars)
    except EvertickError as problem:
        rule, error = None, str(problem)
    return ScheduleSnapshot(time=time, stored=stored, rule=rule, error=error, calendars=calendars)


def _rule_wanted(
    now: ScheduleSnapshot, when: When | str | None, calendar: Calendar | str | None, tz: str | None
) -> When | None:
    """The given rule, or the current one with another calendar or zone."""
    if calendar is None and tz is None:
        return None if when is None else rule_given(when)
    options = {} if tz is None else {"tz": zone_named(tz).key}
    if calendar is not None:
        options["calendar"] = check_name(calendar if isinstance(calendar, str) else calendar.name, what="calendar")
    rule = parse_when(now.stored.definition.when, now.calendars) if when is None else rule_given(when)
    own = {} if rule.calendar is None else {rule.calendar.name: rule.calendar}
    head, *others = rule.text.split("; ")
    kept = [each for each in others if each.partition("=")[0] not in options]
    return parse_when("; ".join([head, *kept, *(f"{name}={value}" for name, value in options.items())]), own)


def plan_edit(
    now: ScheduleSnapshot, kind: Kind, rule: When, definition: Definition, last: int, calendars: dict[str, Calendar]
) -> ChangePlan:
    old, stored = _side(now, now.rule, now.stored.definition, now.calendars), now.stored
    new = _side(now, rule, definition, calendars)
    if old.only is not None and rule.is_after_end:
        # An edit restarts the interval; a live run would restart it at its end.
        new = msgspec.structs.replace(new, only=rule.next_us(now.time))
    before, after = stored.definition, msgspec.structs.replace(definition, when=rule.text)
    options = tuple(
        OptionChange(name=name, old=_json(getattr(before, name)), new=_json(getattr(after, name)))
        for name in Definition.__struct_fields__
        if name != "when" and getattr(before, name) != getattr(after, name)
    )
    notes = (*_notes(now), *notes_of_rule(rule, definition))
    return plan_change(stored.key, kind, old, new, since=now.time, until=now.time + last, options=options, notes=notes)


def plan_stop(
    now: ScheduleSnapshot, kind: Kind, until: datetime | None, last: int, *, is_prune: bool = False
) -> ChangePlan:
    """A pause or a removal. `is_prune`: the removal of a schedule that is no longer declared."""
    old = _side(now, now.rule, now.stored.definition, now.calendars)
    end = None if until is None else to_us(until)
    if end is not None and end <= now.time:
        raise InvalidInput(
            f"until: {moment_text(end)} has passed",
            setting="until",
            value=moment_text(end),
            fix="pass a later moment, or none",
        )
    if end is None:
        new = Side(rule=None)
    else:
        new = msgspec.structs.replace(
            old, begins=end, occurrences=tuple(each for each in old.occurrences if (each.to or each.fire_at) >= end)
        )
    notes = _notes(now)
    if kind == "remove" and now.stored.declared is not None and not is_prune:
        declarer = "code" if now.stored.declared.source == "code" else "the configuration"
        node = now.stored.declared.node_name
        notes += (f"{declarer} declares it ({node}), so removing it is refused: pause it instead",)
    return plan_change(now.stored.key, kind, old, new, since=now.time, until=now.time + last, notes=notes)


def _side(now: ScheduleSnapshot, rule: When | None, definition: Definition, calendars: dict[str, Calendar]) -> Side:
    if rule is None:
        return Side(rule=None)
    stored, most = now.stored, rule.bounds.max_fires
    kept = tuple(each for each in stored.occurrences if _is_kept(rule, each.fire_at, now.time))
    return Side(
        rule=rule,
        left=None if most is None else most - stored.fires,
        begins=None if stored.pause is None else stored.pause.until,
        only=(stored.fire_at or rule.next_us(now.time)) if rule.is_after_end else None,
        occurrences=kept,
        blackout=blackout_named(definition.blackout, stored.key, rule, calendars),
    )


def _is_kept(rule: When, moment: int, now: int) -> bool:
    """Whether the rule still has the moment of an override."""
    return moment <= now or (not rule.is_after_end and rule.next_us(moment - 1) == moment)


def _notes(now: ScheduleSnapshot) -> tuple[str, ...]:
    notes = []
    pause = now.stored.pause
    if now.error is not None:
        notes.append(f"its rule cannot be read: {now.error}")
    if pause is not None and pause.until is None:
        notes.append("it is paused: these are the fires it would have if it were resumed now")
    elif pause is not None and pause.until is not None:
        notes.append(f"it is paused until {moment_text(pause.until)}")
    return tuple(notes)


def notes_of_rule(rule: When, definition: Definition) -> tuple[str, ...]:
    notes = []
    if rule.is_after_end:
        notes.append("it counts from the end of each run: only its next fire is known")
    if rule.bounds.jitter:
        notes.append("jitter delays the fires; their nominal moments are listed")
    if definition.mode == "every-node":
        notes.append("each fire runs on every live node that knows its task, and is listed once")
    if definition.blackout is not None and definition.blackout_fate != "drop":
        notes.append(f"moments in blackout {definition.blackout!r} run when it ends, and are not listed")
    return tuple(notes)


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_SHOWN else text[:_VALUE_SHOWN] + "…"
