"""Dispatched runs: the effect of a report on a run, and the check of overdue runs. Pure, for every store.

A dispatched run belongs to no node. Its row has the terms of the dispatch (`DispatchTerms`), with the next delay of its
retry policy, so that any node can apply a report, even one that does not know the task.

`deadline` is when to check a run that gets no report. It has none while its message is in the outbox: an unreachable
queue only delays. A cancel request sets it to now.

A node that has read all reports knows that no worker has a run. A cancel request then ends the run at once, without a
loss. The message may still be in the queue; a worker that takes it later finds the kill message that was sent with the
end. If no node reads reports, a worker may have the run, and gets its time to stop.

Only a node that read all reports may declare a worker silent: an unreachable queue holds back the reports of healthy
workers. After an outage the workers have their whole timeout again.

The log of a dispatch has a limit, like the log of a local job, because a faulty worker may report without end. Lines
are written until the log is full; then one line says so. After that only the last lines are kept that come with the
final report, because they are often the most useful. A report may come twice and out of order, so each is cut by
itself, always with the same result, and is then written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, assert_never

import msgspec

from evertick.model import (
    LINE_MAX_CHARS,
    LINES_MAX,
    LOSSES_MAX,
    DispatchTerms,
    NewMessage,
    Outcome,
    Reason,
    Report,
    Verdict,
)
from evertick.model.message import kill_message
from evertick.store.base import ReportAnswer, ReportWindow
from evertick.store.rows import Row, dispatch_terms_of, lines_text
from evertick.store.verdicts import DEADLINE_MARGIN, Ending, cancelled_outcome
from evertick.when.moment import MINUTE, SECOND

__all__ = [
    "STALE",
    "AppliedReports",
    "LogLines",
    "ReportedEnd",
    "RunProgress",
    "WorkerLog",
    "WorkerLogLines",
    "all_answers",
    "apply_all",
    "check_runs",
    "minimal_report",
    "worker_log_lines",
]

STALE = ReportAnswer(answer="stale")
# How long a worker may take to stop, if its terms have no timeout.
_STOP_DEFAULT = MINUTE
# Next check of a cancel request while a worker may have the run and reports are not read.
_RECHECK = SECOND


class RunProgress(msgspec.Struct, frozen=True, gc=False):
    """The state of a run after reports. None in `progress` and `progress_text`: unchanged."""

    id: str
    pushed_at: int | None
    taken_at: int | None
    deadline: int | None
    progress: float | None
    progress_text: str | None
    # The worker's name, if it is new; None: unchanged.
    worker: str | None


class LogLines(msgspec.Struct, frozen=True, gc=False):
    """Log lines of a run. `seq` None: after the last stored line. `is_last`: no lines follow."""

    id: str
    fence: int
    seq: int | None
    lines: tuple[tuple[int, str, str], ...]
    is_last: bool = False


class ReportedEnd(msgspec.Struct, frozen=True, gc=False):
    """A verdict, when the work began by the worker's report, and the worker's name if it is new."""

    outcome: Outcome
    started_at: int
    worker: str | None


class AppliedReports(msgspec.Struct, frozen=True, kw_only=True):
    """Results of reports. A None in `answers`: the run is not dispatched under that fence."""

    answers: list[ReportAnswer | None]
    # Includes runs that end or return to waiting.
    progress: list[RunProgress]
    # Runs that a worker has taken by these reports, and that have not ended.
    taken: list[str]
    ends: list[ReportedEnd]
    # Retry and release.
    returned: list[Outcome]
    lines: list[LogLines]


def apply_all(reports: Sequence[Report], rows: Iterable[Row], now: int) -> AppliedReports:
    """`rows`: the dispatched ones of these runs, under any fence, locked until this is written."""
    runs = {row["id"]: _DispatchedRun(row, now) for row in rows}
    answers: list[ReportAnswer | None] = []
    for report in reports:
        run = runs.get(report.id)
        answers.append(None if run is None or run.fence != report.fence else run.apply(report))
    return AppliedReports(
        answers=answers,
        progress=[run.run_progress for run in runs.values() if run.is_changed],
        taken=[run.id for run in runs.values() if run.is_newly_taken and run.outcome is None],
        ends=[
            ReportedEnd(each.outcome, each.started_at, each.worker)
            for each in runs.values()
            if each.ends and each.outcome is not None
        ],
        returned=[run.outcome for run in runs.values() if run.outcome is not None and not run.ends],
        lines=[lines for run in runs.values() for lines in run.lines],
    )


class _DispatchedRun:
    """A dispatched run while its reports are applied."""

    def __init__(self, row: Row, now: int) -> None:
        self.id: str = row["id"]
        self.fence: int = row["fence"]
        self._row = row
        self._now = now
        self._terms: DispatchTerms = dispatch_terms_of(row["dispatch"])
        self._pushed_at: int | None = row["pushed_at"]
        self._taken_at: int | None = row["taken_at"]
        self._deadline: int | None = row["deadline"]
        self._progress: float | None = None
        self._progress_text: str | None = None
        self.worker: str | None = None
        self.is_changed = False
        self.is_newly_taken = False
        self.lines: list[LogLines] = []
        # Set by the report that ends the run or returns it to waiting.
        self.outcome: Outcome | None = None

    @property
    def ends(self) -> bool:
        return self.outcome is not None and self.outcome.kind == "done"

    @property
    def started_at(self) -> int:
        return self._taken_at or self._pushed_at or int(self._row["dispatched_at"])

    @property
    def run_progress(self) -> RunProgress:
        progress = (self._progress, self._progress_text)
        return RunProgress(self.id, self._pushed_at, self._taken_at, self._deadline, *progress, self.worker)

    def apply(self, report: Report) -> ReportAnswer:
        if self.outcome is not None:
            return ReportAnswer(answer="already")
        if report.kind == "pushed":
            return self._apply_pushed()
        if report.kind == "undelivered":
            return self._apply_undelivered(report)
        return self._apply_worker(report)

    def _apply_pushed(self) -> ReportAnswer:
        if self._pushed_at is not None:
            return ReportAnswer(answer="already")
        self._pushed_at = self._now
        self.is_changed = True
        if self._terms.mode == "forget":
            return self._end(Verdict.SUCCEEDED)
        # If the worker's report came first, it has set the progress timeout already.
        if self._taken_at is None and not self._row["is_cancel_requested"]:
            self._deadline = None if self._terms.ack_timeout is None else self._now + self._terms.ack_timeout
        return ReportAnswer(answer="done")

    def _apply_undelivered(self, report: Report) -> ReportAnswer:
        """A sender may get an error although its message arrived. If that is unknown, a run that must not run twice is
        not dispatched again."""
        if self._pushed_at is not None:
            return ReportAnswer(answer="already")
        delay = None if self._row["at_most_once"] else self._terms.retry_delay
        return self._fail(report, Reason.UNDELIVERED, delay)

    def _apply_worker(self, report: Report) -> ReportAnswer:
        if report.kind == "taken" and self._taken_at is not None:
            return ReportAnswer(answer="already")  # a repeated message says nothing about the present
        self._note(report)
        if self._terms.mode != "finish":
            return self._end(Verdict.SUCCEEDED, report)
        match report.kind:
            case "taken" | "progress":
                return ReportAnswer(answer="done")
            case "finish":
                return self._end(Verdict.SUCCEEDED, report)
            case "skip":
                return self._end(Verdict.SKIPPED, report, report.reason or "skipped by its worker")
            case "fail":
                return self._apply_failed(report)
            case "release":
                return self._return_run(self._outcome("release", reason=report.reason, delay=report.retry_after or 0))
            case "pushed" | "undelivered":
                raise AssertionError("no worker says so")
            case _:
                assert_never(report.kind)

    def _note(self, report: Report) -> None:
        """Any report of a worker shows that the worker has the run and is alive."""
        self.is_changed = True
        if self._taken_at is None:
            self._taken_at = self._now
            self._pushed_at = self._pushed_at or self._now
            self.is_newly_taken = True
        if self._terms.worker is None and self.worker is None:
            self.worker = report.worker or None
        if not self._row["is_cancel_requested"]:
            self._deadline = self._silent_until()
        elif self.is_newly_taken and self._row["killed_at"] is not None:
            # The kill message was sent before this report.
            self._deadline = self._now + _time_to_stop(self._terms)
        is_end = report.kind not in ("taken", "progress") or self._terms.mode != "finish"
        if report.took is not None and is_end:
            # The worker measures the duration: our times include delivery and outages of the broker. Counted back from
            # the end that the ledger records, but not to before the dispatch.
            self._taken_at = max(self._now - report.took, int(self._row["dispatched_at"]))
        self._progress = self._progress if report.progress is None else report.progress
        self._progress_text = self._progress_text if report.progress_text is None else report.progress_text
        if report.lines:
            self.lines.append(LogLines(self.id, self.fence, report.seq, report.lines, is_end))

    def _silent_until(self) -> int | None:
        dispatch, taken_at = self._terms, self._taken_at or self._now
        bounds = [] if dispatch.progress_timeout is None else [self._now + dispatch.progress_timeout]
        if dispatch.timeout is not None:
            bounds.append(taken_at + dispatch.timeout + DEADLINE_MARGIN)
        return min(bounds, default=None)

    def _apply_failed(self, report: Report) -> ReportAnswer:
        delay = self._terms.retry_delay
        if report.retry is not None:
            delay = self._terms.asked_delay if report.retry else None
        if report.retry and delay is not None and report.retry_after is not None:
            delay = report.retry_after
        return self._fail(report, report.reason or Reason.ERROR, delay)

    def _fail(self, report: Report, reason: str, delay: int | None) -> ReportAnswer:
        if delay is None and not self._row["is_cancel_requested"]:
            return self._end(Verdict.FAILED, report, reason)
        return self._return_run(self._outcome("retry", reason=reason, error=report.error, delay=delay or 0))

    def _return_run(self, outcome: Outcome) -> ReportAnswer:
        if self._row["is_cancel_requested"]:
            self.outcome = cancelled_outcome(outcome, self._row)
            return ReportAnswer(answer="done", verdict=Verdict.CANCELLED)
        self.outcome = outcome
        return ReportAnswer(answer="done", is_returned=True)

    def _end(self, verdict: Verdict, report: Report | None = None, reason: str | None = None) -> ReportAnswer:
        result, error = (None, None) if report is None else (report.result, report.error)
        self.outcome = self._outcome("done", verdict=verdict, reason=reason, result=result, error=error)
        return ReportAnswer(answer="done", verdict=verdict)

    def _outcome(
        self,
        kind: Literal["done", "retry", "release"],
        *,
        verdict: Verdict | None = None,
        reason: str | None = None,
        error: str | None = None,
        result: bytes | None = None,
        delay: int = 0,
    ) -> Outcome:
        return Outcome(
            id=self.id,
            fence=self.fence,
            kind=kind,
            verdict=verdict,
            reason=reason,
            error=error,
            result=result,
            delay=delay,
            attempts=self._row["attempts"] + (kind != "release"),
        )


def minimal_report(report: Report, error: Exception) -> Report:
    """The report without the parts that the store could not write, and with the error."""
    problem = f"a report on this run cannot be stored as it is: {error}"
    return Report(
        id=report.id,
        fence=report.fence,
        kind=report.kind,
        error=problem if report.error is None else f"{problem}\n{report.error}",
        reason=report.reason,
        retry=report.retry,
        took=report.took,
    )


def all_answers(
    answers: Sequence[ReportAnswer | None], reports: Sequence[Report], answered: Collection[tuple[str, int]]
) -> list[ReportAnswer]:
    """`answered`: runs and fences that the ledger has already ended or returned by a report."""
    return [
        answer or (ReportAnswer(answer="already") if (report.id, report.fence) in answered else STALE)
        for answer, report in zip(answers, reports, strict=True)
    ]


# --- overdue runs ----------------------------------------------------------------------------------------------------


class CheckedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to overdue dispatched runs."""

    # Claims that are over, so that their fence is no longer valid, with the new number of losses.
    revoked: list[tuple[str, int]]
    ends: list[Ending]
    # Returned to waiting, with the reason.
    released: list[tuple[str, str]]
    # Runs whose worker was sent a kill message now, and until when it may stop.
    stopping: list[tuple[str, int]]
    # Runs of workers whose reports may be unread, and when to check them again.
    postponed: list[tuple[str, int]]
    kills: list[NewMessage]


