"""Duties: who holds which, under which term.

A duty is held by being written down for a node that lives; nobody has to extend it. So a death frees all duties of its
node without a write of its own, and whoever asks next takes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evertick.model import Duty
from evertick.store.base import DutyHolds, DutyTick
from evertick.store.postgres.session import Statements
from evertick.store.rows import duty_hold_of, duty_of, plain_text

__all__ = ["duties", "hold_duties", "named_duties", "resign", "resign_duties", "tick_duty"]


async def named_duties(db: Statements, app: str, names: Sequence[str]) -> DutyHolds:
    rows = await db.rows("duties.named", app, list(names))
    return DutyHolds(now=rows[0]["now"], duties=[duty_hold_of(row) for row in rows if row["name"] is not None])


async def hold_duties(db: Statements, app: str, node: str, names: Sequence[str]) -> DutyHolds:
    await db.count("hold_duties.begin", app, node, list(names))
    await db.rows("hold_duties.lock", app, list(names))
    await db.count("hold_duties.take", app, node, list(names))
    return await named_duties(db, app, names)


async def tick_duty(db: Statements, app: str, node: str, tick: DutyTick) -> bool:
    said = (tick.has_acted, tick.next_at, plain_text(tick.error))
    return await db.count("tick_duty", app, tick.name, node, tick.term, *said) > 0


async def resign_duties(db: Statements, app: str, node: str, terms: Mapping[str, int]) -> None:
    if await db.count("resign_duties", app, node, list(terms), list(terms.values())):
        db.wake(app)


async def resign(db: Statements, node: str) -> None:
    await db.count("resign", node)


async def duties(db: Statements, app: str) -> list[Duty]:
    return [duty_of(row) for row in await db.rows("duties", app)]
