"""The files of a configuration: the main file, its includes, and the line of each key.

`include = ["conf.d/*.toml"]` is at the top of a file. A pattern is relative to the folder of its file; matching files
are read in order of their names. A file without wildcards must exist; a pattern may match nothing. The order does not
matter: a key in two files is an error.

In values `${NAME}` and `${NAME:-default}` refer to the environment, and `$${` is a literal `${`. As in a shell, the
default applies if the variable is missing or empty. A missing variable without a default is an error.

`tomllib` does not report the lines of keys, so `_Scanner` finds them in a text that `tomllib` has accepted.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from evertick.config.ownership import is_refused, open_owned
from evertick.config.problem import Problems, toml_words
from evertick.text.regular_file import NotRegular

__all__ = [
    "DEPTH_MAX",
    "FILES_MAX",
    "FILE_MAX_BYTES",
    "FILE_NAME",
    "INCLUDE",
    "Document",
    "KeyPath",
    "Pattern",
    "digest_of",
    "find_file",
    "has_reference",
    "ignored_files",
    "interpolated",
    "key_lines",
    "patterns_of",
    "read_all",
    "read_before_error",
    "read_folder",
    "references_in",
    "searched_files",
    "warnings_in",
]

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
# Up to two quotes may precede the three that end a long string.
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''',
    re.DOTALL,
)
# Numbers, dates (which may contain a space), true and false.
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, counted from 1, of each key, table and element."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        # As tomllib does.
        self._text = text.replace("\r\n", "\n")
        self._ends = [found.start() for found in re.finditer("\n", self._text)]
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        # The number of elements of each array of tables so far.
        self._counts: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(_BLANK) and self._at < len(self._text):
            table = self._header() if self._text[self._at] == "[" else self._pair(table)
        return self._lines

    def _header(self) -> KeyPath:
        is_element = self._text.startswith("[[", self._at)
        self._at += 2 if is_element else 1
        table: KeyPath = ()
        for name, line, is_last in self._names():
            table = self._named((*table, name), line)
            if is_element and is_last:
                self._counts[table] = self._counts.get(table, 0) + 1
            if table in self._counts:
                table = self._named((*table, self._counts[table] - 1), line)
        self._at += 2 if is_element else 1
        return table

    def _pair(self, table: KeyPath) -> KeyPath:
        """Scan one `key = value`; returns its table."""
        path = table
        for name, line, _ in self._names():
            path = self._named((*path, name), line)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)
        return table

    def _names(self) -> Iterator[tuple[str, int, bool]]:
        """The parts of a dotted key, each with its line and whether it is the last one."""
        is_last = False
        while not is_last:
            self._skip(_SPACE)
            line, token = self._line(), self._take(_KEY)
            self._skip(_SPACE)
            is_last = self._text[self._at] != "."
            self._at += not is_last
            yield _name(token), line, is_last

    def _value(self, path: KeyPath) -> None:
        match self._text[self._at]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        for number in self._inside("]"):
            self._value(self._named((*path, number), self._line()))

    def _inline_table(self, path: KeyPath) -> None:
        for _ in self._inside("}"):
            self._pair(path)

    def _inside(self, end: str) -> Iterator[int]:
        """The number of each element between the brackets."""
        self._at += 1
        number = 0
        while self._skip(_BLANK) and self._text[self._at] != end:
            yield number
            number += 1
            self._skip(_BLANK)
            self._at += self._text[self._at] == ","
        self._at += 1

    def _named(self, path: KeyPath, line: int) -> KeyPath:
        self._lines.setdefault(path, line)
        return path

    def _line(self) -> int:
        return bisect_left(self._ends, self._at) + 1

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        assert found is not None, "it matches nothing, too"
        self._at = found.end()
        return True

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        assert found is not None, "tomllib has accepted the text"
        self._at = found.end()
        return found[0]


def _name(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return token[1:-1] if "\\" not in token or token[0] == "'" else str(tomllib.loads(f"key = {token}")["key"])


_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)
_SHOWN = 60

Refuse = Callable[[KeyPath, str], None]


def has_reference(value: Any) -> bool:
    """Whether the value refers to the environment."""
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
    """The names of the variables in the value, also those that a shell reads when the job runs."""
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


def interpolated(value: Any, environ: Mapping[str, str], refuse: Refuse, path: KeyPath = ()) -> Any:
    """The value with its references replaced, at any depth. `refuse` takes each problem with its path."""
    match value:
        case str():
            return _REFERENCE.sub(lambda found: _replaced(found, environ, refuse, path), value)
        case dict():
            return {name: interpolated(each, environ, refuse, (*path, name)) for name, each in value.items()}
        case list():
            return [interpolated(each, environ, refuse, (*path, number)) for number, each in enumerate(value)]
        case _:
            return value


def _replaced(found: re.Match[str], environ: Mapping[str, str], refuse: Refuse, path: KeyPath) -> str:
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


FILE_MAX_BYTES = 4 * 1024 * 1024
# The fix for an error of tomllib, which has no codes, by the beginning of its text.
_FIXES = {
    "Invalid value": "text stands in quotes",
    "Cannot overwrite a value": "this key is set above already; keep one of the two",
    "Cannot declare": "this table is above already; put all of its keys below one head",
    "Cannot mutate": "this table is written in one line above; put all of its keys there",
    "Duplicate inline table key": "this key is in these braces already; keep one of the two",
    "Expected '=' after a key": "write key = value",
    "Expected newline": "a line holds one key and its value; text with spaces stands in quotes",
    "Expected ']'": "end the name of the table with ]",
    "Unclosed": "end it with its bracket",
    "Unterminated string": "end it with its quote",
    "Unescaped '\\'": "write it twice, or put the text in single quotes",
    "Invalid statement": "a line is a key and its value, a [table], or a # comment",
    "Invalid initial character for a key part": "names with other signs than letters, digits, - and _ stand in quotes",
    "Illegal character": "write the text in one line, or between three quotes",
}
# A key with a common value without quotes: 5m, 1h30m, 10MB, 5/min. Other values may be passwords and are not shown.
_UNIT = r"(?:us|ms|s|m|min|h|d|w|[kKMGT]i?B?)"
_BARE = re.compile(rf"([\w.-]+)\s*=\s*((?:\d{{1,6}}(?:\.\d{{1,3}})?{_UNIT}){{1,4}}|\d{{1,6}}/[a-z]{{1,6}})\s*(?:#.*)?$")
# The end of a message of tomllib.
_PLACE = re.compile(r"(?s)(.*) \(at (?:line (\d+), column (\d+)|end of document)\)")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read. `digest`: of its content."""

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]
    digest: str
    # Whether all users of the machine may read it.
    is_open: bool
    # A line for each problem with its owner and mode.
    warnings: tuple[str, ...] = ()

    def place(self, path: KeyPath) -> str:
        """The place of a key as "file:line", or of the nearest part with a line."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines[path]}" if path else str(self.path)


def read_document(
    path: Path, problems: Problems, *, named_at: str = "", environ: Mapping[str, str] = os.environ
) -> Document | None:
    """Read a file; None if it cannot be read, which is reported. `named_at`: the place of its include."""
    read = _read_content(path, problems, named_at, environ)
    if read is None:
        return None
    data, lines = _parsed(path, read.content, problems)
    if data is None:
        return None
    return Document(
        path=path,
        data=data,
        lines=lines,
        digest=digest_of(read.content),
        is_open=read.is_open,
        warnings=read.warnings,
    )


def read_before_error(
    path: Path, problems: Problems, *, named_at: str = "", environ: Mapping[str, str] = os.environ
) -> Document | None:
    """Read a file; if it is not valid TOML, the tables before the error."""
    read = _read_content(path, problems, named_at, environ)
    if read is None:
        return None
    data, lines = _parsed(path, read.content, problems)
    if data is not None:
        return Document(path=path, data=data, lines=lines, digest=digest_of(read.content), is_open=read.is_open)
    text = read.content.decode(errors="replace")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.fullmatch(str(error))
        before = "".join(text.splitlines(keepends=True)[: int(found[2]) - 1]) if found and found[2] else text
        whole = before[: max(before.rfind("\n[") + 1, 0)]
        with contextlib.suppress(tomllib.TOMLDecodeError):
            return Document(path=path, data=tomllib.loads(whole), lines={}, digest="", is_open=False)
    except RecursionError:
        return None
    return None


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    content: bytes
    is_open: bool
    warnings: tuple[str, ...]


def _read_content(path: Path, problems: Problems, named_at: str, environ: Mapping[str, str]) -> _Content | None:
    """The content of a file with safe owner and mode."""
    before, which = named_at or str(path), f"{path} " if named_at else ""
    try:
        opened, distrusted = open_owned(path, environ)
        with open(opened, "rb") as file:
            found = os.fstat(opened)
            content = file.read(FILE_MAX_BYTES + 1)
    except NotRegular as error:
        problems.add(before, "", f"{which}cannot be read: {error.strerror}; name a file of TOML")
        return None
    except OSError as error:
        problems.add(before, "", f"{which}cannot be read: {error.strerror}; correct the path, or let this user read it")
        return None
    if len(content) > FILE_MAX_BYTES:
        problems.add(str(path), "", f"it has more than {FILE_MAX_BYTES} bytes; put parts of it into files to include")
        return None
    if distrusted and is_refused():
        for each in distrusted:
            problems.add(each.place, "", each.problem)
        return None
    return _Content(content=content, is_open=bool(found.st_mode & 0o004), warnings=tuple(map(str, distrusted)))


def digest_of(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _parsed(path: Path, content: bytes, problems: Problems) -> tuple[dict[str, Any] | None, dict[KeyPath, int]]:
    try:
        text = content.decode()
        # A byte order mark of some editors.
        text = text.removeprefix("\ufeff")
        return tomllib.loads(text), key_lines(text)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(f"{path}:{line}", "", "this is no UTF-8; save the file in that encoding")
    except tomllib.TOMLDecodeError as error:
        problems.add(*_toml_problem(path, content, error))
    except RecursionError:
        problems.add(str(path), "", "its values are nested too deeply; make them flatter")
    return None, {}


def _toml_problem(path: Path, content: bytes, error: tomllib.TOMLDecodeError) -> tuple[str, str, str]:
    found = _PLACE.fullmatch(str(error))
    words = (found[1] if found else str(error)).rstrip(".")
    is_at_end = found is None or found[2] is None
    line = content.rstrip().count(b"\n") + 1 if found is None or found[2] is None else int(found[2])
    where = "at the end of the file" if is_at_end or found is None else f"at column {found[3]}"
    written = content.decode(errors="replace").split("\n")
    shown = written[line - 1].strip() if 0 < line <= len(written) else ""
    fix = next((f"; {fix}" for beginning, fix in _FIXES.items() if words.startswith(beginning)), "")
    fix = _fix_of(shown) or fix
    return (
        f"{path}:{line}",
        "",
        f"this is no TOML, {where}: {words[:1].lower()}{words[1:]}{fix} ({_without_value(shown)!r})",
    )


def _fix_of(line: str) -> str:
    """The fix for a duration, size or rate without quotes."""
    bare = _BARE.match(line)
    return f'; it stands in quotes: write {bare[1]} = "{bare[2]}"' if bare else ""


def _without_value(line: str) -> str:
    """The line without its value, which may be a password."""
    key, equals, _ = line.partition("=")
    return f"{key}{equals} …"[:80] if equals else line[:80]


FILE_NAME = "evertick.toml"
_SYSTEM = Path("/etc/evertick")


def find_file(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The given file, else the first that exists: in ./, of the user, of the system."""
    if path is not None:
        return Path(path)
    return next((each for each in _candidates(environ) if _is_there(each)), None)


