"""Applies reports on dispatched runs: from workers, through the sources of the drivers, and from the outbox delivery.

A report is confirmed to its source only when it is stored. If the node dies before, another node gets the report, and
the store recognises it. Reports that the store did not take are kept and written again. An unavailable source is
retried and does not delay the others. Each reader knows since when it has read every report; a worker is declared
silent only on that basis.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from evertick.aio.cancel import cancel_reliably
from evertick.clock import Clock
from evertick.driver.base import Received, ReportSource
from evertick.engine.finish import about
from evertick.engine.node import EVENT_OF, LocalNode, event_of, runs_for_log
from evertick.errors import BrokerUnavailable, StoreUnavailable
from evertick.model import Report, Run, Verdict, hearing_tick
from evertick.model.hooks import EventKind
from evertick.store.base import ReportAnswer, RunFilter
from evertick.text.error_line import error_for_log, error_summary
from evertick.text.log_level import TRACE, such_as, tally, trace

__all__ = ["Reporter"]

log = logging.getLogger("evertick.report")

# Reports per read.
_BATCH = 1_000
_FIRST_WAIT_SECONDS = 0.1
_PAUSE_FIRST, _PAUSE_MOST = 0.1, 5.0
# Events whose hooks were not called yet, because the store could not be read.
_PENDING_MOST = 10_000
# How long a read waits for the first report.
WAIT_SECONDS = 5.0
# How much longer a read, or the write after it, may take. Beyond that, reports may have been missed: the node was
# suspended, or the connection hung.
_SLACK_SECONDS = 5.0


class ReportWatch:
    """From when to when this node has read every report of one source, by `clock.elapsed`.

    A node that cannot read reports never declares a worker silent: in an outage of the queue, workers may be healthy
    and their reports wait. So the window starts when all waiting reports were read and written, and ends with the first
    read or write that fails. A reconnect between two reads is covered by the slack between reads.
    """

    __slots__ = ("_read_at", "_since", "_until")

    def __init__(self) -> None:
        # When the last read ended.
        self._read_at: float | None = None
        self._since: float | None = None
        self._until = 0.0

    @property
    def hears(self) -> bool:
        return self._since is not None

    def note_read(self, began: float, ended: float) -> None:
        """A read succeeded; its reports are not written yet."""
        before, self._read_at = self._read_at, ended
        is_late = ended - began > WAIT_SECONDS + _SLACK_SECONDS
        if is_late or (before is not None and began - before > _SLACK_SECONDS):
            self._since = None

    def note_written(self, *, has_more: bool) -> None:
        """The reports of the last read are written. `has_more`: the source has others, so not everything is known."""
        if self._read_at is None or has_more:
            return
        self._since = self._read_at if self._since is None else self._since
        self._until = self._read_at

    def is_interrupted(self) -> None:
        self._read_at = self._since = None

    def stretch(self, now: float) -> tuple[float, float] | None:
        """The start and end of the window; None if it is over."""
        if self._since is None or now - self._until > WAIT_SECONDS + _SLACK_SECONDS:
            return None
        return self._since, self._until


class Reader:
    """One source, its reports that are not confirmed yet, and its failures."""

    __slots__ = ("_clock", "failures", "on_back", "received", "source", "task", "watch")

    def __init__(self, source: ReportSource, clock: Clock, on_back: Callable[[str], None]) -> None:
        self.source = source
        # The source of this channel can be read again.
        self.on_back = on_back
        self._clock = clock
        self.watch = ReportWatch()
        self.task: asyncio.Task[Received | None] | None = None
        self.received: Received | None = None
        self.failures = 0

    @property
    def name(self) -> str:
        """For log lines; a source whose `name` fails is still read."""
        try:
            return self.source.name
        except Exception:
            return type(self.source).__name__

    @property
    def pause(self) -> float:
        return min(_PAUSE_FIRST * 2.0 ** (self.failures - 1), _PAUSE_MOST) if self.failures else 0.0

    async def receive(self) -> Received | None:
        """None: the source is unavailable."""
        if self.failures:
            await asyncio.sleep(self.pause)
        began = self._clock.elapsed()
        # A short first read shows soon whether reports wait, so that the window can start.
        seconds = WAIT_SECONDS if self.watch.hears else _FIRST_WAIT_SECONDS
        try:
            received = await self.source.receive(_BATCH, seconds)
        except Exception as error:
            self._failed(error)
            return None
        self.watch.note_read(began, self._clock.elapsed())
        if self.failures:
            log.info("reports of workers: reading recovered (%s)", self.name)
            self.on_back(self.source.channel)
        self.failures = 0
        return received

    async def confirm(self) -> None:
        """Confirm the received reports, which are stored now."""
        received, self.received = self.received, None
        if received is None:
            return
        self.watch.note_written(has_more=received.has_more)
        try:
            await self.source.confirm(received)
        except Exception as error:
            # The source delivers the reports again, and the store recognises them.
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.watch.is_interrupted()
        if not self.failures:
            # Errors of a broker name it.
            what = str(error) if isinstance(error, BrokerUnavailable) else f"{self.name}: {error}"
            log.warning("reports of workers: reading failed, retrying: %s", what)
        self.failures = min(self.failures + 1, 16)


class Reporter:
    """Reads and applies reports."""

    def __init__(self, node: LocalNode, *, poll: float) -> None:
        self._node = node
        self._poll = poll
        self._readers: list[Reader] = []
        # Events whose hooks were not called yet.
        self._pending: deque[tuple[Report, EventKind]] = deque(maxlen=_PENDING_MOST)
        # Reports of earlier dispatches.
        self.refused = 0
        # Runs failed.
        self.on_failed: Callable[[], None] = lambda: None
        # The source of a channel can be read again.
        self.on_back: Callable[[str], None] = lambda channel: None
        # Runs may have become due.
        self.on_freed: Callable[[], None] = lambda: None

    async def step(self) -> float | None:
        """Wait for reports and apply them."""
        # A reload may have added sources.
        new = self._node.sources[len(self._readers) :]
        self._readers += [Reader(source, self._node.clock, lambda channel: self.on_back(channel)) for source in new]
        if not self._readers or self._node.is_draining:
            return None
        for reader in self._readers:
            if reader.received is None and reader.task is None:
                name = f"evertick reports of {reader.name}"
                reader.task = asyncio.get_running_loop().create_task(reader.receive(), name=name)
        waiting = {reader.task for reader in self._readers if reader.task is not None}
        if len(waiting) == len(self._readers):
            await asyncio.wait(waiting, timeout=self._poll, return_when=asyncio.FIRST_COMPLETED)
        await self._apply_all()
        return 0.0

    async def _apply_all(self) -> None:
        """Apply the reports of each source, also if another source fails; then raise the first error."""
        errors: list[Exception] = []
        for reader in self._readers:
            try:
                await self._apply_from(reader)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _apply_from(self, reader: Reader) -> None:
        if reader.task is not None and reader.task.done():
            task, reader.task = reader.task, None
            reader.received = None if task.cancelled() else task.result()
        received = reader.received
        if received is None:
            return
        try:
            if received.reports:
                await self.apply(received.reports)
        except Exception:
            # Reports that are not stored do not count as read.
            reader.watch.is_interrupted()
            raise
        await reader.confirm()

    def heard(self) -> dict[str, tuple[float, float]]:
        """By channel, from when to when all reports were read; only channels that are readable now."""
        now = self._node.clock.elapsed()
        found: dict[str, tuple[float, float] | None] = {}
        for reader in self._readers:
            stretch, channel = reader.watch.stretch(now), reader.source.channel
            if channel in found:  # with several sources, all of them have to be readable
                other = found[channel]
                stretch = None if stretch is None or other is None else _both(stretch, other)
            found[channel] = stretch
        return {channel: stretch for channel, stretch in found.items() if stretch is not None}

    def ticks(self) -> dict[str, tuple[int, None]]:
        """The channels that this node reads, for the heartbeat. Thread-safe."""
        now = self._node.clock.elapsed()
        return {
            hearing_tick(channel): (round((now - until) * 1e6), None) for channel, (_, until) in self.heard().items()
        }

    async def stop(self, seconds: float) -> None:
        """Stop all reads, which would reopen connections; unconfirmed reports go to other nodes."""
        tasks = [reader.task for reader in self._readers if reader.task is not None]
        await cancel_reliably(tasks, seconds=seconds)

    async def apply(self, reports: Sequence[Report]) -> list[ReportAnswer]:
        """Write reports, log failures, call hooks and wake the loops."""
        since = self._node.clock.elapsed()
        answers = await self._node.store.apply_reports(self._node.app, reports)
        if log.isEnabledFor(TRACE):
            kinds, results = tally(report.kind for report in reports), tally(answer.answer for answer in answers)
            words = "wrote %d reports of dispatched runs (%s; answers: %s)"
            trace(log, self._node.clock.elapsed() - since, words, len(reports), kinds, results)
        self._count_refused(answers)
        moved = [
            (report, answer)
            for report, answer in zip(reports, answers, strict=True)
            if answer.verdict is not None or answer.is_returned
        ]
        if moved:
            self.on_freed()
            await self._log_failures(moved)
            self._pending.extend((report, kind) for report, answer in moved if (kind := self._event(report, answer)))
            if any(answer.verdict is Verdict.FAILED for _, answer in moved):
                self.on_failed()
        await self._call_hooks()
        return answers

    async def _log_failures(self, moved: Sequence[tuple[Report, ReportAnswer]]) -> None:
        failed = [
            (report, answer)
            for report, answer in moved
            if answer.verdict is Verdict.FAILED or (answer.is_returned and report.kind != "release")
        ]
        runs = await runs_for_log(self._node, [report.id for report, _ in failed])
        for report, answer in failed:
            run, is_over = runs.get(report.id), answer.verdict is Verdict.FAILED
            task, level = "" if run is None else run.task, logging.ERROR if is_over else logging.WARNING
            say = functools.partial(_log_failure, report, run, is_over)
            words = functools.partial(_failures_words, task, is_over)
            self._node.summary.tell(f"reported {is_over} {task}", "", log, level, say, words, about=report.id)

    def _count_refused(self, answers: Sequence[ReportAnswer]) -> None:
        refused = sum(answer.answer == "stale" for answer in answers)
        if refused:
            self.refused += refused
            what = "%d reports of workers rejected: the runs were dispatched again or are over"
            say = functools.partial(log.warning, what, refused)
            summary = self._node.summary
            summary.tell("refused", "", log, logging.WARNING, say, _refused_words, count=refused, lines=1)

    async def _call_hooks(self) -> None:
        """Does not raise if the runs cannot be read, since the reports are written."""
        node, pending = self._node, list(self._pending)
        if not pending:
            return
        self._pending.clear()
        ids = tuple({report.id: None for report, _ in pending})
        try:
            runs = {run.id: run for run in await node.store.runs(node.app, RunFilter(ids=ids, limit=len(ids)))}
        except StoreUnavailable:
            self._pending.extendleft(reversed(pending))
            return
        for report, kind in pending:
            if report.id in runs:
                run = msgspec.structs.replace(runs[report.id], reason=report.reason, error=report.error)
                node.hooks.tell(event_of(kind, run, node.now()))

    def _event(self, report: Report, answer: ReportAnswer) -> EventKind | None:
        """The event of a report, if a hook wants it."""
        kind: EventKind = "retrying" if answer.verdict is None else EVENT_OF[answer.verdict]
        return kind if report.kind != "release" and kind in self._node.hooks.wanted else None


def _log_failure(report: Report, run: Run | None, is_over: bool) -> None:
    name = report.id if run is None else f"{report.id} ({run.schedule_key or run.task})"
    extra = {"run": report.id} if run is None else about(run)
    if is_over:
        log.error("run %s: failed on a worker: %s", name, error_for_log(report.error), extra=extra)
    else:
        what = "run %s: failed on a worker (%s); it will be retried"
        log.warning(what, name, error_summary(report.error), extra=extra)


def _failures_words(task: str, is_over: bool, count: int, names: list[str], seconds: float | None) -> str:
    prefix, then = f"task {task}: " if task else "", "list them with `evertick failed`" if is_over else "retrying"
    return f"{prefix}{count} more runs failed on workers{such_as(names, seconds)}; {then}"


def _refused_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more reports of workers rejected{such_as(names, seconds)}"


def _both(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), min(one[1], other[1])
