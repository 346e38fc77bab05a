"""The location of a SQLite store, parsed from its URL. Opens nothing.

`sqlite:///jobs.db` is relative to the working directory, `sqlite:////var/lib/jobs.db` absolute, `sqlite://` in memory.
Parameters: `synchronous=full|normal`, `busy_timeout=5s`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from evertick.errors import InvalidDuration, InvalidSetting
from evertick.text.values import shown
from evertick.when.duration import duration_us

__all__ = ["Location", "location_of"]

# "read": read a file that other processes may write. "immutable": read a file that no process writes.
Access = Literal["write", "read", "immutable"]

_SCHEME = "sqlite://"
_SHAPE = "write sqlite:///relative.db, sqlite:////absolute.db, or sqlite:// for memory"
_PARAMETERS = ("synchronous", "busy_timeout")


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A file (None: in memory) and how to open it."""

    path: str | None
    synchronous: str = "FULL"
    busy_timeout_ms: int = 5_000
    access: Access = "write"

    @property
    def description(self) -> str:
        return "SQLite in memory" if self.path is None else f"SQLite file {self.path}"

    @property
    def is_read_only(self) -> bool:
        return self.access != "write"

    def uri(self, mode: str) -> str:
        """The URI for SQLite. `mode` applies if the file may be written."""
        assert self.path is not None
        how = {"write": f"mode={mode}", "read": "mode=ro", "immutable": "mode=ro&immutable=1"}[self.access]
        return f"{Path(self.path).absolute().as_uri()}?{how}"


def location_of(url: str) -> Location:
    address, _, query = url.partition("?")
    if not address.startswith(_SCHEME):
        raise InvalidSetting(f"{shown(url)} is no URL of a SQLite store", setting="url", fix=_SHAPE)
    path = unquote(address.removeprefix(_SCHEME))
    if path and (not path.startswith("/") or path == "/"):
        raise InvalidSetting(f"{shown(url)} names no file", setting="url", fix=_SHAPE)
    if path == "/:memory:":
        raise InvalidSetting(
            f"{shown(url)} names a file :memory:", setting="url", fix=f"write {_SCHEME} for a store in memory"
        )
    where = Location(path=path[1:] or None)
    for name, value in parse_qsl(query, keep_blank_values=True):
        where = _with_parameter(where, url, name, value)
    return where


def _with_parameter(where: Location, url: str, name: str, value: str) -> Location:
    match name:
        case "synchronous" if value.lower() in ("full", "normal"):
            return msgspec.structs.replace(where, synchronous=value.upper())
        case "synchronous":
            raise InvalidSetting(
                f"synchronous={shown(value)} in {shown(url)} is invalid", setting="url", fix="write full or normal"
            )
        case "busy_timeout":
            return msgspec.structs.replace(where, busy_timeout_ms=_milliseconds(url, value))
        case _:
            raise InvalidSetting(
                f"{shown(url)} has an unknown parameter {shown(name)}",
                setting="url",
                fix=f"known parameters are {', '.join(_PARAMETERS)}",
            )


def _milliseconds(url: str, value: str) -> int:
    try:
        return duration_us(value, what="busy_timeout") // 1000
    except InvalidDuration as error:
        raise InvalidSetting(f"{shown(url)}: {error.problem}", setting="url", fix=error.fix) from None
