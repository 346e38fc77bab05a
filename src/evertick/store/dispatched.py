"""Dispatched runs: what a report means for one, and what becomes of those whose time is over. Pure, for every store.

A dispatched run belongs to no node. Its terms (`DispatchTerms`) stand beside it, the next delay of its retry policy
included, so that any node can apply a report, even one that does not know the task.

`deadline` is when to look at such a run by itself. It has none while its message is still in the outbox: a queue that
is away delays, and nothing else. A request to cancel sets it to now.

That no worker has a run is known where all reports were read: then a request to cancel ends it, and costs no
loss. Its message may still be in the queue; a worker that takes it later finds the kill sent with the end. Where
no node reads reports, a worker may have it, and gets a worker's time to stop.

Silence is judged by those who would have heard: a queue that is away keeps from them what workers say, and makes no
worker a silent one. When it is back, workers have all of their time to be heard again.

The log lines that workers report are bounded: their beginning, and their end. A worker is a program of anybody's, and
may never fall silent: what it says of one dispatch is bounded as what a job of our own says is. The head is written as
it comes. When it is full, a line says so, and nothing more is kept but what comes with the report that ends the
dispatch: the last words of a worker are often the ones that matter. A report may come twice, and out of order. So one
is cut by itself first, which gives the same each time, and is then taken whole or not at all.
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
    "bare_report",
    "check_runs",
    "worker_log_lines",
]

STALE = ReportAnswer(answer="stale")
# How long a worker may take to stop, where nothing else says how often it reports.
_PATIENCE = MINUTE
# How soon it is looked again whether workers could be heard, while one may have a run that is to be cancelled.
_LOOK_AGAIN = SECOND


class RunProgress(msgspec.Struct, frozen=True, gc=False):
    """How a run stands after reports. Progress: None leaves it as it was."""

    id: str
    pushed_at: int | None
    taken_at: int | None
    deadline: int | None
    progress: float | None
    progress_text: str | None
    # Its name, where it is new; None leaves it as it was.
    worker: str | None


class LogLines(msgspec.Struct, frozen=True, gc=False):
    """Log lines of a run; without a number they come behind those that are there. Last: nothing follows them."""

    id: str
    fence: int
    seq: int | None
    lines: tuple[tuple[int, str, str], ...]
    is_last: bool = False


class ReportedEnd(msgspec.Struct, frozen=True, gc=False):
    """A verdict, when the work began by its worker's report, and the worker's name where it is new."""

    outcome: Outcome
    started_at: int
    worker: str | None


class AppliedReports(msgspec.Struct, frozen=True, kw_only=True):
    """Results of reports. None among the answers: the run is not dispatched under that fence (any more)."""

    answers: list[ReportAnswer | None]
    # Also of those that end or go back.
    progress: list[RunProgress]
    # Runs that are newly known to be taken by a worker, and still are.
    taken: list[str]
    ends: list[ReportedEnd]
    # Back to waiting: retry and release.
    back: list[Outcome]
    lines: list[LogLines]


def apply_all(reports: Sequence[Report], rows: Iterable[Row], now: int) -> AppliedReports:
    """`rows`: those of the runs that are dispatched, under whichever fence, and stay so until this is written."""
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
        back=[run.outcome for run in runs.values() if run.outcome is not None and not run.ends],
        lines=[lines for run in runs.values() for lines in run.lines],
    )


class _DispatchedRun:
    """A dispatched run while reports about it are read."""

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
        # Where it goes from here.
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
        # A worker that was faster has set the time between its words already.
        if self._taken_at is None and not self._row["is_cancel_requested"]:
            self._deadline = None if self._terms.ack_timeout is None else self._now + self._terms.ack_timeout
        return ReportAnswer(answer="done")

    def _apply_undelivered(self, report: Report) -> ReportAnswer:
        """A sender may have got an error though its message arrived: then it is delivered. As this cannot be known,
        what must not run twice is not dispatched again."""
        if self._pushed_at is not None:
            return ReportAnswer(answer="already")
        delay = None if self._row["at_most_once"] else self._terms.retry_delay
        return self._fail(report, Reason.UNDELIVERED, delay)

    def _apply_worker(self, report: Report) -> ReportAnswer:
        if report.kind == "taken" and self._taken_at is not None:
            return ReportAnswer(answer="already")  # the same message once more: it tells nothing of what goes on now
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
                return self._put_back(self._outcome("release", reason=report.reason, delay=report.retry_after or 0))
            case "pushed" | "undelivered":
                raise AssertionError("no worker says so")
            case _:
                assert_never(report.kind)

    def _note(self, report: Report) -> None:
        """Any report of a worker says that it has the run, and is alive."""
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
            # The kill was sent before its report came.
            self._deadline = self._now + _time_to_stop(self._terms)
        is_end = report.kind not in ("taken", "progress") or self._terms.mode != "finish"
        if report.took is not None and is_end:
            # Between what is heard of it lies the way of each word, and a broker that was away: its worker knows.
            # Counted back from the end, as the ledger has it, but not to before it was dispatched.
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
        return self._put_back(self._outcome("retry", reason=reason, error=report.error, delay=delay or 0))

    def _put_back(self, outcome: Outcome) -> ReportAnswer:
        if self._row["is_cancel_requested"]:
            self.outcome = cancelled_outcome(outcome, self._row)
            return ReportAnswer(answer="done", verdict=Verdict.CANCELLED)
        self.outcome = outcome
        return ReportAnswer(answer="done", is_put_back=True)

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


def bare_report(report: Report, error: Exception) -> Report:
    """A report that the store can take: all but what it says of the run is left out."""
    problem = f"what was reported of this run cannot be written as it is: {error}"
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
    """`answered`: runs and fences whose end, or way back, the ledger has by a report of theirs."""
    return [
        answer or (ReportAnswer(answer="already") if (report.id, report.fence) in answered else STALE)
        for answer, report in zip(answers, reports, strict=True)
    ]


# --- those whose time is over --------------------------------------------------------------------------------------


class CheckedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to dispatched runs whose time is over."""

    # Their claims are over, whatever becomes of them: their fence is worth nothing any more. How many losses they have.
    revoked: list[tuple[str, int]]
    ends: list[Ending]
    # Back to waiting, with the reason.
    released: list[tuple[str, str]]
    # Their workers were sent a kill just now, and have until then to stop.
    stopping: list[tuple[str, int]]
    # Reports of their workers may be unread: they are looked at again then.
    postponed: list[tuple[str, int]]
    kills: list[NewMessage]


