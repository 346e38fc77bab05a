"""Pauses and resumes many schedules at once, by their labels.

Each schedule is changed in a transaction of its own. After an interrupted call, the next call changes the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime

from evertick.definition.settings import check_labels
from evertick.errors import InvalidInput, NotFound
from evertick.model import Pause
from evertick.operations.context import Context, check_note, checked
from evertick.store.base import ScheduleFilter, StoredSchedule
from evertick.text.values import shown
from evertick.when import to_us
from evertick.when.moment import moment_text

__all__ = ["OnChange", "pause_many", "resume_many"]

# Gets the key of each changed schedule, and the number of schedules changed so far.
OnChange = Callable[[str, int], None]

_PAGE = 1_000


@checked(note=check_note, until=to_us)
async def pause_many(
    context: Context,
    *,
    labels: Mapping[str, str] | None = None,
    note: str = "",
    until: datetime | None = None,
    everything: bool = False,
    on_change: OnChange | None = None,
) -> list[str]:
    """Pause all active schedules with these labels. Returns their keys."""
    chosen, until_us = _chosen(labels, everything), None if until is None else to_us(until)
    if until_us is not None and until_us <= await context.store.now():
        raise InvalidInput(
            f"until: {moment_text(until_us)} has passed",
            setting="until",
            value=moment_text(until_us),
            fix="pass a later moment, or none",
        )
    editor = context.editor()

    async def pause(key: str) -> bool:
        is_paused = await editor.pause(key, note=note, until=until_us, unless=_is_paused)
        if is_paused:
            context.tell("paused", key, note=note)
        return is_paused

    return await _change_each(context, chosen, is_paused=False, change=pause, on_change=on_change)


async def resume_many(
    context: Context,
    *,
    labels: Mapping[str, str] | None = None,
    everything: bool = False,
    on_change: OnChange | None = None,
) -> list[str]:
    """Resume all schedules with these labels that were paused by hand. Returns their keys.

    A schedule that is paused because it is no longer declared stays paused.
    """
    chosen, editor = _chosen(labels, everything), context.editor()

    async def resume(key: str) -> bool:
        return await editor.resume(key, unless=_is_undeclared)

    return await _change_each(context, chosen, is_paused=True, change=resume, on_change=on_change)


async def _change_each(
    context: Context,
    labels: dict[str, str],
    *,
    is_paused: bool,
    change: Callable[[str], Awaitable[bool]],
    on_change: OnChange | None,
) -> list[str]:
    changed: list[str] = []
    try:
        async for key in _keys(context, labels, is_paused):
            try:
                is_changed = await change(key)
            except NotFound:  # removed meanwhile
                continue
            if is_changed:
                changed.append(key)
                if on_change is not None:
                    on_change(key, len(changed))
    finally:
        if changed:
            context.wake_fires()
    return changed


async def _keys(context: Context, labels: dict[str, str], is_paused: bool) -> AsyncIterator[str]:
    after: str | None = None
    while True:
        wanted = ScheduleFilter(labels=labels, is_paused=is_paused, after_key=after, limit=_PAGE, with_counts=False)
        page = await context.store.schedules(context.app, wanted)
        for schedule in page:
            yield schedule.key
        if len(page) < _PAGE:
            return
        after = page[-1].key


def _chosen(labels: Mapping[str, str] | None, everything: bool) -> dict[str, str]:
    chosen = check_labels(labels or {})
    if not chosen and everything is not True:
        raise InvalidInput(
            "labels: none is given, which means every schedule",
            setting="labels",
            fix="pass a label, or everything=True",
        )
    if chosen and everything:
        problem = f"everything=True excludes labels={shown(chosen)}"
        raise InvalidInput(problem, setting="everything", fix="leave out one of them")
    return chosen


def _is_paused(stored: StoredSchedule) -> bool:
    return stored.pause is not None


def _is_undeclared(pause: Pause) -> bool:
    return pause.is_undeclared
