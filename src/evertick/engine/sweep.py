"""Periodic upkeep, in small batches.

Every node sweeps: it parks runs whose task no live node knows, pauses schedules that are no longer declared or failed
too often, and resumes schedules that were paused although this node declares them. Each batch is idempotent, so nodes
may sweep at the same time. Pruning history is the duty of one node per app.
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
from evertick.text.log_level import such_as

__all__ = ["SWEEP_BATCH", "Sweeper", "in_batches"]

log = logging.getLogger("evertick.sweep")

SWEEP_BATCH = 500
# Enough for 30,000 finished runs a minute; the rest waits for the next sweep, so that the store is not kept busy.
BITES_MAX = 60


async def in_batches(bite: Callable[[], Awaitable[int]]) -> None:
    """Repeat a batch until it comes back short, up to a limit."""
    for _ in range(BITES_MAX):
        if await bite() < SWEEP_BATCH:
            return


class Sweeper:
    """The sweep of one node."""

    def __init__(
        self, node: LocalNode, editor: Editor, look_at_clock: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._node = node
        self._editor = editor
        self._look_at_clock = look_at_clock
        self._has_refreshed = False

    async def step(self) -> float | None:
        if not self._has_refreshed:
            # Zone rules change with an update of the machine, so once per start is enough.
            refreshed = await self._editor.refresh_cursors()
            if refreshed:
                log.warning("time zone rules changed: replanned %d schedules", refreshed)
            # For failures of a node that died before it could check them.
            await pause_failing(self._node, self._editor, None)
            self._has_refreshed = True
        if self._look_at_clock is not None:
            await self._look_at_clock()
        parked = 0

        async def park() -> int:
            nonlocal parked
            bite = await self._node.store.park_unknown(self._node.app, SWEEP_BATCH)
            parked += bite
            return bite

        await in_batches(park)
        if parked:
            runs = "1 run" if parked == 1 else f"{parked} runs"
            log.warning("%s parked: no live node knows the task (`evertick doctor` names the tasks)", runs)
        declared = await self._node.store.declared_schedules(self._node.app)
        await self._resume_declared(declared)
        await self._pause_undeclared([schedule for schedule in declared if not schedule.pause])
        return None

    async def _resume_declared(self, declared: Sequence[StoredSchedule]) -> None:
        """Resume schedules that were paused as undeclared although this node declares them.

        The other node did not see this one: schedules are stored before the node joins, or the node had been declared
        dead. Schedules that a configuration disabled stay paused.
        """
        for schedule in declared:
            if schedule.pause is None or self._is_paused_rightly(schedule.key, schedule.pause):
                continue
            # Checked again with the write, since a reload may have dropped the schedule meanwhile.
            unless = functools.partial(self._is_paused_rightly, schedule.key)
            with contextlib.suppress(NotFound):  # it was removed meanwhile
                if await self._editor.resume(schedule.key, unless=unless):
                    self._log("resumed", schedule.key, "paused as undeclared, but this node declares it; resumed")

    def _is_paused_rightly(self, key: str, pause: Pause) -> bool:
        return not pause.is_left_over or key not in self._node.declares

    async def _pause_undeclared(self, declared: Sequence[StoredSchedule]) -> None:
        """Pause schedules that their running program no longer declares.

        A program is running while a node with the name that declared the schedule is alive. The schedules of a program
        that is down stay active.
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
                self._log("paused", schedule.key, f"no longer {where} {_declarer(schedule)}; paused")

    def _log(self, kind: str, key: str, what: str) -> None:
        say = functools.partial(log.warning, "schedule %r: %s", key, what)
        words = functools.partial(_undeclared_words, kind)
        self._node.summary.tell(f"sweep {kind}", kind, log, logging.WARNING, say, words, about=key)


def _undeclared_words(kind: str, count: int, names: list[str], seconds: float | None) -> str:
    what = "were no longer declared; paused" if kind == "paused" else "were paused although they are declared; resumed"
    return f"{count} more schedules{such_as(names, seconds)} {what}"


async def _always(now: int) -> bool:
    return True


class Pruner:
    """Deletes history that is older than the retention."""

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
        # Whether history that is old by this time of the store may be deleted.
        self._may_prune = may_prune

    def duty(self, every: float) -> DutyWork:
        return DutyWork(name=PRUNE.name, call=self._act, rhythm=Interval(round(every * 1e6)))

    async def _act(self, context: DutyContext) -> None:
        async def bite() -> int:
            context.check()
            # The store's time: a node whose clock is a year ahead must not delete a year of history.
            now = await self._node.store.now()
            if not await self._may_prune(now):
                return 0
            before = now - self._retention
            return await self._node.store.prune(
                self._node.app, before=before, keep_per_schedule=self._keep_per_schedule, limit=SWEEP_BATCH
            )

        await in_batches(bite)


def _declarer(schedule: StoredSchedule) -> str:
    return "" if schedule.declared is None else schedule.declared.node_name
