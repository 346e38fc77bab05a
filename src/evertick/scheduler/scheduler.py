"""The object that users hold: it declares tasks and schedules, starts and stops, and delegates the rest to operations.

Methods that use the store are async and open it on first use; `scheduler.sync` has the blocking forms. An engine runs
inside `async with`, `with` or `run()`. Without an engine, a scheduler can still enqueue and manage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from evertick import operations
from evertick.aio.unawaited import logs_unawaited_calls
from evertick.clock import host_name
from evertick.definition.declarations import calling_place
from evertick.definition.duties import check_name, make_duty, rhythm_of
from evertick.definition.options import CronOptions, EveryOptions, OnceOptions, TaskDecorator, WhenOptions, split
from evertick.definition.senders import SenderOptions, check_channel, make_sender
from evertick.definition.settings import Settings, make_settings, refuse_bare, refuse_unknown
from evertick.definition.task import Task, TaskOptions
from evertick.driver.registry import IN_PYTHON, connection_to
from evertick.driver.spec import Spec
from evertick.errors import AlreadyDeclared, InvalidDuration, InvalidInput, InvalidSetting, Refused, StoreError
from evertick.job.context import Context
from evertick.model.hooks import EventKind, Hook
from evertick.operations.nodes import Health
from evertick.operations.schedules import rule_given
from evertick.scheduler.declaring import check_enabled, declaring, function_task, keep_task, spec_task
from evertick.scheduler.job_exchange import JobSet
from evertick.scheduler.operation import lazy, operation
from evertick.scheduler.process import (
    alone,
    check_may_run,
    ending_in_one_line,
    hurried_by_interrupt,
    hurry,
    run_process,
    start_patiently,
    tell_interrupted,
)
from evertick.scheduler.runtime import Parts, Runtime
from evertick.scheduler.sync import SyncScheduler
from evertick.text.values import shown
from evertick.when import Every, Once, When
from evertick.when.cron import rule as cron_rule
from evertick.when.duration import Duration, duration_us

__all__ = ["Health", "JobSet", "Parts", "Scheduler"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])


class UnchangedDecorator(Protocol):
    """Leaves the function as it is."""

    def __call__(self, function: F, /) -> F: ...


@logs_unawaited_calls
class Scheduler:
    """Schedules and runs tasks.

    url: the database of the ledger: by default `EVERTICK_DATABASE`, then `sqlite:///evertick.db`; `sqlite://`: memory.
    app: the namespace of this service in the database. node_name: the name of this process in listings.
    concurrency: runs at once on this node; 0 = enqueue and manage only. queues: which queues this node works on.
    tz: the zone of rules that name none. poll_interval: how often to poll without a wake-up.
    lease: how long the node may be silent before its runs are reassigned.
    stop_timeout: how long a stop waits for running work. migrate: "auto" or "check".
    retention, keep_per_schedule: how much history is kept.
    stall_limit: how long the event loop may be blocked before the node ends itself.
    rate_limits: "store": all nodes count the rate of a task together; "memory": each node counts its own.
    duties: whether this node takes duties, which one node of the app has at a time.
    batch_size: the most fires, claims or verdicts that are written at once.
    start_timeout: how long a start (`run()`, `async with`, `with`) waits for an unreachable store.
    min_interval: rules that fire more often are rejected. allow_schedules: the only allowed rules, as text.
    feed: how long events are kept for other programs; "off" turns the feed off; None leaves it as it is, or turns it
        on if events are published.
    drivers: the drivers of the tasks that this node runs. Other tasks are left to other nodes.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        app: str = "default",
        node_name: str | None = None,
        concurrency: int = 50,
        queues: Sequence[str] = ("default",),
        tz: str = "UTC",
        poll_interval: Duration = "15s",
        lease: Duration = "15s",
        stop_timeout: Duration = "30s",
        migrate: str = "auto",
        retention: Duration = "90d",
        keep_per_schedule: int | None = None,
        stall_limit: Duration = "15m",
        rate_limits: str = "store",
        min_interval: Duration | None = None,
        allow_schedules: Sequence[str] | None = None,
        feed: Duration | None = None,
        duties: bool = True,
        batch_size: int = 1_000,
        start_timeout: Duration = "30s",
        drivers: Sequence[str] = IN_PYTHON,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown)
        settings = make_settings(
            url,
            app=app,
            node_name=node_name if node_name is not None else f"{_calling_module()}@{host_name()}",
            concurrency=concurrency,
            queues=queues,
            tz=tz,
            poll_interval=poll_interval,
            lease=lease,
            stop_timeout=stop_timeout,
            migrate=migrate,
            retention=retention,
            keep_per_schedule=keep_per_schedule,
            stall_limit=stall_limit,
            rate_limits=rate_limits,
            min_interval=min_interval,
            allow_schedules=allow_schedules,
            feed=feed,
            duties=duties,
            batch_size=batch_size,
            start_timeout=start_timeout,
            drivers=drivers,
        )
        self.runtime = Runtime(settings)
        self.written = self.runtime.written

    @property
    def settings(self) -> Settings:
        return self.runtime.settings

    @property
    def app(self) -> str:
        return self.settings.app

    @property
    def sync(self) -> SyncScheduler:
        """The blocking forms of all async methods, for code without an event loop."""
        return SyncScheduler(self.runtime)

    def use_database(self, url: str) -> None:
        """Use another database. Rejected once the store is open."""
        self.runtime.use_database(url)

    def connect(self, driver: str, where: object) -> None:
        """Connect to a broker: `scheduler.connect("redis", "redis://host:6379/0")`, or with settings of its driver."""
        if self.runtime.is_started:
            raise Refused(f"the connection of {driver!r} must be set before the scheduler has started")
        self.runtime.configure(connections={driver: connection_to(driver, where)})

    # --- declaring

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, *, name: str | None = None, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> Any:
        """Make a task of a function: `@scheduler.task` or `@scheduler.task(retry=..., timeout=...)`."""
        runtime, place = self.runtime, calling_place(1)
        if function is not None:
            return keep_task(runtime, function_task(runtime, function, name, options, place), place)
        return lambda function: keep_task(runtime, function_task(runtime, function, name, options, place), place)

    def job(self, name: str, spec: Spec, /, **options: Unpack[TaskOptions]) -> Task[..., Any]:
        """Make a task that needs no function: `scheduler.job("backup", Shell("backup.sh"), timeout="1h")`.

        The specification stays on this node and is not in the database. Arguments are any JSON-like data by name. The
        scheduler must run its driver: `Scheduler(drivers=["function", "process", "shell"])`.
        """
        place = calling_place(1)
        task = spec_task(self.runtime, name, spec, options, place)
        check_enabled(self.runtime, task)
        return keep_task(self.runtime, task, place)

    def cron(
        self, text: str, *, key: str | None = None, name: str | None = None, **options: Unpack[CronOptions]
    ) -> TaskDecorator:
        """Run the function by a cron expression: `@scheduler.cron("0 9 * * mon-fri", tz="Europe/Berlin")`."""
        refuse_bare(text, "cron", "an expression", "'0 9 * * mon-fri'")
        rules, policies, tasks = split(options, "cron", shown(text))
        return declaring(self.runtime, cron_rule(text, **rules), key, name, policies, tasks, calling_place(1))

    def every(
        self,
        interval: Duration,
        *,
        after: str | None = None,
        key: str | None = None,
        name: str | None = None,
        **options: Unpack[EveryOptions],
    ) -> TaskDecorator:
        """Run the function at an interval: `@scheduler.every("30s")`; with `after="end"`, counted from the last end."""
        refuse_bare(interval, "every", "an interval", "'30s'")
        rules, policies, tasks = split(options, "every", shown(interval))
        rule = Every(interval, after=after, **rules)  # type: ignore[arg-type]
        return declaring(self.runtime, rule, key, name, policies, tasks, calling_place(1))

    def once(
        self,
        at: datetime | None = None,
        *,
        after: Duration | None = None,
        key: str | None = None,
        name: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> TaskDecorator:
        """Run the function once: `@scheduler.once(datetime(...))`, or `after="10m"` counted from the first start."""
        refuse_bare(at, "once", "a moment, or a delay,", "after='10m'")
        if isinstance(at, str):
            raise InvalidSetting(f"once({shown(at)}): {_once_meant(at)}")
        rules, policies, tasks = split(options, "once")
        return declaring(self.runtime, Once(at, after=after, **rules), key, name, policies, tasks, calling_place(1))

    def when(
        self, rule: When | str, *, key: str | None = None, name: str | None = None, **options: Unpack[WhenOptions]
    ) -> TaskDecorator:
        """Run the function by a rule or by text: `@scheduler.when("weekdays at 18:30")`, `"every 15 minutes"`."""
        refuse_bare(rule, "when", "a rule", "'weekdays at 18:30'")
        _, policies, tasks = split(options, "when", shown(rule))
        return declaring(self.runtime, rule_given(rule), key, name, policies, tasks, calling_place(1))

    def duty(
        self, name: str, *, every: Duration | None = None, when: When | str | None = None, **unknown: Never
    ) -> UnchangedDecorator:
        """Do something on one node of the app at a time: `@scheduler.duty("rebuild-index", every="5m")`.

        every, when: the function is called in this rhythm. Without one it is a loop: called once, and runs until it is
        stopped. It may take a `DutyContext`. Another node takes over within the lease after a crash, and immediately
        after a stop. Use a task for work that must happen for every moment, and a duty for work that must never run
        twice at the same time.
        """
        place, chosen = calling_place(1), check_name(name)
        for given in unknown:
            raise InvalidSetting(f"{given}: no such option", fix="a duty has every= or when=, and nothing else")
        rule = None if when is None else rule_given(when)
        rhythm = rhythm_of(chosen, every, rule, created=self.runtime.clock.now_us(), tz=self.settings.tz)

        def declare(function: F) -> F:
            if self.runtime.is_started:
                raise Refused(f"duty {chosen!r} is declared after the scheduler has started", fix="declare it before")
            self.runtime.duties.add(make_duty(function, chosen, rhythm, self.runtime.threads.call), place)
            return function

        return declare

    def sender(self, channel: str, **options: Unpack[SenderOptions]) -> UnchangedDecorator:
        """Deliver the messages of a channel: `@scheduler.sender("webhook")` over a function of one `Message`.

        A message is delivered when the function returns. An exception is retried by `retry`, and the message fails
        after the last attempt or by `give_up_on`. The function may get a message twice, with the same `message.key`.
        """
        place = calling_place(1)
        check_channel(channel)

        def declare(function: F) -> F:
            if self.runtime.is_started:
                raise Refused(
                    f"the sender of {channel!r} is declared after the scheduler has started", fix="do it before"
                )
            made = make_sender(channel, function, options, self.runtime.threads)
            if made.channel in self.runtime.senders:
                raise AlreadyDeclared(
                    f"channel {channel!r} has two senders: the second is at {place}; a channel is sent by one function"
                )
            self.runtime.senders[made.channel] = made
            return function

        return declare

    def on(self, kind: EventKind, hook: Hook | None = None) -> Any:
        """Call a function after an event: `@scheduler.on("failed")`. The function gets an `Event`."""
        refuse_bare(kind, "on", "the kind of event", "'failed'")

        def decorate(function: Hook) -> Hook:
            if not callable(function):
                raise InvalidInput(f"hook: {shown(function)} is not a function", value=shown(function))
            self.runtime.hooks.add(kind, function)
            return function

        if hook is not None:
            return decorate(hook)

        self.runtime.hooks.check(kind)
        return decorate

    # --- start and stop

    def run(self) -> None:
        """Run this process as a node until TERM or INT (exit 0) or HUP (exit 75, for a restart).

        The start waits for an unreachable store (`start_timeout`). A failed start ends the program with one line on
        stderr (exit 1); `EVERTICK_TRACEBACK=1` shows the traceback.
        """
        check_may_run()
        with ending_in_one_line():
            if code := run_process(self.runtime):
                sys.exit(code)

    async def __aenter__(self) -> Self:
        try:
            await start_patiently(self.runtime)
        except StoreError as error:
            raise alone(error)  # noqa: B904 - it is the same
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with hurried_by_interrupt(self.runtime):
            await self.runtime.stop()

    def __enter__(self) -> Self:
        was_started = self.runtime.is_started
        try:
            self.runtime.portal.call(
                lambda: start_patiently(self.runtime), "`with scheduler`", instead="`async with scheduler`"
            )
        except BaseException as error:
            if not was_started:
                self.runtime.portal.close()
            if isinstance(error, StoreError):
                raise alone(error)  # noqa: B904 - it is the same
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        async def stop() -> None:
            if isinstance(error, KeyboardInterrupt):
                tell_interrupted(self.runtime)
            await self.runtime.stop()

        self.runtime.portal.stop(stop, "`with scheduler`", lambda: hurry(self.runtime))
        self.runtime.portal.close()

    async def close(self) -> None:
        """Close the store. It opens again when it is needed."""
        await self.runtime.close()

    @property
    def is_healthy(self) -> bool:
        """Whether the engine runs and all its loops respond. Costs nothing; safe from any thread."""
        return self.runtime.is_healthy

    # --- operations: see operations/ for their bodies

    add = operation(operations.schedules.add)
    add_many = operation(operations.schedules.add_many)
    update = operation(operations.schedules.update)
    remove = operation(operations.schedules.remove)
    pause = operation(operations.schedules.pause)
    resume = operation(operations.schedules.resume)
    trigger = operation(operations.schedules.trigger)
    schedules = operation(operations.schedules.schedules)
    schedule = operation(operations.schedules.schedule)
    why = operation(operations.schedules.why)
    pause_many = operation(operations.bulk.pause_many)
    resume_many = operation(operations.bulk.resume_many)
    skip_next = operation(operations.overrides.skip_next)
    move = operation(operations.overrides.move)
    run_early = operation(operations.overrides.run_early)
    undo = operation(operations.overrides.undo)
    preview = operation(operations.preview.preview)
    forecast = operation(operations.preview.forecast)
    preview_change = operation(operations.change_preview.preview_change)
    preview_calendar = operation(operations.change_preview.preview_calendar)
    backfill = lazy(operations.backfills.backfill)

    set_calendar = operation(operations.calendars.set_calendar)
    calendars = operation(operations.calendars.calendars)
    calendar = operation(operations.calendars.calendar)
    calendar_users = operation(operations.calendars.calendar_users)
    remove_calendar = operation(operations.calendars.remove_calendar)

    cancel = operation(operations.runs.cancel)
    rerun = operation(operations.runs.rerun)
    rerun_many = operation(operations.runs.rerun_many)
    runs = operation(operations.runs.runs)
    gaps = operation(operations.runs.gaps)
    history = operation(operations.runs.history)
    get_run = operation(operations.runs.get_run)
    why_run = operation(operations.runs.why_run)
    why_task = operation(operations.runs.why_task)
    attempts = operation(operations.runs.attempts)
    log = operation(operations.runs.log)

    send = operation(operations.outbox.send)
    messages = operation(operations.outbox.messages)
    get_message = operation(operations.outbox.get_message)
    retry_message = operation(operations.outbox.retry_message)
    retry_dead = operation(operations.outbox.retry_dead)
    drop_message = operation(operations.outbox.drop_message)

    keep_feed = operation(operations.feed.keep_feed)
    feed_cursor = operation(operations.feed.feed_cursor)
    feed = lazy(operations.feed.feed)
    feed_page = operation(operations.feed.feed_page)

    nodes = operation(operations.nodes.nodes)
    duties = operation(operations.nodes.duties)
    ha = operation(operations.nodes.ha)
    health = operation(operations.nodes.health)
    apps = operation(operations.health.apps)

    def __repr__(self) -> str:
        return f"<Scheduler app={self.app!r} node={self.settings.node_name!r}>"


def _once_meant(text: str) -> str:
    try:
        duration_us(text)
    except InvalidDuration:
        return "a moment is an aware datetime; as text it is for @scheduler.when('once 2026-01-31T09:00:00Z')"
    return f"a delay is after={shown(text)}"


def _calling_module() -> str:
    """The module that makes the scheduler. It names the program, however the program was started."""
    frame = sys._getframe(2)
    name = frame.f_globals.get("__name__", "python")
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main_file).stem if name == "__main__" and main_file else str(name)