def check_runs(
    rows: Iterable[Row], now: int, windows: Mapping[str, ReportWindow], unsent: Collection[str], new_ids: Iterable[str]
) -> CheckedRuns:
    """`unsent`: runs to be cancelled whose message will never be sent. `new_ids`: ids for messages, one per row."""
    checked = CheckedRuns(revoked=[], ends=[], released=[], stopping=[], postponed=[], kills=[])
    for row, new_id in zip(rows, new_ids, strict=True):
        dispatch = dispatch_terms_of(row["dispatch"])
        if row["is_cancel_requested"]:
            _cancel(checked, row, dispatch, now, windows.get(dispatch.to), new_id, is_unsent=row["id"] in unsent)
        elif dispatch.to in windows:
            _check_overdue(checked, row, dispatch, windows[dispatch.to], new_id)
    return checked


def _check_overdue(checked: CheckedRuns, row: Row, dispatch: DispatchTerms, window: ReportWindow, new_id: str) -> None:
    """The worker is silent if no report came for its whole timeout while a node read the reports."""
    timeout_at = max(row["deadline"], window.since + _report_timeout(row, dispatch))
    if timeout_at <= window.until:
        _revoke(checked, row, dispatch, new_id)
    elif timeout_at > row["deadline"]:
        checked.postponed.append((row["id"], timeout_at))


