"""The object users hold, and the one place that puts the concrete parts together: store, engine, drivers, hooks.

Everything that touches the store is async and opens it on first use; `scheduler.sync` has the plain forms. An engine
runs while the scheduler is entered (`async with`, `with`) or by `run()`; without one it can still enqueue and manage.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import msgspec

from evertick.aio.cooperative import in_turns
from evertick.aio.unawaited import tells_unawaited
from evertick.clock import Clock, host_name, system_clock
from evertick.definition.declarations import Declaration, Declarations, calling_place
from evertick.definition.duties import Duties, check_name, make_duty, rhythm_of
from evertick.definition.options import (
    CronOptions,
    EveryOptions,
    OnceOptions,
    TaskDecorator,
    WhenOptions,
    blackout_given,
    make_definition,
    refuse_task_options,
    split,
)
from evertick.definition.senders import SenderOptions, check_channel, make_sender
from evertick.definition.settings import Settings, check_key, check_url, make_settings, refuse_bare, refuse_unknown
from evertick.definition.task import Task, TaskOptions, task_of_function, task_of_spec
from evertick.driver.base import DispatchingDriver, Driver, ReportSource, Sender, Work
from evertick.driver.python.child_import import check_may_open_store, check_may_start
from evertick.driver.python.function import Threads
from evertick.driver.python.process import Children
from evertick.driver.queue.spec import nats_connection
from evertick.driver.registry import IN_PYTHON, connection_to
from evertick.driver.secret import Secrets
from evertick.driver.spec import DriverParts, Spec
from evertick.engine.engine import Engine, EngineHealth, EngineSettings
from evertick.engine.node import LocalNode, declarer_of
from evertick.errors import (
    AlreadyDeclared,
    EvertickError,
    InvalidDuration,
    InvalidInput,
    InvalidSetting,
    Refused,
    StoreError,
    StoreReplaced,
)
from evertick.job.context import Context
from evertick.model import Duty, NewRun, Node, Run
from evertick.model.duty import DutyWork
from evertick.model.feed import FeedPage
from evertick.model.hooks import EventKind, Hook, Hooks
from evertick.operations.apply import PlansDeclared
from evertick.operations.availability import ShowsAvailability
from evertick.operations.backfills import Backfills
from evertick.operations.bulk import ManagesInBulk
from evertick.operations.calendars import ManagesCalendars
from evertick.operations.feed import ReadsFeed
from evertick.operations.outbox import ManagesOutbox
from evertick.operations.overrides import ManagesOccurrences
from evertick.operations.preview import Foresees
from evertick.operations.schedules import rule_given
from evertick.plan.allowed_rules import check_rule
from evertick.scheduler.portal import Portal
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
from evertick.scheduler.sync import SyncScheduler
from evertick.store.base import Pulse, Store
from evertick.store.url import open_store
from evertick.text.values import shown
from evertick.version import VERSION
from evertick.when import Every, Once, When
from evertick.when.cron import rule as cron_rule
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import DAY

__all__ = ["Health", "JobSet", "Parts", "Scheduler"]

log = logging.getLogger("evertick.scheduler")

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

Close = Callable[[], Awaitable[None]]
# How often it is looked whether a driver that was exchanged is still at work.
_RETIRED_SECONDS = 1.0
# How long events are kept where they are published, and nobody has said for how long.
_FEED_TO_PUBLISH = DAY


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler is made of; the testing kit exchanges them for virtual ones."""

    clock: Clock
    open_store: Callable[[str], Store]
    heart_in_thread: bool = True
    note_seconds: float = 1.0
    sweep_seconds: float = 60.0
    prune_seconds: float = 600.0


