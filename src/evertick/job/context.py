"""The context of a running job: data about its run, and its progress, log lines and phases.

A job gets its `Context` as an annotated first parameter, or from `evertick.current()`. The engine, the drivers and the
worker use the `JobRecord` behind it. Progress, log lines and phases go to a buffer that the engine writes to the store
at intervals, so they never wait for the store and never fail the job. All of them are limited; a line in the log says
when the limit was reached.

The buffer is thread-safe: the job writes it in its thread while the engine reads it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from evertick.clock import Clock
from evertick.errors import InvalidInput, NotFound, Refused, Stopped
from evertick.job.transaction import Holder, Transaction, finish_within
from evertick.model import LINE_MAX_CHARS, LINES_MAX, Claimed, NewMessage, Phase
from evertick.model.message import new_message
from evertick.text.values import encode_data, shown
from evertick.when.duration import Duration
from evertick.when.moment import from_us

__all__ = [
    "LINES_MAX",
    "LINE_MAX_CHARS",
    "LOG_MAX_CHARS",
    "METADATA_MAX_BYTES",
    "PHASES_MAX",
    "Context",
    "JobRecord",
    "OpenPhase",
    "ProgressBuffer",
    "current",
    "current_context",
    "record_of",
]

LOG_MAX_CHARS = 256 * 1024
PHASES_MAX = 100
# Of one phase, as JSON.
METADATA_MAX_BYTES = 1024
RESULT_MAX_BYTES = 64 * 1024
# All messages are written in the transaction that ends the run.
MESSAGES_MAX = 1_000
MESSAGES_MAX_BYTES = 4 * 1024 * 1024
_TEXT_MAX = 500

NO_METADATA: Mapping[str, object] = MappingProxyType({})

_formatter = logging.Formatter()
_metadata = msgspec.json.Decoder(dict[str, Any])
current_context: ContextVar[Context] = ContextVar("evertick_context")
# Held while a buffer is made, because two threads of a job may log at once.
_buffer_lock = threading.Lock()


def current() -> Context:
    """The context of the current run."""
    try:
        return current_context.get()
    except LookupError:
        raise NotFound("there is no current run", fix="call evertick.current() only inside a job") from None


class Context(msgspec.Struct, eq=False, gc=False):
    """One attempt of a run, as the job sees it."""

    _record: JobRecord

    def __repr__(self) -> str:
        return f"<Context of run {self.run_id} of {self.task!r}>"

    @property
    def run_id(self) -> str:
        return self._record.run.id

    @property
    def schedule_key(self) -> str | None:
        """The schedule of this run; None for an enqueued task."""
        return self._record.run.schedule_key

    @property
    def task(self) -> str:
        return self._record.run.task

    @property
    def fire_at(self) -> datetime:
        """The nominal moment of this run, in UTC."""
        return from_us(self._record.run.fire_at)

    @property
    def due_at(self) -> datetime:
        """The planned start: the nominal moment plus jitter, or the time of a retry."""
        return from_us(self._record.run.due_at)

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._record.run.attempts + 1

    @property
    def fence(self) -> int:
        """The fencing token: it grows with every claim in the store, so a shared resource can reject older writers."""
        return self._record.run.fence

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out; None without a timeout."""
        return None if self._record.deadline is None else from_us(self._record.deadline)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self._record.run.labels)

    @property
    def cancelled(self) -> bool:
        """Whether this run was asked to stop. A function that runs in a thread must check it regularly.

        If it was True and the job returns, the run counts as stopped, not as succeeded.
        """
        is_stopped = bool(self._record.stopped)  # read once, because the engine may set it in another thread
        if is_stopped:
            self._record.has_seen_stop = True
        return is_stopped

    def check(self) -> None:
        """Raise `Stopped` if this run was asked to stop."""
        if self._record.stopped:
            raise Stopped(f"run {self.run_id} of {self.task!r} was asked to stop: {self._record.stopped}")

    def progress(self, fraction: float, text: str = "") -> None:
        """Report the progress of the work, from 0 to 1."""
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InvalidInput(
                f"progress: {shown(fraction)} is not a fraction",
                setting="fraction",
                value=shown(fraction),
                fix="pass a number from 0 to 1",
            )
        self._record.open_buffer().set_progress(float(fraction), str(text)[:_TEXT_MAX])

    def log(self, text: str, *, level: str = "info") -> None:
        """Add a line to the log of this run."""
        self._record.log(text, level=level)

    @contextlib.contextmanager
    def phase(self, name: str, metadata: Mapping[str, object] | None = None) -> Iterator[dict[str, object]]:
        """Time a named part of the work: `with ctx.phase("download"): ...`.

        metadata: a small JSON-like object that is stored with the phase, up to 1 KiB. The block gets a dict to add to:
        `with ctx.phase("download") as metadata: metadata["bytes"] = 512`.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidInput(
                f"phase {shown(str(name))}: metadata: {shown(metadata)} is not a mapping",
                setting="metadata",
                value=shown(metadata),
                fix="pass a dict",
            )
        phase = self._record.begin_phase(name, metadata or {})
        is_failed = True
        try:
            yield phase.metadata
            is_failed = False
        finally:
            phase.end(is_failed=is_failed)

    def finish(self, *, connection: object, result: object = None) -> Awaitable[None]:
        """End this run as succeeded inside your own transaction, as the last statement before its commit.

        connection: your connection to the database of the ledger, in a transaction. On a synchronous one the call
        itself writes the finish; on an async one, await it. Raises `Lost` if this claim no longer holds the run: then
        roll back.
        """
        return finish_within(self._record, connection, result)

    def transaction(self) -> Transaction:
        """A transaction on the database of the ledger that also ends this run.

        `with ctx.transaction() as conn:` in a function, `async with` in a coroutine. Leaving the block writes the
        finish and commits; an exception rolls back. To set a result, call `ctx.finish(connection=conn, result=...)`.
        """
        return Transaction(self._record)

    def send(
        self,
        channel: str,
        body: object,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Send a message when this run succeeds: `ctx.send("webhook", {"order": 7})`. Returns the id of the message.

        The message is written in the transaction that ends the run. If the job raises, is stopped or has lost its
        claim, nothing is sent. key: the idempotency key, default the id.
        """
        if self._record.job_finish:
            raise Refused(
                f"run {self.run_id} of {self.task!r} has already finished in its own transaction",
                fix="send its messages before that",
            )
        id_ = self._record.clock.new_id()
        message = new_message(id_, channel, body, key=key, delay=delay, headers=headers, caused_by=self.run_id)
        messages = self._record.open_buffer().messages
        size = len(message.body) + sum(len(each.body) for each in messages)
        if len(messages) >= MESSAGES_MAX or size > MESSAGES_MAX_BYTES:
            raise Refused(
                f"run {self.run_id} of {self.task!r} sends more than {MESSAGES_MAX} messages or {MESSAGES_MAX_BYTES} "
                "bytes",
                fix="send them from several runs",
            )
        messages.append(message)
        return id_