def _report_timeout(row: Row, dispatch: DispatchTerms) -> int:
    """The time within which a healthy worker reports. If it only reports its end, the margin of the deadline."""
    if row["taken_at"] is None:
        return dispatch.ack_timeout or 0
    return DEADLINE_MARGIN if dispatch.progress_timeout is None else dispatch.progress_timeout


def _cancel(
    checked: CheckedRuns,
    row: Row,
    dispatch: DispatchTerms,
    now: int,
    window: ReportWindow | None,
    new_id: str,
    *,
    is_unsent: bool,
) -> None:
    reason = row["cancel_reason"] or Reason.REQUESTED
    if is_unsent:
        checked.ends.append(Ending(row["id"], Verdict.CANCELLED, reason))
        return
    if row["killed_at"] is None:
        _kill(checked, row, dispatch, new_id, reason)
    timeout_at = (row["killed_at"] or now) + _time_to_stop(dispatch)
    if _is_untaken(row, window) or (row["killed_at"] is not None and timeout_at <= now):
        checked.revoked.append((row["id"], _losses_after(row)))
        checked.ends.append(Ending(row["id"], Verdict.CANCELLED, reason))
        return
    check_at = timeout_at if row["taken_at"] is not None else min(timeout_at, now + _RECHECK)
    (checked.stopping if row["killed_at"] is None else checked.postponed).append((row["id"], check_at))


