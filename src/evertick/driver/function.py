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

from evertick.arguments import Signature
from evertick.context import Context, _current
from evertick.errors import InvalidSetting

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
        _current.set(context)
        positional = (context,) if self.signature.takes_context else ()
        if self.can_be_cancelled:
            coroutine: Awaitable[Any] = self._function(*positional, **arguments)
            return coroutine
        return self._threads.call(lambda: self._function(*positional, **arguments))


class Threads:
    """As many threads as there are calls at once, kept for the next call. The engine's slots bound their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._crew = _Crew()
        self.active = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread, with the context variables of the caller."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._submit(_Call(function, contextvars.copy_context(), loop, answer))
        # Shielded: a cancelled caller leaves the thread to itself, and its late answer must find a future to fall into.
        result = await asyncio.shield(answer)
        # A plain function around an async one (a decorator) only makes the coroutine; the work is still to be done.
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Let idle threads end; those that are busy end after their call. The next call hires a new crew."""
        with self._lock:
            crew, self._crew = self._crew, _Crew()
            for _ in range(crew.count):
                crew.calls.put(None)

    def _submit(self, call: _Call) -> None:
        with self._lock:
            self.active += 1
            crew = self._crew
            if crew.idle:
                crew.idle -= 1
            else:
                crew.count += 1
                name = f"evertick job {crew.count}"
                threading.Thread(target=self._serve, args=(crew,), name=name, daemon=True).start()
            crew.calls.put(call)

    def _serve(self, crew: _Crew) -> None:
        while (call := crew.calls.get()) is not None:
            call.make()
            with self._lock:
                self.active -= 1
                crew.idle += 1


class _Crew:
    """Threads that share a queue of calls, until they are let go together."""

    __slots__ = ("calls", "count", "idle")

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.count = 0
        self.idle = 0


class _Call:
    __slots__ = ("_answer", "_context", "_function", "_loop")

    def __init__(
        self,
        function: Callable[[], Any],
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[Any],
    ) -> None:
        self._function, self._context, self._loop, self._answer = function, context, loop, answer

    def make(self) -> None:
        try:
            result, error = self._context.run(self._function), None
        except BaseException as raised:
            result, error = None, raised
        try:
            self._loop.call_soon_threadsafe(self._settle, result, error)
        except RuntimeError:  # the loop has ended; an abandoned thread has nobody left to tell
            return

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses it
            self._answer.set_exception(RuntimeError("the job raised StopIteration"))
        else:
            self._answer.set_exception(error)