class JobSet(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks and declarations of a scheduler, to be exchanged for others in one step."""

    tasks: dict[str, Task[Any, Any]]
    task_places: dict[str, str]
    declarations: Declarations
    # What the drivers of tasks have opened and want to close, by task.
    closing: dict[str, list[Close]]
    settings: Settings


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The node and the queue behind it."""

    is_healthy: bool
    engine: EngineHealth | None
    waiting: int
    running: int
    parked: int
    # In the hands of an outside queue.
    dispatched: int
    # How long the oldest due run has been waiting for a slot; 0 when none is.
    oldest_due_seconds: float
    # What is wrong with the files of its configuration, which were read again: what it had before holds.
    configuration_problems: tuple[str, ...] = ()


class UnchangedDecorator(Protocol):
    """Leaves the function as it is."""

    def __call__(self, function: F, /) -> F: ...


def _system_parts() -> Parts:
    return Parts(clock=system_clock, open_store=lambda url: open_store(url, clock=system_clock))


@tells_unawaited
class Scheduler(
    Foresees,
    PlansDeclared,
    ManagesOccurrences,
    Backfills,
    ManagesInBulk,
    ManagesCalendars,
    ShowsAvailability,
    ManagesOutbox,
    ReadsFeed,
):
    """Schedules and runs tasks.

    url: where the ledger is kept; default `EVERTICK_DATABASE`, then `sqlite:///evertick.db`; `sqlite://` is in memory.
    app: the namespace of this service on the database. node_name: how this process is called in listings.
    concurrency: runs at once on this node; 0 = enqueue and manage only. queues: which queues this node works on.
    tz: the zone of rules that name none. poll_interval: how often to look without being woken.
    lease: how long the node may be silent before its runs are given to others.
    stop_timeout: how long running work gets at a stop. migrate: "auto" or "check".
    retention, keep_per_schedule: how much history is kept.
    stall_limit: how long the event loop may be blocked before the node ends itself.
    rate_limits: "store": the rates of tasks hold for all nodes together; "memory": for each node by itself.
    duties: whether this node takes part in what one node of the app does at a time.
    batch_size: how many fires, claims or verdicts it writes at once, at most.
    start_timeout: how long a start (`run()`, `async with`, `with`) waits for a store that is away.
    min_interval: a rule that fires more often is refused. allow_schedules: the only rules that are not, as text.
    feed: how long events are kept for other programs, "off" for not any more; None leaves the feed of the app as it is,
        unless events are to be published and it has none.
    drivers: the kinds of tasks that this node runs; those of others are left to nodes that do.
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
        self.settings: Settings = make_settings(
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
        self._parts = _system_parts()
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._task_places: dict[str, str] = {}
        self._declarations = Declarations()
        self._duties = Duties()
        self._senders: dict[str, Sender] = {}
        self._threads = Threads()
        self._children = Children()
        # What a configuration fills: where secrets are found, and how to reach what drivers talk to.
        self._secrets = Secrets()
        self._connections: dict[str, object] = {}
        # What is to be closed with the scheduler; what with the driver of a task; and what of drivers that were
        # exchanged, and may still be at work.
        self._closing: list[Close] = []
        self._closing_of: dict[str, list[Close]] = {}
        self._retired: list[tuple[Driver, list[Close]]] = []
        self._retiring: asyncio.Task[None] | None = None
        self._shared: dict[str, object] = {}
        self._hooks = Hooks(self._threads.call)
        self._portal = Portal()
        self._opened: Store | None = None
        # The id of the ledger, from when it was first opened.
        self._ledger = ""
        self._engine: Engine | None = None
        self._is_started = False
        self._is_taking_jobs = False
        self._configuration_problems: tuple[str, ...] = ()

    @property
    def _clock(self) -> Clock:
        return self._parts.clock

    @property
    def sync(self) -> SyncScheduler:
        """The plain forms of everything async here, for code without an event loop."""
        return SyncScheduler(self)

    def use_database(self, url: str) -> None:
        """Another database than the one it was made with. Refused once the store is open."""
        if self._opened is not None:
            raise Refused("the store is open already; choose the database before using the scheduler")
        self.settings = msgspec.structs.replace(self.settings, url=check_url(url))

    def connect(self, driver: str, where: object) -> None:
        """Say where a broker is: `scheduler.connect("redis", "redis://host:6379/0")`, or with settings of its kind."""
        if self._is_started:
            raise Refused(f"where {driver!r} is must be said before the scheduler has started")
        self._connections[driver] = connection_to(driver, where)

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
        place = calling_place(1)
        if function is not None:
            return self._keep_task(self._make_task(function, name, options, place), place)
        return lambda function: self._keep_task(self._make_task(function, name, options, place), place)

    def job(self, name: str, spec: Spec, /, **options: Unpack[TaskOptions]) -> Task[..., Any]:
        """Make a task that needs no function: `scheduler.job("backup", Shell("backup.sh"), timeout="1h")`.

        What it does is this node's to say, and is not in the database. Its arguments are any JSON-like data by name.
        Its driver must be one that this scheduler runs: `Scheduler(drivers=["function", "process", "shell"])`.
        """
        place = calling_place(1)
        task = self._make_job(name, spec, options, place)
        self._check_enabled(task)
        return self._keep_task(task, place)

    def cron(
        self, text: str, *, key: str | None = None, name: str | None = None, **options: Unpack[CronOptions]
    ) -> TaskDecorator:
        """Run the function by a cron expression: `@scheduler.cron("0 9 * * mon-fri", tz="Europe/Berlin")`."""
        refuse_bare(text, "cron", "an expression", "'0 9 * * mon-fri'")
        rules, policies, tasks = split(options, "cron", shown(text))
        return self._declaring(cron_rule(text, **rules), key, name, policies, tasks, calling_place(1))

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
        return self._declaring(Every(interval, after=after, **rules), key, name, policies, tasks, calling_place(1))  # type: ignore[arg-type]

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
        return self._declaring(Once(at, after=after, **rules), key, name, policies, tasks, calling_place(1))

    def when(
        self, rule: When | str, *, key: str | None = None, name: str | None = None, **options: Unpack[WhenOptions]
    ) -> TaskDecorator:
        """Run the function by a rule or by text: `@scheduler.when("weekdays at 18:30")`, `"every 15 minutes"`."""
        refuse_bare(rule, "when", "a rule", "'weekdays at 18:30'")
        _, policies, tasks = split(options, "when", shown(rule))
        return self._declaring(rule_given(rule), key, name, policies, tasks, calling_place(1))

    def duty(
        self, name: str, *, every: Duration | None = None, when: When | str | None = None, **unknown: Never
    ) -> UnchangedDecorator:
        """Do something on one node of the app at a time: `@scheduler.duty("rebuild-index", every="5m")`.

        every, when: the function is called in this rhythm. Without one it is a loop: called once, to go on until it is
        stopped. It may take a `DutyContext`. Another node takes over within the lease after a crash, and at once after
        a stop. Tasks are for what must happen for every moment; a duty is for what must not happen twice at a time.
        """
        place, chosen = calling_place(1), check_name(name)
        for given in unknown:
            raise InvalidSetting(f"{given}: no such option; a duty has every= or when=, and nothing else")
        rule = None if when is None else rule_given(when)
        rhythm = rhythm_of(chosen, every, rule, created=self._clock.now_us(), tz=self.settings.tz)

        def declare(function: F) -> F:
            if self._is_started:
                raise Refused(f"duty {chosen!r} is declared after the scheduler has started; declare it before")
            self._duties.add(make_duty(function, chosen, rhythm, self._threads.call), place)
            return function

        return declare

    def sender(self, channel: str, **options: Unpack[SenderOptions]) -> UnchangedDecorator:
        """Deliver the messages of a channel: `@scheduler.sender("webhook")` over a function of one `Message`.

        A message is delivered when the function returns; what it raises is tried again by `retry`, and given up after
        the last attempt or by `give_up_on`. It may be called twice for one message: `message.key` is the same then.
        """
        place = calling_place(1)
        check_channel(channel)

        def declare(function: F) -> F:
            if self._is_started:
                raise Refused(f"the sender of {channel!r} is declared after the scheduler has started; do it before")
            made = make_sender(channel, function, options, self._threads)
            if made.channel in self._senders:
                raise AlreadyDeclared(
                    f"channel {channel!r} has two senders: the second is at {place}; a channel is sent by one function"
                )
            self._senders[made.channel] = made
            return function

        return declare

    def on(self, kind: EventKind, hook: Hook | None = None) -> Any:
        """Call a function when something happens: `@scheduler.on("failed")`. It hears an `Event`, after the fact."""
        refuse_bare(kind, "on", "the kind of event", "'failed'")

        def decorate(function: Hook) -> Hook:
            if not callable(function):
                raise InvalidInput(f"hook: {shown(function)} is no function")
            self._hooks.add(kind, function)
            return function

        if hook is not None:
            return decorate(hook)

        self._hooks.check(kind)
        return decorate

    def _declaring(
        self, rule: When, key: str | None, name: str | None, policies: dict[str, Any], tasks: dict[str, Any], place: str
    ) -> TaskDecorator:
        def declare(function: Any) -> Any:
            # Everything is checked before anything is kept: a refused declaration leaves no task behind.
            if isinstance(function, Task):
                task = function
                refuse_task_options(tasks, task.name)
            else:
                task = self._make_task(function, name, cast("TaskOptions", tasks), place)
            definition = make_definition(task.name, policies)
            check_rule(definition, rule)
            task._check_kept(definition.args)
            chosen = check_key(key if key is not None else task.name)
            self._check_declared(chosen, rule)
            self._declarations.add(
                Declaration(
                    key=chosen,
                    rule=rule,
                    definition=definition,
                    place=place,
                    tz=self.settings.tz,
                    blackout=blackout_given(policies),
                )
            )
            self._keep_task(task, place)
            return task

        return cast("TaskDecorator", declare)

    def _make_task(
        self, function: Callable[..., Any], name: str | None, options: TaskOptions, place: str
    ) -> Task[Any, Any]:
        if isinstance(function, Task):
            raise InvalidSetting(f"{function.name!r} is a task already")
        if isinstance(function, str):
            raise InvalidSetting(f"{shown(function)} is no function; write @scheduler.task(name={shown(function)})")
        if inspect.iscoroutine(function):
            function.close()
            raise InvalidSetting(f"{function.__name__}() was called; pass the function itself, {function.__name__}")
        if not callable(function) or isinstance(function, type):
            raise InvalidSetting(f"{shown(function)} is no function; pass the function itself, without calling it")
        chosen = name if name is not None else getattr(function, "__name__", None)
        if chosen is None or chosen == "<lambda>":
            raise InvalidSetting(f"{shown(function)} has no name of its own; give it one with name=")
        self._check_new(check_key(chosen, what="task"), place)
        task = task_of_function(self, chosen, function, options)
        self._check_enabled(task)
        return task

    def _make_job(self, name: str, spec: Spec, options: TaskOptions, place: str) -> Task[..., Any]:
        """A task of a specification, whether this node runs it or leaves it to others."""
        self._check_new(check_key(name, what="task"), place)
        return task_of_spec(self, name, spec, options)

    def _check_new(self, name: str, place: str) -> None:
        if name in self._tasks:
            raise AlreadyDeclared(
                f"task {name!r} is defined twice: at {self._task_places[name]} and at {place}; "
                "give one of them another name="
            )
        if self._is_started and not self._is_taking_jobs:
            raise Refused(f"task {name!r} is defined after the scheduler has started; define it before")

    def _check_enabled(self, task: Task[..., Any]) -> None:
        driver, drivers = task.work.driver.name, self.settings.drivers
        if driver not in drivers:
            raise InvalidSetting(
                f"task {task.name!r}: this scheduler does not run the driver {driver!r}; enable it with "
                f"Scheduler(drivers={[*drivers, driver]})"
            )

    @property
    def _driver_parts(self) -> DriverParts:
        return DriverParts(
            app=self.app,
            fleet=self._fleet,
            clock=self._clock,
            threads=self._threads,
            children=self._children,
            connections=self._connections,
            resolve_secret=lambda name: self._secrets.resolve(name),
            at_close=self._closing.append,
            shared=self._shared,
        )

    def _parts_for(self, task: str) -> DriverParts:
        """What the driver of this task is made with: it is closed when another takes its place, or with all."""
        closing = self._closing_of[task] = []
        return msgspec.structs.replace(self._driver_parts, at_close=closing.append)

    def _fleet(self) -> str:
        assert self._ledger, "what dispatches a run, or reads reports of one, has opened the ledger"
        return f"{self.app}-{self._ledger}"

    def _keep_task(self, task: Task[Any, Any], place: str) -> Task[Any, Any]:
        self._tasks[task.name] = task
        self._task_places.setdefault(task.name, place)
        return task

    # --- living

    def run(self) -> None:
        """Run this process as a node until TERM or INT (exit 0) or HUP (exit 75, for a restart).

        A store that is away at the start is waited for (`start_timeout`). What cannot be started ends the program with
        one line on stderr (exit 1); `EVERTICK_TRACEBACK=1` shows where it comes from.
        """
        check_may_run()
        with ending_in_one_line():
            self._run()

    def _run(self) -> None:
        code = run_process(self)
        if code:
            sys.exit(code)

    def _check_declared(self, key: str, rule: When) -> None:
        """Refuse what the limits forbid where it is written; where only the store has the calendar, the start does."""
        limits, now = self.settings.schedule_limits, self._clock.now_us()
        if not limits.are_none and (rule.calendar is not None or rule.bounds.calendar is None):
            limits.check(key, rule.bind(key=key, created=now, tz=self.settings.tz), now)

    async def __aenter__(self) -> Self:
        try:
            await start_patiently(self, self._start)
        except StoreError as error:
            raise alone(error)  # noqa: B904 - it is the same
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with hurried_by_interrupt(self):
            await self._stop()

    def __enter__(self) -> Self:
        was_started = self._is_started
        try:
            self._portal.call(
                lambda: start_patiently(self, self._start), "`with scheduler`", instead="`async with scheduler`"
            )
        except BaseException as error:
            if not was_started:
                self._portal.close()
            if isinstance(error, StoreError):
                raise alone(error)  # noqa: B904 - it is the same
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        async def stop() -> None:
            if isinstance(error, KeyboardInterrupt):
                tell_interrupted(self)
            await self._stop()

        self._portal.stop(stop, "`with scheduler`", lambda: hurry(self))
        self._portal.close()

    async def _start(
        self,
        on_stalled: Callable[[], None] = lambda: None,
        on_replaced: Callable[[StoreReplaced], None] = lambda error: None,
    ) -> None:
        if self._is_started:
            raise Refused("this scheduler has started already; leave it before entering it again")
        check_may_start()
        self._is_started = True
        try:
            await self._start_engine(on_stalled, on_replaced)
        except BaseException:
            self._is_started = False
            await self.close()
            raise

    async def _start_engine(self, on_stalled: Callable[[], None], on_replaced: Callable[[StoreReplaced], None]) -> None:
        store = await self._store()
        editor = self._editor(store)
        await self._keep_feed(store)
        await self._declarations.store_all(store, self.app, editor, declarer_of(self.settings.node_name))
        if self.settings.concurrency > 0:
            duties = [*self._duties.works, *self._publishing_duties()]
            engine = Engine(self._node(store), editor, self._engine_settings(), duties)
            engine.on_stalled, engine.on_replaced = on_stalled, on_replaced
            if self._clock is system_clock:
                self._children.open()
            await engine.start()
            self._engine = engine
        self._portal.engine_loop = asyncio.get_running_loop()

    async def _keep_feed(self, store: Store) -> None:
        if self.settings.feed is not None:
            await store.keep_feed(self.app, self.settings.feed or None)
        elif self._publishes and await store.feed_state(self.app) is None:
            # What is published is read from the feed: to be told to publish is to be told to keep one.
            await store.keep_feed(self.app, _FEED_TO_PUBLISH)
            log.info("app %r keeps a feed from now on, a day of events: nats.events are read from it", self.app)

    @property
    def _publishes(self) -> bool:
        return self.settings.concurrency > 0 and bool(getattr(self._connections.get("nats"), "events", False))

    def _publishing_duties(self) -> list[DutyWork]:
        """Telling others what becomes of runs, where a connection is to do so: one node at a time."""
        given = self._connections.get("nats")
        if given is None or not self._publishes:
            return []
        from evertick.driver.queue.nats_events import NatsEvents

        async def page(after: str | None, kinds: Sequence[str]) -> FeedPage:
            return await self.feed_page(after, kinds=kinds)

        events = NatsEvents(nats_connection(given), self.app, page, self._secrets.resolve)
        return [make_duty(events.run, "nats.events", None, self._threads.call)]

    async def _stop(self) -> None:
        if self._engine is not None:
            await self._engine.stop(self.settings.stop_timeout / 1e6)
        self._engine = None
        self._is_started = False
        self._portal.engine_loop = None
        await self.close()

    async def close(self) -> None:
        """Close the store. It opens again when it is needed."""
        store, self._opened = self._opened, None
        if store is not None:
            await store.close()
        if self._engine is None:
            await self._children.close()
            if self._retiring is not None:
                self._retiring.cancel()
            await self._close_drivers()
        self._threads.close()

    async def _close_drivers(self) -> None:
        retired, self._retired = self._retired, []
        lists = [self._closing, *self._closing_of.values(), *(closing for _, closing in retired)]
        shared = [close for thing in self._shared.values() if callable(close := getattr(thing, "close", None))]
        for closing in [*lists, shared]:
            await _close_each(closing)

    @property
    def _under_way(self) -> str:
        """What a stop would wait for, in words."""
        return "" if self._engine is None else self._engine.under_way

    def _hurry(self) -> None:
        if self._engine is not None:
            self._engine.hurry()

    async def _store(self) -> Store:
        """The store, opened on first use."""
        if self._opened is None:
            check_may_open_store(self.settings.url)
            store = self._parts.open_store(self.settings.url)
            try:
                await store.open(migrate=self.settings.migrate)
            except StoreError as error:
                raise alone(error)  # noqa: B904 - it is the same
            if self._opened is not None:  # another coroutine was faster
                await store.close()
            else:
                self._opened, self._ledger = store, store.id
        return self._opened

    # --- exchanging jobs

    @property
    def _jobs(self) -> JobSet:
        return JobSet(
            tasks=self._tasks,
            task_places=self._task_places,
            declarations=self._declarations,
            closing=self._closing_of,
            settings=self.settings,
        )

    def _put_jobs(self, jobs: JobSet) -> None:
        self._tasks, self._task_places = jobs.tasks, jobs.task_places
        self._declarations, self._closing_of, self.settings = jobs.declarations, jobs.closing, jobs.settings

    async def _with_jobs(self, gone: Set[str], adds: Iterable[Callable[[], None]], *, tz: str) -> JobSet:
        """What would be here with other jobs of a configuration: the tasks in `gone` go, and whatever `adds` add comes.

        Whoever looks in between sees everything here as before, and so it is also when it raises.
        """
        before = self._jobs
        jobs = JobSet(
            tasks={name: task for name, task in before.tasks.items() if name not in gone},
            task_places={name: place for name, place in before.task_places.items() if name not in gone},
            declarations=before.declarations.without_file(),
            closing={name: closing for name, closing in before.closing.items() if name not in gone},
            settings=msgspec.structs.replace(before.settings, tz=tz),
        )
        await in_turns(adds, lambda add: self._add_to(jobs, add))
        return jobs

    def _add_to(self, jobs: JobSet, add: Callable[[], None]) -> None:
        before = self._jobs
        self._put_jobs(jobs)
        self._is_taking_jobs = True
        try:
            add()
        finally:
            self._is_taking_jobs = False
            self._put_jobs(before)

    async def _take_jobs(self, jobs: JobSet, *, disabled: Collection[str] = ()) -> EvertickError | None:
        """Have these jobs. The ledger first, all of it in one transaction, then this node: whatever fails before the
        ledger has them raises, and leaves everything as it was. What is not among them any more is paused with it:
        nothing is to fire that this node has just forgotten. `disabled`: those that are known all the same.

        Answers what has kept the word of this node about itself from the ledger, if anything has; they hold all the
        same, and taking them again says it again.
        """
        before = self._jobs
        works = self._works(jobs)
        reached = self._dispatching(works.values())
        plan = await self._plan_declared(
            declarations=jobs.declarations,
            tz=jobs.settings.tz,
            disabled=disabled,
            dropped={each.key for each in before.declarations} - {each.key for each in jobs.declarations},
            own_node=self._node_id,
            days=1,
        )
        try:
            # First of all: until the node says that it declares them, new schedules look as if nobody did.
            await self._say_declared(jobs.declarations.hashes() | before.declarations.hashes())
            await self._apply_declared(plan, tz=jobs.settings.tz)
        except Exception:
            with contextlib.suppress(EvertickError):  # a reload that comes through says it
                await self._say_declared(before.declarations.hashes())
            raise
        self._put_jobs(jobs)
        self._retire(before, jobs)
        if self._engine is not None:
            try:
                await self._engine.know(works, jobs.declarations.hashes(), *reached, self._leaves(jobs))
            except EvertickError as error:
                return error
        return None

    async def _say_declared(self, declares: Mapping[str, str]) -> None:
        if self._engine is not None:
            await self._engine.declare(declares)

    def _retire(self, before: JobSet, jobs: JobSet) -> None:
        """Close what drivers have opened that are not needed any more, when nothing that they carry out is left."""
        for name, closing in before.closing.items():
            if closing and jobs.closing.get(name) is not closing:
                self._retired.append((before.tasks[name].work.driver, closing))
        if self._retired and (self._retiring is None or self._retiring.done()):
            self._retiring = asyncio.get_running_loop().create_task(self._close_retired(), name="evertick retired")

    async def _close_retired(self) -> None:
        while self._retired:
            busy = [] if self._engine is None else self._engine.drivers_at_work()
            free = [each for each in self._retired if not any(each[0] is driver for driver in busy)]
            self._retired = [each for each in self._retired if each not in free]
            for _, closing in free:
                await _close_each(closing)
            if self._retired:
                await asyncio.sleep(_RETIRED_SECONDS)

    def _works(self, jobs: JobSet | None = None) -> dict[str, Work]:
        """What this node runs of these jobs, or of its own."""
        jobs = jobs or self._jobs
        drivers = jobs.settings.drivers
        return {name: task.work for name, task in jobs.tasks.items() if task.work.driver.name in drivers}

    def _leaves(self, jobs: JobSet) -> dict[str, str]:
        """The others of them, each with its driver."""
        drivers = jobs.settings.drivers
        return {name: driver for name, task in jobs.tasks.items() if (driver := task.work.driver.name) not in drivers}

    def _node(self, store: Store) -> LocalNode:
        works = self._works()
        senders, sources = self._dispatching(works.values())
        return LocalNode(
            name=self.settings.node_name,
            app=self.app,
            version=VERSION,
            store=store,
            clock=self._clock,
            works=works,
            queues=self.settings.queues,
            concurrency=self.settings.concurrency,
            lease=self.settings.lease,
            hooks=self._hooks,
            declares=self._declarations.hashes(),
            senders=self._senders | senders,
            sources=sources,
            leaves=self._leaves(self._jobs),
            has_own_rates=self.settings.rate_limits == "memory",
            batch_size=self.settings.batch_size,
        )

    def _dispatching(self, works: Iterable[Work]) -> tuple[dict[str, Sender], list[ReportSource]]:
        """How the drivers that dispatch their runs reach their queues. Drivers of several tasks share them."""
        senders: dict[str, Sender] = {}
        sources: dict[int, ReportSource] = {}
        for driver in [work.driver for work in works if isinstance(work.driver, DispatchingDriver)]:
            if self._clock is not system_clock and getattr(driver, "is_far", False):
                continue  # a test of schedules in virtual time reaches no broker
            senders |= {sender.channel: sender for sender in driver.senders()}
            sources |= {id(source): source for source in driver.sources()}
        for channel in sorted(senders.keys() & self._senders.keys()):
            raise InvalidSetting(
                f"channel {channel!r} is that of a queue, and has a sender beside it: give the sender another channel"
            )
        return senders, list(sources.values())

    def _engine_settings(self) -> EngineSettings:
        return EngineSettings(
            poll=self.settings.poll_interval / 1e6,
            beat=self.settings.beat / 1e6,
            stall_limit=self.settings.stall_limit / 1e6,
            retention=self.settings.retention,
            keep_per_schedule=self.settings.keep_per_schedule,
            note=self._parts.note_seconds,
            sweep=self._parts.sweep_seconds,
            prune=self._parts.prune_seconds,
            heart_in_thread=self._parts.heart_in_thread,
            holds_duties=self.settings.duties,
        )

    async def _enqueue(self, runs: list[NewRun]) -> list[Run]:
        if not runs:
            return []
        enqueued = await (await self._store()).enqueue(self.app, runs)
        self._wake_runs()
        return enqueued

    # --- how it is

    async def nodes(self) -> list[Node]:
        """The nodes of this app, living and lately dead."""
        return await (await self._store()).nodes(self.app)

    async def duties(self) -> list[Duty]:
        """The duties of this app: who holds each, under which term, when it acted and will again."""
        return await (await self._store()).duties(self.app)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine here runs and all its loops come back. Costs nothing; safe from any thread."""
        if self.settings.concurrency == 0:
            return self._is_started
        return self._engine is not None and self._engine.health().is_healthy

    @property
    def _node_id(self) -> str:
        """The incarnation under which the ledger knows it now; nothing while it is no node."""
        return "" if self._engine is None else self._engine.node_id

    @property
    def _is_moving(self) -> bool:
        """Whether a supervisor may think that this process is alive. Safe from any thread."""
        engine = self._engine
        return engine is None or engine.is_moving

    async def health(self) -> Health:
        """The engine here and the queue behind it."""
        pulse: Pulse = await (await self._store()).pulse(self.app)
        oldest = 0.0 if pulse.oldest_due_at is None else max(pulse.now - pulse.oldest_due_at, 0) / 1e6
        return Health(
            is_healthy=self.is_healthy,
            engine=None if self._engine is None else self._engine.health(),
            waiting=pulse.waiting,
            running=pulse.running,
            parked=pulse.parked,
            dispatched=pulse.dispatched,
            oldest_due_seconds=oldest,
            configuration_problems=self._configuration_problems,
        )

    def __repr__(self) -> str:
        return f"<Scheduler app={self.app!r} node={self.settings.node_name!r}>"


def _once_meant(text: str) -> str:
    try:
        duration_us(text)
    except InvalidDuration:
        return "a moment is an aware datetime; as text it is for @scheduler.when('once 2026-01-31T09:00:00Z')"
    return f"a delay is after={shown(text)}"


async def _close_each(closing: Sequence[Close]) -> None:
    for close in closing:
        try:
            await close()
        except Exception:  # one that fails must not keep the others open
            log.exception("a driver could not be closed")


def _calling_module() -> str:
    """The module that makes the scheduler: what the program is called, however it was started."""
    name = sys._getframe(2).f_globals.get("__name__", "python")
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main_file).stem if name == "__main__" and main_file else str(name)
