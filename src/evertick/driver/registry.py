"""The installed drivers, and specifications read from configuration files or code.

Built-in drivers are found without a search. Third-party drivers register their `Spec` class under their name in the
entry point group `evertick.drivers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec

from evertick.driver.spec import Spec
from evertick.driver.spec_errors import spec_type_errors
from evertick.errors import InvalidInput, InvalidSetting, InvalidSpec, SpecProblem
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
# Their tasks are Python functions and have no specification.
IN_PYTHON = ("function", "process")
_BUILT_IN = {
    "shell": "evertick.driver.shell.spec:Shell",
    "http": "evertick.driver.http.spec:Http",
    "redis": "evertick.driver.queue.spec:Redis",
    "nats": "evertick.driver.queue.spec:Nats",
}
# Functions of queue/spec.py that check a connection.
_CONNECTIONS = {"redis": "redis_connection", "nats": "nats_connection"}
# Placeholders for a missing required field, so that the other fields can be checked.
_PLACEHOLDERS: tuple[str | int, ...] = ("x", 1)


def known_drivers() -> tuple[str, ...]:
    """The names of all installed drivers, built-in ones first."""
    return (*IN_PYTHON, *_BUILT_IN, *sorted(_registered().keys() - {*IN_PYTHON, *_BUILT_IN}))


def check_drivers(names: Any) -> tuple[str, ...]:
    """Check the setting `drivers` of a node."""
    if isinstance(names, str):
        raise InvalidSetting(
            f"drivers: {shown(names)} is text, not a list",
            setting="drivers",
            value=shown(names),
            fix=f"pass a list of names, e.g. drivers=[{shown(names)}]",
        )
    if not isinstance(names, Sequence) or not names:
        raise InvalidSetting(
            f"drivers: {shown(names)} is not a list of driver names",
            setting="drivers",
            value=shown(names),
            fix=f"pass a list like {list(IN_PYTHON)}",
        )
    for name in names:
        _check_known(name, "drivers")
    return tuple(dict.fromkeys(names))


def spec_class(name: str) -> type[Spec]:
    """The class of a driver's specifications."""
    _check_known(name, "driver")
    if name in IN_PYTHON:
        raise InvalidSetting(
            f"driver: {shown(name)} calls Python functions and has no specification",
            setting="driver",
            value=shown(name),
            fix="declare its tasks with @scheduler.task",
        )
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        found = _load(_registered()[name])
    if not isinstance(found, type) or not issubclass(found, Spec):
        raise InvalidSetting(
            f"driver: {shown(name)}: its entry point names {shown(found)}, which is not a Spec class",
            setting="driver",
            value=shown(name),
            fix="name a subclass of evertick.driver.spec.Spec",
        )
    declared = getattr(found, "driver", None)
    if declared != name:
        raise InvalidSetting(
            f"driver: {shown(name)}: its entry point names the Spec of driver {shown(declared)}",
            setting="driver",
            value=shown(name),
            fix="give the entry point and the Spec the same name",
        )
    return found


def spec_from(name: str, value: object) -> Spec:
    """Make a specification from a table of its fields, or from the value of its short form."""
    kind = spec_class(name)
    table = _table_of(kind, value)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError:
        raise InvalidSetting(f"{name}: {spec_type_errors(table, kind)[0].text}", setting=name) from None


def _table_of(kind: type[Spec], value: object) -> Mapping[str, Any]:
    """The fields by name, also if a single value is given for the short field."""
    if isinstance(value, Mapping):
        return value
    if kind.short is None:
        fields = ", ".join(kind.__struct_encode_fields__)
        raise InvalidSetting(
            f"{kind.driver}: {shown_value(value)} is not a table",
            setting=kind.driver,
            value=shown_value(value),
            fix=f"write a table with its fields: {fields}",
        )
    return {kind.short: value}


def read_spec(name: str, value: object, task: str) -> tuple[Spec | None, list[SpecProblem]]:
    """Return the specification, or None and all problems.

    Types are checked first. The checks of the specification then run without the fields whose type is wrong.
    """
    kind = spec_class(name)
    table = _table_of(kind, value)
    errors = spec_type_errors(table, kind)
    fields = _ValidFields(table, kind) if errors else None
    try:
        spec = msgspec.convert(table if fields is None else fields.values, kind)
    except msgspec.ValidationError:
        # A required field has a type without a placeholder.
        return None, errors
    errors += _check_errors(spec, task, fields)
    return None if errors else spec, errors


