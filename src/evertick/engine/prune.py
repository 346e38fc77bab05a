"""Pruning old history: the duty of one node of the app, in small bites."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from evertick.engine.loops import PRUNE
from evertick.engine.node import LocalNode
from evertick.engine.sweep import BITE, in_bites
from evertick.model.duty import DutyContext, DutyWork, Interval

__all__ = ["Pruner"]


async def _always(now: int) -> bool:
    return True


class Pruner:
    """Deletes what is older than is kept."""

    def __init__(
        self,
        node: LocalNode,
        *,
        retention: int,
        keep_per_schedule: int | None,
        may_prune: Callable[[int], Awaitable[bool]] = _always,
    ) -> None:
        self._node = node
        self._retention = retention
        self._keep_per_schedule = keep_per_schedule
        # Whether what is old by this time of the store may be deleted for good.
        self._may_prune = may_prune

    def duty(self, every: float) -> DutyWork:
        return DutyWork(name=PRUNE.name, call=self._act, rhythm=Interval(round(every * 1e6)))

    async def _act(self, context: DutyContext) -> None:
        async def bite() -> int:
            context.check()
            # By the store's time: a node whose clock is a year ahead must not forget a year.
            now = await self._node.store.now()
            if not await self._may_prune(now):
                return 0
            before = now - self._retention
            return await self._node.store.prune(
                self._node.app, before=before, keep_per_schedule=self._keep_per_schedule, limit=BITE
            )

        await in_bites(bite)
