"""Pausing schedules that have failed too often in a row (`pause_after`).

Nothing is counted on the way of a run: after a batch with failed verdicts the store is asked about their schedules,
and reads the count off the ledger. So nothing can drift, and a node that dies in between leaves nothing behind that the
next failure, or the next start of any node, does not make up for.
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
# Beyond this, asking about all of the app is no dearer.
_KNOWN_MAX = 10_000
_BATCH = 1_000
# Between two looks at all: workers of a queue may report failures by the hundred, each of which asks for one.
_REST_SECONDS = 1.0


class AutoPauser:
    """The schedules whose runs have failed here, and were not looked at yet."""

    def __init__(self, node: LocalNode, editor: Editor) -> None:
        self._node = node
        self._editor = editor
        self._schedules: set[int] = set()
        self._are_all = False
        self._looked_at_all = -math.inf
        self.on_failed: Callable[[], None] = lambda: None

    def failed(self, schedules: Iterable[int]) -> None:
        """Fires of these have ended as failed or lost."""
        self._schedules.update(schedules)
        self._are_all = self._are_all or len(self._schedules) > _KNOWN_MAX
        self.on_failed()

    def lost_elsewhere(self) -> None:
        """Runs of dead nodes have ended as lost, or workers have reported failures; of which schedules, only the ledger
        knows."""
        self._are_all = True
        self.on_failed()

    async def step(self) -> float | None:
        schedules, rest = self._schedules, self._rest_before_all()
        is_all = self._are_all and rest <= 0
        if not schedules and not is_all:
            return Idle(rest) if self._are_all else None
        self._schedules, self._are_all = set(), self._are_all and not is_all
        try:
            await pause_failing(self._node, self._editor, None if is_all else sorted(schedules))
        except BaseException:
            self._schedules |= schedules
            self._are_all = self._are_all or is_all
            raise
        if is_all:
            self._looked_at_all = self._node.clock.elapsed()
        return self._rest_before_all() if self._are_all else None

    def _rest_before_all(self) -> float:
        return self._looked_at_all + _REST_SECONDS - self._node.clock.elapsed()


async def pause_failing(node: LocalNode, editor: Editor, schedules: Sequence[int] | None) -> None:
    """Pause those of the schedules that have failed as often as they may; None: of all in the app."""
    while True:
        found = await node.store.failing(node.app, ids=schedules, limit=_BATCH)
        paused = [failing for failing in found if await _pause(node, editor, failing)]
        # A paused schedule is found no more: so this ends. The next failure tells of one that was changed meanwhile.
        if len(found) < _BATCH or not paused:
            return


async def _pause(node: LocalNode, editor: Editor, failing: Failing) -> bool:
    note = await editor.pause_failing(failing)
    if note is None:
        return False
    log.warning("schedule %r is paused: %s", failing.key, note)
    if "paused" in node.hooks.wanted:
        node.hooks.tell(
            Event(kind="paused", app=node.app, at=node.now(), schedule_key=failing.key, run_id=failing.run, note=note)
        )
    return True
