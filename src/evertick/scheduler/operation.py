"""Operations as methods: of the scheduler (`pause = operation(schedules.pause)`) and of its `sync` (`sync_method`).

A method has the keywords, the docstring and the type of its function, without the context. The `runtime` of the object
makes the context, and opens the store on first use. Arguments that do not fit raise where the call is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from evertick.aio.unawaited import logging_unawaited
from evertick.operations.backfills import Backfill, BackfillStep
from evertick.operations.context import Context, ContextSource, refuse_wrong_call

if TYPE_CHECKING:
    from evertick.scheduler.runtime import Runtime

__all__ = ["call", "lazy", "operation", "sync_backfill", "sync_method"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Method(Protocol[P, R_co]):
    """A function as an attribute of a class, for type checkers: `self` is bound, all else is kept."""

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...


class HasRuntime(Protocol):
    runtime: Runtime


def operation(
    function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
) -> Method[P, Coroutine[Any, Any, R]]:
    """The async method of an operation."""

    def method(self: HasRuntime, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return call(self, function, *args, **kwargs)

    return cast("Method[P, Coroutine[Any, Any, R]]", logging_unawaited(_like(function, method)))


def call(
    scheduler: HasRuntime,
    function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Coroutine[Any, Any, R]:
    """Call an operation in the context of a scheduler, also one without a method: `call(scheduler, store_time)`."""
    refuse_wrong_call(function, *args, **kwargs)
    return scheduler.runtime.in_context(lambda context: function(context, *args, **kwargs))


def sync_method(function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]) -> Method[P, R]:
    """The blocking method of an operation. With a connection of the user it works in the user's thread."""
    what = f"scheduler.sync.{function.__name__}()"

    def method(self: HasRuntime, *args: P.args, **kwargs: P.kwargs) -> R:
        refuse_wrong_call(function, *args, **kwargs)
        return self.runtime.call_sync(
            lambda context: function(context, *args, **kwargs), what, connection=kwargs.get("connection")
        )

    return cast("Method[P, R]", _like(function, method))


def lazy(function: Callable[Concatenate[ContextSource, P], R]) -> Method[P, R]:
    """The method of an operation that starts when its result is awaited or iterated."""

    def method(self: HasRuntime, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(self.runtime, *args, **kwargs)

    return cast("Method[P, R]", _like(function, method))


def sync_backfill(function: Callable[Concatenate[ContextSource, P], Backfill]) -> Method[P, BackfillStep]:
    """The blocking method of a backfill: it returns at the end."""

    def method(self: HasRuntime, *args: P.args, **kwargs: P.kwargs) -> BackfillStep:
        runtime = self.runtime
        return runtime.portal.call(
            lambda: function(runtime, *args, **kwargs).to_the_end(), f"scheduler.sync.{function.__name__}()"
        )

    return cast("Method[P, BackfillStep]", _like(function, method))


def _like(function: Callable[..., Any], method: Callable[..., R]) -> Callable[..., R]:
    functools.update_wrapper(method, function)
    given = function.__annotations__
    method.__annotations__ = {name: given[name] for name in given if name not in ("context", "source")}
    return method
