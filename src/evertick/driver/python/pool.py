"""Children that wait for work: their interpreter has started, their module is imported.

A pool keeps so many of them, at work or idle, and replaces one that is gone. More runs at once than that get children
as they need them. One that was stopped, has died or has had its number of calls never takes another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from evertick.driver.python.child import ChildCall
from evertick.driver.python.conversation import Conversation
from evertick.driver.shell.supervised import Ending
from evertick.job.context import Context

__all__ = ["Children", "Pool"]

log = logging.getLogger("evertick.process")

# A child that dies while it is idle is replaced not sooner: one that always does must not keep a processor busy.
_REPLACE_AFTER_SECONDS = 1.0


class Pool:
    """The warm children of one task."""

    def __init__(self, start: Callable[[], Conversation], warm: int) -> None:
        self._start = start
        self._warm = warm
        self._is_open = False
        self._busy = 0
        self._idle: list[Conversation] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._refill: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._is_open = True
        self._fill()

    async def call(self, context: Context) -> Any:
        child = self._take()
        self._busy += 1
        try:
            return await child.call(context)
        finally:
            self._busy -= 1
            self._give_back(child)

    def close(self) -> None:
        """Keep nobody any more. Who ends them is told of all children."""
        self._is_open = False
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None
        self._idle.clear()

    def _take(self) -> Conversation:
        usable = [child for child in self._idle if child.is_usable]
        # One that is still starting is nearer to its call than a new one.
        child = next((each for each in usable if each.is_ready), usable[0] if usable else None)
        if child is None:
            return self._begin()
        self._idle.remove(child)
        return child

    def _give_back(self, child: Conversation) -> None:
        # Kept while others are at work beyond the number, too: the next run is likely to need it.
        if self._is_open and child.is_usable and len(self._idle) < self._warm:
            self._idle.append(child)
        elif not child.ended.done():
            self._let_go(child)
        self._fill()

    def _fill(self) -> None:
        self._refill = None
        try:
            while self._is_open and len(self._idle) + self._busy < self._warm:
                self._idle.append(self._begin())
        except OSError as error:  # out of processes, files or memory: no reason to fail the run that has just ended
            log.warning("no child can be started ahead now: %s", error)
            self._fill_later()

    def _begin(self) -> Conversation:
        child = self._start()
        child.ended.add_done_callback(lambda _: self._died(child))
        return child

    def _died(self, child: Conversation) -> None:
        if child not in self._idle:
            return
        self._idle.remove(child)
        # One that never got ready would not do so the next time either; the next call tries again, and says why.
        if child.is_ready:
            self._fill_later()

    def _fill_later(self) -> None:
        if self._is_open and self._refill is None:
            self._refill = asyncio.get_running_loop().call_later(_REPLACE_AFTER_SECONDS, self._fill)

    def _let_go(self, child: Conversation) -> None:
        task = asyncio.get_running_loop().create_task(child.end(), name="evertick child's end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class Child(Protocol):
    """What runs under a keeper, whatever talks to it."""

    @property
    def ended(self) -> asyncio.Future[Ending]: ...

    async def end(self) -> None: ...


C = TypeVar("C", bound=Child)


class Children:
    """All children of a scheduler, and the pools of its tasks. None outlives its engine."""

    def __init__(self) -> None:
        self._pools: list[Pool] = []
        self._alive: set[Child] = set()

    def add(self, pool: Pool) -> None:
        self._pools.append(pool)

    def start(self, errand: ChildCall, kill_after_seconds: float) -> Conversation:
        return self.watch(Conversation(errand, kill_after_seconds))

    def watch(self, child: C) -> C:
        """Have a child that was started elsewhere ended with the others."""
        self._alive.add(child)
        child.ended.add_done_callback(lambda _: self._alive.discard(child))
        return child

    def open(self) -> None:
        for pool in self._pools:
            pool.open()

    async def close(self) -> None:
        """End them all, those of abandoned runs as well."""
        for pool in self._pools:
            pool.close()
        await asyncio.gather(*(child.end() for child in self._alive))
