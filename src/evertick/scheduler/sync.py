"""`scheduler.sync`: the plain forms of the scheduler's async methods, one line each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from evertick.aio.blocking import at_once
from evertick.definition.options import PolicyOptions
from evertick.definition.task import Task
from evertick.errors import Refused
from evertick.explain.schedule import Why
from evertick.model import (
    Attempt,
    Duty,
    Gap,
    LogLine,
    Message,
    MessageState,
    Node,
    RerunOverlap,
    Run,
    Schedule,
    State,
    Verdict,
)
from evertick.model.feed import FeedPage
from evertick.text.values import shown
from evertick.when import Calendar, Duration, When

if TYPE_CHECKING:
    from evertick.explain.availability import HaKind, HaTable
    from evertick.operations.backfills import BackfillOverlap, BackfillStep
    from evertick.operations.bulk import OnChange
    from evertick.operations.preview import Planned
    from evertick.plan.change_preview import ChangePlan
    from evertick.scheduler.scheduler import Health, Scheduler

__all__ = ["SyncScheduler"]

T = TypeVar("T")


class SyncScheduler:
    """What the scheduler can do, for code without an event loop. Refused on a thread that runs one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        return self._scheduler._portal.call(make, f"scheduler.sync.{what}()")

    def add(
        self, *, key: str, when: When | str, task: Task[Any, Any] | str, **options: Unpack[PolicyOptions]
    ) -> Schedule:
        return self._call(lambda: self._scheduler.add(key=key, when=when, task=task, **options), "add")

    def add_many(self, schedules: Iterable[Mapping[str, Any]]) -> None:
        return self._call(lambda: self._scheduler.add_many(schedules), "add_many")

    def update(self, key: str, *, when: When | str | None = None, **options: Unpack[PolicyOptions]) -> Schedule:
        return self._call(lambda: self._scheduler.update(key, when=when, **options), "update")

    def remove(self, key: str) -> None:
        return self._call(lambda: self._scheduler.remove(key), "remove")

    def pause(self, key: str, *, note: str = "", until: datetime | None = None) -> Schedule:
        return self._call(lambda: self._scheduler.pause(key, note=note, until=until), "pause")

    def resume(self, key: str) -> Schedule:
        return self._call(lambda: self._scheduler.resume(key), "resume")

    def trigger(self, key: str, *, args: Mapping[str, Any] | None = None) -> Run:
        return self._call(lambda: self._scheduler.trigger(key, args=args), "trigger")

    def skip_next(self, key: str, *, note: str = "") -> Schedule:
        return self._call(lambda: self._scheduler.skip_next(key, note=note), "skip_next")

    def move(self, key: str, fire_at: datetime, *, to: datetime, note: str = "") -> Schedule:
        return self._call(lambda: self._scheduler.move(key, fire_at, to=to, note=note), "move")

    def run_early(self, key: str) -> Run:
        return self._call(lambda: self._scheduler.run_early(key), "run_early")

    def undo(self, key: str, fire_at: datetime | None = None) -> Schedule:
        return self._call(lambda: self._scheduler.undo(key, fire_at), "undo")

    def schedules(
        self, *, labels: Mapping[str, str] | None = None, is_paused: bool | None = None, limit: int | None = None
    ) -> list[Schedule]:
        return self._call(
            lambda: self._scheduler.schedules(labels=labels, is_paused=is_paused, limit=limit), "schedules"
        )

    def schedule(self, key: str) -> Schedule:
        return self._call(lambda: self._scheduler.schedule(key), "schedule")

    def set_calendar(self, calendar: Calendar) -> None:
        return self._call(lambda: self._scheduler.set_calendar(calendar), "set_calendar")

    def calendars(self) -> list[Calendar]:
        return self._call(self._scheduler.calendars, "calendars")

    def calendar(self, name: str) -> Calendar:
        return self._call(lambda: self._scheduler.calendar(name), "calendar")

    def calendar_users(self, name: str) -> list[str]:
        return self._call(lambda: self._scheduler.calendar_users(name), "calendar_users")

    def remove_calendar(self, name: str) -> None:
        return self._call(lambda: self._scheduler.remove_calendar(name), "remove_calendar")

    def keep_feed(self, kept: Duration | None) -> None:
        return self._call(lambda: self._scheduler.keep_feed(kept), "keep_feed")

    def feed_cursor(self) -> str:
        return self._call(self._scheduler.feed_cursor, "feed_cursor")

    def feed_page(
        self,
        after: str | None = None,
        *,
        since: datetime | None = None,
        kinds: Sequence[str] | None = None,
        schedule: str | None = None,
        limit: int = 1000,
    ) -> FeedPage:
        return self._call(
            lambda: self._scheduler.feed_page(after, since=since, kinds=kinds, schedule=schedule, limit=limit),
            "feed_page",
        )

    def preview_calendar(self, calendar: Calendar, *, days: int = 14) -> list[ChangePlan]:
        return self._call(lambda: self._scheduler.preview_calendar(calendar, days=days), "preview_calendar")

    def preview_change(
        self,
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
        return self._call(
            lambda: self._scheduler.preview_change(
                key, when, calendar=calendar, tz=tz, pause=pause, until=until, remove=remove, days=days, **policies
            ),
            "preview_change",
        )

    def pause_many(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        note: str = "",
        until: datetime | None = None,
        everything: bool = False,
        on_change: OnChange | None = None,
    ) -> list[str]:
        return self._call(
            lambda: self._scheduler.pause_many(
                labels=labels, note=note, until=until, everything=everything, on_change=on_change
            ),
            "pause_many",
        )

    def resume_many(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        everything: bool = False,
        on_change: OnChange | None = None,
    ) -> list[str]:
        return self._call(
            lambda: self._scheduler.resume_many(labels=labels, everything=everything, on_change=on_change),
            "resume_many",
        )

    def backfill(
        self,
        key: str,
        start: datetime,
        end: datetime,
        *,
        overlap: BackfillOverlap | None = None,
        pace: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        limit: int = 10_000,
        on_step: Callable[[BackfillStep], None] | None = None,
    ) -> BackfillStep:
        """Waits for the end; `on_step` hears of each step, on the event loop's thread."""
        return self._call(
            lambda: self._scheduler.backfill(
                key, start, end, overlap=overlap, pace=pace, args=args, dry_run=dry_run, limit=limit
            ).to_the_end(on_step),
            "backfill",
        )

    def preview(
        self, *, count: int = 10, until: datetime | None = None, after: datetime | None = None, key: str | None = None
    ) -> list[Planned]:
        return self._call(lambda: self._scheduler.preview(count=count, until=until, after=after, key=key), "preview")

    def why(self, key: str) -> Why:
        return self._call(lambda: self._scheduler.why(key), "why")

    def cancel(self, run: Run | str) -> bool:
        return self._call(lambda: self._scheduler.cancel(run), "cancel")

    def rerun(
        self, run: Run | str, *, args: Mapping[str, Any] | None = None, overlap: RerunOverlap | None = None
    ) -> Run:
        return self._call(lambda: self._scheduler.rerun(run, args=args, overlap=overlap), "rerun")

    def rerun_many(
        self,
        *,
        schedule_key: str | None = None,
        task: str | None = None,
        verdicts: Sequence[Verdict | str] = (Verdict.FAILED, Verdict.LOST),
        labels: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        args: Mapping[str, Any] | None = None,
        overlap: RerunOverlap = "queue",
        limit: int = 100,
    ) -> list[Run]:
        return self._call(
            lambda: self._scheduler.rerun_many(
                schedule_key=schedule_key,
                task=task,
                verdicts=verdicts,
                labels=labels,
                since=since,
                until=until,
                args=args,
                overlap=overlap,
                limit=limit,
            ),
            "rerun_many",
        )

    def runs(
        self,
        schedule_key: str | None = None,
        *,
        task: str | None = None,
        states: Sequence[State | str] | None = None,
        verdicts: Sequence[Verdict | str] | None = None,
        labels: Mapping[str, str] | None = None,
        was_rerun: bool | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        oldest_first: bool = False,
        limit: int = 100,
    ) -> list[Run]:
        return self._call(
            lambda: self._scheduler.runs(
                schedule_key,
                task=task,
                states=states,
                verdicts=verdicts,
                labels=labels,
                was_rerun=was_rerun,
                since=since,
                until=until,
                oldest_first=oldest_first,
                limit=limit,
            ),
            "runs",
        )

    def gaps(
        self,
        schedule_key: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Gap]:
        return self._call(lambda: self._scheduler.gaps(schedule_key, since=since, until=until, limit=limit), "gaps")

    def history(
        self,
        schedule_key: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Run | Gap]:
        return self._call(
            lambda: self._scheduler.history(schedule_key, since=since, until=until, limit=limit), "history"
        )

    def get_run(self, run_id: str) -> Run:
        return self._call(lambda: self._scheduler.get_run(run_id), "get_run")

    def attempts(self, run: Run | str) -> list[Attempt]:
        return self._call(lambda: self._scheduler.attempts(run), "attempts")

    def log(self, run: Run | str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        return self._call(lambda: self._scheduler.log(run, after=after, limit=limit), "log")

    def ha(self, *, kind: HaKind | None = None, limit: int = 100) -> HaTable:
        return self._call(lambda: self._scheduler.ha(kind=kind, limit=limit), "ha")

    def send(
        self,
        channel: str,
        body: object,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        connection: object = None,
    ) -> Message:
        scheduler, what = self._scheduler, "scheduler.sync.send()"
        if connection is None:
            return self._call(lambda: scheduler.send(channel, body, key=key, delay=delay, headers=headers), "send")
        # On the user's connection in the user's thread; only opening the store is for an event loop.
        if scheduler._portal.call(scheduler._store, what).within(connection).is_async:
            raise Refused(
                f"{what} cannot wait for the async connection {shown(connection)}; use `await scheduler.send()`"
            )
        return at_once(scheduler.send(channel, body, key=key, delay=delay, headers=headers, connection=connection))

    def messages(
        self, *, channel: str | None = None, states: Sequence[MessageState | str] | None = None, limit: int = 100
    ) -> list[Message]:
        return self._call(lambda: self._scheduler.messages(channel=channel, states=states, limit=limit), "messages")

    def get_message(self, message_id: str) -> Message:
        return self._call(lambda: self._scheduler.get_message(message_id), "get_message")

    def retry_message(self, message: Message | str) -> Message:
        return self._call(lambda: self._scheduler.retry_message(message), "retry_message")

    def retry_dead(self, *, channel: str | None = None, limit: int = 1000) -> list[str]:
        return self._call(lambda: self._scheduler.retry_dead(channel=channel, limit=limit), "retry_dead")

    def drop_message(self, message: Message | str) -> None:
        return self._call(lambda: self._scheduler.drop_message(message), "drop_message")

    def nodes(self) -> list[Node]:
        return self._call(self._scheduler.nodes, "nodes")

    def duties(self) -> list[Duty]:
        return self._call(self._scheduler.duties, "duties")

    def health(self) -> Health:
        return self._call(self._scheduler.health, "health")

    def close(self) -> None:
        self._call(self._scheduler.close, "close")
        self._scheduler._portal.close()
