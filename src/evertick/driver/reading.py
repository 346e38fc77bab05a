"""A specification from what stands in a file, or all that is wrong with that, in one round.

Types first, then what the specification itself refuses. What has a wrong type keeps the rest from nothing: that is
checked without it. What is said then of something that was left out, or by comparison with it, does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from evertick.driver.registry import spec_class, table_of
from evertick.driver.spec import Spec
from evertick.driver.spec_errors import misfits
from evertick.errors import InvalidInput, InvalidSpec

__all__ = ["read_spec"]

# In place of a field that must be there and is not, so that the others can be checked.
_STAND_INS: tuple[str | int, ...] = ("x", 1)


def read_spec(name: str, value: object, task: str) -> tuple[Spec | None, list[str]]:
    """The specification; or none, and what is wrong, each sentence behind the path of its field."""
    kind = spec_class(name)
    table = table_of(kind, value)
    said = misfits(table, kind)
    fitting = _Fitting(table, kind) if said else None
    try:
        made = msgspec.convert(table if fitting is None else fitting.kept, kind)
    except msgspec.ValidationError:
        # Nothing can stand in for what it must have.
        return None, said
    before = (f"task {task!r}: ", f"{name}: ")
    said += [_without(before, each) for each in _refused(made, task, fitting)]
    return None if said else made, said


class _Fitting:
    """As much of a table as fits."""

    def __init__(self, table: Mapping[str, Any], kind: type[Spec]) -> None:
        self.kept: dict[str, Any] = {}
        # Fields that are not as the table has them, and those of which a part is missing.
        self._left_out: set[str] = set()
        self._partial: set[str] = set()
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if name in table:
                self._keep(name, table[name], field.type)
            if field.required and name not in self.kept:
                self.kept |= _stand_in(name, field.type)
                self._left_out.add(name)

    def _keep(self, name: str, value: Any, kind: Any) -> None:
        entries = _kind_of_entries(kind)
        if not misfits(value, kind):
            self.kept[name] = value
        elif isinstance(value, Mapping) and entries is not None:
            self.kept[name] = {key: each for key, each in value.items() if not misfits(each, entries)}
            self._partial.add(name)
        else:
            self._left_out.add(name)

    def is_told(self, fields: tuple[str, ...]) -> bool:
        """Whether what is said of these fields is said of what the table has."""
        is_compared = len(fields) > 1
        return not self._left_out & {*fields} and not (is_compared and self._partial & {*fields})


def _kind_of_entries(kind: Any) -> Any:
    """Of a table whose keys people choose, like the environment of a command."""
    origin = get_origin(kind)
    return get_args(kind)[1] if isinstance(origin, type) and issubclass(origin, Mapping) else None


def _stand_in(name: str, kind: Any) -> dict[str, Any]:
    possible = get_args(kind) or (kind,)
    return next(({name: each} for each in _STAND_INS if type(each) in possible), {})


def _refused(spec: Spec, task: str, fitting: _Fitting | None) -> list[str]:
    try:
        spec.check(task)
    except InvalidSpec as wrong:
        return [said for said, fields in wrong.problems.items() if fitting is None or fitting.is_told(fields)]
    except InvalidInput as wrong:
        # Of a check that stops at the first, it cannot be told what it goes by.
        return [str(wrong)] if fitting is None else []
    return []


def _without(beginnings: tuple[str, ...], said: str) -> str:
    for each in beginnings:
        said = said.removeprefix(each)
    return said
