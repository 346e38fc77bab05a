"""Virtual time on a running event loop.

Only the `time` of the loop is replaced, by one that a test moves. Moving goes from timer to timer: run the loop until
nothing is ready and no thread is busy, jump to the next timer, repeat. So all waits on the loop (`asyncio.sleep`,
timeouts, the engine) take their exact virtual time and no real time.

Older timers are set aside and restored unchanged; timers that are left at the end keep their distance from now. Virtual
time cannot wait for events outside the loop: sockets get the real time of `io_wait`.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from evertick.clock import system_clock
from evertick.errors import EvertickError, Refused
from evertick.testing.clock import SettableClock
from evertick.when.moment import SECOND, moment_text

__all__ = ["TimeStandsStill", "VirtualTime"]

T = TypeVar("T")

# Timers are floats, moments are whole microseconds: a timer belongs to the nearest one. The loop's own tolerance of a
# nanosecond is below the precision of a float after half a year.
_RESOLUTION_SECONDS = 0.75e-6
# Iterations of the loop within one second of virtual time. A schedule that fires every millisecond needs about 10,000.
_TURNS_MAX = 100_000
# On close: time moves on after this even if something spins or a thread hangs.
_LAST_TURNS_MAX, _LAST_WAIT_SECONDS = 1_000, 0.1
# A driven coroutine must end within this many timers.
_STEPS_MAX = 100_000
_NAP_LEAST, _NAP_MOST = 0.00005, 0.005
# The callback that ends an `asyncio.sleep`.
_END_OF_SLEEP = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
_NOT_SET = object()


class TimeStandsStill(EvertickError):
    """Virtual time is stuck: a task never waits, a thread does not return, or a limit was reached."""


class VirtualTime:
    """The virtual time of one loop. It moves `clock` along."""

    def __init__(self, clock: SettableClock, *, thread_wait: float, io_wait: float) -> None:
        self._loop: Any = asyncio.get_running_loop()
        _check_loop(self._loop)
        self._clock = clock
        self._thread_wait, self._io_wait = thread_wait, io_wait
        self._base = self._now = float(self._loop.time())
        self._turns = 0
        self._executing = 0
        self._is_clearing = False
        self._posted = threading.Event()
        self._real: dict[str, Any] = {}
        self._before: dict[str, object] = {}
        self._aside: list[asyncio.TimerHandle] = []
        # The task that moves time. It must not sleep, because it would wait for itself.
        self._mover: asyncio.Task[Any] | None = None
        # Set by the kit: time waits for a busy thread, and for I/O of a running job.
        self.has_busy_thread: Callable[[], bool] = lambda: False
        self.has_running_job: Callable[[], bool] = lambda: False
        self.running_names: Callable[[], str] = lambda: "unknown"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self._loop
        return loop

    # --- on and off

    def enter(self) -> None:
        """Switch the loop to virtual time."""
        loop = self._loop
        virtual = {
            "time": lambda: self._now,
            "call_at": self._call_at,
            "call_soon_threadsafe": self._call_soon_threadsafe,
            "run_in_executor": self._run_in_executor,
            "_clock_resolution": _RESOLUTION_SECONDS,
            "_evertick_time": self,
        }
        self._real = {name: getattr(loop, name, None) for name in virtual}
        self._before = {name: loop.__dict__.get(name, _NOT_SET) for name in virtual}
        self._aside, loop._scheduled[:] = loop._scheduled[:], []
        for name, value in virtual.items():
            setattr(loop, name, value)

    def leave(self) -> None:
        """Switch the loop back to its own time. A second call does nothing."""
        loop, before, self._before = self._loop, self._before, {}
        if not before:
            return
        for name, value in before.items():
            if value is _NOT_SET:
                delattr(loop, name)
            else:
                setattr(loop, name, value)
        if loop.is_closed():
            return
        shift = loop.time() - self._now
        for timer in loop._scheduled:
            timer._when += shift
        loop._scheduled.extend(self._aside)
        heapq.heapify(loop._scheduled)

    # --- moving

    async def advance(self, us: int) -> None:
        """Let this much time pass, stopping at every timer."""
        end = self._clock.now_us() + us
        await self.settle()
        while (at := self.next_timer()) is not None and at <= end:
            self._move_to(at)
            await self.settle()
        self._move_to(end)
        await self.settle()

    async def step(self, most_us: int) -> None:
        """Move to the next timer, by at most `most_us`."""
        at, end = self.next_timer(), self._clock.now_us() + most_us
        self._move_to(end if at is None else min(at, end))
        await self.settle()

    async def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, moving time as needed."""
        task = self._loop.create_task(work)
        await self.settle()
        for _ in range(_STEPS_MAX):
            at = self.next_timer()
            if task.done() or at is None:
                break
            self._move_to(at)
            await self.settle()
        if not task.done():
            task.cancel()
            raise self._stuck("the node does not stop")
        result: T = task.result()
        return result

    def clear(self) -> None:
        """Close: from now on time moves even if a task spins or a thread hangs."""
        self._is_clearing = True

    async def settle(self) -> None:
        """Run the loop until nothing more happens at this moment."""
        self._mover = asyncio.current_task()
        waited, turns = 0.0, 0
        while True:
            await asyncio.sleep(0)
            turns += 1
            if self._is_clearing and (turns > _LAST_TURNS_MAX or waited > _LAST_WAIT_SECONDS):
                return
            # A thread posts its result before it becomes idle, so this order misses no result.
            if self._executing or self.has_busy_thread():
                waited = self._wait_for_thread(waited)
            elif self._is_quiet():
                if not await self._gets_outside_event():
                    return
            else:
                self._count_turn()

    def next_timer(self) -> int | None:
        """The moment of the next timer, in microseconds of the clock."""
        timers = self._loop._scheduled
        while timers and timers[0]._cancelled:
            # As the loop does at the start of an iteration.
            self._loop._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        if not timers:
            return None
        now = self._clock.now_us()
        after: float = timers[0]._when - self._now
        return max(now, now + round(after * SECOND))

    def _move_to(self, us: int) -> None:
        passed = us - self._clock.now_us()
        if passed <= 0:
            return
        if us // SECOND != self._clock.now_us() // SECOND:
            self._turns = 0
        self._clock.move(passed)
        self._now = self._base + self._clock.elapsed()

    def _is_quiet(self) -> bool:
        loop = self._loop
        if loop._ready:
            return False
        timers = loop._scheduled
        return not timers or timers[0]._when >= self._now + _RESOLUTION_SECONDS or timers[0]._cancelled

    def _count_turn(self) -> None:
        self._turns += 1
        if self._turns > _TURNS_MAX and not self._is_clearing:
            self._turns = 0
            raise self._stuck(
                f"the event loop made {_TURNS_MAX} iterations within one second of virtual time",
                fix="look for a loop that never waits",
            )

    def _wait_for_thread(self, waited: float) -> float:
        """Give threads some real time. Returns the real time since one of them posted something."""
        if self._loop._ready:
            self._count_turn()
            return waited
        began = system_clock.elapsed()
        # Short, because the loop must go on: a job in a thread may use a server on this loop.
        has_posted = self._posted.wait(min(max(waited, _NAP_LEAST), _NAP_MOST))
        self._posted.clear()
        waited = 0.0 if has_posted else waited + system_clock.elapsed() - began
        if waited > self._thread_wait and not self._is_clearing:
            raise self._stuck(
                f"a thread has not returned for {self._thread_wait:g} s of real time",
                fix="let the plain function wait less (replace its time.sleep and its network), make it async, "
                "or raise thread_wait=",
            )
        return waited

    async def _gets_outside_event(self) -> bool:
        """Wait for I/O of a running job, for at most `io_wait`. Returns whether some arrived."""
        if not self._io_wait or self._is_clearing or not self.has_running_job():
            return False
        until = system_clock.elapsed() + self._io_wait
        while system_clock.elapsed() < until:
            self._posted.wait(_NAP_LEAST)
            await asyncio.sleep(0)
            if not self._is_quiet():
                return True
        return False

    def _stuck(self, problem: str, *, fix: str | None = None) -> TimeStandsStill:
        moment = moment_text(self._clock.now_us())
        return TimeStandsStill(
            f"virtual time is stuck at {moment}, running: {self.running_names()}: {problem}", fix=fix
        )

    # --- replaced methods of the loop

    def _call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        if callback is _END_OF_SLEEP and asyncio.current_task() is self._mover:
            raise Refused(
                "a sleep in the test itself would never end: only the kit moves virtual time",
                fix=f"write `await kit.advance({when - self._now:g})`",
            )
        timer: asyncio.TimerHandle = self._real["call_at"](when, callback, *args, context=context)
        return timer

    def _call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle: asyncio.Handle = self._real["call_soon_threadsafe"](callback, *args, context=context)
        self._posted.set()
        return handle

    def _run_in_executor(self, executor: Any, function: Any, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._real["run_in_executor"](executor, function, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _: asyncio.Future[Any]) -> None:
        self._executing -= 1


def _check_loop(loop: Any) -> None:
    needs = ("_scheduled", "_ready", "_timer_cancelled_count", "_clock_resolution")
    if not isinstance(loop, asyncio.BaseEventLoop) or not all(hasattr(loop, name) for name in needs):
        raise Refused(
            f"virtual time needs one of asyncio's own event loops; this test runs on {type(loop).__module__}."
            f"{type(loop).__qualname__}",
            fix="use asyncio's default loop in tests (not uvloop's), or virtual_time_sync, which has its own",
        )
    if hasattr(loop, "_evertick_time"):
        raise Refused("this event loop already has virtual time", fix="open one kit at a time")
