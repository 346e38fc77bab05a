"""The next fires for people: the moments of a blackout that become one run are one row, and runs are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from evertick.errors import EvertickError
from evertick.model import Schedule
from evertick.operations.context import Context
from evertick.operations.preview import Planned, expected_of
from evertick.plan.upcoming import Expected, Foreseen, upcoming_fires
from evertick.when import from_us, to_us
from evertick.when.moment import LATEST

__all__ = ["Ahead", "first_fires", "planned_fires"]

# The limit for moments without a run: a schedule may drop all of its moments.
_IDLE_MOST = 100


class Ahead(Planned, frozen=True, kw_only=True):
    """A future fire, or a range of moments that become one run or none."""

    # The number of moments. `fire_at` is the newest of held ones, and the first of dropped ones.
    moments: int = 1


async def planned_fires(
    context: Context, schedules: Sequence[Schedule], *, count: int, until: datetime | None = None
) -> list[Ahead]:
    """The next `count` fires of these schedules, and the moments between them that do not run."""
    expected = await expected_of(context, schedules)
    since, latest = await context.store.now(), LATEST if until is None else to_us(until)
    tasks = {each.key: each.task for each in schedules}
    found = upcoming_fires(expected.values(), since, latest, is_folded=True)
    return [_ahead(each, expected[each.key], tasks[each.key]) for each in _counted(found, count)]


def _counted(found: Iterable[Foreseen], count: int) -> Iterator[Foreseen]:
    idle = 0
    for each in found:
        yield each
        if each.prospect in ("skipped", "dropped"):
            idle += 1
        else:
            count -= 1
        if count <= 0 or idle >= _IDLE_MOST:
            return


def _ahead(each: Foreseen, expected: Expected, task: str) -> Ahead:
    zone = expected.rule.zone
    return Ahead(
        fire_at=from_us(each.fire_at, zone),
        key=each.key,
        task=task,
        at=from_us(each.at, zone),
        prospect=each.prospect,
        moments=each.moments,
    )


async def first_fires(context: Context, schedules: Sequence[Schedule]) -> dict[str, datetime | None]:
    """When each schedule runs next; a past time is overdue. None: no near moment runs.

    This is the cursor, except for schedules with a blackout or with overrides.
    """
    firsts = {each.key: each.next_fire_at for each in schedules}
    special = [each for each in schedules if each.blackout is not None or each.occurrences]
    if not special:
        return firsts
    expected = await _readable(context, special)
    for schedule in special:
        if schedule.key in expected:
            firsts[schedule.key] = _first(expected[schedule.key], schedule.next_fire_at)
    return firsts


async def _readable(context: Context, schedules: Sequence[Schedule]) -> dict[str, Expected]:
    """The inputs of the schedules whose rule can be parsed."""
    try:
        return await expected_of(context, schedules)
    except EvertickError:
        if len(schedules) == 1:
            return {}
    middle = len(schedules) // 2
    return {
        **await _readable(context, schedules[:middle]),
        **await _readable(context, schedules[middle:]),
    }


def _first(expected: Expected, cursor: datetime | None) -> datetime | None:
    if cursor is None:  # only moved moments are left
        moved = [each.to for each in expected.occurrences if each.to is not None]
        return from_us(min(moved)) if moved else None
    if expected.rule.is_after_end:  # only this moment is known
        opens = None if expected.blackout is None else expected.blackout.next_open(to_us(cursor))
        return cursor if expected.blackout is None else None if opens is None else from_us(opens)
    found = _counted(upcoming_fires([expected], to_us(cursor) - 1, LATEST, is_folded=True), 1)
    runs = (each for each in found if each.prospect not in ("skipped", "dropped"))
    return next((from_us(each.at) for each in runs), None)
