"""Duties: who holds which, under which term.

A duty is held by being written down for a node that lives; nobody has to extend it. So a death frees all duties of its
node without a write of its own, and whoever asks next takes them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from evertick.model import Duty
from evertick.store.base import DutyHolds, DutyTick
from evertick.store.rows import duty_hold_of, duty_of, json_text, plain_text
from evertick.store.sqlite.queries import SQL

__all__ = ["duties", "hold_duties", "named_duties", "resign", "resign_duties", "tick_duty"]


def named_duties(db: sqlite3.Connection, now: int, app: str, names: Sequence[str]) -> DutyHolds:
    rows = db.execute(SQL["duties.named"], (app, json_text(names)))
    return DutyHolds(now=now, duties=[duty_hold_of(row) for row in rows])


def hold_duties(db: sqlite3.Connection, now: int, app: str, node: str, names: Sequence[str]) -> DutyHolds:
    for statement in ("hold_duties.begin", "hold_duties.take"):
        db.execute(SQL[statement], (app, node, json_text(names), now))
    return named_duties(db, now, app, names)


def tick_duty(db: sqlite3.Connection, now: int, app: str, node: str, tick: DutyTick) -> bool:
    said = (tick.has_acted, tick.next_at, plain_text(tick.error), now)
    return db.execute(SQL["tick_duty"], (app, tick.name, node, tick.term, *said)).rowcount > 0


def resign_duties(db: sqlite3.Connection, now: int, app: str, node: str, terms: Mapping[str, int]) -> None:
    db.executemany(SQL["resign_duties"], [(app, name, node, term) for name, term in terms.items()])


def resign(db: sqlite3.Connection, now: int, node: str) -> None:
    db.execute(SQL["resign"], (node,))


def duties(db: sqlite3.Connection, now: int, app: str) -> list[Duty]:
    return [duty_of(row) for row in db.execute(SQL["duties"], (app,))]
