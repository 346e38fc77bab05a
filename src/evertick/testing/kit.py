"""The kit with which users test their own schedules: their scheduler, the real engine, virtual time.

While a kit is open the scheduler has other parts: a clock that moves only when the test says so, and a ledger in
memory, whatever its URL is. Closing puts its own parts back. What is tested is what runs in production: the same
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
from evertick.errors import InvalidInput, Refused, WouldBlock
from evertick.scheduler.scheduler import Parts, Scheduler
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
# Nobody else writes to the ledger and nobody can die, so looking around and beating are rare; nothing is pruned. Once a
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
    kit = Kit(scheduler, clock, time)
    await kit._open()
    return kit


class Kit(Ledger):
    """A scheduler in virtual time: moves time, reads the ledger, asserts."""

    def __init__(self, scheduler: Scheduler, clock: SettableClock, time: VirtualTime) -> None:
        super().__init__(scheduler)
        self._clock, self._time = clock, time
        # Held open while the node is down: the ledger in memory lives as long as somebody has it open.
        self._store = SqliteStore("sqlite://", clock=clock, is_inline=True)
        self._own = (scheduler._parts, scheduler.settings, scheduler._opened)
        self._is_open = False
        self._guard: asyncio.Task[None] | None = None
        time.has_busy_thread = lambda: scheduler._threads.active > 0
        time.is_at_work = lambda: bool(self._at_work())
        time.names_at_work = lambda: (
            ", ".join(map(repr, self._at_work())) or "no job (a hook, or a thread left from before)"
        )

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return from_us(self._clock.now_us())

    async def advance(self, duration: Duration) -> None:
        """Let this much time pass. All that falls into it has happened then, up to and including its last moment."""
        self._check_open()
        await self._time.advance(duration_us(duration))
        await self._carry_progress()

    async def advance_to(self, moment: Moment) -> None:
        """Let time pass until a moment."""
        us = moment_us(moment, what="moment")
        if us < self._clock.now_us():
            raise InvalidInput(f"advance_to: {self._moment(from_us(us))} is over; it is {self._moment(self.now)}")
        self._check_open()
        await self._time.advance(us - self._clock.now_us())
        await self._carry_progress()

    async def run_until_idle(self, *, limit: Duration = "1d") -> None:
        """Let time pass until every run has ended, with its retries and delays; an error after `limit`."""
        self._check_open()
        end = self._clock.now_us() + duration_us(limit, what="limit")
        await self._time.settle()
        while not self._is_idle():
            if self._clock.now_us() >= end:
                raise TimeStandsStill(
                    f"not idle after {duration_text(duration_us(limit))} of virtual time; the ledger:\n{self.ledger()}"
                )
            await self._time.step(end - self._clock.now_us())
        await self._carry_progress()

    async def downtime(self, duration: Duration) -> None:
        """Stop the node as a deploy does, let this much time pass, start it again. Catch-up is what follows."""
        self._check_open()
        end = self._clock.now_us() + duration_us(duration)
        await self._time.drive(self.scheduler._stop())
        await self._time.advance(max(end - self._clock.now_us(), 0))
        await self._start()

    async def close(self) -> None:
        """Cut off what runs, and give the scheduler and the event loop their own parts back."""
        if not self._is_open:
            return
        self._is_open = False
        self._time.clear()
        try:
            self.scheduler._hurry()
            await self._time.drive(self.scheduler._stop())
        finally:
            self._put_back()
            if self._guard is not None:
                self._guard.cancel()
                await asyncio.wait([self._guard])

    def _close_from_outside(self) -> None:
        """Close it from plain code, after its event loop has stopped running."""
        loop = self._time.loop
        if not self._is_open:
            return
        if not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(self.close())
            return
        # The loop has ended and cancelled everything on it; only what it left behind is to be tidied up.
        self._is_open = False
        scheduler, engine = self.scheduler, self.scheduler._engine
        if scheduler._opened is not None:
            at_once(scheduler._opened.close())
        scheduler._engine = scheduler._portal.engine_loop = None
        scheduler._is_started = False
        scheduler._hooks._teller = None
        scheduler._threads.close()
        if engine is not None:
            engine._capture.remove()
        self._put_back()

    # --- inside

    async def _open(self) -> None:
        scheduler = self.scheduler
        if scheduler._is_started:
            raise Refused("this scheduler has started already; give it to the kit instead of entering it")
        await self._store.open(migrate="auto")
        self._is_open = True
        scheduler._parts = Parts(
            clock=self._clock,
            open_store=lambda _: SqliteStore.sharing(self._store),
            heart_in_thread=False,
            note_seconds=_NOTE_SECONDS,
            sweep_seconds=_SWEEP_SECONDS,
            prune_seconds=_SWEEP_SECONDS,
        )
        scheduler.settings = msgspec.structs.replace(
            scheduler.settings, poll_interval=_POLL, lease=_FOR_EVER, retention=_FOR_EVER, keep_per_schedule=10**9
        )
        scheduler._opened = None
        self._time.enter()
        self._guard = self._time.loop.create_task(self._leave_with_loop(), name="evertick virtual time")
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _leave_with_loop(self) -> None:
        """A program that ends its loop cancels all tasks and waits for them: in time that stands still, for ever."""
        try:
            await self._time.loop.create_future()
        finally:
            self._time.leave()

    async def _start(self) -> None:
        await self.scheduler._start()
        await self._time.settle()

    def _put_back(self) -> None:
        self._time.leave()
        self.scheduler._parts, self.scheduler.settings, self.scheduler._opened = self._own
        at_once(self._store.close())

    def _read(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        return at_once(ask(self._store))

    def _check_open(self) -> None:
        if not self._is_open:
            raise Refused("this kit is closed; read and assert inside the block that opened it")

    def _is_idle(self) -> bool:
        pulse: Pulse = self._read(lambda store: store.pulse(self.scheduler.app))
        return not (pulse.waiting or pulse.running or pulse.blocked or pulse.dispatched or self._at_work())

    def _at_work(self) -> list[str]:
        engine = self.scheduler._engine
        return [] if engine is None else sorted({each.run.task for each in engine._node.hold if not each.is_over})

    async def _carry_progress(self) -> None:
        """What running jobs have said is readable after every move of time."""
        if self.scheduler._engine is not None and len(self.scheduler._engine._node.hold):
            self.scheduler._engine._progress_loop.wake()
            await self._time.settle()


class SyncKit(Ledger):
    """The same for plain tests: the event loop runs in a thread of its own."""

    def __init__(self, scheduler: Scheduler, kit: Kit, thread: _LoopThread) -> None:
        super().__init__(scheduler)
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

    def _read(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        async def read() -> T:
            return self._kit._read(ask)

        return self._thread.call(read())


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