def check_spec(task: str, spec: object) -> Spec:
    """Check a specification from code, also the types, which a struct does not check when it is made."""
    if not isinstance(spec, Spec):
        raise InvalidSetting(
            f"task {task!r}: {shown_value(spec)} is not a specification",
            value=shown_value(spec),
            fix="pass one like Shell('…'), or declare a function with @scheduler.task",
        )
    try:
        fields = msgspec.to_builtins(spec)
        msgspec.convert(fields, type(spec))
    except msgspec.ValidationError:
        raise InvalidSetting(
            f"task {task!r}: {spec.driver}: {spec_type_errors(fields, type(spec))[0].text}", setting=spec.driver
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(
            f"task {task!r}: {spec.driver}: it holds a value that is not plain data: {error}",
            setting=spec.driver,
            fix="use text, numbers, booleans, lists and dicts",
        ) from None
    spec.check(task)
    return spec


def connection_to(driver: str, where: object) -> object:
    """Check settings or a URL. Those of a third-party driver are returned unchanged."""
    if not isinstance(driver, str):
        raise InvalidSetting(
            f"driver: {shown(driver)} is not the name of a driver",
            setting="driver",
            value=shown(driver),
            fix="write it like connect('redis', 'redis://host')",
        )
    if driver not in _CONNECTIONS:
        return where
    checked: object = getattr(import_module("evertick.driver.queue.spec"), _CONNECTIONS[driver])(where)
    return checked


def _check_known(name: object, what: str) -> None:
    if isinstance(name, str) and (name in IN_PYTHON or name in _BUILT_IN):
        return  # saves the search through all installed packages
    known = known_drivers()
    if name not in known:
        near = alike(name, known) if isinstance(name, str) else None
        raise InvalidSetting(
            f"{what}: driver {shown(name)} is not installed",
            setting=what,
            value=shown(name),
            fix=f"{f'did you mean {near!r}? ' if near else ''}installed are {', '.join(known)}",
        )


def _registered() -> dict[str, EntryPoint]:
    from importlib import metadata

    return {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}


def _load(entry: EntryPoint) -> object:
    try:
        found: object = entry.load()
    except Exception as error:  # a third-party module may raise anything
        raise InvalidSetting(
            f"driver: {entry.name!r} ({entry.value}) cannot be loaded: {error}",
            setting="driver",
            value=repr(entry.name),
            fix="repair the package that registers it, or uninstall it",
        ) from error
    return found


class _ValidFields:
    """The fields of a table whose type is right, and placeholders for required ones."""

    def __init__(self, table: Mapping[str, Any], kind: type[Spec]) -> None:
        self.values: dict[str, Any] = {}
        # Fields without their value from the table, and fields with only some of their entries.
        self._omitted: set[str] = set()
        self._partial: set[str] = set()
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if name in table:
                self._add(name, table[name], field.type)
            if field.required and name not in self.values:
                self.values |= _placeholder(name, field.type)
                self._omitted.add(name)

    def _add(self, name: str, value: Any, kind: Any) -> None:
        entries = _entry_type(kind)
        if not spec_type_errors(value, kind):
            self.values[name] = value
        elif isinstance(value, Mapping) and entries is not None:
            self.values[name] = {key: each for key, each in value.items() if not spec_type_errors(each, entries)}
            self._partial.add(name)
        else:
            self._omitted.add(name)

    def is_relevant(self, fields: tuple[str, ...]) -> bool:
        """Whether an error about these fields is about the table, and not about a placeholder."""
        is_compared = len(fields) > 1
        return not self._omitted & {*fields} and not (is_compared and self._partial & {*fields})


def _entry_type(kind: Any) -> Any:
    """The type of the values of a table with free keys, like the environment of a command; None for other types."""
    origin = get_origin(kind)
    return get_args(kind)[1] if isinstance(origin, type) and issubclass(origin, Mapping) else None


def _placeholder(name: str, kind: Any) -> dict[str, Any]:
    possible = get_args(kind) or (kind,)
    return next(({name: each} for each in _PLACEHOLDERS if type(each) in possible), {})


def _check_errors(spec: Spec, task: str, valid: _ValidFields | None) -> list[SpecProblem]:
    try:
        spec.check(task)
    except InvalidSpec as error:
        return [each for each in error.problems if valid is None or valid.is_relevant(each.fields)]
    except InvalidInput as error:
        # A check that stops at the first error does not name its fields.
        if valid is not None:
            return []
        path = () if error.setting is None else (error.setting,)
        problem = error.problem
        for each in (f"task {task!r}", spec.driver, *path):
            problem = problem.removeprefix(f"{each}: ")
        return [SpecProblem(str(error), path, problem, error.fix)]
    return []
