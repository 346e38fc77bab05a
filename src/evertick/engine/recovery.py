"""Looking after the dead, and after what we ourselves hold. Runs after every beat.

Death is written down once, by the node that sees the lease run out; re-homing comes after it and is level-triggered:
every running row whose node is dead, at every beat of every node, so that no message and no leader is needed for it.

After an outage of the store no node is judged at once: every lease has run out then, and the nodes behind them are as
well as we are. A node that was late itself judges no other for one full lease, and neither does one that has just begun
and cannot know; an answer of the store is worth half a lease. It is the same after a step of the store's clock, by
which leases and deadlines are over that are not.

Runs in the hands of an outside queue have no node that could die. Their time is over by the store's clock, and the
answer to the beat says when there are such. It is the same with an outage of the queue: a node that
does not hear its workers judges none of them, and when it hears them again it waits for as long as they may be silent.

Where nothing is held, the answer to the beat says so, and nothing is asked: an idle fleet only beats.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from evertick.engine.finish import about
from evertick.engine.judge import Stop
from evertick.engine.loop import Idle
from evertick.engine.node import Attempt, LocalNode, runs_told_of
from evertick.engine.work import Worker
from evertick.errors import StoreUnavailable
from evertick.model import Claimed, Outcome, Run, Verdict
from evertick.store.base import Beat, Rehomed, ReportWindow, RunFilter
from evertick.store.verdicts import DEADLINE_MARGIN
from evertick.text.log_level import such_as

__all__ = ["Recoverer"]

log = logging.getLogger("evertick.tend")

T = TypeVar("T")

# Dispatched runs that one look settles.
_BITE = 1_000
# Of the runs that are run again as their nodes have died, so many of a look have a line each in the log.
_NAMED_MOST = 10
# How far behind its deadline an attempt is stopped by the store's time: later than by its timer, where that is right,
# and before others take its run.
_OVERDUE = DEADLINE_MARGIN // 2


class Recoverer:
    """Judges, re-homes, reconciles."""

    def __init__(self, node: LocalNode, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        self._lease_seconds = node.lease / 1e6
        self._judges_from = 0.0
        self._last_beat: tuple[float, int] | None = None
        self._has_beaten = False
        self._has_charges = True
        self._has_dispatched = self._has_dispatched_cancels = True
        # The last beat: when it was sent and answered, by `clock.elapsed`, and how late it was at the store in between.
        self._sent = self._answered = 0.0
        self._stores_now = 0
        # Since and until when, by `clock.elapsed`, all was heard that workers said, by channel.
        self.heard_channels: Callable[[], Mapping[str, tuple[float, float]]] = dict
        # A node was judged dead.
        self.on_death: Callable[[], None] = lambda: None
        # Runs of dead nodes, or in other hands, have ended as lost.
        self.on_lost: Callable[[], None] = lambda: None
        # Messages were written that tell workers to stop.
        self.on_killed: Callable[[], None] = lambda: None

    def begin_anew(self) -> None:
        """An incarnation has just joined, and has seen nothing yet."""
        self._judges_from = self._node.clock.elapsed() + self._lease_seconds
        self._last_beat = None

    def heard(self, beat: Beat, sent: float) -> None:
        """A beat was answered. Notice whether it, or the store's clock, was off by more than half a lease."""
        self._has_beaten = True
        self._has_charges = beat.has_charges
        self._has_dispatched, self._has_dispatched_cancels = beat.has_dispatched, beat.has_dispatched_cancels
        self._sent, self._answered, self._stores_now = sent, self._node.clock.elapsed(), beat.now
        last, self._last_beat = self._last_beat, (sent, beat.now)
        if last is None:
            # Counted from the first answered beat: an outage may have begun right after the join.
            self._judges_from = sent + self._lease_seconds
            return
        self._stop_overdue()
        own, stores = sent - last[0], (beat.now - last[1]) / 1e6
        half = self._lease_seconds / 2
        if own > half or abs(own - stores) > half:
            self._judges_from = sent + self._lease_seconds
            log.warning(
                "%.1f s passed between two beats here, %.1f s at the store: nobody is judged for one lease", own, stores
            )

    async def step(self) -> float | None:
        if not self._has_beaten:
            return Idle(math.inf)  # until the next beat is answered, which wakes us
        self._has_beaten = False
        heard = self._hearings() if self._has_dispatched else {}
        if heard or self._has_dispatched_cancels:
            await self._check_dispatched(heard)
        if not self._has_charges and not len(self._node.hold):
            return None  # by the answer to the beat there is nothing to find
        judges_until = self._judges_until()
        if judges_until and (dead := await self._node.store.judge(judges_until)):
            self.on_death()
            await self._tell_dead(dead)
        await self._rehome(judges_until)
        await self._reconcile()
        return None

    def _judges_until(self) -> int:
        """By the store's time. 0: no node is judged.

        That the last beat went through tells for half a lease that others' did, too: they beat some times in a lease.
        A question that is longer under way, in a store that stands still or a machine that sleeps, judges no node.
        """
        if self._node.clock.elapsed() < self._judges_from:
            return 0
        return self._stores_now + self._node.lease // 2

    def _stop_overdue(self) -> None:
        """Stop runs far behind their deadline by the store's time, which others go by, before they take them. Its
        own timer may be wrong: the clock was set, or the machine has slept, which stops the timers of an event loop."""
        for attempt in self._node.hold:
            timeout = attempt.work.timeout
            if timeout is not None and attempt.run.claimed_at + timeout + _OVERDUE < self._stores_now:
                self._worker.stop(attempt, Stop.TIMEOUT)

    async def _tell_dead(self, dead: Sequence[str]) -> None:
        names = {node.id: node.name for node in await self._asked(self._node.store.nodes(self._node.app))}
        for node in dead:
            named = f"{names[node]}, id {node}," if node in names else node
            log.warning("node %s is dead: its lease ran out; its runs are taken over", named)

    async def _tell_ended(self, ended: Sequence[tuple[str, Verdict]], whose: str) -> None:
        if not ended:
            return
        wanted = RunFilter(ids=tuple(run for run, _ in ended), limit=len(ended))
        found = {run.id: run for run in await self._asked(self._node.store.runs(self._node.app, wanted))}
        for run, verdict in ended:
            say = functools.partial(log.warning, "run %s %s ends as %s", _words(run, found.get(run)), whose, verdict)
            words = functools.partial(_ended_words, whose, verdict)
            self._node.summary.tell("ended", f"{whose} {verdict}", log, logging.WARNING, say, words, about=run)
        self._node.summary.batch_over("ended")

    async def _tell_rehomed(self, rehomed: Rehomed) -> None:
        """Which work was cut off, and is done once more: it may have left something half done."""
        again = rehomed.claimed[:_NAMED_MOST]
        for run in again:
            log.warning("run %s of a dead node is run again, on this one", _words(run.id, run), extra=about(run))
        if waiting := rehomed.released[: _NAMED_MOST - len(again)]:
            wanted = RunFilter(ids=tuple(waiting), limit=len(waiting))
            found = {run.id: run for run in await self._asked(self._node.store.runs(self._node.app, wanted))}
            for id_ in waiting:
                log.warning("run %s of a dead node waits to be run again", _words(id_, found.get(id_)))
        rest = len(rehomed.claimed) + len(rehomed.released) - len(again) - len(waiting)
        if rest:
            log.warning("%d more runs of dead nodes are run again, or wait for it", rest)

    async def _asked(self, question: Awaitable[list[T]]) -> list[T]:
        """For a line of the log, which does without an answer."""
        try:
            return await question
        except StoreUnavailable:
            return []

    def _hearings(self) -> dict[str, ReportWindow]:
        """In the store's time, and rather too short than too long: a beat may have been under way for a while."""
        now = self._stores_now
        return {
            channel: ReportWindow(now + round((since - self._sent) * 1e6), now + round((until - self._answered) * 1e6))
            for channel, (since, until) in self.heard_channels().items()
        }

    async def _check_dispatched(self, heard: Mapping[str, ReportWindow]) -> None:
        """Runs in other hands whose time is over, a bite at a time; the next beat tells whether there is more."""
        node = self._node
        tended = await node.store.check_dispatched(node.app, _BITE, heard)
        if tended.released:
            count = len(tended.released)
            what = "%d dispatched %s not taken, or fell silent with its worker: dispatched again"
            log.warning(what, count, "run was" if count == 1 else "runs were")
        lost = [(run, verdict) for run, verdict in tended.ended if verdict is Verdict.LOST]
        await self._tell_ended(lost, "that nobody took, or whose worker fell silent,")
        wanted = [run for run, verdict in tended.ended if verdict is Verdict.CANCELLED]
        for run in (await runs_told_of(node, wanted)).values():
            what, key = "%s: run %s, which was dispatched, is cancelled (%s)", run.schedule_key or run.task
            say = functools.partial(log.info, what, key, run.id, run.reason, extra=about(run))
            node.summary.tell("cancelled", "cancelled", log, logging.INFO, say, _cancelled_words, about=key)
        node.summary.batch_over("cancelled")
        await node.tell_ended([run for run, _ in tended.ended])
        if any(verdict is Verdict.LOST for _, verdict in tended.ended):
            self.on_lost()
        if tended.released or tended.freed:
            self._worker.queue_has_grown()
        if tended.has_killed:
            self.on_killed()

    async def _rehome(self, until: int) -> None:
        node, can_start = self._node, self._node.rates.without_any(self._node.terms)
        async with node.claiming:
            room = 0 if node.is_draining else max(node.hold.free, 0)
            had_lease = node.has_lease
            # A run with a rate that this node counts by itself goes back to waiting, and through a claim.
            rehomed = await node.store.rehome(node.app, node.id, node.served, can_start, room, until)
            self._worker.start(rehomed.claimed, had_lease=had_lease)
        await self._tell_rehomed(rehomed)
        await self._tell_ended(rehomed.ended, "of a dead node")
        await node.tell_ended([run for run, _ in rehomed.ended])
        if any(verdict is Verdict.LOST for _, verdict in rehomed.ended):
            self.on_lost()
        if rehomed.released or rehomed.freed:
            self._worker.queue_has_grown()

    async def _reconcile(self) -> None:
        """Compare what the store says is ours with what we hold. A claim whose answer was lost is given back; work
        whose claim is gone is stopped."""
        node = self._node
        async with node.claiming:
            for attempt in node.hold:
                self._worker.end_unlived(attempt)
            held = {_claim(attempt) for attempt in node.hold}
            owned = {(run.id, run.fence) for run in await node.store.owned(node.app, node.id)}
            gone = [attempt for attempt in node.hold if _is_at_work(attempt, node.id) and _claim(attempt) not in owned]
            # A run held before we asked may have been finished while the answer was under way.
            strays = [claim for claim in owned if claim not in held]
            if strays:
                log.warning("%d runs were claimed without our hearing of it: released", len(strays))
                outcomes = [Outcome(id=run, fence=fence, kind="release") for run, fence in sorted(strays)]
                await node.store.finish(node.app, node.id, outcomes)
                self._worker.queue_has_grown()
        for attempt in gone:
            if not await self._worker.has_ended_itself(attempt):
                self._worker.stop(attempt, Stop.LOST)


def _cancelled_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more runs that were dispatched{such_as(names, seconds)} are cancelled"


def _ended_words(whose: str, verdict: Verdict, count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more runs {whose}{such_as(names, seconds)} end as {verdict}; `evertick failed` has them"


def _words(id_: str, run: Run | Claimed | None) -> str:
    if run is None:
        return id_
    return f"{id_} of {f'schedule {run.schedule_key!r}' if run.schedule_key else f'task {run.task!r}'}"


def _claim(attempt: Attempt) -> tuple[str, int]:
    return attempt.run.id, attempt.run.fence


def _is_at_work(attempt: Attempt, node: str) -> bool:
    return attempt.node == node and not attempt.is_over and not attempt.is_abandoned
