"""Writes the outcomes of runs to the store.

Outcomes that arrive during a write, or shortly after it, form the next batch, so the batch grows with the load and a
single run does not wait. A write whose answer was lost is repeated: the store answers per run, and "already" counts as
"done". For a job that finished its own run in a transaction, "already" means that the transaction was committed; after
a rollback its outcome is written like any other.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence

from evertick.engine.auto_pause import FAILURES
from evertick.engine.node import EVENT_OF, Attempt, LocalNode
from evertick.engine.progress import ProgressWriter
from evertick.model import Cause, Claimed, Outcome, Run, Verdict
from evertick.store.base import FinishAnswer, Finished
from evertick.text.error_line import error_for_log, error_summary
from evertick.text.log_level import TRACE, such_as, tally, trace
from evertick.when.duration import duration_rounded

__all__ = ["Finisher"]

log = logging.getLogger("evertick.finish")

# A backlog of more than this many batches pauses claims. The longest measured under overload was three.
_BATCHES_BEHIND = 4
# Looking up a member of an enum takes 0.12 us in Python 3.11, several times per outcome.
_SUCCEEDED = Verdict.SUCCEEDED
# For the count of further lines: what happened to the runs of a task, and what follows.
_SUMMARIES = {
    "retry": ("attempts failed", "retrying"),
    "failed": ("runs failed", "list them with `evertick failed`"),
    "parked": ("runs were parked", "`evertick doctor` names the reason"),
    "released": ("runs were interrupted and released", "they will run again"),
    "lost": ("runs were interrupted", "recorded as lost"),
}


class Finisher:
    """The outcomes of this node that are not stored yet."""

    def __init__(self, node: LocalNode, progress: ProgressWriter) -> None:
        self._node = node
        self._progress = progress
        self._backlog: deque[tuple[Attempt, Outcome]] = deque()
        self._is_writing = False
        self._has_paused_claims = False
        self.on_outcome: Callable[[], None] = lambda: None
        self.on_freed: Callable[[], None] = lambda: None
        # Claims are allowed again.
        self.on_caught_up: Callable[[], None] = lambda: None
        # Outcomes with messages were written.
        self.on_sent: Callable[[], None] = lambda: None
        # Fires of these schedules failed.
        self.on_failed: Callable[[set[int]], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._backlog)

    @property
    def is_behind(self) -> bool:
        """Whether the backlog is too long: all of it runs again if this node dies."""
        return len(self._backlog) > _BATCHES_BEHIND * self._node.batch_size

    def forbids_claims(self) -> bool:
        """Whether the backlog forbids claims now; if so, `on_caught_up` is called later."""
        self._has_paused_claims = self._has_paused_claims or self.is_behind
        return self.is_behind

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        self._backlog.append((attempt, outcome))
        # During a write the others wait for its end; after it they gather.
        waiting = len(self._backlog)
        if not self._is_writing and (waiting == 1 or self._node.is_batch(waiting)):
            self.on_outcome()

    async def step(self) -> float | None:
        """Write one batch. Outcomes that cannot be written stay in the backlog."""
        batch = self._next_batch()
        if not batch:
            return None
        outcomes = [outcome for _, outcome in batch]
        finished = await self._write(batch, outcomes)
        own_ends = _own_ends(batch, finished.answers)
        # Reads the verdicts of these runs. Before the batch leaves the backlog, so that an error here repeats the
        # write, which gets the same answers.
        await self._node.emit_ended(own_ends)
        self._complete(batch, finished.answers)
        if self._has_paused_claims and not self.is_behind:
            self._has_paused_claims = False
            self.on_caught_up()
        if finished.freed or own_ends:
            self.on_freed()
        if own_ends or any(outcome.messages for outcome in outcomes):
            self.on_sent()
        if failed := _failed_fires(batch, finished.answers):
            self.on_failed(failed)
        return self._node.rest_for(len(self._backlog))

    async def _write(self, batch: Sequence[tuple[Attempt, Outcome]], outcomes: Sequence[Outcome]) -> Finished:
        self._is_writing = True
        try:
            if with_progress := [attempt for attempt, _ in batch if attempt.record.buffer is not None]:
                await self._progress.carry(with_progress)
            since = self._node.clock.elapsed()
            finished = await self._node.store.finish(self._node.app, batch[0][0].node, outcomes)
        finally:
            self._is_writing = False
        if log.isEnabledFor(TRACE):
            kinds, answers = tally(outcome.verdict or outcome.kind for outcome in outcomes), tally(finished.answers)
            words = "wrote %d outcomes (%s; answers: %s)"
            trace(log, self._node.clock.elapsed() - since, words, len(outcomes), kinds, answers)
        return finished

    def _next_batch(self) -> list[tuple[Attempt, Outcome]]:
        """The oldest outcomes of one incarnation. They stay in the backlog until the store answers."""
        batch: list[tuple[Attempt, Outcome]] = []
        for attempt, outcome in self._backlog:
            if len(batch) == self._node.batch_size or (batch and attempt.node != batch[0][0].node):
                break
            batch.append((attempt, outcome))
        return batch

    def _complete(self, batch: Sequence[tuple[Attempt, Outcome]], answers: Sequence[FinishAnswer]) -> None:
        reports_success = "succeeded" in self._node.hooks.wanted or log.isEnabledFor(logging.DEBUG)
        for (attempt, outcome), answer in zip(batch, answers, strict=True):
            answered, _ = self._backlog.popleft()
            assert answered is attempt, "answers come in the order of the outcomes"
            self._node.hold.forget_attempt(attempt)
            if reports_success or answer != "done" or outcome.verdict is not _SUCCEEDED:
                self._report(attempt, outcome, answer)

    def _report(self, attempt: Attempt, outcome: Outcome, answer: FinishAnswer) -> None:
        """Log the outcome and call hooks."""
        if answer == "lost":
            run, what = attempt.run, "run %s (%s): outcome %r rejected; its claim was lost"
            say = functools.partial(
                log.warning, what, run.id, run.schedule_key or run.task, outcome.kind, extra=about(run)
            )
            self._node.summary.tell("lost", "lost", log, logging.WARNING, say, _lost_words, about=outcome.id)
        elif answer == "already" and attempt.record.job_finish:
            self._log_ignored(attempt, outcome)
        else:
            self._log_outcome(attempt, outcome)
            self._tell(attempt, outcome)

    def _tell(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.kind == "retry":
            self._node.tell("retrying", attempt.run, reason=outcome.reason, error=outcome.error)
        elif outcome.verdict is not None:
            reason = outcome.reason or (
                attempt.why.value if outcome.verdict is Verdict.CANCELLED and attempt.why else None
            )
            self._node.tell(EVENT_OF[outcome.verdict], attempt.run, reason=reason, error=outcome.error)

    def _log_ignored(self, attempt: Attempt, outcome: Outcome) -> None:
        """The job finished its run in its own transaction before it returned, failed or was stopped."""
        run, name = attempt.run, attempt.run.schedule_key or attempt.run.task
        if outcome.error is None:
            log.debug("run %s (%s): finished in its own transaction", run.id, name, extra=about(run))
        else:
            what = "run %s (%s): finished in its own transaction; the later error is ignored: %s"
            log.warning(what, run.id, name, outcome.error, extra=about(run))

    def _log_outcome(self, attempt: Attempt, outcome: Outcome) -> None:
        run, is_release = attempt.run, outcome.kind == "release"
        if outcome.kind == "retry":
            self._summarise("retry", logging.WARNING, _log_retry, run, outcome)
        elif outcome.verdict is Verdict.FAILED:
            self._summarise("failed", logging.ERROR, _log_failed, run, outcome)
        elif outcome.kind == "park":
            self._summarise("parked", logging.WARNING, _log_parked, run, outcome)
        elif is_release and attempt.has_slot:
            self._summarise("released", logging.WARNING, _log_released, run, outcome)
        elif outcome.verdict is Verdict.LOST:
            self._summarise("lost", logging.WARNING, _log_lost, run, outcome)
        elif is_release or outcome.verdict is not None:
            what = "released before it started" if is_release else outcome.verdict
            log.debug("run %s (%s): %s", run.id, run.schedule_key or run.task, what, extra=about(run))

    def _summarise(
        self, kind: str, level: int, log_it: Callable[[Claimed, Outcome], None], run: Claimed, outcome: Outcome
    ) -> None:
        """The first lines of a task and kind in an interval, then a count."""
        say, words = functools.partial(log_it, run, outcome), functools.partial(_summary_words, kind, run.task)
        self._node.summary.tell(f"{kind} {run.task}", kind, log, level, say, words, about=run.id)


def _log_retry(run: Claimed, outcome: Outcome) -> None:
    log.warning(
        "run %s (%s): attempt %d failed (%s); retrying in %s",
        run.id,
        run.schedule_key or run.task,
        outcome.attempts,
        error_summary(outcome.error),
        duration_rounded(outcome.delay),
        extra=about(run),
    )


def _log_failed(run: Claimed, outcome: Outcome) -> None:
    name, error = run.schedule_key or run.task, error_for_log(outcome.error)
    log.error("run %s (%s): failed: %s", run.id, name, error, extra=about(run))


def _log_parked(run: Claimed, outcome: Outcome) -> None:
    log.warning("run %s (%s): parked: %s", run.id, run.schedule_key or run.task, outcome.error, extra=about(run))


def _log_released(run: Claimed, outcome: Outcome) -> None:
    what = "run %s (%s): interrupted (%s); released, it will run again"
    log.warning(what, run.id, run.schedule_key or run.task, outcome.reason, extra=about(run))


def _log_lost(run: Claimed, outcome: Outcome) -> None:
    what = "run %s (%s): interrupted (%s); recorded as lost"
    log.warning(what, run.id, run.schedule_key or run.task, outcome.reason, extra=about(run))


def _summary_words(kind: str, task: str, count: int, names: list[str], seconds: float | None) -> str:
    what, then = _SUMMARIES[kind]
    return f"task {task}: {count} more {what}{such_as(names, seconds)}; {then}"


def about(run: Claimed | Run) -> dict[str, str | None]:
    """The fields of a log record that name the run."""
    return {"run": run.id, "task": run.task, "schedule": run.schedule_key}


def _own_ends(batch: Sequence[tuple[Attempt, Outcome]], answers: Sequence[FinishAnswer]) -> list[str]:
    """Runs that their jobs finished in their own transactions."""
    if "already" not in answers:
        return []
    pairs = zip(batch, answers, strict=True)
    return [attempt.run.id for (attempt, _), answer in pairs if answer == "already" and attempt.record.job_finish]


def _failed_fires(batch: Sequence[tuple[Attempt, Outcome]], answers: Sequence[FinishAnswer]) -> set[int]:
    return {
        attempt.run.schedule_id
        for (attempt, outcome), answer in zip(batch, answers, strict=True)
        if outcome.verdict is not _SUCCEEDED
        and outcome.verdict in FAILURES
        and answer != "lost"
        and attempt.run.cause is Cause.FIRE
        and attempt.run.schedule_id is not None
    }


def _lost_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more outcomes of runs{such_as(names, seconds)} rejected; their claims were lost"
