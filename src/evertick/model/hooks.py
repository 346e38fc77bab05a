"""Hooks: functions of the user that are called on events of schedules and runs.

They are called one after another, in the order of the events, after the event is in the store. A hook that raises or
hangs is logged; it never delays a run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal, get_args

import msgspec

from evertick.errors import InvalidSetting
from evertick.text.values import shown

__all__ = ["EVENTS", "Event", "EventKind", "Hook", "Hooks"]

log = logging.getLogger("evertick.hooks")

EventKind = Literal[
    "scheduled",
    "started",
    "succeeded",
    "failed",
    "retrying",
    "skipped",
    "missed",
    "cancelled",
    "lost",
    "paused",
    "removed",
    "duty_taken",
    "duty_lost",
]
EVENTS: tuple[EventKind, ...] = get_args(EventKind)

# Limits the backlog of a hook that hangs.
_BACKLOG_MAX = 10_000
_HOOK_SECONDS_MAX = 30.0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. For skipped and missed moments `run_id` is None, and `count` is the number of moments."""

    kind: EventKind
    app: str
    at: datetime
    schedule_key: str | None = None
    run_id: str | None = None
    task: str | None = None
    fire_at: datetime | None = None
    attempt: int | None = None
    reason: str | None = None
    error: str | None = None
    count: int = 1
    note: str = ""
    # Of events about duties.
    duty: str | None = None
    term: int | None = None


Hook = Callable[[Event], Awaitable[None] | None]


class Hooks:
    """The registered hooks, and the events that wait for them."""

    def __init__(self, call_in_thread: Callable[[Callable[[], object]], Awaitable[object]]) -> None:
        # Runs a plain function off the event loop.
        self._call_in_thread = call_in_thread
        self._hooks: dict[str, list[Hook]] = {}
        # Kinds that have a hook; the hot path makes no events of other kinds.
        self.wanted = self._hooks.keys()
        self._backlog: deque[Event] = deque(maxlen=_BACKLOG_MAX)
        # Events that were dropped since the backlog was empty.
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def check(kind: str) -> None:
        if kind not in EVENTS:
            raise InvalidSetting(
                f"{shown(kind)} is not an event", value=shown(kind), fix=f"hooks can be set on {', '.join(EVENTS)}"
            )

    def add(self, kind: str, hook: Hook) -> None:
        self.check(kind)
        self._hooks.setdefault(kind, []).append(hook)

    def tell(self, event: Event) -> None:
        """Queue the event; a task of its own calls the hooks."""
        if event.kind not in self._hooks:
            return
        if len(self._backlog) == _BACKLOG_MAX:
            if self._dropped % _BACKLOG_MAX == 0:
                log.warning("hooks: too slow; the backlog of %d events is full, the oldest are dropped", _BACKLOG_MAX)
            self._dropped += 1
        self._backlog.append(event)
        loop = asyncio.get_running_loop()
        # The task ends with its event loop.
        if self._task is None or self._task.done() or self._task.get_loop().is_closed():
            self._task = loop.create_task(self._call_all(), name="evertick hooks")

    async def drain(self, seconds: float) -> None:
        """Wait this long at most for the hooks of the remaining events."""
        if self._task is not None and not self._task.done():
            done, _ = await asyncio.wait({self._task}, timeout=seconds)
            if not done:
                self._task.cancel()

    def abandon(self) -> None:
        """Forget the task: its event loop has ended."""
        self._task = None

    async def _call_all(self) -> None:
        while self._backlog:
            event = self._backlog.popleft()
            for hook in self._hooks.get(event.kind, ()):
                await self._call(hook, event)
        if self._dropped:
            log.warning("hooks: caught up; %d events were dropped", self._dropped)
            self._dropped = 0

    async def _call(self, hook: Hook, event: Event) -> None:
        try:
            async with asyncio.timeout(_HOOK_SECONDS_MAX):
                if inspect.iscoroutinefunction(hook):
                    await hook(event)
                else:
                    await self._call_in_thread(functools.partial(hook, event))
        except GeneratorExit:
            raise
        except BaseException as error:  # also a `sys.exit()`, which would end the whole event loop
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # this task is cancelled, not something that the hook awaited
            log.exception("hook %r: failed on %s of %s", hook, event.kind, event.schedule_key or event.task)
