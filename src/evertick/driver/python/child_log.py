"""What a job in a child says: through its context, through `logging`.

Lines and phases leave at once: the last one before a crash is the one that explains it. Progress may be said in a tight
loop, so it leaves some times a second, and its last word always.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from evertick.clock import system_clock
from evertick.driver.python.message import Said
from evertick.job.context import Context, ProgressBuffer, record_of
from evertick.model import Phase

__all__ = ["ChildProgressBuffer", "LogCapture"]

_PROGRESS_SECONDS = 0.05


class ChildProgressBuffer(ProgressBuffer):
    """A notebook that tells everything to the node. Bounded as any other."""

    __slots__ = ("_process", "_send", "_telling", "_timer", "_told_at")

    def __init__(self, send: Callable[[Said], None]) -> None:
        super().__init__()
        self._send = send
        self._telling = threading.RLock()
        self._timer: threading.Timer | None = None
        self._told_at = 0.0
        self._process = os.getpid()

    def write(self, at: int, level: str, text: str) -> None:
        # What no JSON can hold (half a character, a name from the file system) must not cost the line.
        super().write(at, level, text.encode("utf-8", "replace").decode())
        self.tell()

    def set_progress(self, fraction: float, text: str) -> None:
        super().set_progress(fraction, text.encode("utf-8", "replace").decode())
        with self._telling:
            if system_clock.elapsed() - self._told_at >= _PROGRESS_SECONDS:
                self.tell()
            elif self._timer is None:
                self._timer = threading.Timer(_PROGRESS_SECONDS, self.tell)
                self._timer.daemon = True
                self._timer.start()

    def begin_phase(self, phase: Phase) -> int | None:
        place = super().begin_phase(_clean(phase))
        if place is not None:
            self.tell()
        return place

    def end_phase(self, place: int, phase: Phase) -> None:
        super().end_phase(place, _clean(phase))
        self.tell()

    def tell(self) -> None:
        """Send what has not been sent yet."""
        if os.getpid() != self._process:
            return  # a fork that the job has made; two voices on one channel would garble both
        with self._telling:
            self._timer = None
            self._told_at = system_clock.elapsed()
            taken, phases = self.take(), self.take_phases()
            if taken is not None or phases is not None:
                _, lines, progress = taken if taken is not None else (0, (), None)
                self._send(Said(lines=lines, progress=progress, phases=phases))


def _clean(phase: Phase) -> Phase:
    return msgspec.structs.replace(phase, name=phase.name.encode("utf-8", "replace").decode())


class LogCapture:
    """Keeps records of `logging` with the run, and from being kept a second time as a line of stderr."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self._process = os.getpid()
        self._make_record = logging.getLogRecordFactory()
        self._emit = logging.StreamHandler.emit

    def install(self) -> None:
        logging.setLogRecordFactory(self._listen)
        capture = self

        def emit(self: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
            is_kept = getattr(record, "_is_kept_by_evertick", False)
            if not (is_kept and self.stream in (sys.stdout, sys.stderr)):
                capture._emit(self, record)

        logging.StreamHandler.emit = emit  # type: ignore[assignment,method-assign]

    def _listen(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make_record(*args, **kwargs)
        context = self.context
        if context is not None and os.getpid() == self._process:
            record_of(context).log_record(record)
            record._is_kept_by_evertick = True
        return record
