"""The pages of the documentation, taken apart: code blocks, links, headings."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.py)\n")


# The hook of MkDocs that fills in the parts of the pages that the code defines.
_filled = runpy.run_path(str(ROOT / "docs/hooks.py"))["filled"]


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the page tells its reader to save this as, named by the comment that it begins with."""
        named = _FILE.match(self.text)
        return None if named is None else named[1]

    def save(self, folder: Path) -> None:
        assert self.file is not None, f"{self.place} names no file"
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text, encoding="utf-8")


def pages() -> list[Path]:
    """All of them, the README and the map of the architecture included."""
    tops = [page for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md") if (page := ROOT / name).exists()]
    return [*tops, *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    text = text_of(page)
    return [
        # The line of the first line inside of the fence.
        Block(page, text[: found.start(2)].count("\n") + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", text_of(page))


def doc(path: str) -> str:
    return text_of(ROOT / "docs" / path)


@cache
def built(path: str) -> str:
    """The page as MkDocs gets it."""
    filled: str = _filled(doc(path))
    return filled


def files(page: Path) -> list[Block]:
    """The files that a page tells its reader to save."""
    return [block for block in blocks(page) if block.file is not None]


def shell_lines(page: Path) -> list[str]:
    """The lines of the `sh` blocks of a page, without comments."""
    typed = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    return [line.partition(" #")[0].strip() for line in typed]