def check_runs(
    rows: Iterable[Row], now: int, windows: Mapping[str, ReportWindow], unsent: Collection[str], new_ids: Iterable[str]
) -> CheckedRuns:
    """`unsent`: runs to be cancelled whose message will never be sent. `new_ids`: as many as there are rows, for
    messages."""
    checked = CheckedRuns(revoked=[], ends=[], released=[], stopping=[], postponed=[], kills=[])
    for row, new_id in zip(rows, new_ids, strict=True):
        dispatch = dispatch_terms_of(row["dispatch"])
        if row["is_cancel_requested"]:
            _cancel(checked, row, dispatch, now, windows.get(dispatch.to), new_id, is_unsent=row["id"] in unsent)
        elif dispatch.to in windows:
            _judge(checked, row, dispatch, windows[dispatch.to], new_id)
    return checked


def _judge(checked: CheckedRuns, row: Row, dispatch: DispatchTerms, window: ReportWindow, new_id: str) -> None:
    """It is silent if no report came in all of its time, while a node read the reports."""
    over_at = max(row["deadline"], window.since + _time_to_speak(row, dispatch))
    if over_at <= window.until:
        _take_back(checked, row, dispatch, new_id)
    elif over_at > row["deadline"]:
        checked.postponed.append((row["id"], over_at))


def _time_to_speak(row: Row, dispatch: DispatchTerms) -> int:
    """Within which a worker that is well is heard. One that need not speak before its end has the margin of that."""
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
    over_at = (row["killed_at"] or now) + _time_to_stop(dispatch)
    if _is_untaken(row, window) or (row["killed_at"] is not None and over_at <= now):
        checked.revoked.append((row["id"], _losses_after(row)))
        checked.ends.append(Ending(row["id"], Verdict.CANCELLED, reason))
        return
    look_at = over_at if row["taken_at"] is not None else min(over_at, now + _LOOK_AGAIN)
    (checked.stopping if row["killed_at"] is None else checked.postponed).append((row["id"], look_at))


def _time_to_stop(dispatch: DispatchTerms) -> int:
    """How long a worker has to stop after a kill."""
    return dispatch.progress_timeout or dispatch.ack_timeout or _PATIENCE


def _is_untaken(row: Row, window: ReportWindow | None) -> bool:
    """Whether a run to be cancelled is in its queue, and no report said otherwise when that was asked for, or the
    kill was sent. A node with a window has read all that waited before."""
    if row["pushed_at"] is None or row["taken_at"] is not None or window is None:
        return False
    # While no kill was sent, the deadline is still where the request has put it.
    asked_at = row["deadline"] if row["killed_at"] is None else row["killed_at"]
    return bool(window.since <= asked_at <= window.until)


