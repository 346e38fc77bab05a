"""Putting right what was written while the clock of the server was ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evertick.store.base import CLOCK_AHEAD, CLOCK_FAR, EVER, GapCut
from evertick.store.clock_rows import TELLING, WAITING, OffRows, keep
from evertick.store.postgres.session import Statements

__all__ = ["find_off", "mend_off"]


async def find_off(db: Statements, app: str, limit: int, since: int | None = None) -> tuple[OffRows, int]:
    """`since`: the earliest wrong time, where it is known from a look before. Beside it the store's time."""
    now: int = (await db.only_row("now"))["now"]
    found, ahead = OffRows({}, [], []), now + CLOCK_AHEAD
    for kind in (*TELLING, "gaps", "keys"):
        keep(found, kind, await db.rows(f"clock.{kind}", app, ahead, limit))
    # Runs that were made at a wrong time tell it, too: what else waits is found by that.
    for kind in ("runs", "messages"):
        rows = await db.rows(f"clock.{kind}", app, ahead, EVER, now + CLOCK_FAR, limit)
        found.times.extend(row["at"] for row in rows if row["at"] is not None)
    earliest = min([*found.times, *([] if since is None else [since])], default=EVER)
    for kind in ("runs", "messages"):
        keep(found, kind, await db.rows(f"clock.{kind}", app, ahead, earliest, now + CLOCK_FAR, limit))
    return found, now


async def mend_off(db: Statements, app: str, found: OffRows, gaps: Sequence[GapCut], limit: int) -> dict[str, int]:
    """What was found by a look before this transaction; a row that is right by now stays as it is."""
    now: int = (await db.only_row("now"))["now"]
    mended: dict[str, int] = {}
    for kind in WAITING:
        await _mend(db, mended, kind, found, app, now)
        if len(found.names.get(kind, ())) >= limit:
            break  # more of them may wait
    else:
        for kind in TELLING:
            await _mend(db, mended, kind, found, app, now)
        if cut := await _cut(db, app, gaps, now):
            mended["gaps"] = cut
    if mended:
        db.wake(app)
    return mended


async def _mend(db: Statements, mended: dict[str, int], kind: str, found: OffRows, app: str, now: int) -> None:
    names, ahead = found.names.get(kind, []), now + CLOCK_AHEAD
    if not names:
        return
    values: tuple[Any, ...] = (app, names, now)
    match kind:
        case "runs":
            held = [row["id"] for row in await db.rows("clock.lock_runs", app, names)]
            mended[kind] = (await db.only_row("clock.mend_runs", app, held, now, ahead))["count"]
        case "history":
            mended[kind] = (await db.only_row("clock.mend_history", *values, ahead))["count"]
        case "attempts":
            runs, fences = [run for run, _ in names], [fence for _, fence in names]
            mended[kind] = await db.count("clock.mend_attempts", app, runs, fences, now, ahead)
        case "messages" | "duties":
            mended[kind] = await db.count(f"clock.mend_{kind}", *values, ahead)
        case _:
            mended[kind] = await db.count(f"clock.mend_{kind}", *values)


async def _cut(db: Statements, app: str, gaps: Sequence[GapCut], now: int) -> int:
    cut = 0
    for gap in gaps:
        if gap.count:
            values = (app, gap.id, gap.last_at, gap.count, gap.is_exact, now, now + CLOCK_AHEAD)
            cut += await db.count("clock.mend_gap", *values)
        else:
            cut += await db.count("clock.drop_gap", app, gap.id, now + CLOCK_AHEAD)
    return cut
