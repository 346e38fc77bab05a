"""Dispatched runs on PostgreSQL: reports of workers, the check of overdue runs, and dropped dispatch messages.

`evertick.store.dispatched` decides what a report means; this file reads under locks and writes, a constant number of
statements per batch. Runs are locked before their messages, as everywhere.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence

from evertick.model import Reason, Report
from evertick.model.message import dispatch_key
from evertick.store.base import DispatchesChecked, ReportAnswer, ReportWindow
from evertick.store.dispatched import (
    STALE,
    AppliedReports,
    LogLines,
    ReportedEnd,
    WorkerLog,
    WorkerLogLines,
    all_answers,
    apply_all,
    check_runs,
    minimal_report,
    worker_log_lines,
)
from evertick.store.postgres.connection import Statements, columns_of, is_unwritable, once_if_equal
from evertick.store.postgres.endings import (
    end,
    free,
    lock_before,
    lock_runs,
    publish_returned,
    return_runs,
    warn_of_dropped,
)
from evertick.store.postgres.feed import publish_runs
from evertick.store.postgres.limits import make_room
from evertick.store.postgres.outbox import ids_changed_by, write_messages
from evertick.store.postgres.run_ids import days_to_search, is_run_id
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import Row, dispatch_terms_of, json_text, storable_text

__all__ = ["apply_reports", "check_dispatched", "drop_messages"]

log = logging.getLogger("evertick.store")


async def apply_reports(session: StoreSession, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
    try:
        return await session.write(lambda db: _apply(db, app, reports))
    except Exception as error:
        if not is_unwritable(error):
            raise
    # One of them cannot be stored: each in its own transaction.
    return [await _apply_one(session, app, report) for report in reports]


async def _apply_one(session: StoreSession, app: str, report: Report) -> ReportAnswer:
    """Apply the report, or else the part of it that can be stored. If both fail, the run becomes overdue."""
    writable = report
    for _ in range(2):
        try:
            return (await session.write(functools.partial(_apply, app=app, reports=[writable])))[0]
        except Exception as error:
            if not is_unwritable(error):
                raise
            log.error("run %s: app %r: a report cannot be stored: %s", report.id, app, error)
            writable = minimal_report(report, error)
    return STALE


async def _apply(db: Statements, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
    ids = list({report.id: None for report in reports if is_run_id(report.id)})
    if not ids:
        return [STALE] * len(reports)
    await lock_before(db, app, ids)
    rows = {row["id"]: row for row in await db.rows("apply_reports.lock", app, ids)}
    db.has_feed = next(iter(rows.values()))["has_feed"] if rows else db.has_feed
    applied = apply_all(reports, rows.values(), max((row["now"] for row in rows.values()), default=0))
    await _write_progress(db, applied)
    await _write_lines(db, app, applied.lines, rows)
    await publish_runs(db, app, "run.taken", applied.taken)
    await _write_ends(db, app, applied, rows)
    return all_answers(applied.answers, reports, await _answered_before(db, app, applied, reports))


async def _write_progress(db: Statements, applied: AppliedReports) -> None:
    """Except for runs that end: their end writes it."""
    over = {each.outcome.id for each in applied.ends}
    progress = [
        (
            each.id,
            each.pushed_at,
            each.taken_at,
            each.deadline,
            each.progress,
            storable_text(each.progress_text),
            storable_text(each.worker),
        )
        for each in applied.progress
        if each.id not in over
    ]
    if progress:
        await db.count("apply_reports.progress", *columns_of(progress))


async def _write_ends(db: Statements, app: str, applied: AppliedReports, rows: Mapping[str, Row]) -> None:
    """Runs that end or return to waiting."""
    await return_runs(db, applied.returned)
    await publish_returned(db, app, applied.returned)
    ended = await _end(db, app, applied.ends)
    freed = await free(db, app, [rows[id_] for id_ in ended]) or bool(applied.returned)
    leaving = [*ended, *(outcome.id for outcome in applied.returned)]
    freed = await make_room(db, app, [rows[id_]["limit_key"] for id_ in leaving]) or freed
    if freed:
        db.wake(app)


async def _end(db: Statements, app: str, ends: Sequence[ReportedEnd]) -> list[str]:
    if not ends:
        return []
    values = [
        (
            each.outcome.id,
            each.outcome.fence,
            each.outcome.verdict,
            each.outcome.attempts,
            storable_text(each.outcome.reason),
            storable_text(each.outcome.error),
            None if each.outcome.result is None else each.outcome.result.decode(),
            each.started_at,
            storable_text(each.worker),
        )
        for each in ends
    ]
    given, fences, verdicts, attempts, reasons, errors, results, began, workers = columns_of(values)
    same = map(once_if_equal, (fences, verdicts, attempts))
    others = (reasons, errors, results, once_if_equal(began), workers)
    ended = await db.only_row("apply_reports.done", app, given, *same, *others)
    ids: list[str] = ended["ids"] or []
    warn_of_dropped(app, len(ids) - ended["kept"], ids)
    return ids


async def _write_lines(db: Statements, app: str, reported: Sequence[LogLines], rows: Mapping[str, Row]) -> None:
    if not reported:
        return
    pairs = list({(lines.id, lines.fence): None for lines in reported})
    asked = columns_of([(id_, fence, rows[id_]["fire_at"]) for id_, fence in pairs])
    found = await db.rows("apply_reports.last_lines", *asked)
    logs = {(row["id"], row["fence"]): WorkerLog(row["last"], row["count"], row["size"]) for row in found}
    # The longest of several with the same first line, because a statement can write a row only once.
    chunks: dict[tuple[str, int, int], WorkerLogLines] = {}
    for each in worker_log_lines(reported, logs):
        place = (each.id, each.fence, each.seq)
        if place not in chunks or chunks[place].count < each.count:
            chunks[place] = each
    written = [(*place, rows[place[0]]["fire_at"], each.count, each.text) for place, each in chunks.items()]
    if written:
        await db.count("note.lines", app, *columns_of(written))


async def _answered_before(
    db: Statements, app: str, applied: AppliedReports, reports: Sequence[Report]
) -> set[tuple[str, int]]:
    unheard = [report for report, answer in zip(reports, applied.answers, strict=True) if answer is None]
    asked = [(report.id, report.fence) for report in unheard if is_run_id(report.id)]
    answered: set[tuple[str, int]] = set()
    for first, last in days_to_search([id_ for id_, _ in asked]):
        left = [claim for claim in asked if claim not in answered]
        if left:
            rows = await db.rows("apply_reports.answered_before", app, *columns_of(left), first, last)
            answered |= {(row["id"], row["fence"]) for row in rows}
    return answered


# --- overdue runs ----------------------------------------------------------------------------------------------------


async def check_dispatched(
    db: Statements, app: str, limit: int, windows: Mapping[str, ReportWindow]
) -> DispatchesChecked:
    found = [row["id"] for row in await db.rows("check_dispatched.find_cancelled", app, limit)]
    if windows and len(found) < limit:
        until = json_text({channel: window.until for channel, window in windows.items()})
        found += [row["id"] for row in await db.rows("check_dispatched.find_overdue", app, limit - len(found), until)]
    rows: list[Row] = []
    if found:
        await lock_before(db, app, found)
        rows = await db.rows("check_dispatched.lock", app, found)
    if not rows:
        now = (await db.only_row("now"))["now"]
        return DispatchesChecked(now=now, released=[], ended=[], freed=False, has_kill_messages=False)
    now = max(row["now"] for row in rows)
    checked = check_runs(rows, now, windows, await _withdraw(db, app, rows), db.clock.new_ids(len(rows)))
    if checked.revoked:
        await db.count("check_dispatched.revoke", *columns_of(checked.revoked))
    has_freed = await end(db, app, checked.ends)
    released = [id_ for id_, _ in checked.released]
    await publish_runs(db, app, "run.released", released, [reason for _, reason in checked.released])
    if released:
        await db.count("rehome.release", released)
        db.wake(app)
    keys = {row["id"]: row["limit_key"] for row in rows}
    has_freed = await make_room(db, app, [keys[id_] for id_ in released]) or has_freed
    if checked.stopping:
        await db.count("check_dispatched.stopping", *columns_of(checked.stopping))
    if checked.postponed:
        await db.count("check_dispatched.postpone", *columns_of(checked.postponed))
    await write_messages(db, app, checked.kills)
    return DispatchesChecked(
        now=now,
        released=released,
        ended=[(ending.id, ending.verdict) for ending in checked.ends],
        freed=has_freed,
        has_kill_messages=bool(checked.kills),
    )


async def _withdraw(db: Statements, app: str, rows: Sequence[Row]) -> Collection[str]:
    """Runs to be cancelled that no worker will ever get: their message was neither sent nor is being sent."""
    waiting = {
        dispatch_key(row["id"], row["fence"]): row
        for row in rows
        if row["is_cancel_requested"] and row["pushed_at"] is None
    }
    if not waiting:
        return ()
    messages = columns_of([(dispatch_terms_of(row["dispatch"]).to, key) for key, row in waiting.items()])
    await db.count("check_dispatched.withdraw", app, *messages)
    return {waiting[row["key"]]["id"] for row in await db.rows("check_dispatched.unsent", app, *messages)}


async def drop_messages(db: Statements, app: str, ids: Sequence[str]) -> list[str]:
    wanted = [id_ for id_ in ids if is_run_id(id_)]
    runs = [row["id"] for row in await db.rows("drop_messages.dispatch", app, wanted)]
    if runs:
        await lock_runs(db, app, runs)
        await db.count("drop_messages.cancel", app, wanted, Reason.REQUESTED)
        db.wake(app)
    return await ids_changed_by(db, "drop_messages", app, ids)
