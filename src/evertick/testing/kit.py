"""The kit for tests of users' schedules: their scheduler and the real engine in virtual time.

While a kit is open, the scheduler has a clock that only the test moves, and a ledger in memory instead of its own
store. Closing the kit restores its own parts. The tested code is that of production: declarations, plans, retries,
timeouts and SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from evertick.aio.blocking import at_once, is_on_event_loop
from evertick.definition.settings import Settings
from evertick.errors import InvalidInput, Refused, WouldBlock
from evertick.scheduler.runtime import Parts, Runtime
from evertick.scheduler.scheduler import Scheduler
from evertick.store.base import Pulse, Store
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.testing.ledger import Ledger, Moment, moment_us
from evertick.testing.virtual import TimeStandsStill, VirtualTime
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY, HOUR, from_us

__all__ = ["Kit", "SyncKit", "open_kit", "virtual_time", "virtual_time_sync"]

T = TypeVar("T")

# Fixed, so that a test does not depend on the day it runs. A Thursday.
_START = "2026-01-01T00:00:00Z"
# There is no other node, so polls and heartbeats can be rare. At the rates of production, a virtual day would have
# thousands of empty steps. Nothing is pruned.
_POLL = 6 * HOUR
_FOR_EVER = 36_500 * DAY
_NOTE_SECONDS = 3600.0
_SWEEP_SECONDS = 6 * 3600.0


@contextlib.asynccontextmanager
async def virtual_time(
    scheduler: Scheduler,
    *,
    start: Moment = _START,
    seed: int = 0,
    thread_wait: Duration = "10s",
    io_wait: Duration = 0,
) -> AsyncIterator[Kit]:
    """Run the scheduler in virtual time: `async with virtual_time(scheduler) as kit: await kit.advance("1d")`.

    start: the first moment of virtual time; schedules fire after it. seed: for ids, jitter and other random numbers.
    thread_wait: the longest real time that a plain function may take.
    io_wait: the real time to wait for I/O of running jobs before time moves on, for jobs that use a real server.
    """
    kit = await open_kit(scheduler, start=start, seed=seed, thread_wait=thread_wait, io_wait=io_wait)
    try:
        yield kit
    finally:
        await kit.close()


async def open_kit(
    scheduler: Scheduler,
    *,
    start: Moment = _START,
    seed: int = 0,
    thread_wait: Duration = "10s",
    io_wait: Duration = 0,
) -> Kit:
    """A kit that the caller closes; the options are those of `virtual_time`."""
    time = VirtualTime(
        clock := SettableClock(moment_us(start, what="start"), seed=seed),
        thread_wait=duration_us(thread_wait, what="thread_wait") / 1e6,
        io_wait=duration_us(io_wait, what="io_wait") / 1e6,
    )
    stage = Stage(scheduler.runtime, clock, time)
    await stage.open()
    return Kit(scheduler, stage)


class Stage:
    """Replaces the parts of a scheduler by virtual ones, from `open` to `close`."""

    def __init__(self, runtime: Runtime, clock: SettableClock, time: VirtualTime) -> None:
        self.runtime, self.clock, self.time = runtime, clock, time
        # Keeps a connection open during downtime: the ledger in memory lives as long as one connection.
        self._store = SqliteStore("sqlite://", clock=clock, is_inline=True)
        self._own: tuple[Parts, Settings, Store | None] = (runtime.parts, runtime.settings, None)
        self._is_open = False
        self._guard: asyncio.Task[None] | None = None
        time.has_busy_thread = lambda: runtime.threads.active > 0
        time.has_running_job = lambda: bool(self.running_tasks())
        time.running_names = lambda: ", ".join(map(repr, self.running_tasks())) or "no job, but a hook or an old thread"

    async def close(self) -> None:
        """Cancel running jobs, and restore the own parts of the scheduler and the event loop."""
        if not self._is_open:
            return
        self._is_open = False
        self.time.clear()
        try:
            self.runtime.hurry()
            await self.time.drive(self.runtime.stop())
        finally:
            self._restore()
            if self._guard is not None:
                self._guard.cancel()
                await asyncio.wait([self._guard])

    def close_from_outside(self) -> None:
        """Close it from sync code, after its event loop has stopped."""
        loop = self.time.loop
        if not self._is_open:
            return
        if not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(self.close())
            return
        # The loop has ended and has cancelled all its tasks; only the parts remain to be restored.
        self._is_open = False
        self.runtime.abandon()
        self._restore()

    async def open(self) -> None:
        if self.runtime.is_started:
            raise Refused("this scheduler has already started", fix="pass it to the kit instead of entering it")
        await self._store.open(migrate="auto")
        self._is_open = True
        parts = Parts(
            clock=self.clock,
            open_store=lambda _: SqliteStore.sharing(self._store),
            heartbeat_in_thread=False,
            note_seconds=_NOTE_SECONDS,
            sweep_seconds=_SWEEP_SECONDS,
            prune_seconds=_SWEEP_SECONDS,
        )
        settings = msgspec.structs.replace(
            self.runtime.settings, poll_interval=_POLL, lease=_FOR_EVER, retention=_FOR_EVER, keep_per_schedule=10**9
        )
        self._own = self.runtime.put_parts(parts, settings)
        self.time.enter()
        self._guard = self.time.loop.create_task(self._leave_with_loop(), name="evertick virtual time")
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise

    async def _leave_with_loop(self) -> None:
        """Restore real time when the loop ends: in virtual time its wait for cancelled tasks would never end."""
        try:
            await self.time.loop.create_future()
        finally:
            self.time.leave()

    async def start(self) -> None:
        await self.runtime.start()
        await self.time.settle()

    def _restore(self) -> None:
        self.time.leave()
        self.runtime.put_parts(*self._own)
        at_once(self._store.close())

    def read(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        self.check_open()
        return at_once(ask(self._store))

    def check_open(self) -> None:
        if not self._is_open:
            raise Refused("this kit is closed", fix="read and assert inside the block that opened it")

    def running_tasks(self) -> list[str]:
        """The tasks of the running jobs."""
        return [] if self.runtime.engine is None else self.runtime.engine.tasks_at_work()


class Kit(Ledger):
    """A scheduler in virtual time: move time, read the ledger, assert."""

    def __init__(self, scheduler: Scheduler, stage: Stage) -> None:
        super().__init__(scheduler, stage.read)
        self.stage = stage
        self._clock, self._time = stage.clock, stage.time

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return from_us(self._clock.now_us())

    async def advance(self, duration: Duration) -> None:
        """Let this much time pass, including all that is due at its last moment."""
        self.stage.check_open()
        await self._time.advance(duration_us(duration))
        await self._write_progress()

    async def advance_to(self, moment: Moment) -> None:
        """Let time pass until a moment."""
        us = moment_us(moment, what="moment")
        if us < self._clock.now_us():
            raise InvalidInput(
                f"advance_to: {self._moment(from_us(us))} is in the past; it is {self._moment(self.now)}",
                setting="moment",
                value=self._moment(from_us(us)),
            )
        self.stage.check_open()
        await self._time.advance(us - self._clock.now_us())
        await self._write_progress()

    async def run_until_idle(self, *, limit: Duration = "1d") -> None:
        """Let time pass until every run has ended, with retries and delays. Raises `TimeStandsStill` after `limit`."""
        self.stage.check_open()
        end = self._clock.now_us() + duration_us(limit, what="limit")
        await self._time.settle()
        while not self._is_idle():
            if self._clock.now_us() >= end:
                raise TimeStandsStill(
                    f"not idle after {duration_text(duration_us(limit))} of virtual time; the ledger:\n{self.ledger()}"
                )
            await self._time.step(end - self._clock.now_us())
        await self._write_progress()

    async def downtime(self, duration: Duration) -> None:
        """Stop the node as a deployment does, let this much time pass, and start it again. Then it catches up."""
        self.stage.check_open()
        end = self._clock.now_us() + duration_us(duration)
        await self._time.drive(self.stage.runtime.stop())
        await self._time.advance(max(end - self._clock.now_us(), 0))
        await self.stage.start()

    async def close(self) -> None:
        """Cancel running jobs, and restore the own parts of the scheduler and the event loop."""
        await self.stage.close()

    def _is_idle(self) -> bool:
        pulse: Pulse = self.stage.read(lambda store: store.pulse(self.scheduler.app))
        return not (pulse.waiting or pulse.running or pulse.blocked or pulse.dispatched or self.stage.running_tasks())

    async def _write_progress(self) -> None:
        """Write progress and logs of running jobs, so that they can be read after every move of time."""
        engine = self.stage.runtime.engine
        if engine is not None and engine.write_progress():
            await self._time.settle()


class SyncKit(Ledger):
    """The same for sync tests: the event loop runs in its own thread."""

    def __init__(self, scheduler: Scheduler, kit: Kit, thread: _LoopThread) -> None:
        async def read(ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
            return kit.stage.read(ask)

        super().__init__(scheduler, lambda ask: thread.call(read(ask)))
        self._kit, self._thread = kit, thread

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self._kit.now

    def advance(self, duration: Duration) -> None:
        """Let this much time pass, including all that is due at its last moment."""
        self._thread.call(self._kit.advance(duration))

    def advance_to(self, moment: Moment) -> None:
        """Let time pass until a moment."""
        self._thread.call(self._kit.advance_to(moment))

    def run_until_idle(self, *, limit: Duration = "1d") -> None:
        """Let time pass until every run has ended, with retries and delays. Raises `TimeStandsStill` after `limit`."""
        self._thread.call(self._kit.run_until_idle(limit=limit))

    def downtime(self, duration: Duration) -> None:
        """Stop the node as a deployment does, let this much time pass, and start it again. Then it catches up."""
        self._thread.call(self._kit.downtime(duration))


class _LoopThread:
    """An asyncio event loop in its own thread, independent of the event loop policy."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._serve, name="evertick virtual time", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise Refused("this kit is closed", fix="read and assert inside the block that opened it")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            asyncio.set_event_loop(None)
            self._loop.close()


@contextlib.contextmanager
def virtual_time_sync(
    scheduler: Scheduler,
    *,
    start: Moment = _START,
    seed: int = 0,
    thread_wait: Duration = "10s",
    io_wait: Duration = 0,
) -> Iterator[SyncKit]:
    """Like `virtual_time`, for tests without an event loop: `with virtual_time_sync(scheduler) as kit: ...`."""
    _refuse_event_loop()
    thread = _LoopThread()
    try:
        opening = open_kit(scheduler, start=start, seed=seed, thread_wait=thread_wait, io_wait=io_wait)
        kit = thread.call(opening)
        try:
            yield SyncKit(scheduler, kit, thread)
        finally:
            thread.call(kit.close())
    finally:
        thread.end()


def _refuse_event_loop() -> None:
    if is_on_event_loop():
        raise WouldBlock("this test runs on an event loop", fix="use `async with virtual_time(...)` and await its kit")
