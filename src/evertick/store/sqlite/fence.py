"""What every claim asks first: whether its node lives, and the number under which it claims."""

from __future__ import annotations

import sqlite3

from evertick.store.sqlite.queries import SQL

__all__ = ["draw_fence", "is_alive"]


def is_alive(db: sqlite3.Connection, node: str) -> bool:
    return db.execute(SQL["node.is_alive"], (node,)).fetchone() is not None


def draw_fence(db: sqlite3.Connection) -> int:
    return int(db.execute(SQL["fence.draw"]).fetchone()[0])
