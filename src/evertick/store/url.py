"""From a URL to a store: the scheme says which one.

SQLite is built in and found without a search, since looking through all installed packages would cost every start some
milliseconds. Other stores register themselves under the entry point group `evertick.stores`.
"""

from __future__ import annotations

from importlib import metadata

from evertick.clock import Clock
from evertick.errors import InvalidSetting
from evertick.store.base import OpensStore, Store

__all__ = ["open_store"]

_GROUP = "evertick.stores"
# Schemes of stores whose extra is perhaps not installed.
_EXTRAS = {"postgresql": "postgres", "postgres": "postgres"}


def open_store(url: str, *, clock: Clock, is_inline: bool = False) -> Store:
    """The store that a URL names, not opened yet."""
    return _opener(_scheme(url))(url, clock=clock, is_inline=is_inline)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidSetting("the URL of a store begins with its scheme, like sqlite:///jobs.db; this one has none")
    return scheme


def _opener(scheme: str) -> OpensStore:
    if scheme == "sqlite":
        from evertick.store.sqlite import SqliteStore

        return SqliteStore
    found = metadata.entry_points(group=_GROUP, name=scheme)
    if not found:
        raise InvalidSetting(_unknown(scheme))
    try:
        opener: OpensStore = next(iter(found)).load()
    except ImportError as error:
        raise InvalidSetting(f"the store for {scheme}:// cannot be loaded ({error}){_advice(scheme)}") from error
    return opener


def _unknown(scheme: str) -> str:
    known = sorted({"sqlite", *(entry.name for entry in metadata.entry_points(group=_GROUP))})
    return f"no store is known for the scheme {scheme!r}; known are {', '.join(known)}{_advice(scheme)}"


def _advice(scheme: str) -> str:
    extra = _EXTRAS.get(scheme)
    return "" if extra is None else f"; install it with: pip install 'evertick[{extra}]'"
