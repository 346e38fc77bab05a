"""Statements by name, out of a `queries.sql` in which each says what it is for."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["load_statements"]

# A statement, or a part of several that `@name` stands for.
_HEAD = re.compile(r"^-- (name|part): (\S+)\n", re.MULTILINE)
_PART = re.compile(r"@(\w+)")


def load_statements(path: Path) -> dict[str, str]:
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    _, *blocks = _HEAD.split(path.read_text(encoding="utf-8"))
    for kind, name, text in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        known = parts if kind == "part" else statements
        assert name not in known, f"two statements are called {name}"
        # Without comments: databases keep the text of every prepared statement.
        lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
        whole = "\n".join(lines).rstrip(";\n ")
        known[name] = _PART.sub(lambda part: parts[part[1]], whole)
    return statements
