"""The inside of a scheduler: its store, its engine, its drivers, its tasks and its configuration.

Users hold a `Scheduler`, which declares and delegates. Tasks, the configuration, the daemon and the testing kit hold a
`Runtime`, and change it by its methods only. The store is opened on first use. The engine runs from `start` to `stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from evertick.aio.blocking import at_once
from evertick.clock import Clock, system_clock
from evertick.definition.declarations import Declarations
from evertick.definition.duties import Duties, make_duty
from evertick.definition.settings import Settings, check_url
from evertick.definition.task import Placing, Task
from evertick.driver.base import DispatchingDriver, ReportSource, Sender, Work
from evertick.driver.python.child_import import check_may_open_store, check_may_start
from evertick.driver.python.function import Threads
from evertick.driver.python.process import Children
from evertick.driver.queue.spec import nats_connection
from evertick.driver.secret import Secrets
from evertick.driver.spec import DriverParts
from evertick.engine.engine import Engine, EngineSettings
from evertick.engine.node import LocalNode, declarer_of
from evertick.errors import EvertickError, InvalidSetting, Refused, StoreError, StoreReplaced
from evertick.model import Run
from evertick.model.duty import DutyWork
from evertick.model.feed import FeedPage
from evertick.model.hooks import Hooks
from evertick.operations.context import Actor, Context
from evertick.operations.feed import feed_page
from evertick.operations.nodes import is_healthy
from evertick.operations.tasks import enqueue_encoded
from evertick.scheduler.job_exchange import Close, JobExchange, JobSet, close_each
from evertick.scheduler.portal import Portal
from evertick.scheduler.process import alone
from evertick.store.base import Store
from evertick.store.url import open_store
from evertick.text.redact import shown_value
from evertick.version import VERSION
from evertick.when.moment import DAY

__all__ = ["Parts", "Runtime"]

log = logging.getLogger("evertick.scheduler")

T = TypeVar("T")

# Retention of the feed where events are published and no setting gives one.
_FEED_TO_PUBLISH = DAY


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The exchangeable parts of a scheduler; the testing kit puts in virtual ones."""

    clock: Clock
    open_store: Callable[[str], Store]
    heartbeat_in_thread: bool = True
    note_seconds: float = 1.0
    sweep_seconds: float = 60.0
    prune_seconds: float = 600.0