# For the engine and the drivers.
record_of: Callable[[Context], JobRecord] = attrgetter("_record")


class JobRecord(msgspec.Struct, eq=False, gc=False):
    """One attempt of a run, as the engine and the drivers see it."""

    run: Claimed
    clock: Clock
    deadline: int | None = None
    # None if the ledger is not accessible, as in a child process.
    holder: Holder | None = None
    # Made at the first line or report: most jobs have none.
    buffer: ProgressBuffer | None = None
    # The reason to stop; empty: do not stop.
    stopped: str = ""
    has_seen_stop: bool = False
    # Whether the job has finished its run itself. Written: the outcome of the commit is not known yet.
    job_finish: Literal["", "written", "committed"] = ""
    # The result of the run if `execute` raises: a driver sets it before.
    fallback_result: object = None

    def open_buffer(self) -> ProgressBuffer:
        if self.buffer is None:
            with _buffer_lock:
                if self.buffer is None:
                    self.buffer = ProgressBuffer()
        return self.buffer

    @property
    def phases(self) -> tuple[Phase, ...]:
        return () if self.buffer is None else tuple(self.buffer.phases)

    @property
    def messages(self) -> tuple[NewMessage, ...]:
        return () if self.buffer is None else tuple(self.buffer.messages)

    def begin_phase(self, name: str, metadata: Mapping[str, object] = NO_METADATA) -> OpenPhase:
        return OpenPhase(self, str(name)[:_TEXT_MAX], metadata)

    def log(self, text: str, *, level: str = "info") -> None:
        """Add a line to the log of the run."""
        self.open_buffer().write(self.clock.now_us(), level[:20], str(text))

    def log_record(self, record: logging.LogRecord) -> None:
        """Add a record of `logging` to the log of the run."""
        try:
            text = record.getMessage()
        except Exception:  # the arguments do not fit the format; logging reports that itself
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + _formatter.formatException(record.exc_info)
        self.log(text, level=record.levelname.lower())

    def encode_result(self, result: object) -> bytes | None:
        """The result as JSON. One that cannot be stored is dropped with a log line, because the work is done."""
        if result is None:
            return None
        try:
            data = encode_data(result, "the result", replaces_surrogates=True)
        except (TypeError, ValueError) as error:
            self.log(f"result dropped: it is not JSON-like data: {error}", level="warning")
            return None
        if len(data) > RESULT_MAX_BYTES:
            self.log(f"result dropped: it has {len(data)} bytes, more than {RESULT_MAX_BYTES}", level="warning")
            return None
        return data


