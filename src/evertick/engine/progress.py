"""Carrying what running jobs say (progress, phases, log lines) to the store, off the hot path.

Once in a while for all runs together, and once more before a run's outcome is written, which has the phases itself.
Words that the store did not take in time are kept and sent again; the numbers of the lines make that harmless.
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

# While the store is away jobs may go on talking; beyond this the oldest words go.
_PENDING_MAX = 4 * LINES_MAX


class ProgressWriter:
    """Progress and log lines on their way to the store."""

    def __init__(self, node: LocalNode, every_seconds: float) -> None:
        self._node = node
        self.every_seconds = every_seconds
        self._pending: list[tuple[Attempt, Note]] = []
        self._sending = asyncio.Lock()
        # Nothing is held, and the loop rests until something is.
        self.is_idle = False
        self.on_held: Callable[[], None] = lambda: None
        self.on_lost: Callable[[Attempt], None] = lambda attempt: None

    async def step(self) -> float | None:
        await self.carry(self._node.hold, with_phases=True)
        self.is_idle = len(self._node.hold) == 0
        return None if self.is_idle else self.every_seconds

    async def carry(self, attempts: Iterable[Attempt], *, with_phases: bool = False) -> None:
        """Send what these attempts have said. Raises when the store is away; nothing is forgotten then."""
        async with self._sending:
            notes = [(attempt, note) for attempt in attempts if (note := _taken_from(attempt, with_phases)) is not None]
            self._pending.extend(notes)
            del self._pending[:-_PENDING_MAX]
            while self._pending:
                await self._send_first()

    async def _send_first(self) -> None:
        """Send the oldest notes of one incarnation; they are forgotten once the store has answered."""
        node = self._pending[0][0].node
        sending = list(itertools.takewhile(lambda pending: pending[0].node == node, self._pending))
        lost = set(await self._node.store.note(self._node.app, node, [note for _, note in sending]))
        del self._pending[: len(sending)]
        for attempt, note in sending:
            if note.id in lost:
                self.on_lost(attempt)


def _taken_from(attempt: Attempt, with_phases: bool) -> Note | None:
    said = attempt.record.buffer
    if said is None:
        return None
    taken, phases = said.take(), said.take_phases() if with_phases else None
    if taken is None and phases is None:
        return None
    seq, lines, progress = taken if taken is not None else (0, (), None)
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
    """Keeps what a job says through `logging` with its run, bounded like everything else in its notebook.

    It listens where records are made, not as a handler: a handler on the root logger would silence the last resort of a
    program that has set up no logging, and make a later `basicConfig` do nothing. One for all engines of the process.
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
        # A factory that was put over ours keeps ours below it, where it only passes records on.
        if self._engines == 0 and logging.getLogRecordFactory() == self._listen:
            logging.setLogRecordFactory(self._make_record)

    def remove_all(self) -> None:
        """For engines that ended without a word, as killed ones do in a simulation."""
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
