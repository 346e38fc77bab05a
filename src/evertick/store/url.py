"""From a URL to a store: the scheme says which one.

SQLite and PostgreSQL are built in and found without a search, since looking through all installed packages (and
importing what looks) would cost every start some milliseconds. Other stores register under the entry point group
`evertick.stores`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertick.clock import Clock
from evertick.errors import InvalidSetting
from evertick.store.base import OpensStore, Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["check_installed", "check_location", "open_store"]

_GROUP = "evertick.stores"
_POSTGRES = ("postgresql", "postgres")


def open_store(url: str, *, clock: Clock, is_inline: bool = False) -> Store:
    """The store that a URL names, not opened yet."""
    return _opener(_scheme(url))(url, clock=clock, is_inline=is_inline)


def check_location(url: str) -> None:
    """Refuse what is wrong with the URL itself, where it is written and not only when the store is opened."""
    scheme = _scheme(url)
    if scheme == "sqlite":
        return
    if scheme not in _POSTGRES:
        _registered(scheme)
        return
    try:
        from evertick.store.postgres.location import location_of
    except ImportError:  # the driver is not installed, which the opening says with its fix
        return
    location_of(url)


def check_installed(url: str) -> None:
    """Refuse a store whose packages are not there, with what to install, before anything is opened."""
    _opener(_scheme(url))


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidSetting("the URL of a store begins with its scheme, like sqlite:///jobs.db; this one has none")
    return scheme


def _opener(scheme: str) -> OpensStore:
    if scheme == "sqlite":
        from evertick.store.sqlite import SqliteStore

        return SqliteStore
    if scheme in _POSTGRES:
        return _postgres(scheme)
    entry = _registered(scheme)
    try:
        opener: OpensStore = entry.load()
    except ImportError as error:
        raise InvalidSetting(f"the store for {scheme}:// cannot be loaded ({error})") from error
    return opener


def _registered(scheme: str) -> EntryPoint:
    from importlib import metadata

    found = {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}
    if scheme not in found:
        plain, plus, driver = scheme.partition("+")
        if plus and plain in ("sqlite", *_POSTGRES):
            plain = "sqlite" if plain == "sqlite" else "postgresql"
            raise InvalidSetting(
                f"the scheme {scheme!r} names a driver ({driver}), which Evertick chooses by itself; write {plain}://"
            )
        known = ", ".join(sorted({"sqlite", *_POSTGRES, *found}))
        raise InvalidSetting(f"no store is known for the scheme {scheme!r}; known are {known}")
    return found[scheme]


def _postgres(scheme: str) -> OpensStore:
    try:
        from evertick.store.postgres import PostgresStore
    except ImportError as error:
        raise InvalidSetting(
            f"the store for {scheme}:// cannot be loaded ({error}); install it with `pip install 'evertick[postgres]'`"
        ) from error
    return PostgresStore
