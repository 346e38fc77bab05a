"""`scheduler.sync`: the blocking forms of the scheduler's async methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertick import operations
from evertick.scheduler.operation import sync_backfill, sync_method

if TYPE_CHECKING:
    from evertick.scheduler.runtime import Runtime

__all__ = ["SyncScheduler"]


class SyncScheduler:
    """The operations of a scheduler, for code without an event loop. `WouldBlock` is raised on a thread with one."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    add = sync_method(operations.schedules.add)
    add_many = sync_method(operations.schedules.add_many)
    update = sync_method(operations.schedules.update)
    remove = sync_method(operations.schedules.remove)
    pause = sync_method(operations.schedules.pause)
    resume = sync_method(operations.schedules.resume)
    trigger = sync_method(operations.schedules.trigger)
    schedules = sync_method(operations.schedules.schedules)
    schedule = sync_method(operations.schedules.schedule)
    why = sync_method(operations.schedules.why)
    pause_many = sync_method(operations.bulk.pause_many)
    resume_many = sync_method(operations.bulk.resume_many)
    skip_next = sync_method(operations.overrides.skip_next)
    move = sync_method(operations.overrides.move)
    run_early = sync_method(operations.overrides.run_early)
    undo = sync_method(operations.overrides.undo)
    preview = sync_method(operations.preview.preview)
    forecast = sync_method(operations.preview.forecast)
    preview_change = sync_method(operations.change_preview.preview_change)
    preview_calendar = sync_method(operations.change_preview.preview_calendar)
    backfill = sync_backfill(operations.backfills.backfill)

    set_calendar = sync_method(operations.calendars.set_calendar)
    calendars = sync_method(operations.calendars.calendars)
    calendar = sync_method(operations.calendars.calendar)
    calendar_users = sync_method(operations.calendars.calendar_users)
    remove_calendar = sync_method(operations.calendars.remove_calendar)

    cancel = sync_method(operations.runs.cancel)
    rerun = sync_method(operations.runs.rerun)
    rerun_many = sync_method(operations.runs.rerun_many)
    runs = sync_method(operations.runs.runs)
    gaps = sync_method(operations.runs.gaps)
    history = sync_method(operations.runs.history)
    get_run = sync_method(operations.runs.get_run)
    why_run = sync_method(operations.runs.why_run)
    why_task = sync_method(operations.runs.why_task)
    attempts = sync_method(operations.runs.attempts)
    log = sync_method(operations.runs.log)

    send = sync_method(operations.outbox.send)
    messages = sync_method(operations.outbox.messages)
    get_message = sync_method(operations.outbox.get_message)
    retry_message = sync_method(operations.outbox.retry_message)
    retry_dead = sync_method(operations.outbox.retry_dead)
    drop_message = sync_method(operations.outbox.drop_message)

    keep_feed = sync_method(operations.feed.keep_feed)
    feed_cursor = sync_method(operations.feed.feed_cursor)
    feed_page = sync_method(operations.feed.feed_page)

    nodes = sync_method(operations.nodes.nodes)
    duties = sync_method(operations.nodes.duties)
    ha = sync_method(operations.nodes.ha)
    health = sync_method(operations.nodes.health)
    apps = sync_method(operations.health.apps)

    def close(self) -> None:
        self.runtime.portal.call(self.runtime.close, "scheduler.sync.close()")
        self.runtime.portal.close()
