"""Dispatched runs: what a report means for one, and what becomes of those whose time is over. Pure, for every store.

A dispatched run belongs to no node. Its terms (`DispatchTerms`) stand beside it, the next delay of its retry policy
included, so that any node can apply a report, even one that does not know the task.

`deadline` is when to look at such a run by itself. It has none while its message is still in the outbox: a queue that
is away delays, and nothing else. A request to cancel sets it to now.

That no worker has a run is known where all was heard that workers said: then a request to cancel ends it, and costs no
loss. Its message may still be in the queue; whoever takes it later finds the kill that is sent with the end. Where
nobody hears, somebody may be at work on it, and has a worker's time to stop.

Silence is judged by those who would have heard: a queue that is away keeps from them what workers say, and makes no
worker a silent one. When it is back, workers have all of their time to be heard again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, assert_never

import msgspec

from evertick.model import LOSSES_MAX, DispatchTerms, NewMessage, Outcome, Reason, Report, Verdict
from evertick.model.message import kill_message
from evertick.store.base import Hearing, ReportAnswer
from evertick.store.ending import DEADLINE_MARGIN, Ending, cancelled_instead
from evertick.store.rows import Row, dispatch_terms_of
from evertick.when.moment import MINUTE, SECOND

__all__ = ["STALE", "End", "Heard", "LogLines", "Mark", "Tended", "bare_report", "given_answers", "hear", "tend"]

STALE = ReportAnswer(answer="stale")
# How long a worker that was told to stop may take, where nothing else says how often it speaks.
_PATIENCE = MINUTE
# How soon it is looked again whether workers could be heard, while one may have a run that is to be cancelled.
_LOOK_AGAIN = SECOND


class Mark(msgspec.Struct, frozen=True, gc=False):
    """How a run stands after reports. Progress: None leaves it as it was."""

    id: str
    pushed_at: int | None
    taken_at: int | None
    deadline: int | None
    progress: float | None
    progress_text: str | None
    # Its name, where it is told for the first time; None leaves it as it was.
    worker: str | None


class LogLines(msgspec.Struct, frozen=True, gc=False):
    """Log lines of a run; without a number they come behind those that are there. Last: nothing follows them."""

    id: str
    fence: int
    seq: int | None
    lines: tuple[tuple[int, str, str], ...]
    is_last: bool = False


class End(msgspec.Struct, frozen=True, gc=False):
    """A verdict, when the work is said to have begun, and by whom, where that is told for the first time."""

    outcome: Outcome
    started_at: int
    worker: str | None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What reports have come to. None among the answers: the run is not in these hands (any more)."""

    answers: list[ReportAnswer | None]
    # Also of those that leave these hands.
    marks: list[Mark]
    # Runs of which it was not known before that a worker has them, and that are still in its hands.
    taken: list[str]
    ends: list[End]
    # Back to waiting: retry and release.
    back: list[Outcome]
    lines: list[LogLines]


def hear(reports: Sequence[Report], rows: Iterable[Row], now: int) -> Heard:
    """`rows`: those of the runs that are dispatched, under whichever fence, and stay so until this is written."""
    runs = {row["id"]: _Dispatched(row, now) for row in rows}
    answers: list[ReportAnswer | None] = []
    for report in reports:
        run = runs.get(report.id)
        answers.append(None if run is None or run.fence != report.fence else run.hear(report))
    return Heard(
        answers=answers,
        marks=[run.mark for run in runs.values() if run.is_changed],
        taken=[run.id for run in runs.values() if run.is_newly_taken and run.outcome is None],
        ends=[
            End(each.outcome, each.started_at, each.worker)
            for each in runs.values()
            if each.ends and each.outcome is not None
        ],
        back=[run.outcome for run in runs.values() if run.outcome is not None and not run.ends],
        lines=[lines for run in runs.values() for lines in run.lines],
    )