def searched_files(environ: Mapping[str, str] = os.environ) -> str:
    """The places where a file is searched, in words."""
    return ", ".join(str(each) for each in _candidates(environ))


def _is_there(path: Path) -> bool:
    """Whether the file exists.

    In a directory without access, the file of the system counts as existing, so that reading it reports the reason. A
    home without access belongs to another user, as `su` leaves it in the environment.
    """
    try:
        return path.is_file()
    except PermissionError:
        return path.parent == _SYSTEM


def _candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(FILE_NAME), Path(home) / "evertick" / FILE_NAME, _SYSTEM / FILE_NAME


INCLUDE = "include"
DEPTH_MAX = 8
FILES_MAX = 1_000
_MAGIC = "*?["
# Files that are read, or ignored on purpose.
_LEFT_OUT = re.compile(
    r"(?i)^\.|~$|\.(toml|bak|old|orig|save|swp|tmp|new|off|disabled|example|sample|md|txt|dpkg-\w+|rpm\w+)$"
)
_PASSED_OVER_MOST = 10


class ReadFile(Protocol):
    """Reads a file: `read_document`, or `read_before_error`."""

    def __call__(
        self, path: Path, problems: Problems, *, named_at: str = "", environ: Mapping[str, str]
    ) -> Document | None: ...


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are read if they are there."""

    folder: Path
    text: str

    def matched(self) -> list[Path]:
        """The files that match, by name. A name without wildcards is returned even if the file is missing."""
        if not any(letter in self.text for letter in _MAGIC):
            return [self.folder / self.text]
        return sorted(self.folder / each for each in glob.glob(self.text, root_dir=self.folder, recursive=True))


def patterns_of(document: Document) -> list[Pattern]:
    """The files that a file includes."""
    given = document.data.get(INCLUDE, [])
    return [Pattern(folder=document.path.parent, text=each) for each in given] if _are_paths(given) else []


def read_all(
    path: Path, problems: Problems, read: ReadFile = read_document, *, environ: Mapping[str, str]
) -> list[Document]:
    """The file and all it includes."""
    found: list[Document] = []
    _read_tree(path, "", (), found, problems, partial(read, environ=environ))
    return found


def read_folder(
    folder: Path, read: list[Document], problems: Problems, *, environ: Mapping[str, str]
) -> list[Document]:
    """Read the files of a folder, by name, except those that were read already."""
    known = {each.path.resolve() for each in read}
    names = [each for each in Pattern(folder=folder, text="*.toml").matched() if each.resolve() not in known]
    if len(read) + len(names) > FILES_MAX:
        problems.add(str(folder), "", f"these are more than {FILES_MAX} files; join some of them")
        return []
    found = (read_document(name, problems, environ=environ) for name in names)
    return [document for document in found if document is not None]


def warnings_in(documents: Iterable[Document]) -> tuple[str, ...]:
    """Which other users can change the files; a folder is reported once."""
    return tuple(dict.fromkeys(each for document in documents for each in document.warnings))


def ignored_files(folder: Path) -> list[Path]:
    """Files in a folder of jobs that look as if they were meant to be read; not what editors and packagers leave."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file() and not _LEFT_OUT.search(entry.name))
    except OSError:
        return []
    return [folder / name for name in names[:_PASSED_OVER_MOST]]


