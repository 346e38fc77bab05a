"""Writes progress, phases and log lines of running jobs to the store, off the hot path.

At an interval for all runs together, and once more before the outcome of a run, which carries the phases itself. Notes
that could not be written are kept and sent again; log lines are numbered, so that a repetition changes nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from evertick.engine.node import Attempt, LocalNode
from evertick.job.context import LINES_MAX, current_context, record_of
from evertick.store.base import Note

__all__ = ["ProgressWriter", "log_capture"]

# While the store is unavailable, at most this many notes are kept; the oldest are dropped.
_PENDING_MAX = 4 * LINES_MAX


class ProgressWriter:
    """Progress and log lines that are not stored yet."""

    def __init__(self, node: LocalNode, every_seconds: float) -> None:
        self._node = node
        self.every_seconds = every_seconds
        self._pending: list[tuple[Attempt, Note]] = []
        self._sending = asyncio.Lock()
        # No run is held; the loop waits until one is.
        self.is_idle = False
        self.on_held: Callable[[], None] = lambda: None
        self.on_lost: Callable[[Attempt], None] = lambda attempt: None

    async def step(self) -> float | None:
        await self.carry(self._node.hold, with_phases=True)
        self.is_idle = len(self._node.hold) == 0
        return None if self.is_idle else self.every_seconds

    async def carry(self, attempts: Iterable[Attempt], *, with_phases: bool = False) -> None:
        """Write the news of these attempts. Raises and keeps them if the store is unavailable."""
        async with self._sending:
            notes = [(attempt, note) for attempt in attempts if (note := _note_of(attempt, with_phases)) is not None]
            self._pending.extend(notes)
            del self._pending[:-_PENDING_MAX]
            while self._pending:
                await self._send_first()

    async def _send_first(self) -> None:
        """Send the oldest notes of one incarnation; they are kept until the store answers."""
        node = self._pending[0][0].node
        sending = list(itertools.takewhile(lambda pending: pending[0].node == node, self._pending))
        lost = set(await self._node.store.note(self._node.app, node, [note for _, note in sending]))
        del self._pending[: len(sending)]
        for attempt, note in sending:
            if note.id in lost:
                self.on_lost(attempt)


def _note_of(attempt: Attempt, with_phases: bool) -> Note | None:
    buffer = attempt.record.buffer
    if buffer is None:
        return None
    news, phases = buffer.take(), buffer.take_phases() if with_phases else None
    if news is None and phases is None:
        return None
    seq, lines, progress = news if news is not None else (0, (), None)
    fraction, text = progress if progress is not None else (None, None)
    return Note(
        id=attempt.run.id,
        fence=attempt.run.fence,
        progress=fraction,
        progress_text=text,
        phases=phases,
        seq=seq,
        lines=lines,
    )


class NodeLogCapture:
    """Copies the `logging` records of a job into the log of its run. One for all engines of the process.

    It hooks the record factory, not the root logger: a root handler would disable Python's last-resort handler in a
    program that has not configured logging, and make a later `basicConfig` do nothing.
    """

    def __init__(self) -> None:
        self._engines = 0
        self._make_record = logging.getLogRecordFactory()

    def install(self) -> None:
        self._engines += 1
        if self._engines == 1 and logging.getLogRecordFactory() != self._listen:
            self._make_record = logging.getLogRecordFactory()
            logging.setLogRecordFactory(self._listen)

    def remove(self) -> None:
        self._engines -= 1
        # If the program has wrapped our factory, ours stays in place and only passes records on.
        if self._engines == 0 and logging.getLogRecordFactory() == self._listen:
            logging.setLogRecordFactory(self._make_record)

    def remove_all(self) -> None:
        """For engines that ended without `remove`, such as nodes killed in a simulation."""
        self._engines = min(self._engines, 1)
        if self._engines:
            self.remove()

    def _listen(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make_record(*args, **kwargs)
        context = current_context.get(None) if self._engines else None
        if context is not None:
            record_of(context).log_record(record)
        return record


log_capture = NodeLogCapture()