class ProgressBuffer:
    """Progress, log lines and phases of one attempt that the engine has not written to the store yet."""

    __slots__ = (
        "_chars",
        "_count",
        "_has_new_phases",
        "_is_full",
        "_lines",
        "_lock",
        "_progress",
        "_seq",
        "messages",
        "phases",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[tuple[int, str, str]] = []
        self._seq = 0
        self._count = 0
        self._chars = 0
        self._is_full = False
        self._progress: tuple[float, str] | None = None
        # In the order of their start, open ones included.
        self.phases: list[Phase] = []
        self._has_new_phases = False
        # Sent with the end of the run.
        self.messages: list[NewMessage] = []

    def write(self, at: int, level: str, text: str) -> None:
        with self._lock:
            if self._is_full:
                return
            text = text if len(text) <= LINE_MAX_CHARS else text[:LINE_MAX_CHARS] + " … (line cut)"
            self._count += 1
            self._chars += len(text)
            if self._count > LINES_MAX or self._chars > LOG_MAX_CHARS:
                self._is_full = True
                text = f"log limit of the attempt reached ({LINES_MAX} lines, {LOG_MAX_CHARS} characters); rest dropped"
            self._lines.append((at, level, text))

    def set_progress(self, fraction: float, text: str) -> None:
        with self._lock:
            self._progress = (fraction, text)

    def begin_phase(self, phase: Phase) -> int | None:
        """The position of the phase for `end_phase`; None: there are too many phases."""
        with self._lock:
            if len(self.phases) >= PHASES_MAX:
                return None
            self.phases.append(phase)
            self._has_new_phases = True
            return len(self.phases) - 1

    def end_phase(self, place: int, phase: Phase) -> None:
        with self._lock:
            self.phases[place] = phase
            self._has_new_phases = True

    def set_phases(self, phases: Sequence[Phase]) -> None:
        """All phases of the attempt, as its child process reports them."""
        with self._lock:
            self.phases = list(phases[:PHASES_MAX])
            self._has_new_phases = True

    def take_phases(self) -> tuple[Phase, ...] | None:
        """All phases; None if nothing has changed since the last call."""
        with self._lock:
            if not self._has_new_phases:
                return None
            self._has_new_phases = False
            return tuple(self.phases)

    @property
    def has_news(self) -> bool:
        return bool(self._lines) or self._progress is not None

    def take(self) -> tuple[int, tuple[tuple[int, str, str], ...], tuple[float, str] | None] | None:
        """(number of the first line, lines, progress) since the last call; None if nothing is new."""
        with self._lock:
            if not self._lines and self._progress is None:
                return None
            unsent = self._seq, tuple(self._lines), self._progress
            self._seq += len(self._lines)
            self._lines, self._progress = [], None
            return unsent


class OpenPhase:
    """A running phase. `metadata` may be changed until its end."""

    __slots__ = ("_phase", "_place", "_record", "_start", "metadata")

    def __init__(self, record: JobRecord, name: str, metadata: Mapping[str, object]) -> None:
        self._record = record
        self.metadata = dict(metadata)
        self._phase = Phase(name=name, at=record.clock.now_us(), seconds=None)
        phase = msgspec.structs.replace(self._phase, metadata=self._checked()[0]) if metadata else self._phase
        self._place = record.open_buffer().begin_phase(phase)
        self._start = record.clock.elapsed()

    def end(self, *, is_failed: bool = False) -> None:
        """End the phase. Later calls do nothing."""
        place, self._place = self._place, None
        if place is None:
            return
        seconds = round(self._record.clock.elapsed() - self._start, 6)
        metadata, problem = self._checked() if self.metadata else ({}, "")
        if problem:
            self._record.log(f"phase {shown(self._phase.name)}: metadata dropped: {problem}", level="warning")
        phase = Phase(name=self._phase.name, at=self._phase.at, seconds=seconds, is_failed=is_failed, metadata=metadata)
        self._record.open_buffer().end_phase(place, phase)

    def _checked(self) -> tuple[dict[str, Any], str]:
        """The metadata as stored; empty with the problem if it cannot be stored, because the work must not fail."""
        try:
            data = encode_data(self.metadata, "metadata", replaces_surrogates=True)
            metadata = _metadata.decode(data)
        except (TypeError, ValueError) as error:
            return {}, f"it is not a JSON-like object: {error}"
        if len(data) > METADATA_MAX_BYTES:
            return {}, f"it has {len(data)} bytes, more than {METADATA_MAX_BYTES}"
        return metadata, ""
