"""Logs an error for async calls that were not awaited.

Python only warns about a dropped coroutine, without the line of the call or the fix. These calls log an error with
both. For asyncio they are coroutines: `asyncio.run`, `create_task` and `gather` take them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Generator
from types import CodeType, FrameType
from typing import Any, Never, Protocol, TypeVar

__all__ = ["AwaitedCall", "Owner", "log_unawaited", "logging_unawaited", "logs_unawaited_calls"]

log = logging.getLogger("evertick")

_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Owner(Protocol):
    """An object with async methods, and their blocking forms in its `sync`."""

    # How a program writes the object, such as "scheduler".
    written: str


class AwaitedCall(Coroutine[Any, Any, T]):
    """A coroutine and the place of its call."""

    __slots__ = ("__weakref__", "_code", "_coroutine", "_instruction", "_is_begun", "_name", "_owner")

    def __init__(self, coroutine: Coroutine[Any, Any, T], owner: Owner | str, name: str, frame: FrameType) -> None:
        self._is_begun = False
        self._coroutine = coroutine
        self._owner, self._name = owner, name
        # Not the frame, which would keep the variables of the caller alive. The line is looked up only if needed.
        self._code, self._instruction = frame.f_code, frame.f_lasti

    def __await__(self) -> Generator[Any, Any, T]:
        self._is_begun = True
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        self._is_begun = True
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._is_begun = True
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._is_begun = True
        self._coroutine.close()

    def __call__(self, *args: object, **kwargs: object) -> Never:
        """For `@scheduler.schedule("every 5m")`: an operation is not a decorator."""
        self.close()
        written = _written(self._owner)
        raise TypeError(
            f"{written}.{self._name}(...) is not a decorator, and its result is not a function; await it, or decorate "
            f"with @{written}.every, .cron, .once, .when or .task"
        )

    def __getattr__(self, name: str) -> Any:
        """For asyncio and debuggers: `cr_frame`, `__qualname__` and the like."""
        return getattr(self._coroutine, name)

    def __repr__(self) -> str:
        return repr(self._coroutine)

    def __del__(self) -> None:
        if not self._is_begun:
            self._coroutine.close()  # otherwise Python warns as well
            log_unawaited(self._owner, self._name, self._code, self._instruction)


def logs_unawaited_calls(kind: C) -> C:
    """Class decorator: the public async methods log calls that were not awaited."""
    for name, function in list(vars(kind).items()):
        # Operations do this themselves, and are not coroutine functions for Python.
        if not name.startswith("_") and inspect.isfunction(function) and function.__code__.co_flags & _ASYNC:
            setattr(kind, name, logging_unawaited(function))
    return kind


def logging_unawaited(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., AwaitedCall[T]]:
    """The same for one method; `function` makes the coroutine."""
    getframe, name = sys._getframe, function.__name__

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> AwaitedCall[T]:
        return AwaitedCall(function(self, *args, **kwargs), self, name, getframe(1))

    # Web frameworks check whether they have to await it.
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    call._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return call


def log_unawaited(owner: Owner | str, name: str, code: CodeType, instruction: int) -> None:
    """Log the place of the call and how to write it. `owner`: a text if there is no `sync`."""
    written = _written(owner)
    call, awaited = f"{written}.{name}(...)", f"`await {written}.{name}(...)`"
    is_async = bool(code.co_flags & _ASYNC)
    fix = awaited if is_async or isinstance(owner, str) else f"`{written}.sync.{name}(...)`, or {awaited} in async code"
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    log.error("%s:%s: %s was not awaited and did nothing; write %s", code.co_filename, line, call, fix)


def _written(owner: Owner | str) -> str:
    return owner if isinstance(owner, str) else owner.written
