"""Parameters by their numbers.

Our statements say `?1`, and many say it twice. Python takes such parameters in their order; only some releases of 3.12
hold the number for a name, and warn of a sequence as they do for names that later Pythons refuse. They are asked once,
and where it need not be the numbers are not given: they cost a dictionary for every statement.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterable
from typing import Any, cast

from evertick.store.sqlite.queries import SQL

__all__ = ["STORE_CONNECTION", "NumberedConnection", "by_number", "each_by_number", "numbered"]


def _wants_names() -> bool:
    db = sqlite3.connect(":memory:")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            db.execute("SELECT ?1", (0,))
    except (DeprecationWarning, sqlite3.Error):
        return True
    finally:
        db.close()
    return False


_WANTS_NAMES = _wants_names()
_OURS = frozenset(text for text in SQL.values() if "?1" in text)
_NAMES = tuple(map(str, range(1, 100)))


def by_number(sql: str, parameters: Any) -> Any:
    """As this Python wants the parameters of a statement of ours; those of others, and those that have their names
    already, stay as they are."""
    is_asked = _WANTS_NAMES and sql in _OURS and not isinstance(parameters, dict)
    return dict(zip(_NAMES, parameters, strict=False)) if is_asked else parameters


def each_by_number(sql: str, many: Iterable[Any]) -> Iterable[Any]:
    return (by_number(sql, each) for each in many) if _WANTS_NAMES and sql in _OURS else many


class NumberedConnection(sqlite3.Connection):
    """Takes the parameters of our statements in their order."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(sql, by_number(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, each_by_number(sql, parameters))


class _Numbered:
    """The same on a connection that somebody else has made."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return self._db.execute(sql, by_number(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return self._db.executemany(sql, each_by_number(sql, parameters))


def numbered(db: sqlite3.Connection) -> sqlite3.Connection:
    """A connection of the user's, for our statements."""
    return cast("sqlite3.Connection", _Numbered(db)) if _WANTS_NAMES else db


STORE_CONNECTION = NumberedConnection if _WANTS_NAMES else sqlite3.Connection
