"""Writing outcomes down.

Outcomes that come while a write is under way, and in a moment after it, go together in the next one, so that the batch
grows with the load and a single run waits for nothing. A write whose answer was lost is simply repeated: the store
answers per run, and "already" is as good as "done". Of a job that has ended its own run in a transaction, "already"
says that it was committed: what the job did afterwards changes nothing. If it was rolled back, its outcome is written
like any other.
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
from evertick.text.error_line import error_for_log, what_was_raised
from evertick.text.log_level import TRACE, such_as, tally, trace
from evertick.when.duration import duration_rounded

__all__ = ["Finisher"]

log = logging.getLogger("evertick.finish")

# More that is done and not written than so many batches holds up claims. With full queues, and
# beyond the knee, three were the most that was seen.
_BATCHES_BEHIND = 4
# Looked up once: to find a member of an enum takes 0.12 us in Python 3.11, for every outcome several times.
_SUCCEEDED = Verdict.SUCCEEDED


class Finisher:
    """The outcomes of this node that are not in the store yet."""

    def __init__(self, node: LocalNode, progress: ProgressWriter) -> None:
        self._node = node
        self._progress = progress
        self._backlog: deque[tuple[Attempt, Outcome]] = deque()
        self._is_writing = False
        self._has_held_up = False
        self.on_outcome: Callable[[], None] = lambda: None
        self.on_freed: Callable[[], None] = lambda: None
        # Those who were held up may claim again.
        self.on_caught_up: Callable[[], None] = lambda: None
        # Outcomes were written that send messages.
        self.on_sent: Callable[[], None] = lambda: None
        # Hears of the schedules whose fires have failed.
        self.on_failed: Callable[[set[int]], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._backlog)

    @property
    def is_behind(self) -> bool:
        """Whether the store has been told too little of what was done: all of that is done again if this node dies."""
        return len(self._backlog) > _BATCHES_BEHIND * self._node.batch_size

    def holds_up_claims(self) -> bool:
        """Asked before a claim; `on_caught_up` follows if the answer is yes."""
        self._has_held_up = self._has_held_up or self.is_behind
        return self.is_behind

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        self._backlog.append((attempt, outcome))
        # While a write is under way the others wait for its end; after it they gather.
        waiting = len(self._backlog)
        if not self._is_writing and (waiting == 1 or self._node.is_batch(waiting)):
            self.on_outcome()

    async def step(self) -> float | None:
        """Write what has gathered. What cannot be written stays where it is."""
        batch = self._next_batch()
        if not batch:
            return None
        outcomes = [outcome for _, outcome in batch]
        finished = await self._write(batch, outcomes)
        own_ends = _own_ends(batch, finished.answers)
        # How these ended is the ledger's word, not ours. Read before anything is settled: if it cannot be read, the
        # batch is written once more, and answered in the same way.
        await self._node.tell_ended(own_ends)
        self._settle(batch, finished.answers)
        if self._has_held_up and not self.is_behind:
            self._has_held_up = False
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
            if said := [attempt for attempt, _ in batch if attempt.record.buffer is not None]:
                await self._progress.carry(said)
            since = self._node.clock.elapsed()
            finished = await self._node.store.finish(self._node.app, batch[0][0].node, outcomes)
        finally:
            self._is_writing = False
        if log.isEnabledFor(TRACE):
            kinds, answers = tally(outcome.verdict or outcome.kind for outcome in outcomes), tally(finished.answers)
            words = "wrote what came of %d runs (%s; answered: %s)"
            trace(log, self._node.clock.elapsed() - since, words, len(outcomes), kinds, answers)
        return finished

    def _next_batch(self) -> list[tuple[Attempt, Outcome]]:
        """The oldest outcomes of one incarnation; they stay in the backlog until they are answered."""
        batch: list[tuple[Attempt, Outcome]] = []
        for attempt, outcome in self._backlog:
            if len(batch) == self._node.batch_size or (batch and attempt.node != batch[0][0].node):
                break
            batch.append((attempt, outcome))
        return batch

    def _settle(self, batch: Sequence[tuple[Attempt, Outcome]], answers: Sequence[FinishAnswer]) -> None:
        is_success_told = "succeeded" in self._node.hooks.wanted or log.isEnabledFor(logging.DEBUG)
        for (attempt, outcome), answer in zip(batch, answers, strict=True):
            answered, _ = self._backlog.popleft()
            assert answered is attempt, "answers come in the order of the outcomes"
            self._node.hold.let_go(attempt)
            # Of most there is nothing to say.
            if is_success_told or answer != "done" or outcome.verdict is not _SUCCEEDED:
                self._say(attempt, outcome, answer)

    def _say(self, attempt: Attempt, outcome: Outcome, answer: FinishAnswer) -> None:
        """Tell the log and the hooks of it."""
        if answer == "lost":
            what = "the outcome of run %s (%s) was not taken: its claim is lost"
            say = functools.partial(log.warning, what, outcome.id, outcome.kind, extra=about(attempt.run))
            self._node.summary.tell("lost", "lost", log, logging.WARNING, say, _lost_words, about=outcome.id)
        elif answer == "already" and attempt.record.own_end:
            self._log_afterword(attempt, outcome)
        else:
            self._log_failure(attempt, outcome)
            self._tell(attempt, outcome)

    def _tell(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.kind == "retry":
            self._node.tell("retrying", attempt.run, reason=outcome.reason, error=outcome.error)
        elif outcome.verdict is not None:
            reason = outcome.reason or (
                attempt.why.value if outcome.verdict is Verdict.CANCELLED and attempt.why else None
            )
            self._node.tell(EVENT_OF[outcome.verdict], attempt.run, reason=reason, error=outcome.error)

    def _log_afterword(self, attempt: Attempt, outcome: Outcome) -> None:
        """A job had ended its run in a transaction of its own: its return or error changes nothing."""
        run = attempt.run
        what = "%s: run %s has ended in a transaction of its own; what came of its job afterwards is dropped: %s"
        level = logging.DEBUG if outcome.error is None else logging.WARNING
        said = outcome.error or "it returned or was stopped"
        log.log(level, what, run.schedule_key or run.task, run.id, said, extra=about(run))

    def _log_failure(self, attempt: Attempt, outcome: Outcome) -> None:
        """A job that fails must not do so in silence; its error is in the ledger, and here."""
        run = attempt.run
        if outcome.kind == "retry":
            self._summarise("retry", logging.WARNING, _log_retry, run, outcome)
            return
        if outcome.verdict is Verdict.FAILED:
            self._summarise("failed", logging.ERROR, _log_failed, run, outcome)
            return
        key, extra = run.schedule_key or run.task, about(run)
        if outcome.kind == "park":
            log.warning("%s: run %s is parked: %s", key, run.id, outcome.error, extra=extra)
        elif outcome.kind == "release" and not attempt.has_slot:
            log.debug("%s: run %s had not begun, and is given back", key, run.id, extra=extra)
        elif outcome.kind == "release":
            what = "%s: run %s did not end in time (%s) and was released: it runs again"
            log.warning(what, key, run.id, outcome.reason, extra=extra)
        elif outcome.verdict is Verdict.LOST:
            log.warning("%s: run %s did not end in time (%s) and is lost", key, run.id, outcome.reason, extra=extra)
        elif outcome.verdict is not None:
            log.debug("%s: run %s has ended: %s", key, run.id, outcome.verdict, extra=extra)

    def _summarise(
        self, kind: str, level: int, log_it: Callable[[Claimed, Outcome], None], run: Claimed, outcome: Outcome
    ) -> None:
        """The first of a task in an interval have a line each; final failures are not lost among those of attempts."""
        say, words = functools.partial(log_it, run, outcome), functools.partial(_failures_words, kind, run.task)
        self._node.summary.tell(f"{kind} {run.task}", kind, log, level, say, words, about=run.id)


def _log_retry(run: Claimed, outcome: Outcome) -> None:
    log.warning(
        "%s: attempt %d of run %s failed (%s); it is tried again in %s",
        run.schedule_key or run.task,
        outcome.attempts,
        run.id,
        what_was_raised(outcome.error),
        duration_rounded(outcome.delay),
        extra=about(run),
    )


def _log_failed(run: Claimed, outcome: Outcome) -> None:
    key, error = run.schedule_key or run.task, error_for_log(outcome.error)
    log.error("%s: run %s failed: %s", key, run.id, error, extra=about(run))


def _failures_words(kind: str, task: str, count: int, names: list[str], seconds: float | None) -> str:
    if kind == "retry":
        return f"{task}: {count} more attempts failed{such_as(names, seconds)}; they are tried again"
    return f"{task}: {count} more runs failed{such_as(names, seconds)}; `evertick failed` has them"


def about(run: Claimed | Run) -> dict[str, str | None]:
    """The run of a line of the log, for programs that read it."""
    return {"run": run.id, "task": run.task, "schedule": run.schedule_key}


def _own_ends(batch: Sequence[tuple[Attempt, Outcome]], answers: Sequence[FinishAnswer]) -> list[str]:
    """Runs that their jobs have ended themselves, in a transaction."""
    if "already" not in answers:
        return []
    pairs = zip(batch, answers, strict=True)
    return [attempt.run.id for (attempt, _), answer in pairs if answer == "already" and attempt.record.own_end]


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
    return f"the outcomes of {count} more runs{such_as(names, seconds)} were not taken: their claims are lost"
