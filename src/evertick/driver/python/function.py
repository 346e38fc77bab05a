"""Python functions as tasks: coroutines on the engine's event loop, other functions in threads.

A thread cannot be stopped from outside. If its function ignores `ctx.cancelled`, it is abandoned: its run ends in the
ledger, and its slot stays taken until it returns. Threads are daemon threads, so that an abandoned one does not keep
the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from evertick.errors import InvalidSetting
from evertick.job.arguments import Signature
from evertick.job.context import Context, current_context
from evertick.text.values import shown

__all__ = ["FunctionDriver", "Threads", "is_async", "refuse_generator"]


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine: a coroutine function, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def refuse_generator(function: Callable[..., Any], what: str) -> None:
    """`what`: the subject of the error, like "task 'report'"."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(
            f"{what}: {shown(function)} is a generator function, which does nothing when it is called",
            value=shown(function),
            fix="pass a function without yield",
        )


class FunctionDriver:
    """Calls one function."""

    name = "function"
    kill_after = 0

    def __init__(self, function: Callable[..., Any], task: str, threads: Threads) -> None:
        self.signature = Signature(function, task)
        refuse_generator(function, f"task {task!r}")
        self.can_be_cancelled = is_async(function)
        self._function = function
        self._threads = threads

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self.signature.decode(args)

    def execute(self, context: Context, arguments: dict[str, Any]) -> Awaitable[Any]:
        # Each run is an asyncio task with its own context variables, so nothing has to be reset.
        current_context.set(context)
        positional = (context,) if self.signature.takes_context else ()
        if self.can_be_cancelled:
            coroutine: Awaitable[Any] = self._function(*positional, **arguments)
            return coroutine
        return self._threads.call(lambda: self._function(*positional, **arguments))


class Threads:
    """A thread for each concurrent call, reused by later calls. The slots of the engine limit their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group = _ThreadGroup()
        # Ended calls by the event loop that waits for them; the loop has been woken.
        self._ended: dict[asyncio.AbstractEventLoop, list[_ThreadCall]] = {}
        self.active = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread, with the context variables of the caller.

        If the caller is cancelled, the thread continues and its result is dropped.
        """
        loop = asyncio.get_running_loop()
        call = _ThreadCall(function, contextvars.copy_context(), loop, loop.create_future())
        self._submit(call)
        result = await call.answer
        # A synchronous decorator around a coroutine function returns its coroutine.
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """End idle threads now and busy ones after their call. The next call starts a new group."""
        with self._lock:
            group, self._group = self._group, _ThreadGroup()
            for _ in range(group.count):
                group.calls.put(None)

    def _submit(self, call: _ThreadCall) -> None:
        with self._lock:
            self.active += 1
            group = self._group
            if group.idle:
                group.idle -= 1
            else:
                group.count += 1
                name = f"evertick job {group.count}"
                threading.Thread(target=self._serve, args=(group,), name=name, daemon=True).start()
            group.calls.put(call)

    def _serve(self, group: _ThreadGroup) -> None:
        while (call := group.calls.get()) is not None:
            call.make()
            with self._lock:
                self.active -= 1
                group.idle += 1
                self._report(call)
            # Frees the result now: the thread may wait long for its next call.
            del call

    def _report(self, call: _ThreadCall) -> None:
        """Wake the event loop once for all calls that end before it runs."""
        ended = self._ended.setdefault(call.loop, [])
        ended.append(call)
        if len(ended) > 1 and not call.loop.is_closed():
            return
        try:
            call.loop.call_soon_threadsafe(self._settle, call.loop)
        except RuntimeError:  # the loop is closed; the result of an abandoned thread is dropped
            del self._ended[call.loop]

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            calls = self._ended.pop(loop)
        for call in calls:
            call.settle()


class _ThreadGroup:
    """Threads that share a queue of calls and are closed together."""

    __slots__ = ("calls", "count", "idle")

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_ThreadCall | None] = queue.SimpleQueue()
        self.count = 0
        self.idle = 0


class _ThreadCall:
    __slots__ = ("_context", "_error", "_function", "_result", "answer", "loop")

    def __init__(
        self,
        function: Callable[[], Any],
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[Any],
    ) -> None:
        self._function, self._context, self.loop, self.answer = function, context, loop, answer
        self._result: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        """In the thread."""
        try:
            self._result = self._context.run(self._function)
        except BaseException as error:
            self._error = error

    def settle(self) -> None:
        """In the event loop."""
        if self.answer.done():
            return
        if self._error is None:
            self.answer.set_result(self._result)
        elif isinstance(self._error, StopIteration):  # a future rejects it
            self.answer.set_exception(RuntimeError("the job raised StopIteration"))
        else:
            self.answer.set_exception(self._error)
