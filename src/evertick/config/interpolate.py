"""References to the environment in the values of a file: `${NAME}`, `${NAME:-default}`; `$${` is a `${` of its own.

The default is taken where the variable is missing or empty, as a shell does. Without a default a missing variable is
refused: half a configuration is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evertick.config.place import Path

__all__ = ["has_reference", "interpolated", "references_in"]

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)
_SHOWN = 60

Refuse = Callable[[Path, str], None]


def has_reference(value: Any) -> bool:
    """Whether anything in it comes from the environment."""
    match value:
        case str():
            return any(found["inside"] is not None for found in _REFERENCE.finditer(value))
        case dict():
            return any(has_reference(each) for each in value.values())
        case list():
            return any(has_reference(each) for each in value)
        case _:
            return False


def references_in(value: Any) -> Iterator[str]:
    """The names of the variables that it refers to, also where a shell reads them when the job runs."""
    match value:
        case str():
            names = (_INSIDE.fullmatch(found["inside"] or "") for found in _REFERENCE.finditer(value))
            yield from (name["name"] for name in names if name is not None)
        case dict():
            for each in value.values():
                yield from references_in(each)
        case list():
            for each in value:
                yield from references_in(each)


def interpolated(value: Any, environ: Mapping[str, str], refuse: Refuse, path: Path = ()) -> Any:
    """The value with what the environment has, at any depth. What cannot be is told to `refuse`, with its path."""
    match value:
        case str():
            return _REFERENCE.sub(lambda found: _replaced(found, environ, refuse, path), value)
        case dict():
            return {name: interpolated(each, environ, refuse, (*path, name)) for name, each in value.items()}
        case list():
            return [interpolated(each, environ, refuse, (*path, number)) for number, each in enumerate(value)]
        case _:
            return value


def _replaced(found: re.Match[str], environ: Mapping[str, str], refuse: Refuse, path: Path) -> str:
    if found["inside"] is None:
        return "${"
    inside = _INSIDE.fullmatch(found["inside"])
    if inside is None or not found["end"]:
        refuse(
            path,
            f"{found[0][:_SHOWN]!r} is no reference to the environment; write ${{NAME}} or ${{NAME:-default}}, and "
            "$${ for a ${ that is meant as it stands",
        )
        return ""
    name, default = inside["name"], inside["default"]
    given = environ.get(name)
    if default is not None:
        return given or default.removeprefix(":-")
    if given is None:
        refuse(path, f"the environment has no {name}; set it, or write ${{{name}:-default}}")
        return ""
    return given
