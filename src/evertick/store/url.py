"""Select a store by the scheme of its URL.

SQLite and PostgreSQL are built in: a search through the entry points of all packages would cost every start some
milliseconds. Other stores register under the entry point group `evertick.stores`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertick.clock import Clock
from evertick.errors import InvalidSetting
from evertick.store.base import OpensStore, Store
from evertick.text.values import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["check_installed", "check_location", "open_store"]

_GROUP = "evertick.stores"
_POSTGRES = ("postgresql", "postgres")


def open_store(url: str, *, clock: Clock, is_inline: bool = False) -> Store:
    """The store of a URL, not opened yet."""
    return _opener(_scheme(url))(url, clock=clock, is_inline=is_inline)


def check_location(url: str) -> None:
    """Refuse an invalid URL where it is written, before the store is opened."""
    scheme = _scheme(url)
    if scheme == "sqlite":
        return
    if scheme not in _POSTGRES:
        _registered(scheme)
        return
    try:
        from evertick.store.postgres.location import location_of
    except ImportError:  # the driver is not installed; opening the store raises that error with its fix
        return
    location_of(url)


def check_installed(url: str) -> None:
    """Refuse a store whose packages are not installed, before it is opened."""
    _opener(_scheme(url))


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidSetting(
            "the URL of the store has no scheme", setting="url", fix="write a URL such as sqlite:///jobs.db"
        )
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
        raise InvalidSetting(f"the store for {scheme}:// cannot be loaded ({error})", setting="url") from error
    return opener


def _registered(scheme: str) -> EntryPoint:
    from importlib import metadata

    found = {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}
    if scheme not in found:
        plain, plus, driver = scheme.partition("+")
        if plus and plain in ("sqlite", *_POSTGRES):
            plain = "sqlite" if plain == "sqlite" else "postgresql"
            raise InvalidSetting(
                f"the scheme {shown(scheme)} names a driver ({driver}), but Evertick selects the driver itself",
                setting="url",
                fix=f"write {plain}://",
            )
        known = ", ".join(sorted({"sqlite", *_POSTGRES, *found}))
        raise InvalidSetting(
            f"no store is known for the scheme {shown(scheme)}", setting="url", fix=f"use one of {known}"
        )
    return found[scheme]


def _postgres(scheme: str) -> OpensStore:
    try:
        from evertick.store.postgres import PostgresStore
    except ImportError as error:
        raise InvalidSetting(
            f"the store for {scheme}:// cannot be loaded ({error})",
            setting="url",
            fix="install it with `pip install 'evertick[postgres]'`",
        ) from error
    return PostgresStore
