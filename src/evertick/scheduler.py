"""The object users hold, and the one place that puts the concrete parts together: store, engine, drivers, hooks.

Everything that touches the store is async and opens it on first use; `scheduler.sync` has the plain forms. An engine
runs while the scheduler is entered (`async with`, `with`) or by `run()`; without one it can still enqueue and manage.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec

from evertick.clock import Clock, host_name, system_clock
from evertick.context import Context
from evertick.declare import Declaration, Declarations, calling_place
from evertick.driver.base import Work
from evertick.driver.function import Threads
from evertick.edit import Addition, Editor
from evertick.engine.engine import Engine, EngineHealth, EngineSettings
from evertick.engine.node import LocalNode, declarer_of, ended_event
from evertick.errors import AlreadyDeclared, InvalidInput, InvalidSetting, NotFound, Refused
from evertick.events import Event, EventKind, Hook, Hooks
from evertick.model import Attempt, Gap, LogLine, NewRun, Node, Run, Schedule, State, Verdict
from evertick.options import (
    CronOptions,
    EveryOptions,
    OnceOptions,
    PolicyOptions,
    TaskDecorator,
    make_definition,
    split,
)
from evertick.rules import load_calendars, rule_of
from evertick.serve import check_may_run, serve
from evertick.settings import Settings, check_key, check_labels, check_url, make_settings
from evertick.store.base import Cancelled, Pulse, RunFilter, ScheduleFilter, Store
from evertick.store.url import open_store
from evertick.sync import Portal
from evertick.sync_scheduler import SyncScheduler
from evertick.task import Task, TaskOptions
from evertick.version import VERSION
from evertick.when import Calendar, Every, Once, When, from_us, to_us, upcoming_over
from evertick.when.cron import rule as cron_rule
from evertick.when.duration import Duration
from evertick.why import Why, explain_schedule

__all__ = ["Health", "Parts", "Planned", "Scheduler"]

log = logging.getLogger("evertick.scheduler")

P = ParamSpec("P")
R = TypeVar("R")

ADD_MANY_MAX = 10_000
_PAGE = 1_000
_LIMIT_MAX = 1_000_000


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler is made of; the testing kit exchanges them for virtual ones."""

    clock: Clock
    open_store: Callable[[str], Store]
    heart_in_thread: bool = True
    note_seconds: float = 1.0
    sweep_seconds: float = 60.0


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fire to come."""

    fire_at: datetime
    key: str
    task: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The node and the queue behind it."""

    is_healthy: bool
    engine: EngineHealth | None
    waiting: int
    running: int
    parked: int
    # How long the oldest due run has been waiting for a slot; 0 when none is.
    oldest_due_seconds: float


def _system_parts() -> Parts:
    return Parts(clock=system_clock, open_store=lambda url: open_store(url, clock=system_clock))


