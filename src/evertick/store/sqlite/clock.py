"""Putting right what was written while the clock of the machine was ahead."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from evertick.store.base import CLOCK_AHEAD, CLOCK_FAR, EVER, GapCut
from evertick.store.clock_rows import TELLING, WAITING, OffRows, keep
from evertick.store.rows import json_text
from evertick.store.sqlite.queries import SQL

__all__ = ["find_off", "mend_off"]


def find_off(db: sqlite3.Connection, now: int, app: str, limit: int, since: int | None = None) -> OffRows:
    """`since`: the earliest wrong time, where it is known from a look before. Reads all rows without a lock."""
    found, ahead = OffRows({}, [], []), now + CLOCK_AHEAD
    for kind in (*TELLING, "gaps", "keys"):
        keep(found, kind, db.execute(SQL[f"clock.{kind}"], (app, ahead, limit)).fetchall())
    # Runs that were made at a wrong time tell it, too: what else waits is found by that.
    for kind in ("runs", "messages"):
        values = (app, ahead, EVER, now + CLOCK_FAR, limit)
        found.times.extend(row["at"] for row in db.execute(SQL[f"clock.{kind}"], values) if row["at"] is not None)
    earliest = min([*found.times, *([] if since is None else [since])], default=EVER)
    for kind in ("runs", "messages"):
        values = (app, ahead, earliest, now + CLOCK_FAR, limit)
        keep(found, kind, db.execute(SQL[f"clock.{kind}"], values).fetchall())
    return found


def mend_off(
    db: sqlite3.Connection, now: int, app: str, found: OffRows, gaps: Sequence[GapCut], limit: int
) -> dict[str, int]:
    """What was found by a look before this transaction; a row that is right by now stays as it is."""
    ahead, mended = now + CLOCK_AHEAD, dict[str, int]()

    def mend(kind: str) -> None:
        if names := found.names.get(kind):
            statement = SQL[f"clock.mend_{kind}"]
            values = (app, json_text(names), now, ahead)[: 4 if "?4" in statement else 3]
            mended[kind] = db.execute(statement, values).rowcount

    for kind in WAITING:
        mend(kind)
        if len(found.names.get(kind, ())) >= limit:
            return mended  # more of them may wait
    for kind in TELLING:
        mend(kind)
    cut = 0
    for gap in gaps:
        if gap.count:
            values = (app, gap.id, gap.last_at, gap.count, gap.is_exact, now, ahead)
            cut += db.execute(SQL["clock.mend_gap"], values).rowcount
        else:
            cut += db.execute(SQL["clock.drop_gap"], (app, gap.id, ahead)).rowcount
    return {**mended, "gaps": cut} if cut else mended
