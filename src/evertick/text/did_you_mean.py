"""Which of the known names was meant by one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["alike", "nearest"]

# Two words that share fewer letters are not meant for each other.
_ALIKE = 0.65


def alike(name: str, known: Iterable[str], share: float = _ALIKE) -> str | None:
    """The one that was meant, if it shares so many letters with one of them."""
    return next(iter(get_close_matches(name, list(known), 1, share)), None)


def nearest(name: str, known: Iterable[str], *, what: str, also: Iterable[str] = ()) -> str:
    """What to say of a name that is not known: the one that was meant, or all there are, but for those in `also`."""
    names = list(known)
    meant = alike(name, [*names, *also])
    return f"it is called {meant!r}" if meant else f"{what}: {', '.join(names)}"
