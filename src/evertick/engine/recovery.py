"""Recovers runs of dead nodes and of silent workers, and reconciles this node's runs. Runs after every heartbeat.

The store records a death once, for the node that first sees the expired lease. Recovery comes after it and is
level-triggered: each node, at each heartbeat, looks for running rows whose node is dead. It needs no message and no
leader.

After an outage of the store every lease has expired although all nodes are healthy. So a node declares no death for one
full lease after its own start, after a late heartbeat of its own, and after a jump of the store's clock. A decision to
declare a death is valid for half a lease.

Dispatched runs have no node; they expire by the store's clock. A node declares their workers silent only if it has read
all reports of the channel for the whole timeout, so that an outage of the queue does not look like the death of
workers.

The answer to the heartbeat says whether there is anything to recover, so an idle fleet sends only heartbeats.
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
from evertick.engine.node import Attempt, LocalNode, runs_for_log
from evertick.engine.work import Worker
from evertick.errors import StoreUnavailable
from evertick.model import Claimed, Outcome, Run, Verdict
from evertick.store.base import Beat, Rehomed, ReportWindow, RunFilter
from evertick.store.verdicts import DEADLINE_MARGIN
from evertick.text.log_level import such_as

__all__ = ["Recoverer"]

log = logging.getLogger("evertick.tend")

T = TypeVar("T")

# Dispatched runs checked in one statement.
_BITE = 1_000
# Recovered runs with a log line of their own, per heartbeat.
_NAMED_MOST = 10
# How long after its deadline, by the store's time, an attempt is stopped: after its own timer, and before other nodes
# take its run.
_OVERDUE = DEADLINE_MARGIN // 2


class Recoverer:
    """Declares deaths, recovers runs, reconciles."""

    def __init__(self, node: LocalNode, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        self._lease_seconds = node.lease / 1e6
        self._judges_from = 0.0
        self._last_beat: tuple[float, int] | None = None
        self._has_beaten = False
        self._has_charges = True
        self._has_dispatched = self._has_dispatched_cancels = True
        # When the last heartbeat was sent and answered, by `clock.elapsed`, and the store's time in the answer.
        self._sent = self._answered = 0.0
        self._stores_now = 0
        # By channel, from when to when all reports of workers were read, by `clock.elapsed`.
        self.readable_channels: Callable[[], Mapping[str, tuple[float, float]]] = dict
        # A node was declared dead.
        self.on_death: Callable[[], None] = lambda: None
        # Runs of dead nodes or silent workers were lost.
        self.on_lost: Callable[[], None] = lambda: None
        # Messages that stop workers were written.
        self.on_killed: Callable[[], None] = lambda: None

    def start_over(self) -> None:
        """A new incarnation has joined."""
        self._judges_from = self._node.clock.elapsed() + self._lease_seconds
        self._last_beat = None

    def heard(self, beat: Beat, sent: float) -> None:
        """Note an answered heartbeat, and whether it or the store's clock was off by more than half a lease."""
        self._has_beaten = True
        self._has_charges = beat.has_charges
        self._has_dispatched, self._has_dispatched_cancels = beat.has_dispatched, beat.has_dispatched_cancels
        self._sent, self._answered, self._stores_now = sent, self._node.clock.elapsed(), beat.now
        last, self._last_beat = self._last_beat, (sent, beat.now)
        if last is None:
            # Counted from the first answered heartbeat, since an outage may have begun right after the join.
            self._judges_from = sent + self._lease_seconds
            return
        self._stop_overdue()
        own, stores = sent - last[0], (beat.now - last[1]) / 1e6
        half = self._lease_seconds / 2
        if own > half or abs(own - stores) > half:
            self._judges_from = sent + self._lease_seconds
            log.warning(
                "node %s: %.1f s between two heartbeats here, %.1f s at the store; no node is declared dead for one "
                "lease",
                self._node.name,
                own,
                stores,
            )

    async def step(self) -> float | None:
        if not self._has_beaten:
            return Idle(math.inf)  # the next answered heartbeat wakes this loop
        self._has_beaten = False
        windows = self._report_windows() if self._has_dispatched else {}
        if windows or self._has_dispatched_cancels:
            await self._check_dispatched(windows)
        if not self._has_charges and not len(self._node.hold):
            return None
        judges_until = self._judges_until()
        if judges_until and (dead := await self._node.store.judge(judges_until)):
            self.on_death()
            await self._log_dead(dead)
        await self._rehome(judges_until)
        await self._reconcile()
        return None

    def _judges_until(self) -> int:
        """Until when, by the store's time, a death may be declared; 0: not now.

        This node's last answered heartbeat shows for half a lease that others could send theirs. A statement that takes
        longer, because the store hangs or the machine sleeps, must not declare a death.
        """
        if self._node.clock.elapsed() < self._judges_from:
            return 0
        return self._stores_now + self._node.lease // 2

    def _stop_overdue(self) -> None:
        """Stop overdue runs by the store's time before other nodes take them: timers of the event loop stop while the
        machine sleeps."""
        for attempt in self._node.hold:
            timeout = attempt.work.timeout
            if timeout is not None and attempt.run.claimed_at + timeout + _OVERDUE < self._stores_now:
                self._worker.stop(attempt, Stop.TIMEOUT)

    async def _log_dead(self, dead: Sequence[str]) -> None:
        names = {node.id: node.name for node in await self._or_none(self._node.store.nodes(self._node.app))}
        for node in dead:
            name = f"{names[node]} (id {node})" if node in names else node
            log.warning("node %s: lease expired, declared dead; its runs are reassigned", name)

    async def _log_ended(self, ended: Sequence[tuple[str, Verdict]], why: str) -> None:
        if not ended:
            return
        wanted = RunFilter(ids=tuple(run for run, _ in ended), limit=len(ended))
        found = {run.id: run for run in await self._or_none(self._node.store.runs(self._node.app, wanted))}
        for run, verdict in ended:
            say = functools.partial(log.warning, "run %s: %s; ends as %s", _words(run, found.get(run)), why, verdict)
            words = functools.partial(_ended_words, why, verdict)
            self._node.summary.tell("ended", f"{why} {verdict}", log, logging.WARNING, say, words, about=run)
        self._node.summary.batch_over("ended")

    async def _log_rehomed(self, rehomed: Rehomed) -> None:
        """Name interrupted runs: they start again and may have left partial work."""
        again = rehomed.claimed[:_NAMED_MOST]
        for run in again:
            log.warning("run %s: its node died; runs again on this node", _words(run.id, run), extra=about(run))
        if waiting := rehomed.released[: _NAMED_MOST - len(again)]:
            wanted = RunFilter(ids=tuple(waiting), limit=len(waiting))
            found = {run.id: run for run in await self._or_none(self._node.store.runs(self._node.app, wanted))}
            for id_ in waiting:
                log.warning("run %s: its node died; waits to run again", _words(id_, found.get(id_)))
        rest = len(rehomed.claimed) + len(rehomed.released) - len(again) - len(waiting)
        if rest:
            log.warning("%d more runs of dead nodes run again or wait to run again", rest)

    async def _or_none(self, query: Awaitable[list[T]]) -> list[T]:
        """For log lines, which are written also if the store is unavailable."""
        try:
            return await query
        except StoreUnavailable:
            return []

    def _report_windows(self) -> dict[str, ReportWindow]:
        """By channel, from when to when all reports were read, in the store's time; too short rather than too long."""
        now = self._stores_now
        return {
            channel: ReportWindow(now + round((since - self._sent) * 1e6), now + round((until - self._answered) * 1e6))
            for channel, (since, until) in self.readable_channels().items()
        }

    async def _check_dispatched(self, windows: Mapping[str, ReportWindow]) -> None:
        """Release or end dispatched runs whose time is over, one batch per heartbeat."""
        node = self._node
        checked = await node.store.check_dispatched(node.app, _BITE, windows)
        if checked.released:
            self._log_redispatch(len(checked.released))
        lost = [(run, verdict) for run, verdict in checked.ended if verdict is Verdict.LOST]
        await self._log_ended(lost, "dispatched, and no worker took it or its worker is silent")
        wanted = [run for run, verdict in checked.ended if verdict is Verdict.CANCELLED]
        for run in (await runs_for_log(node, wanted)).values():
            what, key = "run %s (%s): dispatched run cancelled (%s)", run.schedule_key or run.task
            say = functools.partial(log.info, what, run.id, key, run.reason, extra=about(run))
            node.summary.tell("cancelled", "cancelled", log, logging.INFO, say, _cancelled_words, about=key)
        node.summary.batch_over("cancelled")
        await node.emit_ended([run for run, _ in checked.ended])
        if any(verdict is Verdict.LOST for _, verdict in checked.ended):
            self.on_lost()
        if checked.released or checked.freed:
            self._worker.runs_enqueued()
        if checked.has_kill_messages:
            self.on_killed()

    def _log_redispatch(self, count: int) -> None:
        runs = "1 run" if count == 1 else f"{count} runs"
        say = functools.partial(
            log.warning, "%s not taken by a worker in time, or the worker is silent; dispatching again", runs
        )
        self._node.summary.tell("redispatch", "", log, logging.WARNING, say, _redispatch_words, count=count, lines=1)

    async def _rehome(self, until: int) -> None:
        node, can_start = self._node, self._node.rates.without_any(self._node.terms)
        async with node.claiming:
            room = 0 if node.is_draining else max(node.hold.free, 0)
            had_lease = node.has_lease
            # A run with a rate counted in memory is not in `can_start`: it waits for a claim.
            rehomed = await node.store.rehome(node.app, node.id, node.served, can_start, room, until)
            self._worker.start(rehomed.claimed, had_lease=had_lease)
        await self._log_rehomed(rehomed)
        await self._log_ended(rehomed.ended, "its node died")
        await node.emit_ended([run for run, _ in rehomed.ended])
        if any(verdict is Verdict.LOST for _, verdict in rehomed.ended):
            self.on_lost()
        if rehomed.released or rehomed.freed:
            self._worker.runs_enqueued()

    async def _reconcile(self) -> None:
        """Compare the claims in the store with the attempts here: release claims whose answer was lost, and stop
        attempts whose claim is gone."""
        node = self._node
        async with node.claiming:
            for attempt in node.hold:
                self._worker.end_unstarted(attempt)
            held = {_claim(attempt) for attempt in node.hold}
            owned = {(run.id, run.fence) for run in await node.store.owned(node.app, node.id)}
            gone = [attempt for attempt in node.hold if _is_at_work(attempt, node.id) and _claim(attempt) not in owned]
            # Compared with `held`, from before the query: an attempt may have finished meanwhile.
            unknown = [claim for claim in owned if claim not in held]
            if unknown:
                what = "node %s: %d claims unknown here, their answers were lost; released"
                log.warning(what, node.name, len(unknown))
                outcomes = [Outcome(id=run, fence=fence, kind="release") for run, fence in sorted(unknown)]
                await node.store.finish(node.app, node.id, outcomes)
                self._worker.runs_enqueued()
        for attempt in gone:
            if not await self._worker.was_finished_by_job(attempt):
                self._worker.stop(attempt, Stop.LOST)


def _cancelled_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more dispatched runs{such_as(names, seconds)} cancelled"


def _redispatch_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more runs{such_as(names, seconds)} dispatched again: no worker took them, or the worker is silent"


def _ended_words(why: str, verdict: Verdict, count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more runs{such_as(names, seconds)} end as {verdict} ({why}); list them with `evertick failed`"


def _words(id_: str, run: Run | Claimed | None) -> str:
    return id_ if run is None else f"{id_} ({run.schedule_key or run.task})"


def _claim(attempt: Attempt) -> tuple[str, int]:
    return attempt.run.id, attempt.run.fence


def _is_at_work(attempt: Attempt, node: str) -> bool:
    return attempt.node == node and not attempt.is_over and not attempt.is_abandoned
