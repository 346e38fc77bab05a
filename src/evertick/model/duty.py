"""Duties: singleton jobs that one node of the fleet holds at a time.

A duty is held under a *term*, a fencing token that grows each time a node takes the duty. The holder stops before its
lease expires. A frozen process resumes in the middle of a line, and a thread cannot be stopped from outside: where a
late write would do harm, pass the term to the resource, which rejects a lower term than it has seen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from evertick.errors import Stopped
from evertick.when import When
from evertick.when.duration import Duration, duration_us

__all__ = ["DutyContext", "DutyRecord", "DutyWork", "Interval", "Moments", "Rhythm"]


class DutyRecord:
    """The engine's state of a held duty, behind its context."""

    __slots__ = ("ask", "has_seen_stop", "is_trusted", "stopped", "why")

    def __init__(self, is_trusted: Callable[[], bool], ask: Callable[[], Awaitable[bool]]) -> None:
        self.is_trusted = is_trusted
        # Asks the store whether the duty is still held under this term.
        self.ask = ask
        self.stopped = threading.Event()
        self.why = ""
        self.has_seen_stop = False

    @property
    def is_stopped(self) -> bool:
        return self.stopped.is_set()

    def stop(self, why: str) -> None:
        """Stop the duty, from any thread. Only the first reason is kept."""
        if not self.stopped.is_set():
            self.why = why
            self.stopped.set()


class DutyContext:
    """The context of a held duty, for its function. Safe to use from the function's own thread."""

    __slots__ = ("_record", "name", "node", "term")

    def __init__(self, *, name: str, term: int, node: str, record: DutyRecord) -> None:
        self.name = name
        # The fencing token: a shared resource can use it to reject writes of an earlier holder.
        self.term = term
        # The id of the node that holds it.
        self.node = node
        self._record = record

    @property
    def cancelled(self) -> bool:
        """Whether to stop, because the duty is or may be lost. A plain function must check this regularly."""
        # The second half needs no event loop, so it works at once in a process that was frozen.
        is_over = self._record.is_stopped or not self._record.is_trusted()
        if is_over:
            self._record.has_seen_stop = True
        return is_over

    def check(self) -> None:
        """Raise `Stopped` if the function is to stop."""
        if self.cancelled:
            raise Stopped(
                f"duty {self.name!r} must stop: {self._record.why or 'the store has not answered for too long'}"
            )

    async def sleep(self, seconds: Duration) -> None:
        """Wait, in a coroutine. If the duty must stop, it is cancelled, or `Stopped` is raised at the end."""
        self.check()
        await asyncio.sleep(duration_us(seconds, what="seconds") / 1e6)
        self.check()

    def wait(self, seconds: Duration) -> bool:
        """Wait, in a plain function: `while ctx.wait(5): ...`. Returns False, at once, if the duty must stop."""
        self._record.stopped.wait(duration_us(seconds, what="seconds") / 1e6)
        return not self.cancelled

    async def is_held(self) -> bool:
        """Ask the store whether this node still holds the duty under this term."""
        return not self._record.is_stopped and await self._record.ask()


class Rhythm(Protocol):
    """When a periodic duty ticks. Times by the store's clock, in microseconds."""

    def first(self, stored: int | None, now: int) -> int | None:
        """The first tick of a new holder. `stored`: the next tick that the previous holder planned. None: never."""
        ...

    def after(self, at: int, now: int) -> int | None:
        """The tick after the one that was planned for `at`. Missed ticks are skipped."""
        ...


class Interval(msgspec.Struct, frozen=True):
    """At a fixed interval, counted from the first tick ever."""

    us: int

    def first(self, stored: int | None, now: int) -> int | None:
        # A tick that was stored under a longer interval must not delay a shorter one.
        return now if stored is None else min(stored, now + self.us)

    def after(self, at: int, now: int) -> int | None:
        return at + max((now - at) // self.us + 1, 1) * self.us


class Moments(msgspec.Struct, frozen=True):
    """At the moments of a rule."""

    rule: When

    def first(self, stored: int | None, now: int) -> int | None:
        # A stored future tick is ignored: the previous holder may have had another rule.
        return stored if stored is not None and stored <= now else self.rule.next_us(now)

    def after(self, at: int, now: int) -> int | None:
        return self.rule.next_us(max(at, now))


class DutyWork(msgspec.Struct, frozen=True, kw_only=True):
    """A duty as the engine runs it."""

    name: str
    call: Callable[[DutyContext], Awaitable[object]]
    # None: a loop that runs until it is stopped.
    rhythm: Rhythm | None
    # False for a function in a thread, which must check `cancelled`.
    can_be_cancelled: bool = True
