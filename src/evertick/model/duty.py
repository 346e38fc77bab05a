"""Duties: work that one node of the fleet does at a time, as its function and the engine see it.

A duty is held under a *term*, a number that grows with every taking. Its holder stops before its lease can have
run out unheard, so that its successor finds it stopped; but a process that was frozen wakes up in the middle of a line,
and a thread can only be asked. Where an act must not come late, hand the term to what it acts on, and let that refuse a
smaller one than it has seen.
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
    """One holding of a duty as the engine keeps it, behind its context."""

    __slots__ = ("ask", "has_seen_stop", "is_trusted", "stopped", "why")

    def __init__(self, is_trusted: Callable[[], bool], ask: Callable[[], Awaitable[bool]]) -> None:
        self.is_trusted = is_trusted
        # The store, whether the duty is still held under this term.
        self.ask = ask
        self.stopped = threading.Event()
        self.why = ""
        self.has_seen_stop = False

    @property
    def is_stopped(self) -> bool:
        return self.stopped.is_set()

    def stop(self, why: str) -> None:
        """From any thread. The first reason counts."""
        if not self.stopped.is_set():
            self.why = why
            self.stopped.set()


class DutyContext:
    """One holding of a duty, as its function sees it. Safe to use from the function's own thread."""

    __slots__ = ("_record", "name", "node", "term")

    def __init__(self, *, name: str, term: int, node: str, record: DutyRecord) -> None:
        self.name = name
        # Grows with every taking: hand it to a shared resource to refuse an older holder's writes.
        self.term = term
        # The id of the node that holds it.
        self.node = node
        self._record = record

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the duty is lost or given up, or may be lost unheard. A plain function must look now and
        then."""
        # The second half needs no event loop: a process that was frozen finds out before anybody could tell it.
        is_over = self._record.is_stopped or not self._record.is_trusted()
        if is_over:
            self._record.has_seen_stop = True
        return is_over

    def check(self) -> None:
        """Raise `Stopped` if the function is to stop."""
        if self.cancelled:
            raise Stopped(
                f"duty {self.name!r} is to stop: {self._record.why or 'the store has been silent for too long'}"
            )

    async def sleep(self, seconds: Duration) -> None:
        """Wait, in a coroutine. When the duty is to stop, it is cancelled, or `Stopped` is raised at the end."""
        self.check()
        await asyncio.sleep(duration_us(seconds, what="seconds") / 1e6)
        self.check()

    def wait(self, seconds: Duration) -> bool:
        """Wait, in a plain function: `while ctx.wait(5): ...`. False, at once, when the duty is to stop."""
        self._record.stopped.wait(duration_us(seconds, what="seconds") / 1e6)
        return not self.cancelled

    async def is_held(self) -> bool:
        """Ask the store whether this node still holds the duty under this term."""
        return not self._record.is_stopped and await self._record.ask()


class Rhythm(Protocol):
    """When a periodic duty acts. Times are the store's, in microseconds."""

    def first(self, stored: int | None, now: int) -> int | None:
        """When a new holder acts first, given when the one before meant to. None: never."""
        ...

    def after(self, at: int, now: int) -> int | None:
        """When to act after the act that was planned for `at`. What was missed meanwhile is not made up for."""
        ...


class Interval(msgspec.Struct, frozen=True):
    """At a fixed distance, counted from the first act ever."""

    us: int

    def first(self, stored: int | None, now: int) -> int | None:
        # One that was stored under a longer interval must not hold up a shorter one.
        return now if stored is None else min(stored, now + self.us)

    def after(self, at: int, now: int) -> int | None:
        return at + max((now - at) // self.us + 1, 1) * self.us


class Moments(msgspec.Struct, frozen=True):
    """At the moments of a rule."""

    rule: When

    def first(self, stored: int | None, now: int) -> int | None:
        # A moment to come is taken from the rule, which may be another than that of the holder before.
        return stored if stored is not None and stored <= now else self.rule.next_us(now)

    def after(self, at: int, now: int) -> int | None:
        return self.rule.next_us(max(at, now))


class DutyWork(msgspec.Struct, frozen=True, kw_only=True):
    """A duty as the engine needs it."""

    name: str
    call: Callable[[DutyContext], Awaitable[object]]
    # None: a loop that goes on until it is stopped.
    rhythm: Rhythm | None
    # Whether its call can be cancelled; a thread can only be asked.
    can_be_cancelled: bool = True
