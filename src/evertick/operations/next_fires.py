"""The fires to come as people read them: moments that a blackout makes one run of are one row, and runs are counted."""

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

# A schedule whose moments are all dropped has no end of them.
_IDLE_MOST = 100


class Ahead(Planned, frozen=True, kw_only=True):
    """A fire to come, or a stretch of moments that comes to one run or to none."""

    # How many moments it stands for: `fire_at` is the newest of those that are held, the first of those dropped.
    moments: int = 1


async def planned_fires(
    context: Context, schedules: Sequence[Schedule], *, count: int, until: datetime | None = None
) -> list[Ahead]:
    """The next so many fires of these schedules, and what does not run between them."""
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
    """When the first of each will run, perhaps in the past (then it is overdue); None: what is near does not run.

    The cursor itself tells that of most schedules; not of those with a blackout or a decision about single moments.
    """
    firsts = {each.key: each.next_fire_at for each in schedules}
    unlike = [each for each in schedules if each.blackout is not None or each.occurrences]
    if not unlike:
        return firsts
    expected = await _readable(context, unlike)
    for schedule in unlike:
        if schedule.key in expected:
            firsts[schedule.key] = _first(expected[schedule.key], schedule.next_fire_at)
    return firsts


async def _readable(context: Context, schedules: Sequence[Schedule]) -> dict[str, Expected]:
    """Those whose rule can be read; of the others the cursor is all that is known."""
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
    if cursor is None:  # nothing is left of it but what was moved
        moved = [each.to for each in expected.occurrences if each.to is not None]
        return from_us(min(moved)) if moved else None
    if expected.rule.is_after_end:  # it has this one moment, and no others yet
        opens = None if expected.blackout is None else expected.blackout.next_open(to_us(cursor))
        return cursor if expected.blackout is None else None if opens is None else from_us(opens)
    found = _counted(upcoming_fires([expected], to_us(cursor) - 1, LATEST, is_folded=True), 1)
    runs = (each for each in found if each.prospect not in ("skipped", "dropped"))
    return next((from_us(each.at) for each in runs), None)