def _read_tree(
    path: Path,
    named_at: str,
    above: tuple[Path, ...],
    found: list[Document],
    problems: Problems,
    read: Callable[..., Document | None],
) -> None:
    real = path.resolve()
    if real in above:
        chain = " -> ".join(each.name for each in (*above[above.index(real) :], real))
        problems.add(named_at, INCLUDE, f"{path} includes itself ({chain}); take one of these includes away")
        return
    if any(each.path.resolve() == real for each in found):
        return  # two patterns may match the same file
    if len(found) >= FILES_MAX:
        problems.add(named_at, INCLUDE, f"these are more than {FILES_MAX} files; join some of them")
        return
    document = read(path, problems, named_at=named_at)
    if document is None:
        return
    found.append(document)
    for place, pattern in _patterns(document, problems):
        if len(above) + 1 >= DEPTH_MAX:
            problems.add(place, INCLUDE, f"files include each other {DEPTH_MAX} deep; include {pattern!r} further up")
            continue
        for each in Pattern(folder=path.parent, text=pattern).matched():
            _read_tree(each, place, (*above, real), found, problems, read)


def _patterns(document: Document, problems: Problems) -> list[tuple[str, str]]:
    """Each pattern with its place."""
    given = document.data.get(INCLUDE, [])
    if not _are_paths(given):
        fix = 'write a list of paths, like include = ["conf.d/*.toml"]'
        problems.add(document.place((INCLUDE,)), INCLUDE, f"{toml_words(given):.100} is no list of paths; {fix}")
        return []
    return [(document.place((INCLUDE, number)), each) for number, each in enumerate(given)]


def _are_paths(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) and each for each in given)
