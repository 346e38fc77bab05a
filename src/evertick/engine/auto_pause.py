"""Pauses schedules that failed too often in a row (`pause_after`).

No counter is kept: after a batch with failures, the store counts the failures in the ledger. So nothing can drift. If a
node dies before it asks, the next failure, or the next start of any node, asks again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

from evertick.engine.loop import Idle
from evertick.engine.node import LocalNode
from evertick.ledger.editor import Editor
from evertick.model import Verdict
from evertick.model.hooks import Event
from evertick.store.base import Failing

__all__ = ["FAILURES", "AutoPauser", "pause_failing"]

log = logging.getLogger("evertick.failing")

FAILURES = frozenset({Verdict.FAILED, Verdict.LOST})
# For more schedules than this, checking all schedules of the app costs no more.
_KNOWN_MAX = 10_000
_BATCH = 1_000
# The least distance between two checks of all schedules: workers may report hundreds of failures.
_REST_SECONDS = 1.0


class AutoPauser:
    """The schedules with failures that were not checked yet."""

    def __init__(self, node: LocalNode, editor: Editor) -> None:
        self._node = node
        self._editor = editor
        self._schedules: set[int] = set()
        self._must_check_all = False
        self._checked_all_at = -math.inf
        self.on_failed: Callable[[], None] = lambda: None

    def failed(self, schedules: Iterable[int]) -> None:
        """Fires of these schedules failed or were lost."""
        self._schedules.update(schedules)
        self._must_check_all = self._must_check_all or len(self._schedules) > _KNOWN_MAX
        self.on_failed()

    def failed_elsewhere(self) -> None:
        """Runs of dead nodes were lost, or workers reported failures, of schedules that only the ledger knows."""
        self._must_check_all = True
        self.on_failed()

    async def step(self) -> float | None:
        schedules, delay = self._schedules, self._delay_before_all()
        is_all = self._must_check_all and delay <= 0
        if not schedules and not is_all:
            return Idle(delay) if self._must_check_all else None
        self._schedules, self._must_check_all = set(), self._must_check_all and not is_all
        try:
            await pause_failing(self._node, self._editor, None if is_all else sorted(schedules))
        except BaseException:
            self._schedules |= schedules
            self._must_check_all = self._must_check_all or is_all
            raise
        if is_all:
            self._checked_all_at = self._node.clock.elapsed()
        return self._delay_before_all() if self._must_check_all else None

    def _delay_before_all(self) -> float:
        return self._checked_all_at + _REST_SECONDS - self._node.clock.elapsed()


async def pause_failing(node: LocalNode, editor: Editor, schedules: Sequence[int] | None) -> None:
    """Pause those of the schedules that reached their `pause_after`; None: check all schedules of the app."""
    while True:
        found = await node.store.failing(node.app, ids=schedules, limit=_BATCH)
        paused = [failing for failing in found if await _pause(node, editor, failing)]
        # A paused schedule is not found again, so this ends. One that was edited meanwhile is left to its next failure.
        if len(found) < _BATCH or not paused:
            return


async def _pause(node: LocalNode, editor: Editor, failing: Failing) -> bool:
    note = await editor.pause_failing(failing)
    if note is None:
        return False
    log.warning("schedule %r: paused: %s", failing.key, note)
    if "paused" in node.hooks.wanted:
        node.hooks.tell(
            Event(kind="paused", app=node.app, at=node.now(), schedule_key=failing.key, run_id=failing.run, note=note)
        )
    return True
