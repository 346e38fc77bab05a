"""Python functions in processes of their own: what hangs can be ended, what crashes takes nothing with it.

Each run gets a fresh child, or one of a pool that waits with the module imported. Every child is under a keeper, and
`execute` comes back only when the run's child is gone or idle: nothing of a run is left beside its next attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from evertick.clock import system_clock
from evertick.driver.place import place_of
from evertick.driver.python.child import ChildCall
from evertick.driver.python.conversation import Conversation
from evertick.driver.python.function import FunctionDriver
from evertick.driver.python.pool import Children, Pool
from evertick.errors import InvalidSetting
from evertick.job.arguments import Signature
from evertick.job.context import Context, record_of
from evertick.text.values import shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import MINUTE

__all__ = ["Process", "ProcessDriver", "check_process"]

_WARM_MAX = 256
_RECYCLE_MAX = 1_000_000
_KILL_AFTER_MOST = 5 * MINUTE


class Process:
    """How a task's child processes are kept: `@scheduler.task(process=Process(warm=2))`.

    warm: children that wait with the module imported and are used again; 0 = a fresh one for each run.
    recycle: how many runs a warm child gets before another takes its place.
    kill_after: how long after TERM the KILL comes when a run is stopped.
    """

    __slots__ = ("kill_after", "recycle", "warm")

    def __init__(self, *, warm: int = 0, recycle: int = 100, kill_after: Duration = "2s") -> None:
        self.warm = _count(warm, "warm", 0, _WARM_MAX)
        self.recycle = _count(recycle, "recycle", 1, _RECYCLE_MAX)
        self.kill_after = duration_us(kill_after, what="kill_after")
        if self.kill_after > _KILL_AFTER_MOST:
            raise InvalidSetting(f"kill_after: {shown(kill_after)} is more than {duration_text(_KILL_AFTER_MOST)}")

    def __repr__(self) -> str:
        return f"Process(warm={self.warm}, recycle={self.recycle}, kill_after={duration_text(self.kill_after)!r})"


class ProcessDriver:
    """Calls one function in a child."""

    name = "process"
    can_be_cancelled = True

    def __init__(
        self,
        function: Callable[..., Any],
        inside: FunctionDriver,
        settings: Process,
        children: Children,
        url: Callable[[], str],
    ) -> None:
        self._inside = inside
        self._settings = settings
        self.kill_after = settings.kill_after
        self._place = place_of(function, self.signature.task)
        self._children = children
        self._url = url
        self._pool: Pool | None = None
        if settings.warm:
            self._pool = Pool(lambda: self._start(settings.recycle), settings.warm)
            children.add(self._pool)

    @property
    def signature(self) -> Signature:
        return self._inside.signature

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._inside.prepare(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Any:
        """The child reads the run's own arguments; here they were only looked at, so that a misfit needs no child."""
        if record_of(context).clock is not system_clock:
            # A process cannot live in virtual time: there the function is called in this one.
            return await self._inside.execute(context, arguments)
        if self._pool is not None:
            return await self._pool.call(context)
        return await self._start(1).call(context)

    def _start(self, calls_max: int) -> Conversation:
        errand = ChildCall(
            task=self.signature.task,
            place=self._place,
            url=self._url(),
            calls_max=calls_max,
            log_level=logging.getLogger().level,
        )
        return self._children.start(errand, self._settings.kill_after / 1e6)


def check_process(value: Any, task: str) -> Process | None:
    """The option as given: True, False or settings."""
    if isinstance(value, Process):
        return value
    if not isinstance(value, bool):
        raise InvalidSetting(f"task {task!r}: process: {shown(value)} is not possible; pass True or Process(...)")
    return Process() if value else None


def _count(value: Any, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSetting(f"{what}: {shown(value)} must be a whole number from {least} to {most}")
    return value