class Runtime:
    """The state of a scheduler, and the life of its engine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.parts = Parts(clock=system_clock, open_store=lambda url: open_store(url, clock=system_clock))
        self.actor = Actor()
        # The name of this object in the log, in errors about calls that were not awaited.
        self.written = "scheduler"
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.task_places: dict[str, str] = {}
        self.declarations = Declarations()
        self.duties = Duties()
        self.senders: dict[str, Sender] = {}
        self.threads = Threads()
        self.children = Children()
        self.hooks = Hooks(self.threads.call)
        self.portal = Portal()
        self.exchange = JobExchange(self)
        self.secrets = Secrets()
        # By driver. Drivers hold this dict and look into it when they connect, so it is changed in place.
        self.connections: dict[str, object] = {}
        # Errors of the last reload.
        self.configuration_problems: tuple[str, ...] = ()
        self.engine: Engine | None = None
        self.is_started = False
        # Callbacks of drivers that close their connections: by task, and for the whole scheduler.
        self._closing_of: dict[str, list[Close]] = {}
        self._closing: list[Close] = []
        self._shared: dict[str, object] = {}
        self._opened: Store | None = None
        # The id of the ledger; empty until it is opened.
        self._ledger = ""

    @property
    def app(self) -> str:
        return self.settings.app

    @property
    def clock(self) -> Clock:
        return self.parts.clock

    # --- its configuration

    def configure(
        self,
        *,
        actor: Actor | None = None,
        secrets: Secrets | None = None,
        connections: Mapping[str, object] | None = None,
    ) -> None:
        """Set who asks for operations and where secrets are read, and add connections by driver."""
        if actor is not None:
            self.actor = actor
        if secrets is not None:
            self.secrets = secrets
        if connections is not None:
            self.connections.update(connections)

    async def take_configuration(
        self,
        jobs: JobSet,
        *,
        added: Mapping[str, object],
        replaced: Mapping[str, object],
        disabled: Collection[str] = (),
    ) -> EvertickError | None:
        """Exchange the jobs and connections for those of a configuration that was read again.

        An error leaves everything as it was. `added` and `replaced` are connections; `disabled` and the result are
        those of `JobExchange.take`.
        """
        # Before the jobs that need them. Nothing connects yet.
        self.connections.update(added)
        try:
            unrecorded = await self.exchange.take(jobs, disabled=disabled)
        except BaseException:
            for name in added:
                del self.connections[name]
            raise
        self.connections.update(replaced)
        return unrecorded

    def record_reload(self, problems: tuple[str, ...]) -> None:
        """Keep the errors of a reload of the configuration; `health` shows them."""
        self.configuration_problems = problems

    # --- the store, and operations on it

    async def store(self) -> Store:
        """The store, opened on first use."""
        if self._opened is None:
            check_may_open_store(self.settings.url)
            store = self.parts.open_store(self.settings.url)
            try:
                await store.open(migrate=self.settings.migrate)
            except StoreError as error:
                raise alone(error)  # noqa: B904 - it is the same
            if self._opened is not None:  # another coroutine was faster
                await store.close()
            else:
                self._opened, self._ledger = store, store.id
        return self._opened

    async def context(self) -> Context:
        return Context(
            store=self._opened or await self.store(),
            settings=self.settings,
            clock=self.parts.clock,
            actor=self.actor,
            tasks=self.tasks,
            declarations=self.declarations,
            duties=self.duties,
            hooks=self.hooks,
            engine=self.engine,
            is_started=self.is_started,
            configuration_problems=self.configuration_problems,
        )

    async def in_context(self, work: Callable[[Context], Awaitable[T]]) -> T:
        return await work(await self.context())

    def call_sync(
        self, work: Callable[[Context], Coroutine[Any, Any, T]], what: str, *, connection: object = None
    ) -> T:
        """Run it and wait: on an event loop, or in this thread if it uses a connection of the user."""
        if connection is None:
            return self.portal.call(lambda: self.in_context(work), what)
        # Only opening the store is for an event loop.
        context = self.portal.call(self.context, what)
        if context.store.within(connection).is_async:
            given = shown_value(connection)
            raise Refused(f"{what} cannot wait for the async connection {given}", fix="use `await` without `.sync`")
        return at_once(work(context))

    async def enqueue(
        self, task: str, encoded: Sequence[bytes], placing: Placing, connection: object = None
    ) -> list[Run]:
        return await enqueue_encoded(await self.context(), task, encoded, placing, connection)

    def use_database(self, url: str) -> None:
        if self._opened is not None:
            raise Refused("the store is open already", fix="choose the database before using the scheduler")
        self.settings = msgspec.structs.replace(self.settings, url=check_url(url))

    # --- from start to stop

    async def start(
        self,
        on_stalled: Callable[[], None] = lambda: None,
        on_replaced: Callable[[StoreReplaced], None] = lambda error: None,
    ) -> None:
        if self.is_started:
            raise Refused("this scheduler has started already", fix="leave it before entering it again")
        check_may_start()
        self.is_started = True
        try:
            await self._start_engine(on_stalled, on_replaced)
        except BaseException:
            self.is_started = False
            await self.close()
            raise

    async def _start_engine(self, on_stalled: Callable[[], None], on_replaced: Callable[[StoreReplaced], None]) -> None:
        context = await self.context()
        store, editor = context.store, context.editor()
        await self._keep_feed(store)
        await self.declarations.store_all(store, self.app, editor, declarer_of(self.settings.node_name))
        if self.settings.concurrency > 0:
            duties = [*self.duties.works, *self._publishing_duties()]
            engine = Engine(self._node(store), editor, self._engine_settings(), duties)
            engine.on_stalled, engine.on_replaced = on_stalled, on_replaced
            if self.clock is system_clock:
                self.children.open()
            await engine.start()
            self.engine = engine
        self.portal.engine_loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        if self.engine is not None:
            await self.engine.stop(self.settings.stop_timeout / 1e6)
        self.engine = None
        self.is_started = False
        self.portal.engine_loop = None
        await self.close()

    async def close(self) -> None:
        """Close the store. It opens again when it is needed."""
        store, self._opened = self._opened, None
        if store is not None:
            await store.close()
        if self.engine is None:
            await self.children.close()
            lists = [self._closing, *self._closing_of.values(), *self.exchange.end()]
            shared = [close for thing in self._shared.values() if callable(close := getattr(thing, "close", None))]
            for closing in [*lists, shared]:
                await close_each(closing)
        self.threads.close()

    def abandon(self) -> None:
        """Drop everything that ran on an event loop that has ended."""
        engine, self.engine = self.engine, None
        if self._opened is not None:
            at_once(self._opened.close())
        self.portal.engine_loop = None
        self.is_started = False
        self.hooks.abandon()
        self.threads.close()
        if engine is not None:
            engine.abandon()

    def put_parts(
        self, parts: Parts, settings: Settings, opened: Store | None = None
    ) -> tuple[Parts, Settings, Store | None]:
        """Exchange the parts, and return the previous ones, so that the caller can restore them."""
        before = self.parts, self.settings, self._opened
        self.parts, self.settings, self._opened = parts, settings, opened
        return before

    # --- its health

    @property
    def is_healthy(self) -> bool:
        return is_healthy(self.engine, self.settings, is_started=self.is_started)

    @property
    def is_moving(self) -> bool:
        """Whether the process is alive for a supervisor. Safe from any thread."""
        engine = self.engine
        return engine is None or engine.is_moving

    @property
    def node_id(self) -> str:
        """The id of the current incarnation; empty without an engine."""
        return "" if self.engine is None else self.engine.node_id

    @property
    def under_way(self) -> str:
        """The work that a stop waits for, in words."""
        return "" if self.engine is None else self.engine.under_way

    def hurry(self) -> None:
        if self.engine is not None:
            self.engine.hurry()

    # --- drivers

    def driver_parts(self, task: str) -> DriverParts:
        """The parts for the driver of this task. The driver is closed when another one replaces it, or at the end."""
        closing = self._closing_of[task] = []
        return msgspec.structs.replace(self.shared_parts, at_close=closing.append)

    @property
    def shared_parts(self) -> DriverParts:
        return DriverParts(
            app=self.app,
            fleet=self._fleet,
            clock=self.clock,
            threads=self.threads,
            children=self.children,
            connections=self.connections,
            resolve_secret=lambda name: self.secrets.resolve(name),
            at_close=self._closing.append,
            shared=self._shared,
        )

    def _fleet(self) -> str:
        assert self._ledger, "the ledger must be open before runs are dispatched or reports read"
        return f"{self.app}-{self._ledger}"

    @property
    def jobs(self) -> JobSet:
        return JobSet(
            tasks=self.tasks,
            task_places=self.task_places,
            declarations=self.declarations,
            closing=self._closing_of,
            settings=self.settings,
        )

    @jobs.setter
    def jobs(self, jobs: JobSet) -> None:
        self.tasks, self.task_places = jobs.tasks, jobs.task_places
        self.declarations, self._closing_of, self.settings = jobs.declarations, jobs.closing, jobs.settings

    def dispatching(self, works: Iterable[Work]) -> tuple[dict[str, Sender], list[ReportSource]]:
        """The senders and report sources of drivers that dispatch runs to queues. Tasks share them."""
        senders: dict[str, Sender] = {}
        sources: dict[int, ReportSource] = {}
        for driver in [work.driver for work in works if isinstance(work.driver, DispatchingDriver)]:
            if self.clock is not system_clock and getattr(driver, "is_remote", False):
                continue  # a test of schedules in virtual time reaches no broker
            senders |= {sender.channel: sender for sender in driver.senders()}
            sources |= {id(source): source for source in driver.sources()}
        for channel in sorted(senders.keys() & self.senders.keys()):
            raise InvalidSetting(
                f"channel {channel!r} is that of a queue, and has a sender beside it: give the sender another channel"
            )
        return senders, list(sources.values())

    # --- its engine

    async def _keep_feed(self, store: Store) -> None:
        if self.settings.feed is not None:
            await store.keep_feed(self.app, self.settings.feed or None)
        elif self._publishes and await store.feed_state(self.app) is None:
            # Publishing reads events from the feed.
            await store.keep_feed(self.app, _FEED_TO_PUBLISH)
            log.info("app %r keeps a feed from now on, a day of events: nats.events are read from it", self.app)

    @property
    def _publishes(self) -> bool:
        return self.settings.concurrency > 0 and bool(getattr(self.connections.get("nats"), "events", False))

    def _publishing_duties(self) -> list[DutyWork]:
        """The duty that publishes events, if a connection is set to do so."""
        given = self.connections.get("nats")
        if given is None or not self._publishes:
            return []
        from evertick.driver.queue.nats_events import NatsEvents

        async def page(after: str | None, kinds: Sequence[str]) -> FeedPage:
            return await feed_page(await self.context(), after, kinds=kinds)

        events = NatsEvents(nats_connection(given), self.app, page, self.secrets.resolve)
        return [make_duty(events.run, "nats.events", None, self.threads.call)]

    def _node(self, store: Store) -> LocalNode:
        jobs, settings = self.jobs, self.settings
        works = jobs.works()
        senders, sources = self.dispatching(works.values())
        return LocalNode(
            name=settings.node_name,
            app=self.app,
            version=VERSION,
            store=store,
            clock=self.clock,
            works=works,
            queues=settings.queues,
            concurrency=settings.concurrency,
            lease=settings.lease,
            hooks=self.hooks,
            declares=self.declarations.hashes(),
            senders=self.senders | senders,
            sources=sources,
            leaves=jobs.left_to_others(),
            has_own_rates=settings.rate_limits == "memory",
            batch_size=settings.batch_size,
        )

    def _engine_settings(self) -> EngineSettings:
        settings, parts = self.settings, self.parts
        return EngineSettings(
            poll=settings.poll_interval / 1e6,
            beat=settings.beat / 1e6,
            stall_limit=settings.stall_limit / 1e6,
            retention=settings.retention,
            keep_per_schedule=settings.keep_per_schedule,
            note=parts.note_seconds,
            sweep=parts.sweep_seconds,
            prune=parts.prune_seconds,
            heartbeat_in_thread=parts.heartbeat_in_thread,
            holds_duties=settings.duties,
        )
