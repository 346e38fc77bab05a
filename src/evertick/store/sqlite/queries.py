"""The statements of the SQLite store, by name. They live in `queries.sql`, where each says what it is for."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SQL"]

_MARK = "-- name: "


def _load(path: Path) -> dict[str, str]:
    blocks: dict[str, str] = {}
    for block in path.read_text(encoding="utf-8").split(_MARK)[1:]:
        name, _, text = block.partition("\n")
        assert name.strip() not in blocks, f"two statements are called {name}"
        # Without comments: SQLite keeps the text of every cached statement.
        lines = (line for line in text.splitlines() if line.strip() and not line.startswith("--"))
        blocks[name.strip()] = "\n".join(lines).rstrip(";\n ")
    return blocks


SQL = _load(Path(__file__).with_name("queries.sql"))
