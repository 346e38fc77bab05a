"""Dispatched runs on SQLite: what is reported of them from outside, and those whose time is over.

What a report means is decided in `evertick.store.dispatched`; here it is read and written, a batch at a time.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evertick.clock import Clock
from evertick.model import Report
from evertick.model.message import dispatch_key
from evertick.store.base import DispatchesChecked, Hearing, ReportAnswer
from evertick.store.dispatched import STALE, Heard, LogLines, Mark, bare_report, given_answers, hear, tend
from evertick.store.rows import dispatch_terms_of, json_text, plain_text
from evertick.store.sqlite.connection import UNWRITABLE, savepoint
from evertick.store.sqlite.endings import Ended, end, end_as_told, forget, put_back
from evertick.store.sqlite.feed import tell_runs
from evertick.store.sqlite.limits import make_room
from evertick.store.sqlite.outbox import write_messages
from evertick.store.sqlite.queries import SQL
from evertick.store.worker_log import WorkerLog, worker_log_lines

__all__ = ["apply_each", "apply_reports", "check_dispatched"]

log = logging.getLogger("evertick.store")

_rows = msgspec.json.Decoder(list[dict[str, Any]])


def apply_reports(db: sqlite3.Connection, now: int, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
    ids = json_text([report.id for report in reports])
    rows = _rows.decode(db.execute(SQL["apply_reports.dispatched"], (app, ids)).fetchone()[0])
    heard = hear(reports, rows, now)
    _mark(db, app, heard.marks)
    _write_lines(db, app, heard.lines)
    tell_runs(db, now, app, "run.taken", heard.taken)
    _let_go(db, now, app, heard, {row["id"]: Ended(row["id"], row["schedule_id"], row["limit_key"]) for row in rows})
    return given_answers(heard.answers, reports, _told_before(db, app, heard, reports))


def apply_each(db: sqlite3.Connection, now: int, app: str, reports: Sequence[Report]) -> list[ReportAnswer]:
    """For a batch of which one cannot be written: the others do not wait for it."""
    return [_apply_one(db, now, app, report) for report in reports]


def _apply_one(db: sqlite3.Connection, now: int, app: str, report: Report) -> ReportAnswer:
    """The report, or what can be written of it. If not even that can be, the run's own time will be over."""
    told = report
    for _ in range(2):
        try:
            with savepoint(db):
                return apply_reports(db, now, app, [told])[0]
        except UNWRITABLE as error:
            log.error("a report about run %s of app %s cannot be written: %s", report.id, app, error)
            told = bare_report(report, error)
    return STALE


def _mark(db: sqlite3.Connection, app: str, marks: Sequence[Mark]) -> None:
    alike: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for mark in marks:
        said, worker = plain_text(mark.progress_text), plain_text(mark.worker)
        alike[mark.pushed_at, mark.taken_at, mark.deadline, mark.progress, said, worker].append(mark.id)
    for known, ids in alike.items():
        db.execute(SQL["apply_reports.mark"], (app, json_text(ids), *known))


def _let_go(db: sqlite3.Connection, now: int, app: str, heard: Heard, runs: dict[str, Ended]) -> None:
    """Those that leave these hands: to history, or back to waiting."""
    end_as_told(db, now, app, [each.outcome for each in heard.ends])
    forget(db, now, app, [runs[each.outcome.id] for each in heard.ends])
    put_back(db, now, app, heard.back)
    make_room(db, app, [runs[outcome.id].limit_key for outcome in heard.back])


def _write_lines(db: sqlite3.Connection, app: str, said: Sequence[LogLines]) -> None:
    if not said:
        return
    pairs = json_text(list({(lines.id, lines.fence): None for lines in said}))
    rows = db.execute(SQL["apply_reports.last_lines"], (app, pairs)).fetchall()
    kept = defaultdict(
        WorkerLog, {(row["run"], row["fence"]): WorkerLog(row["last"], row["count"], row["size"]) for row in rows}
    )
    for each in worker_log_lines(said, kept):
        db.execute(SQL["note.lines"], (app, each.id, each.fence, each.seq, each.count, each.text))


def _told_before(db: sqlite3.Connection, app: str, heard: Heard, reports: Sequence[Report]) -> set[tuple[str, int]]:
    asked = [(r.id, r.fence) for r, answer in zip(reports, heard.answers, strict=True) if answer is None]
    if not asked:
        return set()
    rows = db.execute(SQL["apply_reports.told_before"], (app, json_text(asked)))
    return {(row["id"], row["fence"]) for row in rows}


def check_dispatched(
    db: sqlite3.Connection, now: int, app: str, limit: int, heard: Mapping[str, Hearing], clock: Clock
) -> DispatchesChecked:
    rows = db.execute(SQL["check_dispatched.find_cancelled"], (app, now, limit)).fetchall()
    if heard and len(rows) < limit:
        until = json_text({channel: hearing.until for channel, hearing in heard.items()})
        rows += db.execute(SQL["check_dispatched.find_overdue"], (app, now, limit - len(rows), until)).fetchall()
    unsent = {row["id"] for row in rows if _withdraw(db, app, row)}
    tended = tend(rows, now, heard, unsent, clock.new_ids(len(rows)))
    db.executemany(SQL["rehome.lose"], [(app, id_, losses) for id_, losses in tended.revoked])
    has_freed = end(db, now, app, tended.ends)
    released = [id_ for id_, _ in tended.released]
    tell_runs(db, now, app, "run.released", released, [reason for _, reason in tended.released])
    db.executemany(SQL["rehome.release"], [(app, id_, now) for id_ in released])
    keys = {row["id"]: row["limit_key"] for row in rows}
    has_freed = make_room(db, app, [keys[id_] for id_ in released]) or has_freed
    db.executemany(SQL["check_dispatched.told"], [(app, id_, now, until) for id_, until in tended.told])
    db.executemany(SQL["check_dispatched.postpone"], [(app, id_, until) for id_, until in tended.postponed])
    write_messages(db, now, app, tended.kills)
    return DispatchesChecked(
        now=now,
        released=released,
        ended=[(ending.id, ending.verdict) for ending in tended.ends],
        freed=has_freed,
        has_killed=bool(tended.kills),
    )


def _withdraw(db: sqlite3.Connection, app: str, row: sqlite3.Row) -> bool:
    """Whether nobody will ever get a run that is to be cancelled: its message was not sent, and is not on its way."""
    if not row["is_cancel_requested"] or row["pushed_at"] is not None:
        return False
    message = (app, dispatch_terms_of(row["dispatch"]).to, dispatch_key(row["id"], row["fence"]))
    db.execute(SQL["check_dispatched.withdraw"], message)
    return bool(db.execute(SQL["check_dispatched.is_unsent"], message).fetchone()["is_unsent"])
