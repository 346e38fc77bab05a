"""What runs in a child: find the function once, then carry out calls until there are no more.

One call at a time, on the main thread; a coroutine gets an event loop of its own for each call. The node says stop by a
message and a TERM that makes a busy child look for it. TERM alone stops nothing: a supervisor that tells every process
of a service to stop must not cut off the work that its node is still draining.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from evertick.clock import system_clock
from evertick.driver.error_text import error_text
from evertick.driver.place import Place, find, type_names
from evertick.driver.python.child_guard import importing_for
from evertick.driver.python.child_log import ChildProgressBuffer, LogCapture
from evertick.driver.python.message import (
    BadFrame,
    Call,
    Frames,
    FromChild,
    FromNode,
    JobRaised,
    JobReturned,
    NotFoundThere,
    Ready,
    Sends,
    StopJob,
    pack,
    unpack,
)
from evertick.errors import InvalidDuration, Retry, Skip
from evertick.job.arguments import Signature
from evertick.job.context import Context, JobRecord, current_context, record_of
from evertick.when.duration import duration_us

__all__ = ["ChildCall", "serve"]

_REASON_MAX_CHARS = 500
_CHUNK = 65_536


class ChildCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is there for."""

    task: str
    place: Place
    # Where the node keeps its ledger: what a job enqueues goes there, too.
    url: str
    calls_max: int
    log_level: int


def serve(channel: socket.socket, errand: bytes) -> None:
    Child(channel, msgspec.json.decode(errand, type=ChildCall)).serve()


class Child:
    """One child, from its first breath to its last call."""

    def __init__(self, channel: socket.socket, errand: ChildCall) -> None:
        self._channel = channel
        self._errand = errand
        self._frames = Frames()
        self._heard: deque[Call | StopJob] = deque()
        self._decoder = msgspec.json.Decoder(FromNode)
        self._sending = threading.RLock()
        self._capture = LogCapture()
        self._context: Context | None = None
        # Tells the coroutine that is at work to stop.
        self._cancel: Callable[[], object] | None = None

    def serve(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # Into a pipe Python would write in blocks, and a crash would lose the last one.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        logging.getLogger().setLevel(self._errand.log_level)
        try:
            function = self._find()
            signature = Signature(function, self._errand.task)
        except BaseException as error:
            self._send(NotFoundThere(error=_clean(error_text(error))))
            return
        self._capture.install()
        self._send(Ready())
        for call in self._calls():
            self._send(self._carry_out(function, signature, call))

    def _find(self) -> Callable[..., Any]:
        with importing_for(self._errand.task):
            found = find(self._errand.place)
        function: Callable[..., Any] = found._enter_child(self._errand.url) if hasattr(found, "_enter_child") else found
        return function

    def _calls(self) -> Iterator[Call]:
        for _ in range(self._errand.calls_max):
            message = self._receive()
            if not isinstance(message, Call) or self._heard:  # what follows a call at once is its stop
                return
            yield message

    def _carry_out(self, function: Callable[..., Any], signature: Signature, call: Call) -> FromChild:
        context = Context(JobRecord(call.run, system_clock, call.deadline))
        record_of(context).buffer = notebook = ChildProgressBuffer(self._send)
        current_context.set(context)
        self._context = self._capture.context = context
        signal.signal(signal.SIGTERM, self._heard_term)
        try:
            answer = self._answer(function, signature, context)
        finally:
            self._context = self._capture.context = self._cancel = None
        notebook.tell()
        if isinstance(answer, JobReturned):
            for message in record_of(context).messages:
                self._send(Sends(message))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the job has closed or replaced it
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
        if isinstance(result, _Raised):
            return self._raised(result.error, context)
        data = record_of(context).encode_result(result)
        return JobReturned(
            result=msgspec.Raw(b"null" if data is None else data),
            phases=record_of(context).phases,
        )

    def _await(self, work: Awaitable[Any], context: Context) -> Any:
        async def carry_out() -> Any:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None, "this is a coroutine"
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if record_of(context).stopped:
                task.cancel()
            try:
                return await work
            except BaseException as error:
                # Dispatched out as a value: the frames of asyncio that it would pass through tell nobody anything.
                return _Raised(error)

        return asyncio.run(carry_out())

    def _raised(self, error: BaseException, context: Context) -> JobRaised:
        text, after = error_text(error), None
        if isinstance(error, Retry) and error.after is not None:
            try:
                after = duration_us(error.after, what="Retry(after=…)")
            except InvalidDuration as invalid:  # the policy's delay holds
                text = f"{text}\n{invalid}"
        return JobRaised(
            text=_clean(text),
            types=type_names(type(error), self._errand.place),
            phases=record_of(context).phases,
            skip=_clean(str(error.reason)[:_REASON_MAX_CHARS]) if isinstance(error, Skip) else None,
            retry=_clean(str(error)[:_REASON_MAX_CHARS]) if isinstance(error, Retry) else None,
            retry_after=after,
        )

    # --- the channel

    def _heard_term(self, *_: object) -> None:
        """Between two steps of the job: has the node said stop, or died?"""
        context = self._context
        if context is None:
            return
        try:
            is_open = self._hear(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            is_open = False
        words = [each.why for each in self._heard if isinstance(each, StopJob)]
        if words or not is_open:
            record_of(context).stopped = words[0] if words else "its node has died"
            if self._cancel is not None:
                self._cancel()

    def _receive(self) -> Call | StopJob | None:
        """The next message; None when the node has closed the channel."""
        while not self._heard:
            try:
                is_open = self._hear()
            except ConnectionError:  # the node died in the middle of a word
                is_open = False
            if not is_open:
                return None
        return self._heard.popleft()

    def _hear(self, flags: int = 0) -> bool:
        """Take in what has come; False when nothing will come any more."""
        data = self._channel.recv(_CHUNK, flags)
        self._heard.extend(unpack(frame, self._decoder) for frame in self._frames.feed(data))
        return bool(data)

    def _send(self, message: FromChild) -> None:
        try:
            with self._sending:
                self._channel.sendall(pack(message))
        except OSError:  # the node is gone; the keeper sees to the rest
            return


class _Raised:
    """An error on its way out of an event loop."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _clean(text: str) -> str:
    """Text that JSON can hold."""
    return text.encode("utf-8", "replace").decode()