def _time_to_stop(dispatch: DispatchTerms) -> int:
    """How long a worker may take to stop after a kill message."""
    return dispatch.progress_timeout or dispatch.ack_timeout or _STOP_DEFAULT


def _is_untaken(row: Row, window: ReportWindow | None) -> bool:
    """Whether no worker had taken the run when its cancel was requested, or when the kill message was sent. Known only
    if this node had read all reports by then."""
    if row["pushed_at"] is None or row["taken_at"] is not None or window is None:
        return False
    # While no kill message was sent, the deadline is the time of the request.
    asked_at = row["deadline"] if row["killed_at"] is None else row["killed_at"]
    return bool(window.since <= asked_at <= window.until)


def _losses_after(row: Row) -> int:
    """A run that a worker had taken costs a loss, because the run may be what crashes its workers. A run that was not
    taken costs none: its queue is long, or was lost."""
    return int(row["losses"]) + (row["taken_at"] is not None)


def _revoke(checked: CheckedRuns, row: Row, dispatch: DispatchTerms, new_id: str) -> None:
    """Take the run from a worker that fell silent, or from a queue where no worker took it in time. It is dispatched
    again, unless it must not run twice: a worker may have it without a report."""
    reason = Reason.NOT_TAKEN if row["taken_at"] is None else Reason.NO_PROGRESS
    losses = _losses_after(row)
    checked.revoked.append((row["id"], losses))
    if row["at_most_once"] or losses >= LOSSES_MAX:
        checked.ends.append(Ending(row["id"], Verdict.LOST, reason))
    else:
        checked.released.append((row["id"], reason))
    # The worker may only be slow. Its later reports are rejected.
    _kill(checked, row, dispatch, new_id, reason)


