"""The value of each key: defaults, then files, then the environment, then flags; the later wins.

`SectionKeys` reads the keys of a server's address: a URL, or its parts, and a password. A URL of a stronger layer
replaces the parts of a weaker one, so `EVERTICK_DATABASE` alone moves a node to another database. Both in one layer are
an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from evertick.config.files import INCLUDE, Document, has_reference, interpolated
from evertick.config.problem import Problems, fix_for, phrased, toml_words
from evertick.config.section import SECTIONS, SHORT_VARIABLES, Key, Section, keys_of, variable_of
from evertick.driver.registry import spec_class
from evertick.errors import InvalidInput
from evertick.text.did_you_mean import nearest
from evertick.text.redact import masked
from evertick.text.regular_file import read_regular

__all__ = ["DEFAULT", "PARTS", "Origin", "SectionKeys", "Table", "Value", "Warn", "layered", "section_from"]

Layer = Literal["default", "file", "environment", "flag"]
# From weak to strong.
_ORDER: tuple[Layer, ...] = ("default", "file", "environment", "flag")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    layer: Layer
    # "evertick.toml:12", "EVERTICK_NODE_LEASE", "--pidfile".
    place: str = ""
    # The base of relative paths: the folder of the file, or else the working directory.
    folder: Path = Path()

    @property
    def rank(self) -> int:
        return _ORDER.index(self.layer)

    def __str__(self) -> str:
        return self.place or self.layer


DEFAULT = Origin(layer="default")


# Tables with keys of the user.
JOB_TABLES = ("defaults", "jobs", "calendars")
_KEYS = {f"{name}.{key}": (about, default) for name, kind in SECTIONS.items() for key, about, default in keys_of(kind)}
_TABLES = {key.rpartition(".")[0] for key in _KEYS}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a key, and its origin."""

    key: str
    value: Any
    origin: Origin
    # As in the file, if it refers to the environment.
    written: Any = None
    # Whether its value was rejected, so that the default is used.
    is_refused: bool = False

    @property
    def about(self) -> Key:
        return _KEYS[self.key][0]

    @property
    def is_set(self) -> bool:
        return self.origin.layer != "default"


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """A value as it was written. Text from the environment may be of any kind."""

    value: Any
    origin: Origin
    is_text: bool
    written: Any = None
    # Whether a part of it is missing, which was reported.
    is_refused: bool = False


def layered(
    documents: Sequence[Document],
    environ: Mapping[str, str],
    flags: Mapping[str, tuple[str, Any]],
    problems: Problems,
    *,
    only: Sequence[str] | None = None,
) -> dict[str, Value]:
    """The values of all keys of all sections. `flags`: by key, the name of the flag and its value.

    With `only`, other sections are not read, and their errors are not reported.
    """
    given = _in_files(documents, environ, problems, only)
    given |= _in_environment(environ, problems, only)
    for key, (flag, value) in flags.items():
        assert key in _KEYS, f"{key} is a key"
        origin = Origin(layer="flag", place=flag)
        given[key] = _Given(value=value, origin=origin, is_text=isinstance(value, str))
    return {key: _settled(key, given.get(key), problems) for key in _KEYS}


def section_from(name: str, values: Mapping[str, Value]) -> Any:
    """The struct of a section with its values."""
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
            problem = "it is empty; give it a value, or remove this key"
        elif about.is_secret:
            problem = f"this is no {about.kind.words}; write {about.kind.fix}"
        else:
            problem = phrased(wrong, "duration: ", "size: ", value=value)
        problems.add(given.origin.place, key, problem)
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
    """A similar name: a key of that table, or of a table in it."""
    inside = [key.removeprefix(f"{table}.") for key in [*_KEYS, *_TABLES] if key.startswith(f"{table}.")]
    own = [key for key in inside if "." not in key]
    return nearest(name, own, what="there are", also=[key for key in inside if "." in key])


