"""Texts with placeholders for values of a run: "{run_id}", "{fire_at}", "{args.customer}".

A placeholder is a name in braces and nothing else, so that JSON needs no escaping; `{{name}}` stands for `{name}`.
Placeholders are checked when a job is declared. Values are filled in for each run, escaped as JSON, as part of a URL or
as a form field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import quote, quote_plus

import msgspec

from evertick.errors import InvalidArguments, InvalidSetting

__all__ = ["Escape", "Template", "fill", "placeholders_in"]

# The names of a run's values.
_PLACES = ("run_id", "task", "schedule", "app", "fire_at", "due_at", "attempt", "fence", "args")

Escape = Literal["text", "json", "url", "form"]

_PLACE = re.compile(r"(?P<escaped>\{\{[A-Za-z_][\w.-]*\}\})|\{(?P<name>[A-Za-z_][\w.-]*)\}")
_MISSING = object()


class Template(msgspec.Struct, frozen=True):
    """A text whose placeholders are checked."""

    text: str
    escape: Escape
    what: str

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text with its values. Raises InvalidArguments if the run lacks an argument."""
        return self._fill(lambda name: _value(values, name, self.what))

    def with_empty_values(self) -> str:
        """The text with None as each value, for checks of its syntax."""
        return self._fill(lambda _: None)

    def _fill(self, value_of: Callable[[str], Any]) -> str:
        parts, at, in_string = [], 0, False
        for found in _PLACE.finditer(self.text):
            between, name = self.text[at : found.start()], found["name"]
            in_string = self.escape == "json" and _ends_in_string(between, in_string)
            parts += [between, found[0][1:-1] if name is None else self._escaped(value_of(name), in_string)]
            at = found.end()
        return "".join([*parts, self.text[at:]])

    def _escaped(self, value: Any, in_string: bool) -> str:
        if self.escape == "json":
            data = msgspec.json.encode(_as_text(value) if in_string else value).decode()
            return data[1:-1] if in_string else data
        return _ESCAPES[self.escape](_as_text(value))


def placeholders_in(text: str, what: str) -> Iterator[str]:
    """The names of the placeholders. Raises InvalidSetting for an unknown name."""
    for found in _PLACE.finditer(text):
        name = found["name"]
        if name is None:
            continue
        head, dot, rest = name.partition(".")
        is_known = head in _PLACES and (not dot or (head == "args" and all(rest.split("."))))
        if not is_known:
            known = ", ".join(f"{{{place}}}" for place in _PLACES)
            near = get_close_matches(head, _PLACES, 1)
            hint = f"it is called {{{near[0]}}}; " if near and near[0] != head else ""
            raise InvalidSetting(
                f"{what}: {{{name}}} is not a value of a run",
                value=f"{{{name}}}",
                fix=f"{hint}use {known} or {{args.NAME}}; for literal braces write {{{{{name}}}}}",
            )
        yield name


def fill(data: Any, values: Mapping[str, Any], what: str) -> Any:
    """JSON-like data with filled placeholders. A text that is exactly one placeholder becomes the value itself."""
    match data:
        case str():
            whole = _PLACE.fullmatch(data)
            if whole is not None and whole["name"] is not None:
                return _value(values, whole["name"], what)
            return Template(data, "text", what).fill(values)
        case Mapping():
            return {_filled_key(key, values, what): fill(value, values, what) for key, value in data.items()}
        case list() | tuple():
            return [fill(each, values, what) for each in data]
        case _:
            return data


def _filled_key(name: Any, values: Mapping[str, Any], what: str) -> Any:
    return Template(name, "text", what).fill(values) if isinstance(name, str) else name


def _value(values: Mapping[str, Any], name: str, what: str) -> Any:
    head, _, rest = name.partition(".")
    value = values[head]
    for part in rest.split(".") if rest else ():
        value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is _MISSING:
            raise InvalidArguments(
                f"{what}: {{{name}}} is not an argument of this run", value=f"{{{name}}}", fix="pass it in args"
            )
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _ends_in_string(text: str, in_string: bool) -> bool:
    """Whether the JSON text ends inside a string."""
    is_escaped = False
    for letter in text:
        if is_escaped:
            is_escaped = False
        elif letter == "\\":
            is_escaped = in_string
        elif letter == '"':
            in_string = not in_string
    return in_string


_ESCAPES: dict[Escape, Callable[[str], str]] = {
    "text": str,
    "url": lambda text: quote(text, safe=""),
    "form": quote_plus,
}
