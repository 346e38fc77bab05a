"""Upkeep, in small bites.

The sweep of every node parks what no node can run, pauses what no code declares any more or what has failed too often,
and resumes what was paused though our code declares it. Every bite is idempotent, so that any number of nodes may sweep
at once. Pruning old history is the duty of one node of the app.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence

from evertick.engine.auto_pause import pause_failing
from evertick.engine.loops import PRUNE
from evertick.engine.node import LocalNode, declarer_of
from evertick.errors import NotFound
from evertick.ledger.editor import Editor
from evertick.model import Pause
from evertick.model.duty import DutyContext, DutyWork, Interval
from evertick.store.base import StoredSchedule

__all__ = ["BITE", "Sweeper", "in_bites"]

log = logging.getLogger("evertick.sweep")

BITE = 500
# Enough to keep up with 30,000 finished runs a minute; the rest waits for the next sweep rather than hold the store.
BITES_MAX = 60


async def in_bites(bite: Callable[[], Awaitable[int]]) -> None:
    """Until a bite comes back short, or it is enough for now."""
    for _ in range(BITES_MAX):
        if await bite() < BITE:
            return


class Sweeper:
    """Keeps the store tidy."""

    def __init__(
        self, node: LocalNode, editor: Editor, look_at_clock: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._node = node
        self._editor = editor
        self._look_at_clock = look_at_clock
        self._has_refreshed = False

    async def step(self) -> float | None:
        if not self._has_refreshed:
            # Zone rules come with the machine: they change with an update and a restart, never while we run.
            refreshed = await self._editor.refresh_cursors()
            if refreshed:
                log.warning("zone rules have changed: %d schedules were planned anew", refreshed)
            # For a node that died between a verdict and its look; while we live we look ourselves.
            await pause_failing(self._node, self._editor, None)
            self._has_refreshed = True
        if self._look_at_clock is not None:
            await self._look_at_clock()
        parked = 0

        async def park() -> int:
            nonlocal parked
            bite = await self._node.store.park_unknown(self._node.app, BITE)
            parked += bite
            return bite

        await in_bites(park)
        if parked:
            those = "1 run is" if parked == 1 else f"{parked} runs are"
            log.warning("%s parked: no live node knows what to do (`evertick doctor` names the tasks)", those)
        declared = await self._node.store.declared_schedules(self._node.app)
        await self._resume_declared(declared)
        await self._pause_undeclared([schedule for schedule in declared if not schedule.pause])
        return None

    async def _resume_declared(self, declared: Sequence[StoredSchedule]) -> None:
        """Resume what was paused as no longer declared, and is declared here.

        The node that paused it did not know of us yet: our schedules are stored before we join, and others may have
        looked in between; or we had been declared dead. Those that a configuration has disabled stay so.
        """
        for schedule in declared:
            if schedule.pause is None or self._is_rightly_paused(schedule.key, schedule.pause):
                continue
            # Looked at once more when it is written: a reload that drops it pauses it, too.
            rightly = functools.partial(self._is_rightly_paused, schedule.key)
            with contextlib.suppress(NotFound):  # while it was paused, it could be removed
                if await self._editor.resume(schedule.key, unless=rightly):
                    log.warning("%r is declared here, and was paused as if it were not: resumed", schedule.key)

    def _is_rightly_paused(self, key: str, pause: Pause) -> bool:
        return not pause.is_left_over or key not in self._node.declares

    async def _pause_undeclared(self, declared: Sequence[StoredSchedule]) -> None:
        """Pause schedules whose code is running and no longer declares them.

        The code counts as running while a node of the name that declared the schedule is alive. A service that is down
        for a while has not changed its mind: its schedules keep their moments until it is back.
        """
        if not declared:
            return
        alive = [node for node in await self._node.store.nodes(self._node.app) if node.died_at is None]
        names = {declarer_of(node.name) for node in alive}
        keys = {key for node in alive for key in node.declares}
        for schedule in declared:
            is_undeclared = _declarer(schedule) in names and schedule.key not in keys
            source = "code" if schedule.declared is None else schedule.declared.source
            if is_undeclared and await self._editor.pause_undeclared(schedule.key, _declarer(schedule), source):
                where = "declared by" if source == "code" else "in the configuration of"
                log.warning("%r is no longer %s %s: paused", schedule.key, where, _declarer(schedule))


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


def _declarer(schedule: StoredSchedule) -> str:
    return "" if schedule.declared is None else schedule.declared.node_name
