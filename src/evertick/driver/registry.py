"""The kinds of drivers that are known here, and specifications from what people write in files.

The built-in ones are found without a search, as stores are. Others register the class of their specification under the
entry point group `evertick.drivers`, by the name of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec

from evertick.driver.spec import Spec
from evertick.driver.spec_errors import misfits
from evertick.errors import InvalidInput, InvalidSetting, InvalidSpec
from evertick.text.did_you_mean import alike
from evertick.text.redact import shown_value
from evertick.text.values import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "IN_PYTHON",
    "check_drivers",
    "check_spec",
    "connection_to",
    "known_drivers",
    "read_spec",
    "spec_class",
    "spec_from",
]

_GROUP = "evertick.drivers"
# Tasks of these are Python functions, and have no specification.
IN_PYTHON = ("function", "process")
_BUILT_IN = {
    "shell": "evertick.driver.shell.spec:Shell",
    "http": "evertick.driver.http.spec:Http",
    "redis": "evertick.driver.queue.spec:Redis",
    "nats": "evertick.driver.queue.spec:Nats",
}


# The checks of connections, in the module of the queues' specifications.
_CONNECTIONS = {"redis": "redis_connection", "nats": "nats_connection"}
# In place of a required field that is missing, so that the others can be checked.
_STAND_INS: tuple[str | int, ...] = ("x", 1)


def known_drivers() -> tuple[str, ...]:
    """The names of all drivers that are installed, the built-in ones first."""
    return (*IN_PYTHON, *_BUILT_IN, *sorted(_registered().keys() - {*IN_PYTHON, *_BUILT_IN}))


def check_drivers(names: Any) -> tuple[str, ...]:
    """The setting: which drivers a node runs."""
    if isinstance(names, str):
        raise InvalidSetting(
            f"drivers: {shown(names)} is one text; pass a list of names, e.g. drivers=[{shown(names)}]",
            setting="drivers",
        )
    if not isinstance(names, Sequence) or not names:
        problem = f"drivers: {shown(names)} must be a list of names, like {list(IN_PYTHON)}"
        raise InvalidSetting(problem, setting="drivers")
    for name in names:
        _check_known(name, "drivers")
    return tuple(dict.fromkeys(names))


def spec_class(name: str) -> type[Spec]:
    """The class of a driver's specifications."""
    _check_known(name, "driver")
    if name in IN_PYTHON:
        raise InvalidSetting(
            f"driver: {shown(name)} runs functions of a program; make such a task with @scheduler.task"
        )
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        found = _load(_registered()[name])
    if not isinstance(found, type) or not issubclass(found, Spec):
        raise InvalidSetting(
            f"driver: {shown(name)}: {found!r:.100} is no Spec; its entry point must name a class of one"
        )
    if getattr(found, "driver", None) != name:
        given = getattr(found, "driver", None)
        raise InvalidSetting(
            f"driver: {shown(name)}: its entry point names the Spec of the driver {given!r}; rename one"
        )
    return found


def spec_from(name: str, value: object) -> Spec:
    """A specification from what stands in a file: a table of its fields, or the value of its short form."""
    kind = spec_class(name)
    table = _table_of(kind, value)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError:
        raise InvalidSetting(f"{name}: {misfits(table, kind)[0]}") from None


def _table_of(kind: type[Spec], value: object) -> Mapping[str, Any]:
    """The fields by their names, also where one value stands for all of them."""
    if isinstance(value, Mapping):
        return value
    if kind.short is None:
        fields = ", ".join(kind.__struct_encode_fields__)
        raise InvalidSetting(f"{kind.driver}: {shown_value(value)} is no table; write its fields: {fields}")
    return {kind.short: value}


def read_spec(name: str, value: object, task: str) -> tuple[Spec | None, list[str]]:
    """The specification; or none, and all that is wrong, each sentence behind the path of its field.

    Types first, then the checks of the specification itself, made without the fields that have a wrong type.
    """
    kind = spec_class(name)
    table = _table_of(kind, value)
    wrong = misfits(table, kind)
    fitting = _Fitting(table, kind) if wrong else None
    try:
        made = msgspec.convert(table if fitting is None else fitting.kept, kind)
    except msgspec.ValidationError:
        # Nothing can stand in for what it must have.
        return None, wrong
    before = (f"task {task!r}: ", f"{name}: ")
    wrong += [_without(before, each) for each in _refused(made, task, fitting)]
    return None if wrong else made, wrong


def check_spec(task: str, spec: object) -> Spec:
    """A specification from code: a struct does not look at the types of what it is made with."""
    if not isinstance(spec, Spec):
        raise InvalidSetting(
            f"task {task!r}: {shown_value(spec)} is no specification; pass one like Shell('…'), or make a task of a "
            "function with @scheduler.task"
        )
    try:
        fields = msgspec.to_builtins(spec)
        msgspec.convert(fields, type(spec))
    except msgspec.ValidationError:
        raise InvalidSetting(f"task {task!r}: {spec.driver}: {misfits(fields, type(spec))[0]}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"task {task!r}: {spec.driver}: it must be plain data; {error}") from None
    spec.check(task)
    return spec


def connection_to(driver: str, where: object) -> object:
    """Settings or a URL, checked. Those of a third party's driver are passed on as they are."""
    if not isinstance(driver, str):
        raise InvalidSetting(f"driver: {driver!r} is no name of one; write it like connect('redis', 'redis://host')")
    if driver not in _CONNECTIONS:
        return where
    checked: object = getattr(import_module("evertick.driver.queue.spec"), _CONNECTIONS[driver])(where)
    return checked


def _check_known(name: object, what: str) -> None:
    if isinstance(name, str) and (name in IN_PYTHON or name in _BUILT_IN):
        return  # without looking through all that is installed
    known = known_drivers()
    if name not in known:
        near = alike(name, known) if isinstance(name, str) else None
        meant = f"; {near!r} is meant?" if near else ";"
        problem = f"{what}: no driver {shown(name)} is known here{meant} known are {', '.join(known)}"
        raise InvalidSetting(problem, setting=what)


def _registered() -> dict[str, EntryPoint]:
    from importlib import metadata

    return {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}


def _load(entry: EntryPoint) -> object:
    try:
        found: object = entry.load()
    except Exception as error:  # a third party's module may raise anything
        raise InvalidSetting(f"driver: {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error
    return found


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

    def is_relevant(self, fields: tuple[str, ...]) -> bool:
        """Whether an error about these fields is about the table, and not about a stand-in."""
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
        return [text for text, fields in wrong.problems.items() if fitting is None or fitting.is_relevant(fields)]
    except InvalidInput as wrong:
        # A check that stops at the first error does not name its fields.
        return [str(wrong)] if fitting is None else []
    return []


def _without(beginnings: tuple[str, ...], text: str) -> str:
    for each in beginnings:
        text = text.removeprefix(each)
    return text
