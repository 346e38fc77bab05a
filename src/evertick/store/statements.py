"""Statements by name, out of a `queries.sql` in which each says what it is for."""

from __future__ import annotations

from pathlib import Path

__all__ = ["load_statements"]

_MARK = "-- name: "


def load_statements(path: Path) -> dict[str, str]:
    blocks: dict[str, str] = {}
    for block in path.read_text(encoding="utf-8").split(_MARK)[1:]:
        name, _, text = block.partition("\n")
        assert name.strip() not in blocks, f"two statements are called {name}"
        # Without comments: databases keep the text of every prepared statement.
        lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
        blocks[name.strip()] = "\n".join(lines).rstrip(";\n ")
    return blocks
