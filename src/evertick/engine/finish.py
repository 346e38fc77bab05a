"""Writing outcomes down.

Outcomes that come while a write is under way go together in the next one, so that the batch grows with the load and a
single run waits for nothing. A write whose answer was lost is simply repeated: the store answers per run, and "already"
is as good as "done".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from evertick.engine.node import EVENT_OF, Attempt, LocalNode
from evertick.engine.note import NoteCarrier
from evertick.model import Outcome, Verdict
from evertick.when.duration import duration_text

__all__ = ["Finisher"]

log = logging.getLogger("evertick.finish")

BATCH = 1_000


class Finisher:
    """The outcomes of this node that are not in the store yet."""

    def __init__(self, node: LocalNode, notes: NoteCarrier) -> None:
        self._node = node
        self._notes = notes
        self._backlog: deque[tuple[Attempt, Outcome]] = deque()
        self.on_outcome: Callable[[], None] = lambda: None
        self.on_freed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._backlog)

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        self._backlog.append((attempt, outcome))
        self.on_outcome()

    async def step(self) -> float | None:
        """Write what has gathered. What cannot be written stays where it is."""
        batch = self._next_batch()
        if not batch:
            return None
        await self._notes.carry([attempt for attempt, _ in batch])
        outcomes = [outcome for _, outcome in batch]
        finished = await self._node.store.finish(self._node.app, batch[0][0].node, outcomes)
        for (attempt, outcome), answer in zip(batch, finished.answers, strict=True):
            self._settle(attempt, outcome, is_lost=answer == "lost")
        if finished.freed:
            self.on_freed()
        return 0.0 if self._backlog else None

    def _next_batch(self) -> list[tuple[Attempt, Outcome]]:
        """The oldest outcomes of one incarnation; they stay in the backlog until they are answered."""
        batch: list[tuple[Attempt, Outcome]] = []
        for attempt, outcome in self._backlog:
            if len(batch) == BATCH or (batch and attempt.node != batch[0][0].node):
                break
            batch.append((attempt, outcome))
        return batch

    def _settle(self, attempt: Attempt, outcome: Outcome, *, is_lost: bool) -> None:
        answered, _ = self._backlog.popleft()
        assert answered is attempt, "answers come in the order of the outcomes"
        self._node.hold.let_go(attempt)
        if not is_lost:
            self._log_failure(attempt, outcome)
        if is_lost:
            log.warning("the outcome of run %s (%s) was not taken: its claim is lost", outcome.id, outcome.kind)
        elif outcome.kind == "retry":
            self._node.tell("retrying", attempt.run, reason=outcome.reason, error=outcome.error)
        elif outcome.verdict is not None:
            reason = outcome.reason or (
                attempt.why.value if outcome.verdict is Verdict.CANCELLED and attempt.why else None
            )
            self._node.tell(EVENT_OF[outcome.verdict], attempt.run, reason=reason, error=outcome.error)

    def _log_failure(self, attempt: Attempt, outcome: Outcome) -> None:
        """A job that fails must not do so in silence; its error is in the ledger, and here."""
        run = attempt.run
        if outcome.kind == "retry":
            last_line = (outcome.error or "").strip().rpartition("\n")[2]
            log.warning(
                "%s: attempt %d of run %s failed (%s); it is tried again in %s",
                run.schedule_key or run.task,
                outcome.attempts,
                run.id,
                last_line,
                duration_text(outcome.delay),
            )
        elif outcome.kind == "park":
            log.warning("%s: run %s is parked: %s", run.schedule_key or run.task, run.id, outcome.error)
        elif outcome.verdict is Verdict.FAILED:
            log.error("%s: run %s failed: %s", run.schedule_key or run.task, run.id, outcome.error)
