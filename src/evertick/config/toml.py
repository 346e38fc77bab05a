"""A file of TOML as data that knows where each part of it stands."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.ownership import is_refused, open_owned
from evertick.config.place import Path as KeyPath
from evertick.config.place import key_lines
from evertick.config.problem import Problems
from evertick.text.regular_file import NotRegular

__all__ = ["FILE_MAX_BYTES", "Document", "digest_of", "read_before_error", "read_document"]

FILE_MAX_BYTES = 4 * 1024 * 1024
# What to do about what tomllib finds, by the beginning of its words.
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
# A key with what people write without quotes: 5m, 1h30m, 10MB, 5/min. Nothing else is shown: it may be a password.
_UNIT = r"(?:us|ms|s|m|min|h|d|w|[kKMGT]i?B?)"
_BARE = re.compile(rf"([\w.-]+)\s*=\s*((?:\d{{1,6}}(?:\.\d{{1,3}})?{_UNIT}){{1,4}}|\d{{1,6}}/[a-z]{{1,6}})\s*(?:#.*)?$")
# As tomllib ends its messages.
_PLACE = re.compile(r"(?s)(.*) \(at (?:line (\d+), column (\d+)|end of document)\)")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One file, read. `digest` tells whether it has changed since."""

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]
    digest: str
    # Whether everybody on the machine may read it.
    is_open: bool
    # Who else can change it, a line each.
    warnings: tuple[str, ...] = ()

    def place(self, path: KeyPath) -> str:
        """Where a key stands, as "file:line"; of one that has no line of its own, what it is a part of."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines[path]}" if path else str(self.path)


def read_document(
    path: Path, problems: Problems, *, named_at: str = "", environ: Mapping[str, str] = os.environ
) -> Document | None:
    """The file; None where it cannot be read, which is then among the problems. `named_at`: what includes it."""
    read = _read(path, problems, named_at, environ)
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
    """The file, or of one that is no TOML the tables before the one in which that shows."""
    read = _read(path, problems, named_at, environ)
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


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    content: bytes
    is_open: bool
    warnings: tuple[str, ...]


def _read(path: Path, problems: Problems, named_at: str, environ: Mapping[str, str]) -> _Read | None:
    """The content, of a file that may be relied on."""
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
            problems.add(each.place, "", each.said)
        return None
    return _Read(content=content, is_open=bool(found.st_mode & 0o004), warnings=tuple(map(str, distrusted)))


def digest_of(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _parsed(path: Path, content: bytes, problems: Problems) -> tuple[dict[str, Any] | None, dict[KeyPath, int]]:
    try:
        text = content.decode()
        # A mark of byte order, as some editors write it.
        text = text.removeprefix("\ufeff")
        return tomllib.loads(text), key_lines(text)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(f"{path}:{line}", "", "this is no UTF-8; save the file in that encoding")
    except tomllib.TOMLDecodeError as error:
        problems.add(*_told(path, content, error))
    except RecursionError:
        problems.add(str(path), "", "its values are nested too deeply; make them flatter")
    return None, {}


def _told(path: Path, content: bytes, error: tomllib.TOMLDecodeError) -> tuple[str, str, str]:
    found = _PLACE.fullmatch(str(error))
    words = (found[1] if found else str(error)).rstrip(".")
    is_at_end = found is None or found[2] is None
    line = content.rstrip().count(b"\n") + 1 if found is None or found[2] is None else int(found[2])
    where = "at the end of the file" if is_at_end or found is None else f"at column {found[3]}"
    written = content.decode(errors="replace").split("\n")
    shown = written[line - 1].strip() if 0 < line <= len(written) else ""
    fix = next((f"; {fix}" for beginning, fix in _FIXES.items() if words.startswith(beginning)), "")
    fix = _fix_of(shown) or fix
    return f"{path}:{line}", "", f"this is no TOML, {where}: {words[:1].lower()}{words[1:]}{fix} ({_hidden(shown)!r})"


def _fix_of(line: str) -> str:
    """Of a duration, a size or a time without quotes, which begins like a number: how to write it."""
    bare = _BARE.match(line)
    return f'; it stands in quotes: write {bare[1]} = "{bare[2]}"' if bare else ""


def _hidden(line: str) -> str:
    """A line as it may be shown: its value may be a password."""
    key, equals, _ = line.partition("=")
    return f"{key}{equals} …"[:80] if equals else line[:80]
