"""Errors of specifications: `Faults` collects those of a specification's checks, `spec_type_errors` finds values of wrong types.

msgspec reports only the first wrong type. `spec_type_errors` reports each with its field, value and fix, in the words of
configuration files; for the bounds of a field it uses msgspec's text.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from evertick.driver.secret import Secret
from evertick.errors import InvalidInput, InvalidSpec, SpecProblem
from evertick.text.did_you_mean import alike
from evertick.text.redact import shown_value

__all__ = ["Faults", "spec_type_errors"]

Path = tuple[str | int, ...]

_DEPTH_MAX = 20
_MISFITS_MAX = 20
# Names of fields in other tools.
_OTHER_NAMES = {
    **dict.fromkeys(("cmd", "run", "script"), ("command",)),
    **dict.fromkeys(("environment", "envs"), ("env",)),
    **dict.fromkeys(("dir", "directory", "workdir", "working_directory"), ("cwd",)),
    **dict.fromkeys(("data", "payload"), ("body",)),
}
# The name of a type, and how to write its values.
_WORDS: dict[object, tuple[str, str]] = {
    str: ("text", "in quotes"),
    int: ("a whole number", "in digits without quotes"),
    float: ("a number", "in digits without quotes"),
    bool: ("true or false", "as one of them without quotes"),
    Secret: ("a secret", 'as the name of a secret, like { secret = "NAME" }'),
}


class Faults:
    """Collects the errors of checks, so that all errors of a specification are reported at once.

        faults = Faults(f"task {task!r}: shell")
        with faults.of("kill_after"):
            check_kill_after(self.kill_after)
        with faults.of("success_codes", "skip_codes"):
            check_codes(self.success_codes, self.skip_codes)
        faults.raise_any()

    `what` is the prefix of all messages. Each check names the fields that it reads. Its error is ignored if the type of
    one of them is wrong.
    """

    def __init__(self, what: str = "") -> None:
        self._what = what
        self._found: dict[str, SpecProblem] = {}

    @contextmanager
    def of(self, *fields: str, path: tuple[str, ...] | None = None) -> Iterator[None]:
        """Run one check and keep its error. `path`: the wrong value, by default the first field."""
        try:
            yield
        except InvalidInput as error:
            path = fields[:1] if path is None else path
            problem = error.problem
            for each in (self._what, *path):
                problem = problem.removeprefix(f"{each}: ")
            self._found[str(error)] = SpecProblem(str(error), path, problem, error.fix, fields)

    def raise_any(self) -> None:
        if self._found:
            raise InvalidSpec(tuple(self._found.values()))


def spec_type_errors(value: Any, kind: Any) -> list[SpecProblem]:
    """Describe values of wrong types: "env.PATH: 3 is neither text nor a secret; write …"."""
    return list(islice(_misfits(value, kind, ()), _MISFITS_MAX))


def _misfits(value: Any, kind: Any, path: Path) -> Iterator[SpecProblem]:
    """Each misfit, in the order of the table."""
    if _has_type(value, kind):
        return
    is_reported = False
    for each in _misfits_inside(value, _inner(value, kind), path):
        is_reported = True
        yield each
    if not is_reported:
        # The value has no parts, or is wrong as a whole, like a list that is too long.
        yield _at(path, *_type_error(value, kind))


def _misfits_inside(value: Any, kind: Any, path: Path) -> Iterator[SpecProblem]:
    if kind is None or len(path) > _DEPTH_MAX:
        return
    if _is_struct(kind):
        yield from _misfits_of_fields(value, kind, path)
        return
    part_kind = (get_args(kind) or (Any,))[-1 if isinstance(value, Mapping) else 0]
    for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _misfits(part, part_kind, (*path, name))


def _misfits_of_fields(value: Mapping[str, Any], kind: type[msgspec.Struct], path: Path) -> Iterator[SpecProblem]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    suggestions: set[str] = set()
    for name in value:
        if name not in fields:
            near = next((each for each in _OTHER_NAMES.get(str(name), ()) if each in fields), alike(str(name), fields))
            fix = f"it is called {near!r}" if near else f"the fields are {', '.join(fields)}"
            suggestions.update([near] if near else [])
            yield _at(path, f"no such field {name!r}", fix, unknown=name)
    for name, field in fields.items():
        if name in value:
            yield from _misfits(value[name], field.type, (*path, name))
        elif field.required and name not in suggestions:
            yield _at(path, f"{name} is missing", "add it")


def _inner(value: Any, kind: Any) -> Any:
    """The alternative of the type whose parts can be checked one by one; None: there is none."""
    for each in _alternatives(kind):
        origin = get_origin(each) or each
        if isinstance(value, Mapping):
            if _is_struct(each) or _is_table(origin):
                return each
        elif isinstance(value, list | tuple) and _is_list(origin):
            return each
    return None


def _type_error(value: Any, kind: Any) -> tuple[str, str | None]:
    """The problem and its fix."""
    possible = [each for each in _alternatives(kind) if each is not type(None)]
    choices = [repr(choice) for each in possible if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        return f"{shown_value(value)} is not a valid value", f"write one of {', '.join(choices)}"
    words = dict.fromkeys(_described(each) for each in possible)
    if None in words or not words:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return f"{shown_value(value)}: {_without_path(str(error))}", None
    known = [each for each in words if each is not None]
    # Only the name of a secret belongs here, so the text may be the secret itself.
    is_hidden = Secret in possible and str not in possible
    shown = "this" if is_hidden else shown_value(value)
    what = " nor ".join(word for word, _ in known)
    fixes = ", or ".join(dict.fromkeys(fix for _, fix in known))
    return f"{shown} is {'neither ' if len(known) > 1 else 'not '}{what}", f"write it {fixes}"


def _described(kind: Any) -> tuple[str, str] | None:
    if kind in _WORDS:
        return _WORDS[kind]
    origin = get_origin(kind) or kind
    if _is_struct(kind):
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        return "a table", f"in braces, with its fields: {fields}"
    if _is_table(origin):
        return "a table", 'in braces, like { NAME = "value" }'
    if _is_list(origin):
        return "a list", 'in brackets, like ["one", "two"]'
    return None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_table(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_list(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes)


def _has_type(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _without_path(message: str) -> str:
    text = message.partition(" - at `")[0]
    return text[:1].lower() + text[1:]


def _at(path: Path, problem: str, fix: str | None, *, unknown: str | None = None) -> SpecProblem:
    sentence = problem if fix is None else f"{problem}; {fix}"
    text = f"{'.'.join(map(str, path))}: {sentence}" if path else sentence
    where = path if unknown is None else (*path, unknown)
    return SpecProblem(text, where, problem, fix, is_unknown=unknown is not None)
