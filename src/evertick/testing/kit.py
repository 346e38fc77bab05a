"""The kit with which users test their own schedules: their scheduler, the real engine, virtual time.

While a kit is open the scheduler has other parts: a clock that moves only when the test says so, and a ledger in
memory, whatever its URL is. Closing puts its own parts back. The tested code is that of production: the same
declarations, plans, retries, timeouts and statements; only the time between them is left out.
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

# A Thursday. Fixed, so that a test does not depend on the day it is run on.
_START = "2026-01-01T00:00:00Z"
# No other node writes to the ledger or can die, so polls and heartbeats are rare; nothing is pruned. Once a
# second or a minute, as in real time, a day would be thousands of steps in which nothing happens.
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

    start: the moment it begins at; schedules fire after it. seed: of ids, jitter and every other draw.
    thread_wait: how long, in real time, a plain function may take before it is an error.
    io_wait: how long, in real time, to wait for I/O of running jobs before time moves on; for jobs that talk to a
    real server.
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
    """A kit that the caller closes; `virtual_time` says what the options mean."""
    time = VirtualTime(
        clock := SettableClock(moment_us(start, what="start"), seed=seed),
        thread_wait=duration_us(thread_wait, what="thread_wait") / 1e6,
        io_wait=duration_us(io_wait, what="io_wait") / 1e6,
    )
    stage = Stage(scheduler.runtime, clock, time)
    await stage.open()
    return Kit(scheduler, stage)


class Stage:
    """A scheduler with virtual parts in the place of its own, from `open` to `close`."""

    def __init__(self, runtime: Runtime, clock: SettableClock, time: VirtualTime) -> None:
        self.runtime, self.clock, self.time = runtime, clock, time
        # Held open while the node is down: the ledger in memory lives as long as one connection to it.
        self._store = SqliteStore("sqlite://", clock=clock, is_inline=True)
        self._own: tuple[Parts, Settings, Store | None] = (runtime.parts, runtime.settings, None)
        self._is_open = False
        self._guard: asyncio.Task[None] | None = None
        time.has_busy_thread = lambda: runtime.threads.active > 0
        time.is_at_work = lambda: bool(self.at_work())
        time.names_at_work = lambda: (
            ", ".join(map(repr, self.at_work())) or "no job (a hook, or a thread left from before)"
        )

    async def close(self) -> None:
        """Cut off what runs, and give the scheduler and the event loop their own parts back."""
        if not self._is_open:
            return
        self._is_open = False
        self.time.clear()
        try:
            self.runtime.hurry()
            await self.time.drive(self.runtime.stop())
        finally:
            self._put_back()
            if self._guard is not None:
                self._guard.cancel()
                await asyncio.wait([self._guard])

    def close_from_outside(self) -> None:
        """Close it from plain code, after its event loop has stopped running."""
        loop = self.time.loop
        if not self._is_open:
            return
        if not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(self.close())
            return
        # The loop has ended and cancelled everything on it; only what it left behind is to be tidied up.
        self._is_open = False
        self.runtime.abandon()
        self._put_back()

    async def open(self) -> None:
        if self.runtime.is_started:
            raise Refused("this scheduler has started already; give it to the kit instead of entering it")
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
        """A program that ends its loop cancels all tasks and waits for them: in time that stands still, for ever."""
        try:
            await self.time.loop.create_future()
        finally:
            self.time.leave()

    async def start(self) -> None:
        await self.runtime.start()
        await self.time.settle()

    def _put_back(self) -> None:
        self.time.leave()
        self.runtime.put_parts(*self._own)
        at_once(self._store.close())

    def read(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        self.check_open()
        return at_once(ask(self._store))

    def check_open(self) -> None:
        if not self._is_open:
            raise Refused("this kit is closed; read and assert inside the block that opened it")

    def at_work(self) -> list[str]:
        """The tasks of jobs that run now."""
        return [] if self.runtime.engine is None else self.runtime.engine.tasks_at_work()


class Kit(Ledger):
    """A scheduler in virtual time: moves time, reads the ledger, asserts."""

    def __init__(self, scheduler: Scheduler, stage: Stage) -> None:
        super().__init__(scheduler, stage.read)
        self.stage = stage
        self._clock, self._time = stage.clock, stage.time

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return from_us(self._clock.now_us())

    async def advance(self, duration: Duration) -> None:
        """Let this much time pass. All that falls into it has happened then, up to and including its last moment."""
        self.stage.check_open()
        await self._time.advance(duration_us(duration))
        await self._write_progress()

    async def advance_to(self, moment: Moment) -> None:
        """Let time pass until a moment."""
        us = moment_us(moment, what="moment")
        if us < self._clock.now_us():
            raise InvalidInput(f"advance_to: {self._moment(from_us(us))} is over; it is {self._moment(self.now)}")
        self.stage.check_open()
        await self._time.advance(us - self._clock.now_us())
        await self._write_progress()

    async def run_until_idle(self, *, limit: Duration = "1d") -> None:
        """Let time pass until every run has ended, with its retries and delays; an error after `limit`."""
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
        """Stop the node as a deploy does, let this much time pass, start it again. Catch-up is what follows."""
        self.stage.check_open()
        end = self._clock.now_us() + duration_us(duration)
        await self._time.drive(self.stage.runtime.stop())
        await self._time.advance(max(end - self._clock.now_us(), 0))
        await self.stage.start()

    async def close(self) -> None:
        """Cut off what runs, and give the scheduler and the event loop their own parts back."""
        await self.stage.close()

    def _is_idle(self) -> bool:
        pulse: Pulse = self.stage.read(lambda store: store.pulse(self.scheduler.app))
        return not (pulse.waiting or pulse.running or pulse.blocked or pulse.dispatched or self.stage.at_work())

    async def _write_progress(self) -> None:
        """Progress and log of running jobs are readable after every move of time."""
        engine = self.stage.runtime.engine
        if engine is not None and engine.write_progress():
            await self._time.settle()


class SyncKit(Ledger):
    """The same for plain tests: the event loop runs in a thread of its own."""

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
        """Let this much time pass. All that falls into it has happened then, up to and including its last moment."""
        self._thread.call(self._kit.advance(duration))

    def advance_to(self, moment: Moment) -> None:
        """Let time pass until a moment."""
        self._thread.call(self._kit.advance_to(moment))

    def run_until_idle(self, *, limit: Duration = "1d") -> None:
        """Let time pass until every run has ended, with its retries and delays; an error after `limit`."""
        self._thread.call(self._kit.run_until_idle(limit=limit))

    def downtime(self, duration: Duration) -> None:
        """Stop the node as a deploy does, let this much time pass, start it again. Catch-up is what follows."""
        self._thread.call(self._kit.downtime(duration))


class _LoopThread:
    """An event loop of asyncio's own kind, whatever the policy of the program, in a private thread."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._serve, name="evertick virtual time", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise Refused("this kit is closed; read and assert inside the block that opened it")
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
        raise WouldBlock("this test runs on an event loop; use `async with virtual_time(...)` and await its kit")