class _Dispatched:
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
        # Where it goes from these hands.
        self.outcome: Outcome | None = None

    @property
    def ends(self) -> bool:
        return self.outcome is not None and self.outcome.kind == "done"

    @property
    def started_at(self) -> int:
        return self._taken_at or self._pushed_at or int(self._row["dispatched_at"])

    @property
    def mark(self) -> Mark:
        progress = (self._progress, self._progress_text)
        return Mark(self.id, self._pushed_at, self._taken_at, self._deadline, *progress, self.worker)

    def hear(self, report: Report) -> ReportAnswer:
        if self.outcome is not None:
            return ReportAnswer(answer="already")
        if report.kind == "pushed":
            return self._hear_pushed()
        if report.kind == "undelivered":
            return self._hear_undelivered(report)
        return self._hear_worker(report)

    def _hear_pushed(self) -> ReportAnswer:
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

    def _hear_undelivered(self, report: Report) -> ReportAnswer:
        """Whoever brings a message may have got an error though it arrived: then it is delivered. As nobody can know,
        what must not run twice is not dispatched again."""
        if self._pushed_at is not None:
            return ReportAnswer(answer="already")
        delay = None if self._row["at_most_once"] else self._terms.retry_delay
        return self._fail(report, Reason.UNDELIVERED, delay)

    def _hear_worker(self, report: Report) -> ReportAnswer:
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
                return self._hear_failed(report)
            case "release":
                return self._put_back(self._outcome("release", reason=report.reason, delay=report.retry_after or 0))
            case "pushed" | "undelivered":
                raise AssertionError("no worker says so")
            case _:
                assert_never(report.kind)

    def _note(self, report: Report) -> None:
        """What any word of a worker tells: that it has the run, and is alive."""
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
            # It was told to stop before anybody knew of it.
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

    def _hear_failed(self, report: Report) -> ReportAnswer:
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
            self.outcome = cancelled_instead(outcome, self._row)
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
    """What is written of a report that the store cannot take: what it says of the run stays, what it brings goes."""
    said = f"what was reported of this run cannot be written as it is: {error}"
    return Report(
        id=report.id,
        fence=report.fence,
        kind=report.kind,
        error=said if report.error is None else f"{said}\n{report.error}",
        reason=report.reason,
        retry=report.retry,
        took=report.took,
    )


def given_answers(
    heard: Sequence[ReportAnswer | None], reports: Sequence[Report], told: Collection[tuple[str, int]]
) -> list[ReportAnswer]:
    """`told`: runs and fences of which the ledger has an end, or a way back, by their own word."""
    return [
        answer or (ReportAnswer(answer="already") if (report.id, report.fence) in told else STALE)
        for answer, report in zip(heard, reports, strict=True)
    ]


# --- those whose time is over --------------------------------------------------------------------------------------


