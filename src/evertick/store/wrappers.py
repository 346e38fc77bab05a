"""Connections inside of the wrappers that other libraries put around them: pools, SQLAlchemy, Django.

Nothing is imported for it: wrappers are known by what they offer. Each store recognises what is inside.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from evertick.errors import Refused

__all__ = ["CLOSED", "begin_as_library", "layers_of"]

# Session, its Connection, the pool's proxy, the driver's own: no wrapper in use has more layers.
_LAYERS_MOST = 5
CLOSED = "this connection is closed; pass one that is open, in the transaction of your own changes"
_HARMLESS = "SELECT 1"


def layers_of(given: object) -> Iterator[Any]:
    """The given object and its insides, one layer after the other."""
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
        # Django connects with the first statement that it sees.
        ensure()
    below = getattr(wrapper, "connection", None)
    # A Session has a method of that name. One that must be awaited is an AsyncSession's.
    if inspect.ismethod(below) and not inspect.iscoroutinefunction(below):
        return below()
    return below


def _refuse_closed(wrapper: Any) -> None:
    """A closed Connection of SQLAlchemy has nothing inside, and says so in an error of its own."""
    is_connection = hasattr(wrapper, "exec_driver_sql") and not hasattr(wrapper, "sync_connection")
    if is_connection and wrapper.closed:
        raise Refused(CLOSED)


async def begin_as_library(given: object, *, is_begun: bool) -> None:
    """Let SQLAlchemy begin its transaction, if it has not. `is_begun`: whether the driver's own connection is in one.

    SQLAlchemy begins with the first statement that it sees, and ours pass it by: its commit would be one of nothing,
    and what we wrote would be rolled back without a word.
    """
    for layer in layers_of(given):
        if callable(execute := getattr(layer, "exec_driver_sql", None)):
            if not (is_begun and layer.in_transaction()):
                answer = execute(_HARMLESS)
                (await answer if inspect.isawaitable(answer) else answer).close()
            return
