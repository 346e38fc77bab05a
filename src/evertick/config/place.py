"""The line of every key of a TOML text.

`tomllib` tells values but not where they stand. This scanner goes over a text that `tomllib` has accepted, so it need
not know what is right, only where keys begin and values end. A path is the names down to a value; the elements of
arrays count as numbers.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterator

__all__ = ["Path", "key_lines"]

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
# Up to two quotes may stand right before the three that end a long string.
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''',
    re.DOTALL,
)
# Numbers, dates (which may hold a space), true and false.
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """The line, counted from 1, on which each key, table and element is first named."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        # As tomllib does.
        self._text = text.replace("\r\n", "\n")
        self._ends = [found.start() for found in re.finditer("\n", self._text)]
        self._at = 0
        self._lines: dict[Path, int] = {}
        # How many elements each array of tables has so far.
        self._counts: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_BLANK) and self._at < len(self._text):
            table = self._header() if self._text[self._at] == "[" else self._pair(table)
        return self._lines

    def _header(self) -> Path:
        is_element = self._text.startswith("[[", self._at)
        self._at += 2 if is_element else 1
        table: Path = ()
        for name, line, is_last in self._names():
            table = self._named((*table, name), line)
            if is_element and is_last:
                self._counts[table] = self._counts.get(table, 0) + 1
            if table in self._counts:
                table = self._named((*table, self._counts[table] - 1), line)
        self._at += 2 if is_element else 1
        return table

    def _pair(self, table: Path) -> Path:
        """One `key = value`; answers the table it stands in."""
        path = table
        for name, line, _ in self._names():
            path = self._named((*path, name), line)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)
        return table

    def _names(self) -> Iterator[tuple[str, int, bool]]:
        """The parts of a dotted key, each with its line and whether it is the last, up to what follows them."""
        is_last = False
        while not is_last:
            self._skip(_SPACE)
            line, token = self._line(), self._take(_KEY)
            self._skip(_SPACE)
            is_last = self._text[self._at] != "."
            self._at += not is_last
            yield _name(token), line, is_last

    def _value(self, path: Path) -> None:
        match self._text[self._at]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_SCALAR)

    def _array(self, path: Path) -> None:
        for number in self._inside("]"):
            self._value(self._named((*path, number), self._line()))

    def _inline_table(self, path: Path) -> None:
        for _ in self._inside("}"):
            self._pair(path)

    def _inside(self, end: str) -> Iterator[int]:
        """Once for each element between the brackets, with its number."""
        self._at += 1
        number = 0
        while self._skip(_BLANK) and self._text[self._at] != end:
            yield number
            number += 1
            self._skip(_BLANK)
            self._at += self._text[self._at] == ","
        self._at += 1

    def _named(self, path: Path, line: int) -> Path:
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