def _kill(checked: CheckedRuns, row: Row, dispatch: DispatchTerms, new_id: str, why: str) -> None:
    if dispatch.kill is not None:
        checked.kills.append(kill_message(new_id, dispatch.kill, row["id"], row["fence"], why))


# --- the log of a worker ----------------------------------------------------------------------------------------------


# The same limit as for the log of a local job.
_MAX_BYTES = 512 * 1024
# Limits of the last lines that are kept when the log is full.
_LAST_LINES_MAX, _LAST_MAX_CHARS = 2_000, 96 * 1024
_LEVEL_MAX_CHARS = 20
_LOG_FULL = (
    f"the log of this attempt is full ({LINES_MAX} lines, {_MAX_BYTES // 1024} KiB); further lines are dropped, except "
    "the last ones if they come with its end"
)

Line = tuple[int, str, str]


class WorkerLog(msgspec.Struct):
    """The stored log of a dispatch. last: number of its last line. size: in bytes."""

    last: int = 0
    count: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= LINES_MAX or self.size >= _MAX_BYTES

    def add(self, seq: int, lines: list[Line]) -> bool:
        """Whether some lines are new: a repeated report counts once."""
        new = min(len(lines), seq + len(lines) - self.last)
        if new <= 0:
            return False
        self.last = seq + len(lines)
        self.count += new
        self.size += len(lines_text(lines[-new:]).encode())
        return True


class WorkerLogLines(msgspec.Struct, frozen=True, gc=False):
    """Lines to write, as the ledger stores them."""

    id: str
    fence: int
    seq: int
    count: int
    text: str


def worker_log_lines(
    reported: Iterable[LogLines], logs: Mapping[tuple[str, int], WorkerLog]
) -> Iterator[WorkerLogLines]:
    """The lines to write. Updates `logs`."""
    for each in reported:
        log = logs[each.id, each.fence]
        lines = [_cut_line(line) for line in each.lines]
        if log.is_full and not each.is_last:
            continue
        # After the notice, which workers do not count among their lines.
        seq = log.last if log.is_full or each.seq is None else each.seq
        lines = _last_lines(lines) if log.is_full else _bounded(lines, is_last=each.is_last)
        if log.add(seq, lines) and log.is_full and not each.is_last:
            lines = _with_notice(lines)
            log.last = max(log.last, seq + len(lines))
        yield WorkerLogLines(each.id, each.fence, seq, len(lines), lines_text(lines))


def _cut_line(line: Line) -> Line:
    at, level, text = line
    cut = text if len(text) <= LINE_MAX_CHARS else text[:LINE_MAX_CHARS] + " … (line cut)"
    return at, level[:_LEVEL_MAX_CHARS], cut


def _bounded(lines: list[Line], *, is_last: bool) -> list[Line]:
    """Cut one report: keep its first lines and, if it is the last report, its last ones."""
    fitting = _count_fitting(lines, LINES_MAX, _MAX_BYTES)
    if fitting == len(lines):
        return lines
    return _with_notice(lines[:fitting]) + (_last_lines(lines[fitting:]) if is_last else [])


def _last_lines(lines: list[Line]) -> list[Line]:
    return lines[len(lines) - _count_fitting(lines[::-1], _LAST_LINES_MAX, _LAST_MAX_CHARS) :]


def _with_notice(lines: list[Line]) -> list[Line]:
    at, _, text = lines[-1]
    return lines if text == _LOG_FULL else [*lines, (at, "warning", _LOG_FULL)]


def _count_fitting(lines: list[Line], most: int, chars: int) -> int:
    """How many of the first lines fit."""
    for count, (_, _, text) in enumerate(lines[:most]):
        chars -= len(text)
        if chars < 0:
            return count
    return min(len(lines), most)
