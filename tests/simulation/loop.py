"""An event loop in virtual time, shared by many machines.

Time does not move while a callback is ready, and jumps to the next timer when none is; nothing really waits. Every
callback belongs to the machine in whose context it was made. Callbacks of a dead machine never run (not even `finally`:
its coroutines stay where they are), those of a frozen one are kept and run when it thaws.

Callbacks of one machine run in order, as in any loop; the seed decides the order between machines. So the same seed
gives the same events, and another seed another interleaving.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Machine", "SimulationStuck", "VirtualLoop", "here"]

# More callbacks without time passing are a spinning loop.
_SPINS_MAX = 200_000

# An odd number with well spread bits, for multiplicative hashing.
_MIXER, _MIXED = 0x9E37_79B9_7F4A_7C15, (1 << 64) - 1


class SimulationStuck(Exception):
    """Virtual time does not move any more: a loop spins, or every task waits for ever."""


class Machine:
    """A process with all of its coroutines, which live and die together."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.is_dead = False
        self.is_frozen = False
        self.ready: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return self.label


_machine: contextvars.ContextVar[Machine] = contextvars.ContextVar("evertick_machine")


def here() -> Machine:
    """The machine that this code runs on."""
    return _machine.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of all machines. `outside` is the machine of callbacks that were started on none."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._salt = random.Random(seed).getrandbits(64)
        self._now = 0.0
        self._count = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._busy: list[Machine] = []
        self._spins = 0
        self._kept: set[asyncio.Task[Any]] = set()
        self.outside = Machine("outside")
        self.loop_errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        self.set_task_factory(self._make_task)

    # --- machines

    def start(self, machine: Machine, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine on a machine, and with it all that it starts."""
        context = contextvars.Context()
        context.run(_machine.set, machine)
        return self.create_task(main, context=context)

    def kill(self, machine: Machine) -> None:
        machine.is_dead = True
        machine.ready.clear()
        if machine in self._busy:
            self._busy.remove(machine)

    def freeze(self, machine: Machine) -> None:
        machine.is_frozen = True
        if machine in self._busy:
            self._busy.remove(machine)

    def thaw(self, machine: Machine) -> None:
        machine.is_frozen = False
        if machine.ready and not machine.is_dead:
            self._busy.append(machine)

    # --- the interface of an asyncio loop

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        raise RuntimeError("a simulation has no threads")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a cancelled timer is ignored at its time."""

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, main: Any, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(main, loop=loop, context=context)
        # A coroutine without a reference is closed, which runs its `finally`: keep those of dead machines.
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    # --- the course of time

    def _make_ready(self, handle: asyncio.Handle) -> None:
        machine = handle._context.get(_machine, self.outside)  # type: ignore[attr-defined]
        if machine.is_dead:
            return
        machine.ready.append(handle)
        if len(machine.ready) == 1 and not machine.is_frozen:
            self._busy.append(machine)

    def _run_once(self) -> None:
        self._fire_timers()
        while self._busy and not self._stopping:  # type: ignore[attr-defined]
            self._spins += 1
            if self._spins > _SPINS_MAX:
                raise SimulationStuck(f"{_SPINS_MAX} callbacks ran at {self._now:.6f} s and time did not move")
            machine = self._next_machine()
            handle = machine.ready.popleft()
            if not machine.ready:
                self._busy.remove(machine)
            if not handle.cancelled():
                handle._run()

    def _next_machine(self) -> Machine:
        if len(self._busy) == 1:
            return self._busy[0]
        return self._busy[self._draw(len(self._busy))]

    def _draw(self, count: int) -> int:
        """A number below `count` from the seed and the current time, so that more callbacks at one time do not change
        the order at another."""
        mixed = (self._salt ^ hash(self._now) ^ (self._spins << 20)) * _MIXER & _MIXED
        return ((mixed ^ mixed >> 29) * _MIXER & _MIXED) * count >> 64

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._busy or self._stopping:  # type: ignore[attr-defined]
            return
        if not self._timers:
            raise SimulationStuck(f"at {self._now:.6f} s no task is ready and no timer is set")
        when = self._timers[0][0]
        if when > self._now:
            self._now, self._spins = when, 0
        while self._timers and self._timers[0][0] <= self._now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._make_ready(timer)

    def end(self) -> None:
        """Close the loop and all its unfinished coroutines silently."""
        for task in self._kept:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for task in list(self._kept):
            coroutine = task.get_coro()
            if coroutine is not None and not task.done():
                _close(coroutine)
        # A job's context is not tracked by the garbage collector (`gc=False`) and refers to this loop by its clock. A
        # reference from here to an unfinished task would keep the whole world in memory.
        self._kept.clear()
        self._timers.clear()
        self._busy.clear()
        self.close()


def _close(coroutine: Any) -> None:
    # The simulation is over: errors of unfinished coroutines do not matter.
    with contextlib.suppress(BaseException):
        coroutine.close()
