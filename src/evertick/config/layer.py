"""One value for each key: defaults, then files, then the environment, then flags; the later wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evertick.config.include import INCLUDE
from evertick.config.interpolate import has_reference, interpolated
from evertick.config.origin import DEFAULT, Origin
from evertick.config.problem import Problems, phrased, toml_words
from evertick.config.section import SECTIONS, SHORT_VARIABLES, Key, Section, keys_of, variable_of
from evertick.config.toml import Document
from evertick.errors import InvalidInput
from evertick.text.did_you_mean import nearest

__all__ = ["JOB_TABLES", "Value", "layered", "section_from"]

# Tables whose keys people choose.
JOB_TABLES = ("defaults", "jobs", "calendars")
_KEYS = {f"{name}.{key}": (about, default) for name, kind in SECTIONS.items() for key, about, default in keys_of(kind)}
_TABLES = {key.rpartition(".")[0] for key in _KEYS}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a key, and why."""

    key: str
    value: Any
    origin: Origin
    # As the file has it, where parts of it come from the environment.
    written: Any = None
    # Whether somebody has set it to something that cannot be, so that the default stands in for it.
    is_refused: bool = False

    @property
    def about(self) -> Key:
        return _KEYS[self.key][0]

    @property
    def is_set(self) -> bool:
        return self.origin.layer != "default"


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """A value as somebody wrote it. Text of the environment, or from there, may stand for any kind."""

    value: Any
    origin: Origin
    is_text: bool
    written: Any = None
    # Whether a part of it is missing, which is told.
    is_refused: bool = False


def layered(
    documents: Sequence[Document],
    environ: Mapping[str, str],
    flags: Mapping[str, tuple[str, Any]],
    problems: Problems,
    *,
    only: Sequence[str] | None = None,
) -> dict[str, Value]:
    """Every key of every section. `flags`: what was given by flags, by key: the name of the flag and its value.

    With `only`, nothing is looked at but these sections, and nothing else can be wrong.
    """
    given = _in_files(documents, environ, problems, only)
    given |= _in_environment(environ, problems, only)
    for key, (flag, value) in flags.items():
        assert key in _KEYS, f"{key} is a key"
        origin = Origin(layer="flag", place=flag)
        given[key] = _Given(value=value, origin=origin, is_text=isinstance(value, str))
    return {key: _settled(key, given.get(key), problems) for key in _KEYS}


def section_from(name: str, values: Mapping[str, Value]) -> Any:
    """The struct of a section, filled."""
    return _filled(SECTIONS[name], f"{name}.", values)


def _filled(kind: type[Section], before: str, values: Mapping[str, Value]) -> Section:
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if f"{before}{field.name}" in values:
            fields[field.name] = values[f"{before}{field.name}"].value
        else:
            fields[field.name] = _filled(type(field.default), f"{before}{field.name}.", values)
    return kind(**fields)


def _settled(key: str, given: _Given | None, problems: Problems) -> Value:
    about, default = _KEYS[key]
    if given is None:
        return Value(key=key, value=default, origin=DEFAULT)
    if given.is_refused:
        return Value(key=key, value=default, origin=DEFAULT, is_refused=True)
    value = about.kind.of_text(given.value) if given.is_text and isinstance(given.value, str) else given.value
    try:
        read = about.kind.read(value, given.origin.folder)
    except InvalidInput as wrong:
        if value == "":
            said = "it is empty; give it a value, or take this key away"
        elif about.is_secret:
            said = f"this is no {about.kind.words}; write {about.kind.fix}"
        else:
            said = phrased(wrong, "duration: ", "size: ", value=value)
        problems.add(given.origin.place, key, said)
        return Value(key=key, value=default, origin=DEFAULT, is_refused=True)
    read = tuple(read) if isinstance(read, list) else read
    return Value(key=key, value=read, origin=given.origin, written=given.written)


# --- files


def _in_files(
    documents: Sequence[Document], environ: Mapping[str, str], problems: Problems, only: Sequence[str] | None
) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for document in documents:
        for name, table in document.data.items():
            if name == INCLUDE or name in JOB_TABLES or (only is not None and name not in only):
                continue
            if name not in SECTIONS:
                known = nearest(name, [*SECTIONS, *JOB_TABLES, INCLUDE], what="there are")
                what = "table" if isinstance(table, dict) else "key"
                problems.add(document.place((name,)), name, f"no such {what}; {known}")
            else:
                _read_table(document, (name,), table, environ, found, problems)
    return found


def _read_table(
    document: Document,
    path: tuple[str, ...],
    table: Any,
    environ: Mapping[str, str],
    found: dict[str, _Given],
    problems: Problems,
) -> None:
    here = ".".join(path)
    if not isinstance(table, dict):
        problems.add(
            document.place(path), here, f"{toml_words(table):.100} is no table; write [{here}] and its keys below"
        )
        return
    for name, value in table.items():
        key, inner = f"{here}.{name}", (*path, name)
        if key in _TABLES:
            _read_table(document, inner, value, environ, found, problems)
        elif key not in _KEYS:
            problems.add(document.place(inner), key, f"no such key; {_nearest_in(here, name)}")
        elif key in found:
            problems.add(document.place(inner), key, f"it is set at {found[key].origin.place}, too; keep one of them")
        else:
            found[key] = _given(document, inner, value, environ, problems)


def _nearest_in(table: str, name: str) -> str:
    """What was meant by a name: a key of that table, or of one in it."""
    inside = [key.removeprefix(f"{table}.") for key in [*_KEYS, *_TABLES] if key.startswith(f"{table}.")]
    own = [key for key in inside if "." not in key]
    return nearest(name, own, what="there are", also=[key for key in inside if "." in key])


def _given(
    document: Document, path: tuple[str, ...], value: Any, environ: Mapping[str, str], problems: Problems
) -> _Given:
    key, is_text, before = ".".join(path), has_reference(value), len(problems)
    written = value if is_text else None
    value = interpolated(value, environ, lambda at, said: problems.add(document.place((*path, *at)), key, said))
    origin = Origin(layer="file", place=document.place(path), folder=document.path.parent)
    is_refused = len(problems) > before
    return _Given(value=value, origin=origin, is_text=is_text, written=written, is_refused=is_refused)


# --- environment


def _in_environment(environ: Mapping[str, str], problems: Problems, only: Sequence[str] | None) -> dict[str, _Given]:
    names = {variable_of(key): key for key in _KEYS if only is None or key.partition(".")[0] in only}
    found: dict[str, _Given] = {}
    for variable, value in environ.items():
        key = names.get(variable) or names.get(variable_of(SHORT_VARIABLES.get(variable, "")))
        if key is None or not value:
            continue  # as if it were not set: a unit file can take a variable away no other way
        if key in found and found[key].value != value:
            said = f"{found[key].origin.place} says otherwise; set one of the two"
            problems.add(variable, key, said)
        else:
            origin = Origin(layer="environment", place=variable)
            found[key] = _Given(value=value, origin=origin, is_text=True)
    return found
