"""Events of schedules and runs, told to hooks.

Hooks are called after the fact is in the store, one after another, in the order of the facts. A hook that raises or
hangs harms nothing but itself: it is logged, and it never delays a run.
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

# A hook that hangs must not let the list of what it has not heard yet grow for ever.
_BACKLOG_MAX = 10_000
_HOOK_SECONDS_MAX = 30.0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One fact. For skipped and missed moments `run_id` is None and `count` says how many moments it was."""

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
    """The registered hooks, and the facts they have not heard yet."""

    def __init__(self, call_in_thread: Callable[[Callable[[], object]], Awaitable[object]]) -> None:
        # Runs a plain function off the event loop.
        self._call_in_thread = call_in_thread
        self._hooks: dict[str, list[Hook]] = {}
        # Events that have a hook; the hot path makes none of the others.
        self.wanted = self._hooks.keys()
        self._backlog: deque[Event] = deque(maxlen=_BACKLOG_MAX)
        self._teller: asyncio.Task[None] | None = None

    @staticmethod
    def check(kind: str) -> None:
        if kind not in EVENTS:
            raise InvalidSetting(f"{shown(kind)} is no event; hooks can be set on {', '.join(EVENTS)}")

    def add(self, kind: str, hook: Hook) -> None:
        self.check(kind)
        self._hooks.setdefault(kind, []).append(hook)

    def tell(self, event: Event) -> None:
        """Remember the fact; the hooks hear of it in their own task."""
        if event.kind not in self._hooks:
            return
        if len(self._backlog) == _BACKLOG_MAX:
            log.warning("hooks are too slow: the oldest of %d untold events is dropped", _BACKLOG_MAX)
        self._backlog.append(event)
        loop = asyncio.get_running_loop()
        # A loop that has ended took its teller with it.
        if self._teller is None or self._teller.done() or self._teller.get_loop().is_closed():
            self._teller = loop.create_task(self._tell_all(), name="evertick hooks")

    async def drain(self, seconds: float) -> None:
        """Give the hooks some time to hear what is left."""
        if self._teller is not None and not self._teller.done():
            done, _ = await asyncio.wait({self._teller}, timeout=seconds)
            if not done:
                self._teller.cancel()

    def abandon(self) -> None:
        """The event loop of the teller has ended under it."""
        self._teller = None

    async def _tell_all(self) -> None:
        while self._backlog:
            event = self._backlog.popleft()
            for hook in self._hooks.get(event.kind, ()):
                await self._call(hook, event)

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
            teller = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and teller is not None and teller.cancelling():
                raise  # meant for us, not raised by something that the hook awaited
            log.exception("the hook %r failed on %s of %s", hook, event.kind, event.schedule_key or event.task)
