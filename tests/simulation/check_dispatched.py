"""A dispatched run belongs to the worker that got its message: only reports with its fence count, each claim is
dispatched once, and the run is released only after a timeout during which all reports could be read.

Checked with the events of the queue and its workers, the accepted calls, and the timeouts in the arguments of each run.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from simulation.dispatched import DISPATCHED_WORKS, KILLS, MODES, QUEUE
from simulation.evidence import Evidence
from simulation.jobs import token
from simulation.journal import QueueEvent
from simulation.replay import Call, Ledger, Row

__all__ = ["check_dispatched"]

# The concurrency limit of a task, over nodes and workers.
_AT_ONCE = {"built_capped": 2}
# The worker's event that a success needs, by mode.
_REQUIRED = {"finish": {"finished"}, "ack": {"started"}, "forget": {"pushed"}}

# A shorter outage can fall between two reads unnoticed.
_UNNOTICED = 6_000_000
# The error of a node's clock between two heartbeats.
_DRIFT = 100_000

Claim = tuple[str, int]


def check_dispatched(evidence: Evidence) -> Iterator[str]:
    if not evidence.story.dispatches_runs:
        return
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    yield from checker.check_queue_events()
    yield from checker.at_the_end()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._ledger = Ledger()
        self._events = [each for each in evidence.events if isinstance(each, QueueEvent)]
        self._events_of: dict[Claim, list[QueueEvent]] = {}
        for event in self._events:
            self._events_of.setdefault((event.run, event.fence), []).append(event)
        self._outages = list(_outages(self._events))
        # The time at which each claim was dispatched.
        self._dispatched: dict[Claim, int] = {}
        # The time of the last accepted report of its worker.
        self._reported_at: dict[Claim, int] = {}
        # The time at which it was cancelled before the queue had it.
        self._withdrawn: dict[Claim, int] = {}
        self._messages: dict[str, Row] = {}

    def step(self, call: Call) -> Iterator[str]:
        touched = [change.row["id"] for change in call.changes if change.table in ("runs", "history")]
        before = {run: self._ledger.live.get(run) for run in touched}
        for change in call.changes:
            self._ledger.apply(change)
            if change.table == "outbox" and change.how == "delete":
                self._messages.pop(change.row["id"], None)
            elif change.table == "outbox":
                self._messages[change.row["id"]] = change.row
        after = {run: self._ledger.live.get(run) or self._ledger.done[run] for run in before}
        yield from self._check_message(call, before, after)
        for run, old in before.items():
            if old is not None and old["state"] == "dispatched":
                yield from self._check_dispatched_run(call, old, after[run])
        yield from self._check_concurrency(call, after)
        self._note_reports(call)

    # --- dispatching

    def _check_message(self, call: Call, before: dict[str, Row | None], after: dict[str, Row]) -> Iterator[str]:
        sent = {
            (change.row["caused_by"], change.row["dispatches"])
            for change in call.changes
            if change.table == "outbox" and change.how == "insert" and change.row["channel"] == QUEUE
        }
        dispatched = {
            (run, row["fence"])
            for run, row in after.items()
            if row["state"] == "dispatched" and (before[run] or {}).get("state") != "dispatched"
        }
        yield from (f"run {run} was dispatched under {fence} without a message" for run, fence in dispatched - sent)
        yield from (
            f"a message dispatches run {run} under {fence}, but the run was not dispatched"
            for run, fence in sent - dispatched
        )
        for claim in dispatched:
            if claim in self._dispatched:
                yield f"run {claim[0]} was dispatched twice under {claim[1]}"
            self._dispatched[claim] = call.at
        for run, fence in dispatched:
            if call.intent != "finish" or not _is_reported(call.args[2], run, fence):
                yield f"run {run} was dispatched under {fence} without an outcome of its node"

    # --- while it is dispatched

    def _check_dispatched_run(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        name = f"run {old['id']} under {old['fence']}"
        match call.intent:
            case "apply_reports":
                yield from self._check_report(call, old, new, name)
            case "check_dispatched":
                yield from self._check_timeout(call, old, new, name)
            case _:
                if new["state"] != "dispatched":
                    yield f"{name} stopped being dispatched by {call.intent}"
                if new["losses"] != old["losses"] or new["attempts"] != old["attempts"]:
                    yield f"{name} changed its losses or attempts by {call.intent}"

    def _check_report(self, call: Call, old: Row, new: Row, name: str) -> Iterator[str]:
        reports = [each for each in call.args[1] if each.id == old["id"] and each.fence == old["fence"]]
        if not reports:
            yield f"{name} was changed by a report of another dispatch"
            return
        if new["losses"] != old["losses"]:
            yield f"{name} was lost by a report"
        if new["state"] == "dispatched":
            if new["attempts"] != old["attempts"]:
                yield f"{name} is still dispatched, and has {new['attempts']} attempts"
            return
        kinds = {report.kind for report in reports}
        is_tried = kinds != {"release"} and new["verdict"] != "cancelled"
        if is_tried and new["attempts"] != old["attempts"] + 1:
            yield f"{name} went from {old['attempts']} to {new['attempts']} attempts"
        if new["state"] == "waiting":
            yield from self._check_retry(call, new, kinds, name)
        else:
            yield from self._check_verdict(old, new, kinds, name)

    def _check_retry(self, call: Call, new: Row, kinds: set[str], name: str) -> Iterator[str]:
        if not kinds & {"fail", "undelivered"}:
            yield f"{name} was put back by {sorted(kinds)}"
        delay = DISPATCHED_WORKS[new["task"]].retry.delay(new["attempts"])
        if new["due_at"] < call.at + delay:
            yield f"{name} is due again {new['due_at'] - call.at} us after it failed, and not after {delay}"

    def _check_verdict(self, old: Row, new: Row, kinds: set[str], name: str) -> Iterator[str]:
        kinds_outside = {
            each.what for each in self._events_of.get((old["id"], old["fence"]), ()) if each.at <= new["finished_at"]
        }
        ending = f"{new['verdict']}({new['reason']}) by {sorted(kinds)}"
        text = f"{name} ended as {ending}; events of its worker: {sorted(kinds_outside)}"
        mode = MODES.get(old["task"], "finish")
        match new["verdict"]:
            case "succeeded" if not kinds_outside & _REQUIRED[mode]:
                yield text
            case "succeeded" if mode == "finish" and (new["result"] or "").strip('"') != token(old["id"], old["fence"]):
                yield f"{text}; its result is {new['result']}"
            case "failed" if not (kinds_outside & {"failed", "killed"} or "undelivered" in kinds):
                yield text
            case "skipped" if "skipped" not in kinds_outside:
                yield text
            case "cancelled" if not old["is_cancel_requested"]:
                yield f"{text}, without a requested cancel"

    def _check_timeout(self, call: Call, old: Row, new: Row, name: str) -> Iterator[str]:
        """A loss counts, and needs an expired timeout of the run's own arguments."""
        if new["attempts"] != old["attempts"]:
            yield f"{name} spent an attempt by a timeout"
        if old["is_cancel_requested"]:
            if new["state"] == "waiting":
                yield f"{name} had a requested cancel, and was put back"
            yield from self._check_cancel(call, old, new, name)
            return
        if new["state"] == "dispatched":
            if new["deadline"] <= old["deadline"] or new["losses"] != old["losses"]:
                yield f"{name} was checked without a decision"
            return
        if new["losses"] != old["losses"] + (old["taken_at"] is not None):
            yield f"{name} was released, and its losses are {new['losses']}"
        if new["verdict"] == "lost" and not old["at_most_once"] and new["losses"] < 3:
            yield f"{name} ended as lost after {new['losses']} losses"
        yield from self._check_timeout_reason(call, old, name)

    def _check_cancel(self, call: Call, old: Row, new: Row, name: str) -> Iterator[str]:
        """A cancelled run counts a loss if a worker had taken it, and ends at once if no worker had."""
        if new["state"] != "done":
            return
        if old["pushed_at"] is None and old["killed_at"] is None:
            self._withdrawn[old["id"], old["fence"]] = call.at
        if new["losses"] != old["losses"] + (old["taken_at"] is not None):
            yield f"{name} was cancelled, and its losses are {new['losses']}"
        patience = msgspec.json.decode(old["dispatch"])["progress_timeout"]
        is_over = old["killed_at"] is not None and old["killed_at"] + patience <= call.at
        if old["pushed_at"] is not None and not is_over and (old["taken_at"] is not None or QUEUE not in call.args[2]):
            yield f"{name} was cancelled while a worker may have had it and still had time to stop"

    def _check_timeout_reason(self, call: Call, old: Row, name: str) -> Iterator[str]:
        terms = msgspec.json.decode(old["dispatch"])
        claim = (old["id"], old["fence"])
        if old["pushed_at"] is None:
            yield f"{name} was released while its message was in the outbox"
        elif old["taken_at"] is None:
            yield from self._check_read_window(call, terms["ack_timeout"], name)
            if call.at < old["pushed_at"] + terms["ack_timeout"]:
                yield f"{name} was released {call.at - old['pushed_at']} us after the queue got it"
        else:
            yield from self._check_read_window(call, terms["progress_timeout"], name)
            if call.at < self._reported_at.get(claim, 0) + terms["progress_timeout"]:
                yield f"{name} was released {call.at - self._reported_at[claim]} us after a report of its worker"

    def _check_read_window(self, call: Call, timeout: int, name: str) -> Iterator[str]:
        """The queue was available for the whole timeout, so that all reports were read."""
        window = call.args[2].get(QUEUE)
        if window is None:
            yield f"{name} was released by a node that does not read its channel"
            return
        for since, until in self._outages:
            overlap = min(until, window.until) - max(since, window.until - timeout)
            if until - since > _UNNOTICED and overlap > _DRIFT:
                yield f"{name} was released, and {overlap} of the {timeout} us without a report were an outage"

    def _check_concurrency(self, call: Call, after: dict[str, Row]) -> Iterator[str]:
        for task, most in _AT_ONCE.items():
            if not any(row["task"] == task for row in after.values()):
                continue
            live = [row for row in self._ledger.live.values() if row["task"] == task]
            at_once = sum(row["state"] in ("running", "dispatched") for row in live)
            if at_once > most:
                yield f"{at_once} runs of {task} are running or dispatched, and the limit is {most}"

    def _note_reports(self, call: Call) -> None:
        if call.intent != "apply_reports" or call.answer is None:
            return
        for report, answer in zip(call.args[1], call.answer, strict=True):
            if answer.answer == "done" and report.kind not in ("pushed", "undelivered"):
                self._reported_at[report.id, report.fence] = call.at

    # --- events of the queue

    def check_queue_events(self) -> Iterator[str]:
        """A worker gets only dispatched runs, and an at-most-once run only once."""
        by_run: dict[str, int] = {}
        for event in self._events:
            claim = (event.run, event.fence)
            if event.what == "pushed" and not self._dispatched.get(claim, event.at + 1) <= event.at:
                yield f"the queue got run {event.run} under {event.fence} before it was dispatched"
            if event.what == "pushed" and event.at > self._withdrawn.get(claim, event.at):
                yield f"the queue got run {event.run} under {event.fence} after it was cancelled"
            if event.what == "started":
                by_run[event.run] = by_run.get(event.run, 0) + 1
                if DISPATCHED_WORKS[event.task].on_lost == "fail" and by_run[event.run] > event.attempt:
                    yield f"run {event.run} of {event.task} is at-most-once, and was started twice"

    def at_the_end(self) -> Iterator[str]:
        for row in self._messages.values():
            if row["channel"] in (QUEUE, KILLS) and row["state"] in ("waiting", "sending"):
                yield f"message {row['key']} is {row['state']} at the end"


def _outages(check_queue_events: list[QueueEvent]) -> Iterator[tuple[int, int]]:
    """Start and end of each outage of the queue."""
    since: int | None = None
    for event in check_queue_events:
        if event.what == "went away" and since is None:
            since = event.at
        elif event.what == "came back" and since is not None:
            yield since, event.at
            since = None


def _is_reported(outcomes: object, run: str, fence: int) -> bool:
    assert isinstance(outcomes, list | tuple)
    return any(each.id == run and each.fence == fence and each.kind == "dispatch" for each in outcomes)
