"""A table of a file whose keys people choose: a job, a calendar, the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from evertick.config.interpolate import interpolated
from evertick.config.problem import Problems
from evertick.config.toml import Document
from evertick.driver.registry import spec_class

__all__ = ["Table"]

# Fields of a specification whose `${…}` belongs to somebody else: the shell reads it when the job runs.
_VERBATIM = {"shell": ("command", "stdin")}


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Where it stands, and what is in it as it was written."""

    document: Document
    path: tuple[str, ...]
    data: dict[str, Any]

    def place(self, *inner: str | int) -> str:
        return self.document.place((*self.path, *inner))

    def key(self, *inner: str | int) -> str:
        return ".".join(map(str, (*self.path, *inner)))

    def read(self, environ: Mapping[str, str], problems: Problems) -> dict[str, Any]:
        """What is in it, with what the environment has; but for what lacks a part of it, which is told."""
        refused = set()

        def refuse(path: tuple[str | int, ...], said: str) -> None:
            refused.add(path[0])
            problems.add(self.place(*path), self.key(*path), said)

        def replaced(path: tuple[str | int, ...], value: Any) -> Any:
            return value if _is_verbatim(path, value) else interpolated(value, environ, refuse, path)

        read = {name: self._each(name, value, replaced) for name, value in self.data.items()}
        return {name: value for name, value in read.items() if name not in refused}

    def _each(self, name: str, value: Any, replaced: Any) -> Any:
        if name in _VERBATIM and isinstance(value, dict):
            return {inner: replaced((name, inner), each) for inner, each in value.items()}
        return replaced((name,), value)


def _is_verbatim(path: tuple[str | int, ...], value: Any) -> bool:
    """Whether it is text that is left as it is."""
    kept = _VERBATIM.get(str(path[0]), ())
    if not kept or not isinstance(value, str):
        return False
    return (path[1] if len(path) > 1 else spec_class(str(path[0])).short) in kept
