"""The statements of the SQLite store, by name. They live in `queries.sql`, where each says what it is for."""

from __future__ import annotations

from pathlib import Path

from evertick.store.statements import load_statements

__all__ = ["SQL"]

SQL = load_statements(Path(__file__).with_name("queries.sql"))
