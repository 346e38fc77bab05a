"""Errors of specifications: `Faults` collects those of a specification's checks, `misfits` finds values of wrong types.

msgspec reports only the first wrong type. `misfits` reports each with its field, value and fix, in the words of
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
from evertick.errors import InvalidInput, InvalidSpec
from evertick.text.did_you_mean import alike
from evertick.text.redact import shown_value

__all__ = ["Faults", "misfits"]

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

        faults = Faults()
        with faults.of("kill_after"):
            check_kill_after(self.kill_after)
        with faults.of("success_codes", "skip_codes"):
            check_codes(self.success_codes, self.skip_codes)
        faults.raise_any()

    Each check names the fields that it reads. Its error is ignored if the type of one of them is wrong.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, ...]] = {}

    @contextmanager
    def of(self, *fields: str) -> Iterator[None]:
        """Run one check and keep its error."""
        try:
            yield
        except InvalidInput as error:
            self._found[str(error)] = fields

    def raise_any(self) -> None:
        if self._found:
            raise InvalidSpec(self._found)


def misfits(value: Any, kind: Any) -> list[str]:
    """Describe values of wrong types: "env.PATH: 3 is neither text nor a secret; write …"."""
    return list(islice(_misfits(value, kind, ""), _MISFITS_MAX))


def _misfits(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Each misfit, in the order of the table."""
    if _has_type(value, kind):
        return
    is_reported = False
    for text in _misfits_inside(value, _inner(value, kind), path):
        is_reported = True
        yield text
    if not is_reported:
        # The value has no parts, or is wrong as a whole, like a list that is too long.
        yield _prefixed(path, _type_error(value, kind))


def _misfits_inside(value: Any, kind: Any, path: str) -> Iterator[str]:
    if kind is None or path.count(".") > _DEPTH_MAX:
        return
    if _is_struct(kind):
        yield from _misfits_of_fields(value, kind, path)
        return
    part_kind = (get_args(kind) or (Any,))[-1 if isinstance(value, Mapping) else 0]
    for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _misfits(part, part_kind, _joined(path, name))


def _misfits_of_fields(value: Mapping[str, Any], kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    suggestions: set[str] = set()
    for name in value:
        if name not in fields:
            near = next((each for each in _OTHER_NAMES.get(str(name), ()) if each in fields), alike(str(name), fields))
            fix = f"it is called {near!r}" if near else f"the fields are {', '.join(fields)}"
            suggestions.update([near] if near else [])
            yield _prefixed(path, f"no such field {name!r}; {fix}")
    for name, field in fields.items():
        if name in value:
            yield from _misfits(value[name], field.type, _joined(path, name))
        elif field.required and name not in suggestions:
            yield _prefixed(path, f"{name} is missing; add it")


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


def _type_error(value: Any, kind: Any) -> str:
    possible = [each for each in _alternatives(kind) if each is not type(None)]
    choices = [repr(choice) for each in possible if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        return f"{shown_value(value)} is not a valid value; write one of {', '.join(choices)}"
    words = dict.fromkeys(_described(each) for each in possible)
    if None in words or not words:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return f"{shown_value(value)}: {_without_path(str(error))}"
    known = [each for each in words if each is not None]
    # Only the name of a secret belongs here, so the text may be the secret itself.
    is_hidden = Secret in possible and str not in possible
    shown = "this" if is_hidden else shown_value(value)
    what = " nor ".join(word for word, _ in known)
    fixes = ", or ".join(dict.fromkeys(fix for _, fix in known))
    return f"{shown} is {'neither ' if len(known) > 1 else 'not '}{what}; write it {fixes}"


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


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _prefixed(path: str, text: str) -> str:
    return f"{path}: {text}" if path else text
