"""Duties declared in code, and their checks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_type_hints

from evertick.definition.settings import check_key, refuse_bare
from evertick.driver.python.function import is_async, refuse_generator
from evertick.errors import AlreadyDeclared, InvalidSetting
from evertick.model.duty import DutyContext, DutyWork, Interval, Moments, Rhythm
from evertick.text.values import shown
from evertick.when import When
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import DAY, SECOND

__all__ = ["Duties", "check_name", "make_duty", "rhythm_of"]

# Names that begin like this are Evertick's own.
_OWN_PREFIX = "evertick."
_INTERVAL_LEAST, _INTERVAL_MOST = SECOND // 10, 3660 * DAY


class Duties:
    """The duties that this process declares."""

    def __init__(self) -> None:
        self._works: dict[str, DutyWork] = {}
        self._places: dict[str, str] = {}

    def add(self, work: DutyWork, place: str) -> None:
        known = self._places.get(work.name)
        if known is not None:
            raise AlreadyDeclared(
                f"duty {work.name!r} is declared twice: at {known} and at {place}",
                setting="name",
                value=repr(work.name),
                fix="give one of them another name",
            )
        self._works[work.name] = work
        self._places[work.name] = place

    @property
    def works(self) -> tuple[DutyWork, ...]:
        return tuple(self._works.values())


def make_duty(
    function: Any,
    name: str,
    rhythm: Rhythm | None,
    call_in_thread: Callable[[Callable[[], object]], Awaitable[object]],
) -> DutyWork:
    """Make a duty of a function, which takes a `DutyContext` or nothing."""
    if not callable(function) or isinstance(function, type):
        raise InvalidSetting(f"duty {name!r}: {shown(function)} is not a function")
    refuse_generator(function, f"duty {name!r}")
    takes_context, can_be_cancelled = _takes_context(function, name), is_async(function)

    async def call(context: DutyContext) -> object:
        given = (context,) if takes_context else ()
        if can_be_cancelled:
            return await function(*given)
        return await call_in_thread(lambda: function(*given))

    return DutyWork(name=name, call=call, rhythm=rhythm, can_be_cancelled=can_be_cancelled)


def check_name(name: Any) -> str:
    refuse_bare(name, "duty", "the name of the duty", "'rebuild-index'")
    checked = check_key(name, what="duty")
    if checked.startswith(_OWN_PREFIX):
        raise InvalidSetting(
            f"duty: {checked!r}: names that begin with {_OWN_PREFIX!r} are reserved for Evertick",
            value=repr(checked),
            fix="choose another",
        )
    return checked


def rhythm_of(name: str, every: Duration | None, when: When | None, *, created: int, tz: str) -> Rhythm | None:
    """When it ticks: by an interval or by a rule; None for a loop."""
    if every is not None and when is not None:
        raise InvalidSetting(
            f"duty {name!r}: every={shown(every)} and when={when.text!r} exclude each other",
            fix="give one of them",
        )
    if when is not None:
        return Moments(_bound(when, name, created, tz))
    return None if every is None else _interval(every, name)


def _bound(when: When, name: str, created: int, tz: str) -> When:
    if when.bounds.calendar is not None and when.calendar is None:
        raise InvalidSetting(
            f"duty {name!r}: the calendar {when.bounds.calendar!r} is in the store, which a duty does not read",
            value=repr(when.bounds.calendar),
            fix="pass the Calendar itself",
        )
    return when.bind(key=name, created=created, tz=tz)


def _interval(every: Duration, name: str) -> Interval:
    us = duration_us(every, what="every")
    if not _INTERVAL_LEAST <= us <= _INTERVAL_MOST:
        raise InvalidSetting(f"duty {name!r}: every={shown(every)} must be between 0.1 s and ten years")
    return Interval(us)


def _takes_context(function: Any, name: str) -> bool:
    signature = inspect.signature(function)
    needed = [
        each
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    hints = _hints_of(function)
    if not needed:
        return any(hints.get(each) is DutyContext for each in list(signature.parameters)[:1])
    first = needed[0]
    if len(needed) > 1 or first.kind is first.KEYWORD_ONLY or hints.get(first.name, DutyContext) is not DutyContext:
        parameters = ", ".join(map(str, needed))
        raise InvalidSetting(
            f"duty {name!r}: its function needs ({parameters}), but gets a DutyContext or nothing; write "
            "`(ctx: DutyContext)` and take the rest from elsewhere"
        )
    return True


def _hints_of(function: Any) -> Mapping[str, Any]:
    try:
        return get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (NameError, TypeError):
        # An annotation that only a type checker can read; it is not shown.
        return {}