def _given(
    document: Document, path: tuple[str, ...], value: Any, environ: Mapping[str, str], problems: Problems
) -> _Given:
    key, is_text, before = ".".join(path), has_reference(value), len(problems)
    written = value if is_text else None
    value = interpolated(value, environ, lambda at, problem: problems.add(document.place((*path, *at)), key, problem))
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
            continue  # not set: a unit file can only empty a variable, not unset it
        if key in found and found[key].value != value:
            problem = f"{found[key].origin.place} says otherwise; set one of the two"
            problems.add(variable, key, problem)
        else:
            origin = Origin(layer="environment", place=variable)
            found[key] = _Given(value=value, origin=origin, is_text=True)
    return found


# Fields of a specification whose `${…}` the shell replaces when the job runs.
_VERBATIM = {"shell": ("command", "stdin")}


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a file: its place and its content as written."""

    document: Document
    path: tuple[str, ...]
    data: dict[str, Any]

    def place(self, *inner: str | int) -> str:
        return self.document.place((*self.path, *inner))

    def key(self, *inner: str | int) -> str:
        return ".".join(map(str, (*self.path, *inner)))

    def read(self, environ: Mapping[str, str], problems: Problems) -> dict[str, Any]:
        """Its keys with variables replaced. A key with a missing variable is reported and left out."""
        refused = set()

        def refuse(path: tuple[str | int, ...], problem: str) -> None:
            refused.add(path[0])
            problems.add(self.place(*path), self.key(*path), problem)

        def replaced(path: tuple[str | int, ...], value: Any) -> Any:
            return value if _is_verbatim(path, value) else interpolated(value, environ, refuse, path)

        read = {name: self._each(name, value, replaced) for name, value in self.data.items()}
        return {name: value for name, value in read.items() if name not in refused}

    def _each(self, name: str, value: Any, replaced: Any) -> Any:
        if name in _VERBATIM and isinstance(value, dict):
            return {inner: replaced((name, inner), each) for inner, each in value.items()}
        return replaced((name,), value)


def _is_verbatim(path: tuple[str | int, ...], value: Any) -> bool:
    """Whether the value is not interpolated."""
    kept = _VERBATIM.get(str(path[0]), ())
    if not kept or not isinstance(value, str):
        return False
    return (path[1] if len(path) > 1 else spec_class(str(path[0])).short) in kept


PARTS = ("address", "name", "user")
_PASSWORD_MAX_BYTES = 4_096
_HOST = re.compile(r"(?P<host>[^\s:/@?#\[\]]+|\[[^\s/@?#\[\]]+\])(?::(?P<port>\d{1,5}))?")

Warn = Callable[[str], None]


class SectionKeys:
    """The keys of one section that are set, by name."""

    def __init__(self, section: str, values: Mapping[str, Value], problems: Problems, warn: Warn) -> None:
        self.section = section
        before = f"{section}."
        own = {key.removeprefix(before): each for key, each in values.items() if key.startswith(before)}
        # Whether one of them was rejected: the others alone may mean something else.
        self.is_half = any(each.is_refused for each in own.values())
        self._set = {name: each for name, each in own.items() if each.is_set}
        self._problems, self._warn = problems, warn

    def get(self, name: str) -> Value | None:
        return self._set.get(name)

    def text(self, name: str) -> str | None:
        found = self._set.get(name)
        return None if found is None else str(found.value)

    def path(self, name: str) -> Path | None:
        found = self._set.get(name)
        return None if found is None else Path(found.value)

    def first(self, *names: str) -> str | None:
        return next((name for name in names if name in self._set), None)

    def drop_weaker(self, than: Origin) -> None:
        self._set = {name: each for name, each in self._set.items() if each.origin.rank >= than.rank}

    def refuse(self, name: str, problem: str) -> None:
        found = self._set.get(name)
        self._problems.add("" if found is None else found.origin.place, f"{self.section}.{name}", problem)

    def login(self, password: str | None, *, is_user_needed: bool = True) -> str:
        """The part of a URL before the host, from user and password."""
        user = quote(self.text("user") or "", safe="")
        if password is not None and not user and is_user_needed:
            name = self.first("password", "password_file") or "password"
            self.refuse(name, f"no user is given that has it; write {self.section}.user, too")
            return ""
        return "" if not user and password is None else f"{user}{_after_user(password)}@"

    def with_password(self, url: str, password: str | None, *, is_user_needed: bool = True) -> str:
        """Add the password to the URL."""
        if password is None:
            return url
        scheme, _, rest = url.partition("://")
        user, _, where = rest.rpartition("@")
        name = self.first("password", "password_file") or "password"
        if is_user_needed and not user:
            self.refuse(name, f"{self.section}.url names no user that has it; write {scheme}://user@host")
        elif ":" in user:
            self.refuse(name, f"{self.section}.url has a password already; keep one of the two")
        else:
            return f"{scheme}://{user}{_after_user(password)}@{where}"
        return url

    def url(self) -> Value | None:
        """The URL, if it is stronger than the parts, which are dropped then."""
        url = self._set.get("url")
        if url is None:
            return None
        parts = {name: self._set[name] for name in PARTS if name in self._set}
        strongest = max((each.origin.rank for each in parts.values()), default=-1)
        if strongest > url.origin.rank:
            del self._set["url"]
            return None
        self.drop_weaker(url.origin)
        for name in parts:
            if name in self._set:
                self.refuse(name, f"{self.section}.url ({url.origin}) says it already; keep one of the two")
        return url

    def hosts(self, example: str, *, most: int) -> list[str]:
        """The hosts of the address, IPv6 addresses in brackets. Invalid hosts are rejected."""
        parts = [part.strip() for part in (self.text("address") or "").split(",") if part.strip()]
        hosts = [f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in parts]
        for host in hosts:
            found = _HOST.fullmatch(host)
            if found is None or not 0 < int(found["port"] or 1) < 2**16:
                # In place of a port there may be a password, if the host was forgotten.
                shown = masked(f"x://{host}").removeprefix("x://")
                self.refuse("address", f"{shown!r:.100} is neither a host nor host:port; write it like {example!r}")
        if not hosts or len(hosts) > most:
            what = f"these are {len(hosts)} hosts" if hosts else "it names no host"
            self.refuse("address", f"{what}; write {'one' if most == 1 else 'it'} like {example!r}")
        return hosts

    def password(self) -> str | None:
        password, file = self._set.get("password"), self._set.get("password_file")
        if password is not None and file is not None:
            if password.origin.rank == file.origin.rank:
                self.refuse("password", f"{self.section}.password_file ({file.origin}) says it, too; keep one of them")
            elif password.origin.rank < file.origin.rank:
                password = None
        if password is not None or file is None:
            return None if password is None else str(password.value)
        return self._read_password(file)

    def _read_password(self, file: Value) -> str | None:
        try:
            content = read_regular(file.value, _PASSWORD_MAX_BYTES, may_be_stream=file.origin.layer == "flag")
            is_open = bool(Path(file.value).stat().st_mode & 0o004)
            password = content.decode().strip("\r\n")
        except OSError as error:
            self.refuse("password_file", f"{file.value} cannot be read: {error.strerror}; {fix_for(error)}")
            return None
        except UnicodeDecodeError:
            self.refuse("password_file", f"{file.value} is no UTF-8 text; write the password as text")
            return None
        if not password or len(content) > _PASSWORD_MAX_BYTES or "\n" in password or "\0" in password:
            self.refuse("password_file", f"{file.value} must hold one line, the password, and nothing else")
            return None
        if is_open:
            self._warn(f"{file.value}: every user may read this password; run `chmod 600 {file.value}`")
        return password


def _after_user(password: str | None) -> str:
    return "" if password is None else f":{quote(password, safe='')}"
