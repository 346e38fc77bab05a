"""Find the driver's connection inside wrappers of other libraries: pools, SQLAlchemy, Django.

Imports none of them: a wrapper is recognised by its attributes. Each store recognises the connection inside.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from evertick.errors import Refused

__all__ = ["begin_as_library", "closed_connection", "layers_of"]

# Session, its Connection, the pool's proxy, the driver's connection: no known wrapper has more layers.
_LAYERS_MOST = 5
_HARMLESS = "SELECT 1"


def closed_connection() -> Refused:
    return Refused("this connection is closed", fix="pass one that is open, in the transaction of your own changes")


def layers_of(given: object) -> Iterator[Any]:
    """The given object and the objects inside, from the outside in."""
    found: Any = given
    for _ in range(_LAYERS_MOST):
        yield found
        found = _one_layer_down(found)


def _one_layer_down(wrapper: Any) -> Any:
    _refuse_closed(wrapper)
    for name in ("driver_connection", "sync_connection"):
        if (below := getattr(wrapper, name, None)) is not None:
            return below
    if callable(ensure := getattr(wrapper, "ensure_connection", None)):
        # Django connects with its first statement.
        ensure()
    below = getattr(wrapper, "connection", None)
    # A Session has a method of that name; that of an AsyncSession is a coroutine function.
    if inspect.ismethod(below) and not inspect.iscoroutinefunction(below):
        return below()
    return below


def _refuse_closed(wrapper: Any) -> None:
    """A closed SQLAlchemy Connection has nothing inside, and would raise an error of its own."""
    is_connection = hasattr(wrapper, "exec_driver_sql") and not hasattr(wrapper, "sync_connection")
    if is_connection and wrapper.closed:
        raise closed_connection()


async def begin_as_library(given: object, *, is_begun: bool) -> None:
    """Let SQLAlchemy begin its transaction. `is_begun`: whether the driver's connection is in a transaction.

    SQLAlchemy begins with the first statement that it sees, but our statements bypass it: its commit would commit
    nothing, and our writes would be rolled back silently.
    """
    for layer in layers_of(given):
        if callable(execute := getattr(layer, "exec_driver_sql", None)):
            if not (is_begun and layer.in_transaction()):
                answer = execute(_HARMLESS)
                (await answer if inspect.isawaitable(answer) else answer).close()
            return