class Tended(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be written of dispatched runs whose time is over."""

    # Their claims are over, whatever becomes of them: their fence is worth nothing any more. How many losses they have.
    revoked: list[tuple[str, int]]
    ends: list[Ending]
    # Back to waiting, with the reason.
    released: list[tuple[str, str]]
    # Their workers were told just now, and have until then to stop.
    told: list[tuple[str, int]]
    # Their workers may have spoken and not been heard: they are looked at again then.
    postponed: list[tuple[str, int]]
    kills: list[NewMessage]


def tend(
    rows: Iterable[Row],
    now: int,
    heard: Mapping[str, Hearing],
    unsent: Collection[str],
    new_ids: Iterable[str],
) -> Tended:
    """`unsent`: runs to be cancelled whose message will never be sent. `new_ids`: as many as there are rows, for
    messages."""
    tended = Tended(revoked=[], ends=[], released=[], told=[], postponed=[], kills=[])
    for row, new_id in zip(rows, new_ids, strict=True):
        dispatch = dispatch_terms_of(row["dispatch"])
        if row["is_cancel_requested"]:
            _cancel(tended, row, dispatch, now, heard.get(dispatch.to), new_id, is_unsent=row["id"] in unsent)
        elif dispatch.to in heard:
            _judge(tended, row, dispatch, heard[dispatch.to], new_id)
    return tended


def _judge(tended: Tended, row: Row, dispatch: DispatchTerms, hearing: Hearing, new_id: str) -> None:
    """It is silent if nothing came in all of its time, while there was somebody to hear it."""
    over_at = max(row["deadline"], hearing.since + _time_to_speak(row, dispatch))
    if over_at <= hearing.until:
        _take_back(tended, row, dispatch, new_id)
    elif over_at > row["deadline"]:
        tended.postponed.append((row["id"], over_at))


def _time_to_speak(row: Row, dispatch: DispatchTerms) -> int:
    """Within which a worker that is well is heard. One that need not speak before its end has the margin of that."""
    if row["taken_at"] is None:
        return dispatch.ack_timeout or 0
    return DEADLINE_MARGIN if dispatch.progress_timeout is None else dispatch.progress_timeout


def _cancel(
    tended: Tended,
    row: Row,
    dispatch: DispatchTerms,
    now: int,
    hearing: Hearing | None,
    new_id: str,
    *,
    is_unsent: bool,
) -> None:
    reason = row["cancel_reason"] or Reason.REQUESTED
    if is_unsent:
        tended.ends.append(Ending(row["id"], Verdict.CANCELLED, reason))
        return
    if row["killed_at"] is None:
        _kill(tended, row, dispatch, new_id, reason)
    over_at = (row["killed_at"] or now) + _time_to_stop(dispatch)
    if _is_with_nobody(row, hearing) or (row["killed_at"] is not None and over_at <= now):
        tended.revoked.append((row["id"], _losses_after(row)))
        tended.ends.append(Ending(row["id"], Verdict.CANCELLED, reason))
        return
    look_at = over_at if row["taken_at"] is not None else min(over_at, now + _LOOK_AGAIN)
    (tended.told if row["killed_at"] is None else tended.postponed).append((row["id"], look_at))


def _time_to_stop(dispatch: DispatchTerms) -> int:
    """Which a worker has that was told to."""
    return dispatch.progress_timeout or dispatch.ack_timeout or _PATIENCE


def _is_with_nobody(row: Row, hearing: Hearing | None) -> bool:
    """Whether a run to be cancelled is in its queue, and no worker had said otherwise when that was asked for, or its
    workers were told. Whoever hears has read all that waited to be heard before."""
    if row["pushed_at"] is None or row["taken_at"] is not None or hearing is None:
        return False
    # Nobody has moved the deadline yet since the request set it, if nobody was told.
    asked_at = row["deadline"] if row["killed_at"] is None else row["killed_at"]
    return bool(hearing.since <= asked_at <= hearing.until)


def _losses_after(row: Row) -> int:
    """Taken back from a worker it costs a loss: the run may be what ends its workers. A run that nobody took has harmed
    nobody: its queue is long, or was lost."""
    return int(row["losses"]) + (row["taken_at"] is not None)


def _take_back(tended: Tended, row: Row, dispatch: DispatchTerms, new_id: str) -> None:
    """From a worker that fell silent, or from a queue where nobody took it. It is dispatched again, as often as that
    takes while nobody takes it; but what must not run twice is given up, for somebody may have it all the same."""
    reason = Reason.NOT_TAKEN if row["taken_at"] is None else Reason.NO_PROGRESS
    losses = _losses_after(row)
    tended.revoked.append((row["id"], losses))
    if row["at_most_once"] or losses >= LOSSES_MAX:
        tended.ends.append(Ending(row["id"], Verdict.LOST, reason))
    else:
        tended.released.append((row["id"], reason))
    # It may only be slow. What it does from now on is for nobody.
    _kill(tended, row, dispatch, new_id, reason)


def _kill(tended: Tended, row: Row, dispatch: DispatchTerms, new_id: str, why: str) -> None:
    if dispatch.kill is not None:
        tended.kills.append(kill_message(new_id, dispatch.kill, row["id"], row["fence"], why))
