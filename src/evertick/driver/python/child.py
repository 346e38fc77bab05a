"""The program of a child process: imports the function once, then runs one call after the other.

Calls run on the main thread; a coroutine gets a new event loop for each call. To stop a call, the node sends a message
and then TERM, which makes a busy child read the message. TERM alone does not stop a call: systemd may send it to every
process of a service while the node still waits for its jobs.

Log lines and phases are sent at once, because the last ones before a crash explain it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from evertick.clock import system_clock
from evertick.driver.python.child_import import import_function, importing_for, type_names
from evertick.driver.python.child_protocol import (
    BadFrame,
    Call,
    ChildCall,
    Frames,
    FromChild,
    FromNode,
    FunctionMissing,
    JobRaised,
    JobReturned,
    OutgoingMessage,
    Progress,
    Ready,
    StopJob,
    pack,
    unpack,
)
from evertick.errors import InvalidDuration, Retry, Skip
from evertick.job.arguments import Signature
from evertick.job.context import Context, JobRecord, ProgressBuffer, current_context, record_of
from evertick.model import Phase
from evertick.text.error_text import error_text
from evertick.when.duration import duration_us

__all__ = ["serve"]

_REASON_MAX_CHARS = 500
# The shortest time between two reports of progress.
_PROGRESS_SECONDS = 0.05
_CHUNK = 65_536


def serve(channel: socket.socket, child_call: object) -> None:
    Child(channel, msgspec.convert(child_call, ChildCall)).serve()


class Child:
    """One child, from its start to its last call."""

    def __init__(self, channel: socket.socket, child_call: ChildCall) -> None:
        self._channel = channel
        self._child_call = child_call
        self._frames = Frames()
        self._received: deque[Call | StopJob] = deque()
        self._decoder = msgspec.json.Decoder(FromNode)
        self._sending = threading.RLock()
        self._capture = _LogCapture()
        self._context: Context | None = None
        # Cancels the running coroutine.
        self._cancel: Callable[[], object] | None = None

    def serve(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # Python buffers output to a pipe in blocks, and a crash would lose the last one.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        logging.getLogger().setLevel(self._child_call.log_level)
        try:
            function = self._find()
            signature = Signature(function, self._child_call.task)
        except BaseException as error:
            self._send(FunctionMissing(error=_clean(error_text(error))))
            return
        self._capture.install()
        self._send(Ready())
        for call in self._calls():
            self._send(self._run(function, signature, call))

    def _find(self) -> Callable[..., Any]:
        with importing_for(self._child_call.task):
            target = import_function(self._child_call.location)
        # A task uses the store of its node.
        enter = getattr(target, "_enter_child", None)
        function: Callable[..., Any] = target if enter is None else enter(self._child_call.url)
        return function

    def _calls(self) -> Iterator[Call]:
        for _ in range(self._child_call.calls_max):
            message = self._receive()
            if not isinstance(message, Call) or self._received:  # a message that follows a call stops it
                return
            yield message

    def _run(self, function: Callable[..., Any], signature: Signature, call: Call) -> FromChild:
        context = Context(JobRecord(call.run, system_clock, call.deadline))
        record_of(context).buffer = buffer = _ProgressSender(self._send)
        current_context.set(context)
        self._context = self._capture.context = context
        signal.signal(signal.SIGTERM, self._on_term)
        try:
            answer = self._answer(function, signature, context)
        finally:
            self._context = self._capture.context = self._cancel = None
        buffer.flush()
        if isinstance(answer, JobReturned):
            for message in record_of(context).messages:
                self._send(OutgoingMessage(message))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the job may have closed or replaced it
                stream.flush()
        return answer

    def _answer(self, function: Callable[..., Any], signature: Signature, context: Context) -> FromChild:
        positional = (context,) if signature.takes_context else ()
        try:
            result = function(*positional, **signature.decode(record_of(context).run.args))
            if inspect.isawaitable(result):
                result = self._await(result, context)
        except BaseException as error:
            return self._raised(error, context)
        if isinstance(result, _JobError):
            return self._raised(result.error, context)
        data = record_of(context).encode_result(result)
        return JobReturned(
            result=msgspec.Raw(b"null" if data is None else data),
            phases=record_of(context).phases,
        )

    def _await(self, work: Awaitable[Any], context: Context) -> Any:
        async def run() -> Any:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None, "this is a coroutine"
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if record_of(context).stopped:
                task.cancel()
            try:
                return await work
            except BaseException as error:
                # Returned, because raising it would add frames of asyncio to its traceback.
                return _JobError(error)

        return asyncio.run(run())

    def _raised(self, error: BaseException, context: Context) -> JobRaised:
        text, after = error_text(error), None
        if isinstance(error, Retry) and error.after is not None:
            try:
                after = duration_us(error.after, what="Retry(after=…)")
            except InvalidDuration as invalid:  # the delay of the retry policy is used
                text = f"{text}\n{invalid}"
        return JobRaised(
            text=_clean(text),
            types=type_names(type(error), self._child_call.location),
            phases=record_of(context).phases,
            skip=_clean(str(error.reason)[:_REASON_MAX_CHARS]) if isinstance(error, Skip) else None,
            retry=_clean(str(error)[:_REASON_MAX_CHARS]) if isinstance(error, Retry) else None,
            retry_after=after,
        )

    # --- the channel

    def _on_term(self, *_: object) -> None:
        """Stop the call if the node has sent a stop, or has died."""
        context = self._context
        if context is None:
            return
        try:
            is_open = self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            is_open = False
        reasons = [each.why for each in self._received if isinstance(each, StopJob)]
        if reasons or not is_open:
            record_of(context).stopped = reasons[0] if reasons else "its node has died"
            if self._cancel is not None:
                self._cancel()

    def _receive(self) -> Call | StopJob | None:
        """The next message; None when the node has closed the channel."""
        while not self._received:
            try:
                is_open = self._read()
            except ConnectionError:  # the node died while it sent a message
                is_open = False
            if not is_open:
                return None
        return self._received.popleft()

    def _read(self, flags: int = 0) -> bool:
        """False at the end of the channel."""
        data = self._channel.recv(_CHUNK, flags)
        self._received.extend(unpack(frame, self._decoder) for frame in self._frames.feed(data))
        return bool(data)

    def _send(self, message: FromChild) -> None:
        try:
            with self._sending:
                self._channel.sendall(pack(message))
        except OSError:  # the node has died; the keeper ends this process
            return


class _JobError:
    """An error of a coroutine, returned out of its event loop."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _ProgressSender(ProgressBuffer):
    """A progress buffer that sends its content to the node."""

    __slots__ = ("_flushing", "_process", "_send", "_sent_at", "_timer")

    def __init__(self, send: Callable[[Progress], None]) -> None:
        super().__init__()
        self._send = send
        self._flushing = threading.RLock()
        self._timer: threading.Timer | None = None
        self._sent_at = 0.0
        self._process = os.getpid()

    def write(self, at: int, level: str, text: str) -> None:
        # Surrogates, as in file names that are not UTF-8, cannot be sent as JSON.
        super().write(at, level, _clean(text))
        self.flush()

    def set_progress(self, fraction: float, text: str) -> None:
        super().set_progress(fraction, _clean(text))
        with self._flushing:
            if system_clock.elapsed() - self._sent_at >= _PROGRESS_SECONDS:
                self.flush()
            elif self._timer is None:
                self._timer = threading.Timer(_PROGRESS_SECONDS, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def begin_phase(self, phase: Phase) -> int | None:
        place = super().begin_phase(msgspec.structs.replace(phase, name=_clean(phase.name)))
        if place is not None:
            self.flush()
        return place

    def end_phase(self, place: int, phase: Phase) -> None:
        super().end_phase(place, msgspec.structs.replace(phase, name=_clean(phase.name)))
        self.flush()

    def flush(self) -> None:
        """Send the unsent lines, progress and phases."""
        if os.getpid() != self._process:
            return  # a fork made by the job: two writers would corrupt the channel
        with self._flushing:
            self._timer = None
            self._sent_at = system_clock.elapsed()
            unsent, phases = self.take(), self.take_phases()
            if unsent is not None or phases is not None:
                _, lines, progress = unsent if unsent is not None else (0, (), None)
                self._send(Progress(lines=lines, progress=progress, phases=phases))


class _LogCapture:
    """Adds records of `logging` to the log of the run, and hides them from stderr, which would repeat them."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self._process = os.getpid()
        self._make_record = logging.getLogRecordFactory()
        self._emit = logging.StreamHandler.emit

    def install(self) -> None:
        logging.setLogRecordFactory(self._capture_record)
        capture = self

        def emit(self: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
            is_kept = getattr(record, "is_kept_by_evertick", False)
            if not (is_kept and self.stream in (sys.stdout, sys.stderr)):
                capture._emit(self, record)

        logging.StreamHandler.emit = emit  # type: ignore[assignment,method-assign]

    def _capture_record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make_record(*args, **kwargs)
        context = self.context
        if context is not None and os.getpid() == self._process:
            record_of(context).log_record(record)
            record.is_kept_by_evertick = True
        return record


def _clean(text: str) -> str:
    """The text with surrogates replaced, so that JSON can hold it."""
    return text.encode("utf-8", "replace").decode()