def _losses_after(row: Row) -> int:
    """Taken back from a worker it costs a loss: the run may be what ends its workers. A run that was not taken has
    harmed none: its queue is long, or was lost."""
    return int(row["losses"]) + (row["taken_at"] is not None)


def _take_back(checked: CheckedRuns, row: Row, dispatch: DispatchTerms, new_id: str) -> None:
    """From a worker that fell silent, or from a queue where it was not taken. It is dispatched again, as often as that
    needs while it is not taken; but what must not run twice is given up, for a worker may have it all the same."""
    reason = Reason.NOT_TAKEN if row["taken_at"] is None else Reason.NO_PROGRESS
    losses = _losses_after(row)
    checked.revoked.append((row["id"], losses))
    if row["at_most_once"] or losses >= LOSSES_MAX:
        checked.ends.append(Ending(row["id"], Verdict.LOST, reason))
    else:
        checked.released.append((row["id"], reason))
    # It may only be slow. What it does from now on is ignored.
    _kill(checked, row, dispatch, new_id, reason)


def _kill(checked: CheckedRuns, row: Row, dispatch: DispatchTerms, new_id: str, why: str) -> None:
    if dispatch.kill is not None:
        checked.kills.append(kill_message(new_id, dispatch.kill, row["id"], row["fence"], why))


# --- the log of a worker ----------------------------------------------------------------------------------------------


# As the ledger has them: all that a job of our own may say fits in.
_MAX_BYTES = 512 * 1024
# Bounds of the last lines that are kept where the head is full.
_LAST_LINES_MAX, _LAST_MAX_CHARS = 2_000, 96 * 1024
_LEVEL_MAX_CHARS = 20
_FULL = (
    f"the log of this attempt is full ({LINES_MAX} lines, {_MAX_BYTES // 1024} KiB); what follows is left out, but for "
    "the last lines, if they come with its end"
)

Line = tuple[int, str, str]


class WorkerLog(msgspec.Struct):
    """The log of a dispatch in the ledger. last: behind which line it goes on. size: in bytes."""

    last: int = 0
    count: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= LINES_MAX or self.size >= _MAX_BYTES

    def add(self, seq: int, lines: list[Line]) -> bool:
        """Whether some of them are new: a report that comes again counts once."""
        new = min(len(lines), seq + len(lines) - self.last)
        if new <= 0:
            return False
        self.last = seq + len(lines)
        self.count += new
        self.size += len(lines_text(lines[-new:]).encode())
        return True


class WorkerLogLines(msgspec.Struct, frozen=True, gc=False):
    """Lines that are to be written at their place, as the ledger has them."""

    id: str
    fence: int
    seq: int
    count: int
    text: str


def worker_log_lines(
    reported: Iterable[LogLines], logs: Mapping[tuple[str, int], WorkerLog]
) -> Iterator[WorkerLogLines]:
    """The lines to be written. Moves `logs` on."""
    for each in reported:
        log = logs[each.id, each.fence]
        lines = [_short(line) for line in each.lines]
        if log.is_full and not each.is_last:
            continue
        # Behind the mark, of whose place among the lines no worker knows.
        seq = log.last if log.is_full or each.seq is None else each.seq
        lines = _end(lines) if log.is_full else _bounded(lines, is_last=each.is_last)
        if log.add(seq, lines) and log.is_full and not each.is_last:
            lines = _marked(lines)
            log.last = max(log.last, seq + len(lines))
        yield WorkerLogLines(each.id, each.fence, seq, len(lines), lines_text(lines))


def _short(line: Line) -> Line:
    at, level, text = line
    cut = text if len(text) <= LINE_MAX_CHARS else text[:LINE_MAX_CHARS] + " … (line cut)"
    return at, level[:_LEVEL_MAX_CHARS], cut


def _bounded(lines: list[Line], *, is_last: bool) -> list[Line]:
    """One report: its first lines, and its last ones if they are those of the whole."""
    fitting = _fitting(lines, LINES_MAX, _MAX_BYTES)
    if fitting == len(lines):
        return lines
    return _marked(lines[:fitting]) + (_end(lines[fitting:]) if is_last else [])


def _end(lines: list[Line]) -> list[Line]:
    return lines[len(lines) - _fitting(lines[::-1], _LAST_LINES_MAX, _LAST_MAX_CHARS) :]


def _marked(lines: list[Line]) -> list[Line]:
    at, _, text = lines[-1]
    return lines if text == _FULL else [*lines, (at, "warning", _FULL)]


def _fitting(lines: list[Line], most: int, chars: int) -> int:
    """How many of the first of them fit. A line does: it is cut."""
    for count, (_, _, text) in enumerate(lines[:most]):
        chars -= len(text)
        if chars < 0:
            return count
    return min(len(lines), most)
