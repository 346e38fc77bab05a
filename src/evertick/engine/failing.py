"""Pausing schedules that have failed too often in a row (`pause_after`).

Nothing is counted on the way of a run: after a batch with failed verdicts the store is asked about their schedules,
and reads the count off the ledger. So nothing can drift, and a node that dies in between leaves nothing behind that the
next failure, or the next start of any node, does not make up for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from evertick.edit import Editor
from evertick.engine.node import LocalNode
from evertick.events import Event
from evertick.model import Verdict

__all__ = ["FAILURES", "FailureWatch", "pause_failing"]

log = logging.getLogger("evertick.failing")

FAILURES = frozenset({Verdict.FAILED, Verdict.LOST})
# Beyond this, asking about all of the app is no dearer.
_KNOWN_MAX = 10_000
_BATCH = 1_000


class FailureWatch:
    """The schedules whose runs have failed here, and were not looked at yet."""

    def __init__(self, node: LocalNode, editor: Editor) -> None:
        self._node = node
        self._editor = editor
        self._schedules: set[int] = set()
        self._are_all = False
        self.on_failed: Callable[[], None] = lambda: None

    def failed(self, schedules: Iterable[int]) -> None:
        """Fires of these have ended as failed or lost."""
        self._schedules.update(schedules)
        self._are_all = self._are_all or len(self._schedules) > _KNOWN_MAX
        self.on_failed()

    def lost_elsewhere(self) -> None:
        """Runs of dead nodes have ended as lost; of which schedules, only the ledger knows."""
        self._are_all = True
        self.on_failed()

    async def step(self) -> float | None:
        schedules, are_all = self._schedules, self._are_all
        if not schedules and not are_all:
            return None
        self._schedules, self._are_all = set(), False
        try:
            await pause_failing(self._node, self._editor, None if are_all else sorted(schedules))
        except BaseException:
            self._schedules |= schedules
            self._are_all = self._are_all or are_all
            raise
        return None


async def pause_failing(node: LocalNode, editor: Editor, schedules: Sequence[int] | None) -> None:
    """Pause those of the schedules that have failed as often as they may; None: of all in the app."""
    for failing in await node.store.failing(node.app, ids=schedules, limit=_BATCH):
        note = await editor.pause_failing(failing)
        if note is None:
            continue
        log.warning("schedule %r is paused: %s", failing.key, note)
        if node.hooks.wants("paused"):
            node.hooks.tell(
                Event(
                    kind="paused", app=node.app, at=node.now(), schedule_key=failing.key, run_id=failing.run, note=note
                )
            )
