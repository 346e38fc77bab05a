"""Upkeep, in small bites: park what nobody can run, prune old history, pause what no code declares any more or what
has failed too often.

Every bite is idempotent, so that any number of nodes may do it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from evertick.edit import Editor
from evertick.engine.failing import pause_failing
from evertick.engine.node import LocalNode, declarer_of
from evertick.store.base import StoredSchedule

__all__ = ["Sweeper"]

log = logging.getLogger("evertick.sweep")

BITE = 500
# Enough to keep up with 30,000 finished runs a minute; the rest waits for the next sweep rather than hold the store.
BITES_MAX = 60


class Sweeper:
    """Keeps the store tidy."""

    def __init__(self, node: LocalNode, editor: Editor, *, retention: int, keep_per_schedule: int) -> None:
        self._node = node
        self._editor = editor
        self._retention = retention
        self._keep_per_schedule = keep_per_schedule
        self._has_refreshed = False

    async def step(self) -> float | None:
        if not self._has_refreshed:
            # Zone rules come with the machine: they change with an update and a restart, never while we run.
            refreshed = await self._editor.refresh_cursors()
            if refreshed:
                log.warning("zone rules have changed: %d schedules were planned anew", refreshed)
            # What a node that died between a verdict and its look has left; while we live we look ourselves.
            await pause_failing(self._node, self._editor, None)
            self._has_refreshed = True
        await self._in_bites(lambda: self._node.store.park_unknown(self._node.app, BITE))
        await self._pause_undeclared()
        await self._in_bites(self._prune)
        return None

    async def _prune(self) -> int:
        before = self._node.clock.now_us() - self._retention
        return await self._node.store.prune(
            self._node.app, before=before, keep_per_schedule=self._keep_per_schedule, limit=BITE
        )

    async def _in_bites(self, bite: Callable[[], Awaitable[int]]) -> None:
        for _ in range(BITES_MAX):
            if await bite() < BITE:
                return

    async def _pause_undeclared(self) -> None:
        """Pause schedules whose code is running and no longer declares them.

        The code counts as running while a node of the name that declared the schedule is alive. A service that is down
        for a while has not changed its mind: its schedules keep their moments until it is back.
        """
        declared = [
            schedule for schedule in await self._node.store.declared_schedules(self._node.app) if not schedule.pause
        ]
        if not declared:
            return
        alive = [node for node in await self._node.store.nodes(self._node.app) if node.died_at is None]
        names = {declarer_of(node.name) for node in alive}
        keys = {key for node in alive for key in node.declares}
        for schedule in declared:
            if _declarer(schedule) in names and schedule.key not in keys:
                log.warning("%r is no longer declared by %s: paused", schedule.key, _declarer(schedule))
                await self._editor.pause_undeclared(schedule.key, _declarer(schedule))


def _declarer(schedule: StoredSchedule) -> str:
    return "" if schedule.declared is None else schedule.declared.node_name
