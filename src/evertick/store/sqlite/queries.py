"""The statements of the SQLite store, by name. They live in `queries.sql`, where each says what it is for."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["SQL"]

# A statement, or a part of several that a line `@name` stands for.
_HEAD = re.compile(r"^-- (name|part): (\S+)\n", re.MULTILINE)


def _load(path: Path) -> dict[str, str]:
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    _, *blocks = _HEAD.split(path.read_text(encoding="utf-8"))
    for kind, name, text in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        known = parts if kind == "part" else statements
        assert name not in known, f"two statements are called {name}"
        # Without comments: SQLite keeps the text of every cached statement.
        lines = (line for line in text.splitlines() if line.strip() and not line.startswith("--"))
        whole = (parts[line.removeprefix("@")] if line.startswith("@") else line for line in lines)
        known[name] = "\n".join(whole).rstrip(";\n ")
    return statements


SQL = _load(Path(__file__).with_name("queries.sql"))
