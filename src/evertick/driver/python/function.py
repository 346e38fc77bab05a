"""Python functions as tasks: coroutines on the engine's own loop, plain functions in threads.

A thread cannot be stopped from outside. If its function does not look at `ctx.cancelled` it is abandoned: the ledger
goes on without it, its slot stays taken until it returns. The threads are daemons for that reason: an abandoned one
must not keep the process from ending.
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

__all__ = ["FunctionDriver", "Threads", "is_async", "refuse_generator"]


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call makes a coroutine; also of an object, whose call may be async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def refuse_generator(function: Callable[..., Any], what: str) -> None:
    """`what` the function was given as, with its name."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{what}: a generator does nothing until it is iterated; pass a function")


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
        # The run's task has a context of its own, so this reaches nothing else, and nothing has to be reset.
        current_context.set(context)
        positional = (context,) if self.signature.takes_context else ()
        if self.can_be_cancelled:
            coroutine: Awaitable[Any] = self._function(*positional, **arguments)
            return coroutine
        return self._threads.call(lambda: self._function(*positional, **arguments))


class Threads:
    """As many threads as there are calls at once, kept for the next call. The engine's slots bound their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group = _ThreadGroup()
        # Calls that have come back, by the event loop that waits for them and has been woken.
        self._back: dict[asyncio.AbstractEventLoop, list[_ThreadCall]] = {}
        self.active = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread, with the context variables of the caller.

        A cancelled caller leaves the thread to itself; its late answer is dropped.
        """
        loop = asyncio.get_running_loop()
        call = _ThreadCall(function, contextvars.copy_context(), loop, loop.create_future())
        self._submit(call)
        result = await call.answer
        # A plain function around an async one (a decorator) only makes the coroutine; the work is still to be done.
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Let idle threads end; those that are busy end after their call. The next call starts a new group."""
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
                self._bring_back(call)
            # The next call may be long in coming, and what this one has made may be large.
            del call

    def _bring_back(self, call: _ThreadCall) -> None:
        """One wake-up of the event loop for all that come back before it has looked."""
        waiting = self._back.setdefault(call.loop, [])
        waiting.append(call)
        if len(waiting) > 1 and not call.loop.is_closed():
            return
        try:
            call.loop.call_soon_threadsafe(self._settle, call.loop)
        except RuntimeError:  # the loop has ended; the answer of an abandoned thread is dropped
            del self._back[call.loop]

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            calls = self._back.pop(loop)
        for call in calls:
            call.settle()


class _ThreadGroup:
    """Threads that share a queue of calls, until they are let go together."""

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
        except BaseException as raised:
            self._error = raised

    def settle(self) -> None:
        """In the event loop."""
        if self.answer.done():
            return
        if self._error is None:
            self.answer.set_result(self._result)
        elif isinstance(self._error, StopIteration):  # a future refuses it
            self.answer.set_exception(RuntimeError("the job raised StopIteration"))
        else:
            self.answer.set_exception(self._error)
