"""What a job knows about its own run, and what it may say while it runs.

A job receives its `Context` as an annotated first parameter, or asks `evertick.current()`. The engine, the drivers and
the worker keep a `JobRecord` behind it. Progress, log lines and phases are put into a buffer that the engine carries to
the store from time to time: saying something never waits for the store and never fails the job. Everything is bounded:
a chatty job is cut off, with a line that says so.

Safe to use from the job's thread while the engine reads the buffer on its own.
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
from evertick.text.values import encode_data
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
# Of what is known of one phase, as JSON.
METADATA_MAX_BYTES = 1024
RESULT_MAX_BYTES = 64 * 1024
# They are written in one transaction with the end of the run.
MESSAGES_MAX = 1_000
MESSAGES_MAX_BYTES = 4 * 1024 * 1024
_TEXT_MAX = 500

NO_METADATA: Mapping[str, object] = MappingProxyType({})

_formatter = logging.Formatter()
_metadata = msgspec.json.Decoder(dict[str, Any])
current_context: ContextVar[Context] = ContextVar("evertick_context")
# Held while a buffer is made: a job may say its first words in two threads at once.
_first_word = threading.Lock()


def current() -> Context:
    """The context of the run that this code is part of."""
    try:
        return current_context.get()
    except LookupError:
        raise NotFound("there is no current run here; evertick.current() answers only inside a job") from None


class Context(msgspec.Struct, eq=False, gc=False):
    """One attempt at one run, as the job sees it."""

    _record: JobRecord

    def __repr__(self) -> str:
        return f"<Context of run {self.run_id} of {self.task!r}>"

    @property
    def run_id(self) -> str:
        return self._record.run.id

    @property
    def schedule_key(self) -> str | None:
        """The schedule this run belongs to; None for a task enqueued by hand."""
        return self._record.run.schedule_key

    @property
    def task(self) -> str:
        return self._record.run.task

    @property
    def fire_at(self) -> datetime:
        """The nominal moment this run is for, in UTC."""
        return from_us(self._record.run.fire_at)

    @property
    def due_at(self) -> datetime:
        """When it was to start: the nominal moment plus jitter, or the time of its retry."""
        return from_us(self._record.run.due_at)

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self._record.run.attempts + 1

    @property
    def fence(self) -> int:
        """Grows with every claim in the store: hand it to a shared resource to refuse an older holder's writes."""
        return self._record.run.fence

    @property
    def deadline(self) -> datetime | None:
        """When this attempt runs out of time; None without a timeout."""
        return None if self._record.deadline is None else from_us(self._record.deadline)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self._record.run.labels)

    @property
    def cancelled(self) -> bool:
        """Whether this run was asked to stop, for whatever reason. A plain function must look at it now and then.

        A job that has seen it True and returns counts as stopped, not as succeeded.
        """
        is_stopped = bool(self._record.stopped)  # read once: the engine may set it on another thread in between
        if is_stopped:
            self._record.has_seen_stop = True
        return is_stopped

    def check(self) -> None:
        """Raise `Stopped` if this run was asked to stop."""
        if self._record.stopped:
            raise Stopped(f"run {self.run_id} of {self.task!r} was asked to stop: {self._record.stopped}")

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the work is, from 0 to 1."""
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InvalidInput(f"progress: {fraction!r} is not a fraction; pass a number from 0 to 1")
        self._record.open_buffer().set_progress(float(fraction), str(text)[:_TEXT_MAX])

    def log(self, text: str, *, level: str = "info") -> None:
        """Keep a line with this run."""
        self._record.log(text, level=level)

    @contextlib.contextmanager
    def phase(self, name: str, metadata: Mapping[str, object] | None = None) -> Iterator[dict[str, object]]:
        """Time a named part of the work: `with ctx.phase("download"): ...`.

        metadata: a small JSON-like object that is kept with it, up to 1 KiB. What is known only later is put into the
        dict that the block gets: `with ctx.phase("download") as metadata: metadata["bytes"] = 512`.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidInput(f"phase {str(name)!r:.60}: metadata: {metadata!r:.60} is no mapping; pass a dict")
        phase = self._record.begin_phase(name, metadata or {})
        is_failed = True
        try:
            yield phase.metadata
            is_failed = False
        finally:
            phase.end(is_failed=is_failed)

    def finish(self, *, connection: object, result: object = None) -> Awaitable[None]:
        """End this run as succeeded inside a transaction of your own: the last statement before your commit.

        connection: yours, to the database of the ledger, in a transaction. On a plain one the finish is written by the
        call itself, and may be awaited or not; on an async one it is written when it is awaited.
        Raises `Lost` when this claim does not hold the run any more: roll back then.
        """
        return finish_within(self._record, connection, result)

    def transaction(self) -> Transaction:
        """A transaction on the database of the ledger, which ends this run with it.

        `with ctx.transaction() as conn:` in a plain function, `async with` in a coroutine. Leaving the block writes the
        finish and commits; raising in it rolls back. `ctx.finish(connection=conn, result=...)` in it gives a result.
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
        """Send a message with the end of this run: `ctx.send("webhook", {"order": 7})`. Answers the message's id.

        It is written in the transaction that ends the run, so it is sent if the job returns and that end is taken. A
        job that raises, is stopped or has lost its run sends nothing. key: the idempotency key, default the id.
        """
        if self._record.own_end:
            raise Refused(
                f"run {self.run_id} of {self.task!r} has finished already, in a transaction of its own; send its "
                "messages before that"
            )
        id_ = self._record.clock.new_id()
        message = new_message(id_, channel, body, key=key, delay=delay, headers=headers, caused_by=self.run_id)
        messages = self._record.open_buffer().messages
        size = len(message.body) + sum(len(each.body) for each in messages)
        if len(messages) >= MESSAGES_MAX or size > MESSAGES_MAX_BYTES:
            raise Refused(
                f"run {self.run_id} of {self.task!r} sends more than {MESSAGES_MAX} messages or {MESSAGES_MAX_BYTES} "
                "bytes; send them from several runs"
            )
        messages.append(message)
        return id_


# For the engine and the drivers.
record_of: Callable[[Context], JobRecord] = attrgetter("_record")


class JobRecord(msgspec.Struct, eq=False, gc=False):
    """One attempt at one run, as the engine and the drivers keep it."""

    run: Claimed
    clock: Clock
    deadline: int | None = None
    # None where the ledger is out of reach: in a child process.
    holder: Holder | None = None
    # Made when the job first says something: most say nothing.
    buffer: ProgressBuffer | None = None
    # Why the job is to stop; empty: it is not.
    stopped: str = ""
    has_seen_stop: bool = False
    # Whether the job has ended its run itself. Written: in a transaction whose commit only the store knows of.
    own_end: Literal["", "written", "committed"] = ""
    # What a driver knows of the attempt, if that does not come back with a result: the result of a run that ends so.
    kept_result: object = None

    def open_buffer(self) -> ProgressBuffer:
        if self.buffer is None:
            with _first_word:
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
        """Keep a line with this run."""
        self.open_buffer().write(self.clock.now_us(), level[:20], str(text))

    def log_record(self, record: logging.LogRecord) -> None:
        """Keep a record of `logging` with this run."""
        try:
            text = record.getMessage()
        except Exception:  # arguments that do not fit their format; logging itself complains about it
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + _formatter.formatException(record.exc_info)
        self.log(text, level=record.levelname.lower())

    def encode_result(self, result: object) -> bytes | None:
        """The result as JSON. One that cannot be kept does not undo the work: it is left out, and a line says so."""
        if result is None:
            return None
        try:
            data = encode_data(result, "the result", mends_halves=True)
        except (TypeError, ValueError) as error:
            self.log(f"the result is not kept: it is no JSON-like data: {error}", level="warning")
            return None
        if len(data) > RESULT_MAX_BYTES:
            text = f"the result is not kept: it takes {len(data)} bytes, more than {RESULT_MAX_BYTES}"
            self.log(text, level="warning")
            return None
        return data


class ProgressBuffer:
    """Words of one attempt that were not carried to the store yet."""

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
        # In the order in which they began; those that are not over, too.
        self.phases: list[Phase] = []
        self._has_new_phases = False
        # To be sent with the end of the run.
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
                text = f"the log of this attempt is full ({LINES_MAX} lines, {LOG_MAX_CHARS} characters); the rest goes"
            self._lines.append((at, level, text))

    def set_progress(self, fraction: float, text: str) -> None:
        with self._lock:
            self._progress = (fraction, text)

    def begin_phase(self, phase: Phase) -> int | None:
        """Its place, which `end_phase` takes; None where there is no room for it."""
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
        """All phases; None when nothing has changed since the last time."""
        with self._lock:
            if not self._has_new_phases:
                return None
            self._has_new_phases = False
            return tuple(self.phases)

    @property
    def has_news(self) -> bool:
        return bool(self._lines) or self._progress is not None

    def take(self) -> tuple[int, tuple[tuple[int, str, str], ...], tuple[float, str] | None] | None:
        """(number of the first line, lines, progress) since the last time; None when there is nothing new."""
        with self._lock:
            if not self._lines and self._progress is None:
                return None
            taken = self._seq, tuple(self._lines), self._progress
            self._seq += len(self._lines)
            self._lines, self._progress = [], None
            return taken


class OpenPhase:
    """A phase that has begun. `metadata` may be added to until its end."""

    __slots__ = ("_began", "_phase", "_place", "_record", "metadata")

    def __init__(self, record: JobRecord, name: str, metadata: Mapping[str, object]) -> None:
        self._record = record
        self.metadata = dict(metadata)
        self._phase = Phase(name=name, at=record.clock.now_us(), seconds=None)
        begun = msgspec.structs.replace(self._phase, metadata=self._kept()[0]) if metadata else self._phase
        self._place = record.open_buffer().begin_phase(begun)
        self._began = record.clock.elapsed()

    def end(self, *, is_failed: bool = False) -> None:
        """The first word counts."""
        place, self._place = self._place, None
        if place is None:
            return
        seconds = round(self._record.clock.elapsed() - self._began, 6)
        metadata, wrong = self._kept() if self.metadata else ({}, "")
        if wrong:
            text = f"the metadata of phase {self._phase.name!r:.60} is not kept: {wrong}"
            self._record.log(text, level="warning")
        ended = Phase(name=self._phase.name, at=self._phase.at, seconds=seconds, is_failed=is_failed, metadata=metadata)
        self._record.open_buffer().end_phase(place, ended)

    def _kept(self) -> tuple[dict[str, Any], str]:
        """The metadata as it is kept. What cannot be kept does not undo the work: it is left out, with the reason."""
        try:
            data = encode_data(self.metadata, "metadata", mends_halves=True)
            kept = _metadata.decode(data)
        except (TypeError, ValueError) as error:
            return {}, f"it is no JSON-like object: {error}"
        if len(data) > METADATA_MAX_BYTES:
            return {}, f"it takes {len(data)} bytes, more than {METADATA_MAX_BYTES}"
        return kept, ""
