"""Dispatched runs on SQLite: reports of workers, and the check of overdue runs.

`evertick.store.dispatched` decides what a report means; this file reads and writes the rows, a batch at a time.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from evertick.model import Report
from evertick.model.message import dispatch_key
from evertick.store.base import DispatchesChecked, ReportAnswer, ReportWindow
from evertick.store.dispatched import (
    STALE,
    AppliedReports,
    LogLines,
    RunProgress,
    WorkerLog,
    all_answers,
    apply_all,
    check_runs,
    minimal_report,
    worker_log_lines,
)
from evertick.store.rows import dispatch_terms_of, json_text, storable_text
from evertick.store.sqlite.connection import SQL, UNWRITABLE, savepoint
from evertick.store.sqlite.endings import EndedRun, end, end_reported, forget, return_runs
from evertick.store.sqlite.feed import publish_runs
from evertick.store.sqlite.limits import make_room
from evertick.store.sqlite.outbox import write_messages

__all__ = ["apply_each", "apply_reports", "check_dispatched"]

log = logging.getLogger("evertick.store")

_rows = msgspec.json.Decoder(list[dict[str, Any]])


def apply_reports(db: sqlite3.Connection, now: int, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
    ids = json_text([report.id for report in reports])
    rows = _rows.decode(db.execute(SQL["apply_reports.dispatched"], (app, ids)).fetchone()[0])
    applied = apply_all(reports, rows, now)
    _write_progress(db, app, applied.progress)
    _write_lines(db, app, applied.lines)
    publish_runs(db, now, app, "run.taken", applied.taken)
    _write_ends(
        db, now, app, applied, {row["id"]: EndedRun(row["id"], row["schedule_id"], row["limit_key"]) for row in rows}
    )
    return all_answers(applied.answers, reports, _answered_before(db, app, applied, reports))


def apply_each(db: sqlite3.Connection, now: int, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
    """For a batch with a report that cannot be stored: the others are written."""
    return [_apply_one(db, now, app, report) for report in reports]


def _apply_one(db: sqlite3.Connection, now: int, app: str, report: Report) -> ReportAnswer:
    """Apply the report, or else the part of it that can be stored. If both fail, the run becomes overdue."""
    writable = report
    for _ in range(2):
        try:
            with savepoint(db):
                return apply_reports(db, now, app, [writable])[0]
        except UNWRITABLE as error:
            log.error("run %s: app %r: a report cannot be stored: %s", report.id, app, error)
            writable = minimal_report(report, error)
    return STALE


def _write_progress(db: sqlite3.Connection, app: str, progress: Sequence[RunProgress]) -> None:
    groups: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for each in progress:
        text, worker = storable_text(each.progress_text), storable_text(each.worker)
        groups[each.pushed_at, each.taken_at, each.deadline, each.progress, text, worker].append(each.id)
    for known, ids in groups.items():
        db.execute(SQL["apply_reports.progress"], (app, json_text(ids), *known))


def _write_ends(db: sqlite3.Connection, now: int, app: str, applied: AppliedReports, runs: dict[str, EndedRun]) -> None:
    """Runs that end or return to waiting."""
    end_reported(db, now, app, [each.outcome for each in applied.ends])
    forget(db, now, app, [runs[each.outcome.id] for each in applied.ends])
    return_runs(db, now, app, applied.returned)
    make_room(db, app, [runs[outcome.id].limit_key for outcome in applied.returned])


def _write_lines(db: sqlite3.Connection, app: str, reported: Sequence[LogLines]) -> None:
    if not reported:
        return
    pairs = json_text(list({(lines.id, lines.fence): None for lines in reported}))
    rows = db.execute(SQL["apply_reports.last_lines"], (app, pairs)).fetchall()
    logs = defaultdict(
        WorkerLog, {(row["run"], row["fence"]): WorkerLog(row["last"], row["count"], row["size"]) for row in rows}
    )
    for each in worker_log_lines(reported, logs):
        db.execute(SQL["note.lines"], (app, each.id, each.fence, each.seq, each.count, each.text))


def _answered_before(
    db: sqlite3.Connection, app: str, applied: AppliedReports, reports: Sequence[Report]
) -> set[tuple[str, int]]:
    asked = [(r.id, r.fence) for r, answer in zip(reports, applied.answers, strict=True) if answer is None]
    if not asked:
        return set()
    rows = db.execute(SQL["apply_reports.answered_before"], (app, json_text(asked)))
    return {(row["id"], row["fence"]) for row in rows}


def check_dispatched(
    db: sqlite3.Connection,
    now: int,
    app: str,
    limit: int,
    windows: Mapping[str, ReportWindow],
    new_ids: Callable[[int], list[str]],
) -> DispatchesChecked:
    rows = db.execute(SQL["check_dispatched.find_cancelled"], (app, now, limit)).fetchall()
    if windows and len(rows) < limit:
        until = json_text({channel: window.until for channel, window in windows.items()})
        rows += db.execute(SQL["check_dispatched.find_overdue"], (app, now, limit - len(rows), until)).fetchall()
    unsent = {row["id"] for row in rows if _withdraw(db, app, row)}
    checked = check_runs(rows, now, windows, unsent, new_ids(len(rows)))
    db.executemany(SQL["rehome.lose"], [(app, id_, losses) for id_, losses in checked.revoked])
    has_freed = end(db, now, app, checked.ends)
    released = [id_ for id_, _ in checked.released]
    publish_runs(db, now, app, "run.released", released, [reason for _, reason in checked.released])
    db.executemany(SQL["rehome.release"], [(app, id_, now) for id_ in released])
    keys = {row["id"]: row["limit_key"] for row in rows}
    has_freed = make_room(db, app, [keys[id_] for id_ in released]) or has_freed
    db.executemany(SQL["check_dispatched.stopping"], [(app, id_, now, until) for id_, until in checked.stopping])
    db.executemany(SQL["check_dispatched.postpone"], [(app, id_, until) for id_, until in checked.postponed])
    write_messages(db, now, app, checked.kills)
    return DispatchesChecked(
        now=now,
        released=released,
        ended=[(ending.id, ending.verdict) for ending in checked.ends],
        freed=has_freed,
        has_kill_messages=bool(checked.kills),
    )


def _withdraw(db: sqlite3.Connection, app: str, row: sqlite3.Row) -> bool:
    """Whether no worker will ever get a run to be cancelled: its message was neither sent nor is being sent."""
    if not row["is_cancel_requested"] or row["pushed_at"] is not None:
        return False
    message = (app, dispatch_terms_of(row["dispatch"]).to, dispatch_key(row["id"], row["fence"]))
    db.execute(SQL["check_dispatched.withdraw"], message)
    return bool(db.execute(SQL["check_dispatched.is_unsent"], message).fetchone()["is_unsent"])
