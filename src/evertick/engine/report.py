"""Applying what is said of dispatched runs from outside: by workers, through the sources of the drivers, and by our own
relay.

A report is confirmed to its source when the ledger has it, and not before: a node that dies in between leaves it to
another, and the ledger knows it already. What cannot be written because the store is away is kept and written again; a
source that is away is asked again later, and holds up no other. Each reader knows how long it has heard all that was
said: only by that may a worker be called silent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from evertick.aio.cancel import cancel_until_over
from evertick.clock import Clock
from evertick.driver.base import Received, ReportSource
from evertick.engine.finish import about
from evertick.engine.node import EVENT_OF, LocalNode, event_of, runs_told_of
from evertick.errors import StoreUnavailable
from evertick.model import Report, Run, Verdict, hearing_tick
from evertick.model.hooks import EventKind
from evertick.store.base import ReportAnswer, RunFilter
from evertick.text.error_line import error_for_log, what_was_raised
from evertick.text.log_level import TRACE, such_as, tally, trace

__all__ = ["Reporter"]

log = logging.getLogger("evertick.report")

# Reports that are asked for and applied at once.
_BATCH = 1_000
_FIRST_WAIT_SECONDS = 0.1
_PAUSE_FIRST, _PAUSE_MOST = 0.1, 5.0
# Ends that the hooks have not heard of, because the store could not be read.
_UNTOLD_MOST = 10_000
# How long a read waits for the first report.
WAIT_SECONDS = 5.0
# How much longer it may take, and how long what it brought may take to be written: a node that was stopped for a while,
# or whose line hangs, has not heard what was said meanwhile.
_SLACK_SECONDS = 5.0


class ReportWatch:
    """Since when, and until when, a node has heard every word of the workers behind one source, by `clock.elapsed`.

    A node that cannot read reports never declares a worker silent. While a queue is away its workers are as well as
    they were, and what they say waits; when it is back it brings what waited, and they need their time to be heard
    again. So hearing begins when all that waited has been read and written, and ends with the first read, or write,
    that fails. A connection that was made anew in silence, between two reads, had no more time for it than may pass
    between two reads that count as one hearing.
    """

    __slots__ = ("_read_at", "_since", "_until")

    def __init__(self) -> None:
        # When the last read was over.
        self._read_at: float | None = None
        self._since: float | None = None
        self._until = 0.0

    @property
    def hears(self) -> bool:
        return self._since is not None

    def has_read(self, began: float, ended: float) -> None:
        """A read has succeeded; what it brought is not written yet."""
        before, self._read_at = self._read_at, ended
        is_late = ended - began > WAIT_SECONDS + _SLACK_SECONDS
        if is_late or (before is not None and began - before > _SLACK_SECONDS):
            self._since = None

    def has_written(self, *, has_more: bool) -> None:
        """What the last read brought is in the ledger. If there was more than it could bring, that may be anything."""
        if self._read_at is None or has_more:
            return
        self._since = self._read_at if self._since is None else self._since
        self._until = self._read_at

    def is_interrupted(self) -> None:
        self._read_at = self._since = None

    def stretch(self, now: float) -> tuple[float, float] | None:
        """Since and until when everything was heard, if it still is."""
        if self._since is None or now - self._until > WAIT_SECONDS + _SLACK_SECONDS:
            return None
        return self._since, self._until


class Reader:
    """One source, what was received from it and is not confirmed yet, and how long it has been away."""

    __slots__ = ("_clock", "failures", "on_back", "received", "source", "task", "watch")

    def __init__(self, source: ReportSource, clock: Clock, on_back: Callable[[str], None]) -> None:
        self.source = source
        # It was away and can be read again; with its channel.
        self.on_back = on_back
        self._clock = clock
        self.watch = ReportWatch()
        self.task: asyncio.Task[Received | None] | None = None
        self.received: Received | None = None
        self.failures = 0

    @property
    def name(self) -> str:
        """For the log. One that cannot say where it reads is still asked."""
        try:
            return self.source.name
        except Exception:
            return type(self.source).__name__

    @property
    def pause(self) -> float:
        return min(_PAUSE_FIRST * 2.0 ** (self.failures - 1), _PAUSE_MOST) if self.failures else 0.0

    async def receive(self) -> Received | None:
        """None: the source is away."""
        if self.failures:
            await asyncio.sleep(self.pause)
        began = self._clock.elapsed()
        # Whether anything waits is known soon, and with it whether we hear all.
        seconds = WAIT_SECONDS if self.watch.hears else _FIRST_WAIT_SECONDS
        try:
            received = await self.source.receive(_BATCH, seconds)
        except Exception as error:
            self._failed(error)
            return None
        self.watch.has_read(began, self._clock.elapsed())
        if self.failures:
            log.info("%s: reports can be read again", self.name)
            self.on_back(self.source.channel)
        self.failures = 0
        return received

    async def confirm(self) -> None:
        """What was received is in the ledger."""
        received, self.received = self.received, None
        if received is None:
            return
        self.watch.has_written(has_more=received.has_more)
        try:
            await self.source.confirm(received)
        except Exception as error:
            # They come again, and are known.
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.watch.is_interrupted()
        if not self.failures:
            # Errors of a broker name it by themselves.
            what = str(error).removeprefix(f"{self.name}: ")
            log.warning("%s: reports of workers cannot be read: %s; it is tried again", self.name, what)
        self.failures = min(self.failures + 1, 16)


class Reporter:
    """Applies reports, and reads those of workers."""

    def __init__(self, node: LocalNode, *, poll: float) -> None:
        self._node = node
        self._poll = poll
        self._readers: list[Reader] = []
        # What runs have come to that the hooks have not heard of.
        self._untold: deque[tuple[Report, EventKind]] = deque(maxlen=_UNTOLD_MOST)
        # Reports of dispatches that were over.
        self.refused = 0
        # Runs have ended as failed, of whichever schedules.
        self.on_failed: Callable[[], None] = lambda: None
        # What brings the reports of a channel was away, and is back.
        self.on_back: Callable[[str], None] = lambda channel: None
        # Something may have become due.
        self.on_freed: Callable[[], None] = lambda: None

    async def step(self) -> float | None:
        """Apply what has come since. Waits for the first of it."""
        # Those of tasks that have come since, too.
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
        await self._take_all()
        return 0.0

    async def _take_all(self) -> None:
        """What one source brings, and what is wrong with it, holds up no other; the first trouble is told by the
        loop."""
        troubles: list[Exception] = []
        for reader in self._readers:
            try:
                await self._take(reader)
            except Exception as error:
                troubles.append(error)
        if troubles:
            raise troubles[0]

    async def _take(self, reader: Reader) -> None:
        if reader.task is not None and reader.task.done():
            task, reader.task = reader.task, None
            reader.received = None if task.cancelled() else task.result()
        if reader.received is not None:
            await self._take_in(reader, reader.received)

    async def _take_in(self, reader: Reader, received: Received) -> None:
        try:
            if received.reports:
                await self.apply(received.reports)
        except Exception:
            # What they say is not known to the ledger, however well the source is heard.
            reader.watch.is_interrupted()
            raise
        await reader.confirm()

    def heard(self) -> dict[str, tuple[float, float]]:
        """Since and until when all was heard that workers said, by channel: of those that are heard now."""
        now = self._node.clock.elapsed()
        found: dict[str, tuple[float, float] | None] = {}
        for reader in self._readers:
            stretch, channel = reader.watch.stretch(now), reader.source.channel
            if channel in found:  # what one of several brings alone is heard by those who hear all
                other = found[channel]
                stretch = None if stretch is None or other is None else _both(stretch, other)
            found[channel] = stretch
        return {channel: stretch for channel, stretch in found.items() if stretch is not None}

    def ticks(self) -> dict[str, tuple[int, None]]:
        """By whom it is told to people that a channel is heard. May be asked from another thread."""
        now = self._node.clock.elapsed()
        return {
            hearing_tick(channel): (round((now - until) * 1e6), None) for channel, (_, until) in self.heard().items()
        }

    async def stop(self, seconds: float) -> None:
        """Unconfirmed reports come to others. None reads any more after it: that would open a connection anew that is
        being closed."""
        tasks = [reader.task for reader in self._readers if reader.task is not None]
        await cancel_until_over(tasks, seconds=seconds)

    async def apply(self, reports: Sequence[Report]) -> list[ReportAnswer]:
        """Write reports down, and wake what may start by that."""
        since = self._node.clock.elapsed()
        answers = await self._node.store.apply_reports(self._node.app, reports)
        if log.isEnabledFor(TRACE):
            kinds, told = tally(report.kind for report in reports), tally(answer.answer for answer in answers)
            words = "wrote %d reports of dispatched runs (%s; answered: %s)"
            trace(log, self._node.clock.elapsed() - since, words, len(reports), kinds, told)
        self._count_refused(answers)
        moved = [
            (report, answer)
            for report, answer in zip(reports, answers, strict=True)
            if answer.verdict is not None or answer.is_put_back
        ]
        if moved:
            self.on_freed()
            await self._log_failures(moved)
            self._untold.extend((report, kind) for report, answer in moved if (kind := self._wanted(report, answer)))
            if any(answer.verdict is Verdict.FAILED for _, answer in moved):
                self.on_failed()
        await self._tell()
        return answers

    async def _log_failures(self, moved: Sequence[tuple[Report, ReportAnswer]]) -> None:
        """A job that fails must not do so in silence; its error is in the ledger, and here."""
        failed = [
            (report, answer)
            for report, answer in moved
            if answer.verdict is Verdict.FAILED or (answer.is_put_back and report.kind != "release")
        ]
        runs = await runs_told_of(self._node, [report.id for report, _ in failed])
        for report, answer in failed:
            run, is_over = runs.get(report.id), answer.verdict is Verdict.FAILED
            task, level = "" if run is None else run.task, logging.ERROR if is_over else logging.WARNING
            say = functools.partial(_log_failure, report, run, is_over)
            words = functools.partial(_failures_words, task or "jobs", is_over)
            self._node.summary.tell(f"reported {is_over} {task}", "", log, level, say, words, about=report.id)

    def _count_refused(self, answers: Sequence[ReportAnswer]) -> None:
        refused = sum(answer.answer == "stale" for answer in answers)
        if refused:
            self.refused += refused
            what = "%d reports of workers were refused: their runs were dispatched again since, or are over"
            say = functools.partial(log.warning, what, refused)
            summary = self._node.summary
            summary.tell("refused", "", log, logging.WARNING, say, _refused_words, count=refused, lines=1)

    async def _tell(self) -> None:
        """The hooks. That the ledger cannot be read must not undo that it is written."""
        node, untold = self._node, list(self._untold)
        if not untold:
            return
        self._untold.clear()
        ids = tuple({report.id: None for report, _ in untold})
        try:
            runs = {run.id: run for run in await node.store.runs(node.app, RunFilter(ids=ids, limit=len(ids)))}
        except StoreUnavailable:
            self._untold.extendleft(reversed(untold))
            return
        for report, kind in untold:
            if report.id in runs:
                run = msgspec.structs.replace(runs[report.id], reason=report.reason, error=report.error)
                node.hooks.tell(event_of(kind, run, node.now()))

    def _wanted(self, report: Report, answer: ReportAnswer) -> EventKind | None:
        """What the hooks are to hear of it."""
        kind: EventKind = "retrying" if answer.verdict is None else EVENT_OF[answer.verdict]
        return kind if report.kind != "release" and kind in self._node.hooks.wanted else None


def _log_failure(report: Report, run: Run | None, is_over: bool) -> None:
    name, extra = ("a job", {"run": report.id}) if run is None else (run.schedule_key or run.task, about(run))
    if is_over:
        what = "%s: run %s failed where it was dispatched to: %s"
        log.error(what, name, report.id, error_for_log(report.error), extra=extra)
    else:
        what = "%s: run %s failed where it was dispatched to (%s); it is tried again"
        log.warning(what, name, report.id, what_was_raised(report.error), extra=extra)


def _failures_words(task: str, is_over: bool, count: int, names: list[str], seconds: float | None) -> str:
    then = "`evertick failed` has them" if is_over else "they are tried again"
    return f"{task}: {count} more runs failed where they were dispatched to{such_as(names, seconds)}; {then}"


def _refused_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more reports of workers were refused{such_as(names, seconds)}"


def _both(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), min(one[1], other[1])
