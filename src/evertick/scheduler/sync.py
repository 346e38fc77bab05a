"""`scheduler.sync`: the plain forms of the scheduler's async methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertick import operations
from evertick.scheduler.operation import plain, plain_backfill

if TYPE_CHECKING:
    from evertick.scheduler.runtime import Runtime

__all__ = ["SyncScheduler"]


class SyncScheduler:
    """The operations of a scheduler, for code without an event loop. Refused on a thread that runs one."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    add = plain(operations.schedules.add)
    add_many = plain(operations.schedules.add_many)
    update = plain(operations.schedules.update)
    remove = plain(operations.schedules.remove)
    pause = plain(operations.schedules.pause)
    resume = plain(operations.schedules.resume)
    trigger = plain(operations.schedules.trigger)
    schedules = plain(operations.schedules.schedules)
    schedule = plain(operations.schedules.schedule)
    why = plain(operations.schedules.why)
    pause_many = plain(operations.bulk.pause_many)
    resume_many = plain(operations.bulk.resume_many)
    skip_next = plain(operations.overrides.skip_next)
    move = plain(operations.overrides.move)
    run_early = plain(operations.overrides.run_early)
    undo = plain(operations.overrides.undo)
    preview = plain(operations.preview.preview)
    forecast = plain(operations.preview.forecast)
    preview_change = plain(operations.change_preview.preview_change)
    preview_calendar = plain(operations.change_preview.preview_calendar)
    backfill = plain_backfill(operations.backfills.backfill)

    set_calendar = plain(operations.calendars.set_calendar)
    calendars = plain(operations.calendars.calendars)
    calendar = plain(operations.calendars.calendar)
    calendar_users = plain(operations.calendars.calendar_users)
    remove_calendar = plain(operations.calendars.remove_calendar)

    cancel = plain(operations.runs.cancel)
    rerun = plain(operations.runs.rerun)
    rerun_many = plain(operations.runs.rerun_many)
    runs = plain(operations.runs.runs)
    gaps = plain(operations.runs.gaps)
    history = plain(operations.runs.history)
    get_run = plain(operations.runs.get_run)
    why_run = plain(operations.runs.why_run)
    why_task = plain(operations.runs.why_task)
    attempts = plain(operations.runs.attempts)
    log = plain(operations.runs.log)

    send = plain(operations.outbox.send)
    messages = plain(operations.outbox.messages)
    get_message = plain(operations.outbox.get_message)
    retry_message = plain(operations.outbox.retry_message)
    retry_dead = plain(operations.outbox.retry_dead)
    drop_message = plain(operations.outbox.drop_message)

    keep_feed = plain(operations.feed.keep_feed)
    feed_cursor = plain(operations.feed.feed_cursor)
    feed_page = plain(operations.feed.feed_page)

    nodes = plain(operations.nodes.nodes)
    duties = plain(operations.nodes.duties)
    ha = plain(operations.nodes.ha)
    health = plain(operations.nodes.health)
    apps = plain(operations.health.apps)

    def close(self) -> None:
        self.runtime.portal.call(self.runtime.close, "scheduler.sync.close()")
        self.runtime.portal.close()
