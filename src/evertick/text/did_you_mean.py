"""Suggestions for unknown names: "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["alike", "nearest"]

# The least share of common letters.
_ALIKE = 0.65


def alike(name: str, known: Iterable[str], share: float = _ALIKE) -> str | None:
    """The known name that is most similar, if it is similar enough."""
    return next(iter(get_close_matches(name, list(known), 1, share)), None)


def nearest(name: str, known: Iterable[str], *, what: str, also: Iterable[str] = ()) -> str:
    """The suggestion for an unknown name: a similar one of `known` or `also`, or else the list of `known`."""
    names = list(known)
    meant = alike(name, [*names, *also])
    return f"it is called {meant!r}" if meant else f"{what}: {', '.join(names)}"