class Scheduler:
    """Schedules and runs tasks.

    url: where the ledger is kept; default `EVERTICK_DATABASE`, then `sqlite:///evertick.db`; `sqlite://` is in memory.
    app: the namespace of this service on the database. node_name: how this process is called in listings.
    concurrency: runs at once on this node; 0 = enqueue and manage only. queues: which queues this node works on.
    tz: the zone of rules that name none. poll_interval: how often to look without being woken.
    lease: how long the node may be silent before its runs are given to others.
    stop_timeout: how long running work gets at a stop. migrate: "auto" or "check".
    retention, keep_per_schedule: how much history is kept.
    stall_limit: how long the event loop may be blocked before the node ends itself.
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
        keep_per_schedule: int = 10_000,
        stall_limit: Duration = "15m",
    ) -> None:
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
        )
        self._parts = _system_parts()
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._task_places: dict[str, str] = {}
        self._declarations = Declarations()
        self._threads = Threads()
        self._hooks = Hooks(self._threads.call)
        self._portal = Portal()
        self._opened: Store | None = None
        self._engine: Engine | None = None
        self._is_started = False

    @property
    def app(self) -> str:
        return self.settings.app

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

    def cron(
        self, text: str, *, key: str | None = None, name: str | None = None, **options: Unpack[CronOptions]
    ) -> TaskDecorator:
        """Run the function by a cron expression: `@scheduler.cron("0 9 * * mon-fri", tz="Europe/Berlin")`."""
        rules, policies, tasks = split(options, f"cron({text!r})", CronOptions)
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
        rules, policies, tasks = split(options, f"every({interval!r})", EveryOptions)
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
        rules, policies, tasks = split(options, "once()", OnceOptions)
        return self._declaring(Once(at, after=after, **rules), key, name, policies, tasks, calling_place(1))

    def on(self, kind: EventKind, hook: Hook | None = None) -> Any:
        """Call a function when something happens: `@scheduler.on("failed")`. It hears an `Event`, after the fact."""
        if hook is not None:
            if not callable(hook):
                raise InvalidInput(f"hook: {hook!r} is no function")
            self._hooks.add(kind, hook)
            return hook

        def decorate(function: Hook) -> Hook:
            self._hooks.add(kind, function)
            return function

        self._hooks.check(kind)
        return decorate

    def _declaring(
        self, rule: When, key: str | None, name: str | None, policies: dict[str, Any], tasks: dict[str, Any], place: str
    ) -> TaskDecorator:
        def declare(function: Any) -> Any:
            # Everything is checked before anything is kept: a refused declaration leaves no task behind.
            if isinstance(function, Task):
                task = function
                _refuse_task_options(tasks, task.name)
            else:
                task = self._make_task(function, name, cast("TaskOptions", tasks), place)
            definition = make_definition(task.name, policies)
            task.encode_call((), definition.args)
            chosen = check_key(key if key is not None else task.name)
            self._declarations.add(
                Declaration(key=chosen, rule=rule, definition=definition, place=place, tz=self.settings.tz)
            )
            self._keep_task(task, place)
            return task

        return cast("TaskDecorator", declare)

    def _make_task(
        self, function: Callable[..., Any], name: str | None, options: TaskOptions, place: str
    ) -> Task[Any, Any]:
        if isinstance(function, Task):
            raise InvalidSetting(f"{function.name!r} is a task already")
        if not callable(function) or isinstance(function, type):
            raise InvalidSetting(f"{function!r} is no function")
        chosen = name if name is not None else getattr(function, "__name__", None)
        if chosen is None or chosen == "<lambda>":
            raise InvalidSetting(f"{function!r} has no name of its own; give it one with name=")
        if chosen in self._tasks:
            raise AlreadyDeclared(
                f"task {chosen!r} is defined twice: at {self._task_places[chosen]} and at {place}; "
                "give one of them another name="
            )
        if self._is_started:
            raise Refused(f"task {chosen!r} is defined after the scheduler has started; define it before")
        return Task(self, function, chosen, options)

    def _keep_task(self, task: Task[Any, Any], place: str) -> Task[Any, Any]:
        self._tasks[task.name] = task
        self._task_places.setdefault(task.name, place)
        return task

    # --- living

    def run(self) -> None:
        """Run this process as a node until TERM or INT (exit 0) or HUP (exit 75, for a restart)."""
        check_may_run()
        code = asyncio.run(serve(self))
        if code:
            sys.exit(code)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._stop()

    def __enter__(self) -> Self:
        was_started = self._is_started
        try:
            self._portal.call(self._start, "`with scheduler`", instead="`async with scheduler`")
        except BaseException:
            if not was_started:
                self._portal.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._portal.call(self._stop, "`with scheduler`", instead="`async with scheduler`")
        self._portal.close()

    async def _start(self, on_stalled: Callable[[], None] = lambda: None) -> None:
        if self._is_started:
            raise Refused("this scheduler has started already; leave it before entering it again")
        self._is_started = True
        try:
            await self._start_engine(on_stalled)
        except BaseException:
            self._is_started = False
            await self.close()
            raise

    async def _start_engine(self, on_stalled: Callable[[], None]) -> None:
        store = await self._store()
        editor = self._editor(store)
        await self._declarations.store_all(store, self.app, editor, declarer_of(self.settings.node_name))
        if self.settings.concurrency > 0:
            engine = Engine(self._node(store), editor, self._engine_settings())
            engine.on_stalled = on_stalled
            await engine.start()
            self._engine = engine
        self._portal.engine_loop = asyncio.get_running_loop()

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
        self._threads.close()

    def _hurry(self) -> None:
        if self._engine is not None:
            self._engine.hurry()

    async def _store(self) -> Store:
        """The store, opened on first use."""
        if self._opened is None:
            store = self._parts.open_store(self.settings.url)
            await store.open(migrate=self.settings.migrate)
            if self._opened is not None:  # another coroutine was faster
                await store.close()
            else:
                self._opened = store
        return self._opened

    def _editor(self, store: Store) -> Editor:
        return Editor(store, self.app, self._clock, self.settings.tz)

    def _node(self, store: Store) -> LocalNode:
        works: dict[str, Work] = {name: task.work for name, task in self._tasks.items()}
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
        )

    def _engine_settings(self) -> EngineSettings:
        return EngineSettings(
            poll=self.settings.poll_interval / 1e6,
            beat=self.settings.beat / 1e6,
            stall_limit=self.settings.stall_limit / 1e6,
            retention=self.settings.retention,
            keep_per_schedule=self.settings.keep_per_schedule,
            note=self._parts.note_seconds,
            sweep=self._parts.sweep_seconds,
            heart_in_thread=self._parts.heart_in_thread,
        )

    # --- schedules

    async def add(
        self, *, key: str, when: When, task: Task[Any, Any] | str, **options: Unpack[PolicyOptions]
    ) -> Schedule:
        """Add a schedule at run time. A key that is taken is refused."""
        await self.add_many([{"key": key, "when": when, "task": task, **options}])
        return await self.schedule(key)

    async def add_many(self, schedules: Iterable[Mapping[str, Any]]) -> None:
        """Add many schedules, each given like the arguments of `add`: all of them, or none."""
        additions = [self._addition(dict(each)) for each in schedules]
        if len(additions) > ADD_MANY_MAX:
            raise InvalidInput(f"{len(additions)} schedules at once; add at most {ADD_MANY_MAX} at a time")
        keys = [added.key for added in additions]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise AlreadyDeclared(f"schedule {twice!r} is given twice")
        editor = self._editor(await self._store())
        taken = await editor.add(additions, all_or_none=True)
        if not all(taken):
            key = keys[taken.index(False)]
            raise AlreadyDeclared(f"schedule {key!r} exists already; nothing was added. Use update(), or another key")
        self._wake_fires()

    async def update(self, key: str, *, when: When | None = None, **options: Unpack[PolicyOptions]) -> Schedule:
        """Change a schedule. Its cursor restarts from now; nothing fires by the change itself."""
        _check_rule(when, is_optional=True)
        store = await self._store()
        current = (await store.stored_schedules(self.app, keys=[key]))[:1]
        for stored in current:
            changed = make_definition(stored.definition.task, options, stored.definition)
            self._check_arguments(changed.task, changed.args)
        await self._editor(store).edit(key, lambda base: make_definition(base.task, options, base), rule=when)
        self._wake_fires()
        return await self.schedule(key)

    async def remove(self, key: str) -> None:
        """Take a schedule away; its waiting runs are cancelled, its history stays."""
        await self._editor(await self._store()).remove(key)
        self._tell("removed", key)

    async def pause(self, key: str, *, note: str = "", until: datetime | None = None) -> Schedule:
        """Stop a schedule from firing, with a note why and perhaps until a moment. What runs, runs on."""
        until_us = None if until is None else to_us(until)
        if not isinstance(note, str):
            raise InvalidInput(f"note: {note!r} is not text")
        await self._editor(await self._store()).pause(key, note=note[:1000], until=until_us)
        self._tell("paused", key, note=note)
        self._wake_fires()
        return await self.schedule(key)

    async def resume(self, key: str) -> Schedule:
        """Let a paused schedule go on from now; its paused moments become one gap."""
        await self._editor(await self._store()).resume(key)
        self._wake_fires()
        return await self.schedule(key)

    async def trigger(self, key: str, *, args: Mapping[str, Any] | None = None) -> Run:
        """Run a schedule's task now, by hand. Works while it is paused, and obeys its overlap policy."""
        store = await self._store()
        encoded = None if args is None else self._encode_arguments((await self.schedule(key)).task, args)
        run_id = await self._editor(store).trigger(key, args=encoded)
        self._wake_runs()
        return await self.get_run(run_id)

    async def schedules(
        self, *, labels: Mapping[str, str] | None = None, is_paused: bool | None = None, limit: int | None = None
    ) -> list[Schedule]:
        """All schedules, by key."""
        limit = None if limit is None else _check_limit(limit)
        wanted_labels = check_labels(labels or {})
        store, found, after = await self._store(), list[Schedule](), None
        while limit is None or len(found) < limit:
            page = _PAGE if limit is None else min(_PAGE, limit - len(found))
            wanted = ScheduleFilter(labels=wanted_labels, is_paused=is_paused, after_key=after, limit=page)
            batch = await store.schedules(self.app, wanted)
            found += batch
            if len(batch) < page:
                break
            after = batch[-1].key
        return found

    async def schedule(self, key: str) -> Schedule:
        """One schedule. Raises NotFound."""
        store = await self._store()
        found = await store.schedules(self.app, ScheduleFilter(keys=(key,)))
        if not found:
            raise NotFound(f"there is no schedule {key!r} in app {self.app!r}; `evertick list` shows those there are")
        return found[0]

    async def set_calendar(self, calendar: Calendar) -> None:
        """Define or change a named calendar. Schedules that use it go by it from now on."""
        if not isinstance(calendar, Calendar):
            raise InvalidInput(f"calendar: {calendar!r} is no Calendar")
        await self._editor(await self._store()).put_calendar(calendar)
        self._wake_fires()

    async def calendars(self) -> list[Calendar]:
        return list((await load_calendars(await self._store(), self.app)).values())

    async def preview(
        self, *, count: int = 10, until: datetime | None = None, after: datetime | None = None, key: str | None = None
    ) -> list[Planned]:
        """The next fires over all schedules that are not paused (or of one), in order."""
        store = await self._store()
        schedules = [await self.schedule(key)] if key is not None else await self.schedules(is_paused=False)
        calendars = await load_calendars(store, self.app)
        rules, tasks, left = {}, {}, {}
        for start in range(0, len(schedules), _PAGE):
            keys = [schedule.key for schedule in schedules[start : start + _PAGE]]
            for stored in await store.stored_schedules(self.app, keys=keys):
                if stored.fire_at is not None:
                    rules[stored.key] = rule_of(stored, calendars)
                    tasks[stored.key] = stored.definition.task
                    if (most := rules[stored.key].bounds.max_fires) is not None:
                        left[stored.key] = most - stored.fires
        since = after if after is not None else from_us(await store.now())
        upcoming = upcoming_over(rules, since, count=count, until=until, most=left)
        return [Planned(fire_at=moment, key=each, task=tasks[each]) for moment, each in upcoming]

    async def why(self, key: str) -> Why:
        """In words: when it fires next and why then, what became of the last moments, what it waits for now."""
        return await explain_schedule(await self._store(), self.app, key)

    # --- runs

    async def cancel(self, run: Run | str) -> bool:
        """Cancel a run: at once if it waits, by asking if it runs. False if it had ended already."""
        run_id = _run_id(run)
        answer: Cancelled = (await (await self._store()).cancel(self.app, [run_id], "requested"))[0]
        if answer.answer == "unknown":
            raise NotFound(f"there is no run {run_id!r} in app {self.app!r}")
        if answer.answer == "asked" and self._engine is not None:
            self._engine.cancel([run_id])
        if answer.answer == "ended" and self._hooks.wants("cancelled"):
            self._hooks.tell(ended_event(await self.get_run(run_id), from_us(self._clock.now_us())))
        return answer.answer != "done"

    async def rerun(self, run: Run | str, *, args: Mapping[str, Any] | None = None) -> Run:
        """Run again what has ended, with its own arguments or the given ones: a new run, for the same moment.

        It belongs to the schedule of the old one and obeys its overlap policy. `caused_by` is the old run.
        """
        old = await self.get_run(_run_id(run))
        if old.is_live:
            raise Refused(f"run {old.id!r} has not ended, it is {old.state}; only what has ended can be rerun")
        return await self._rerun(old, args)

    async def rerun_many(
        self,
        *,
        schedule_key: str | None = None,
        task: str | None = None,
        verdicts: Sequence[Verdict | str] = (Verdict.FAILED, Verdict.LOST),
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Rerun what ended like this and was not rerun yet, newest first; answers the new runs.

        What overlap forbids is left out. Each rerun is written by itself: after an error, ask again for the rest.
        """
        ended = await self.runs(
            schedule_key,
            task=task,
            states=[State.DONE],
            verdicts=verdicts,
            was_rerun=False,
            since=since,
            until=until,
            limit=limit,
        )
        again = []
        for old in ended:
            try:
                again.append(await self._rerun(old, None))
            except Refused as refused:
                log.debug("%s", refused)
        if len(again) < len(ended):
            log.info("%d of %d runs were not rerun: their schedules refuse it", len(ended) - len(again), len(ended))
        return again

    async def _rerun(self, old: Run, args: Mapping[str, Any] | None) -> Run:
        encoded = msgspec.json.encode(old.args) if args is None else self._encode_arguments(old.task, args)
        run_id = await self._editor(await self._store()).rerun(old, args=encoded)
        self._wake_runs()
        return await self.get_run(run_id)

    async def runs(
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
        limit: int = 100,
    ) -> list[Run]:
        """Runs, newest first. `since` and `until` bound their nominal moment."""
        if was_rerun is not None and not isinstance(was_rerun, bool):
            raise InvalidInput(f"was_rerun: {was_rerun!r} must be True, False or None")
        wanted = _filter(schedule_key, task, states, verdicts, labels, since, until, limit)
        wanted = msgspec.structs.replace(wanted, was_rerun=was_rerun)
        return await (await self._store()).runs(self.app, wanted)

    async def gaps(
        self,
        schedule_key: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Gap]:
        """Stretches of moments that got no run, newest first."""
        wanted = _filter(schedule_key, None, None, None, None, since, until, limit)
        return await (await self._store()).gaps(self.app, wanted)

    async def history(
        self,
        schedule_key: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Run | Gap]:
        """The ledger: runs and gaps together, newest first."""
        runs = await self.runs(schedule_key, since=since, until=until, limit=limit)
        gaps = await self.gaps(schedule_key, since=since, until=until, limit=limit)
        both: list[Run | Gap] = [*runs, *gaps]
        both.sort(key=lambda row: row.fire_at if isinstance(row, Run) else row.last_at, reverse=True)
        return both[:limit]

    async def get_run(self, run_id: str) -> Run:
        """One run. Raises NotFound."""
        found = await (await self._store()).runs(self.app, RunFilter(ids=(run_id,)))
        if not found:
            raise NotFound(f"there is no run {run_id!r} in app {self.app!r}")
        return found[0]

    async def attempts(self, run: Run | str) -> list[Attempt]:
        """The earlier tries of a run; the last one is in the run itself."""
        return await (await self._store()).attempts(self.app, _run_id(run))

    async def log(self, run: Run | str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """What a run has logged, in order."""
        return await (await self._store()).log(self.app, _run_id(run), after=after, limit=_check_limit(limit))

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

    @property
    def is_healthy(self) -> bool:
        """Whether the engine here runs and all its loops come back. Costs nothing; safe from any thread."""
        if self.settings.concurrency == 0:
            return self._is_started
        return self._engine is not None and self._engine.health().is_healthy

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
            oldest_due_seconds=oldest,
        )

    # --- small things

    def _addition(self, given: dict[str, Any]) -> Addition:
        missing = [name for name in ("key", "when", "task") if name not in given]
        if missing:
            raise InvalidInput(f"a schedule needs {missing[0]}=; given were {', '.join(sorted(given)) or 'nothing'}")
        key, when, task = check_key(given.pop("key")), given.pop("when"), given.pop("task")
        _check_rule(when)
        if callable(task) and not isinstance(task, Task):
            raise InvalidInput(
                f"task: {task!r} is a function; pass the task that @scheduler.task made of it, or its name"
            )
        name = task.name if isinstance(task, Task) else check_key(task, what="task")
        rules, policies, tasks = split(given, f"add({key!r})", CronOptions)
        if rules:
            rule = next(iter(rules))
            raise InvalidSetting(f"{rule}: it belongs to the rule; write it there, in when={type(when).__name__}(…)")
        _refuse_task_options(tasks, name)
        definition = make_definition(name, policies)
        self._check_arguments(name, definition.args)
        return Addition(key=key, rule=when, definition=definition)

    def _encode_arguments(self, task: str, args: Mapping[str, Any]) -> bytes:
        given = make_definition("", {"args": args}).args
        self._check_arguments(task, given)
        return msgspec.json.encode(given)

    def _check_arguments(self, task: str, args: Mapping[str, Any]) -> None:
        """Arguments for a task of ours must fit it; those of a task that other nodes know are theirs to judge."""
        if task in self._tasks:
            self._tasks[task].encode_call((), args)

    def _wake_fires(self) -> None:
        if self._engine is not None:
            self._engine.wake_fires()

    def _wake_runs(self) -> None:
        if self._engine is not None:
            self._engine.wake_runs()

    def _tell(self, kind: EventKind, key: str, note: str = "") -> None:
        if self._hooks.wants(kind):
            at = from_us(self._clock.now_us())
            self._hooks.tell(Event(kind=kind, app=self.app, at=at, schedule_key=key, note=note))

    def __repr__(self) -> str:
        return f"<Scheduler app={self.app!r} node={self.settings.node_name!r}>"


E = TypeVar("E", State, Verdict)


def _several(kind: type[E], given: Sequence[E | str], what: str) -> tuple[E, ...]:
    known = ", ".join(kind)
    if isinstance(given, str):
        raise InvalidInput(f"{what}: {given!r} is one text; pass a list, e.g. {what}=[{given!r}]")
    for each in given:
        if each not in list(kind):
            raise InvalidInput(f"{what}: {each!r} is none of {known}")
    return tuple(kind(each) for each in given)


def _refuse_task_options(options: Mapping[str, Any], task: str) -> None:
    if options:
        raise InvalidSetting(f"{next(iter(options))}: set it where the task {task!r} is made, not on a schedule")


def _run_id(run: Any) -> str:
    if isinstance(run, Run):
        return run.id
    if not isinstance(run, str):
        raise InvalidInput(f"run: {run!r} is neither a run nor the id of one")
    return run


def _check_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _LIMIT_MAX:
        raise InvalidInput(f"limit: {limit!r} must be a whole number from 1 to {_LIMIT_MAX}")
    return limit


def _check_rule(when: Any, *, is_optional: bool = False) -> None:
    if not isinstance(when, When) and not (is_optional and when is None):
        raise InvalidInput(f"when: {when!r} is no rule; pass Cron(...), Every(...), Once(...) or parse_when(text)")


def _filter(
    key: str | None,
    task: str | None,
    states: Sequence[State | str] | None,
    verdicts: Sequence[Verdict | str] | None,
    labels: Mapping[str, str] | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> RunFilter:
    return RunFilter(
        schedule_key=key,
        task=task,
        states=None if states is None else _several(State, states, "states"),
        verdicts=None if verdicts is None else _several(Verdict, verdicts, "verdicts"),
        labels=check_labels(labels or {}),
        since=None if since is None else to_us(since),
        until=None if until is None else to_us(until),
        limit=_check_limit(limit),
    )


def _calling_module() -> str:
    """The module that makes the scheduler: what the program is called, however it was started."""
    name = sys._getframe(2).f_globals.get("__name__", "python")
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main_file).stem if name == "__main__" and main_file else str(name)
