"""A dispatched run is in the hands of whoever got its message, and of nobody else: written about under its fence alone,
dispatched once for each claim, taken back only when its time is over, all of which it could be heard.

Reckoned from what happened outside (what the queue got, what workers said of themselves) and from the calls that the
ledger took, by the arguments that each run carries.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from simulation.dispatched import DISPATCHED_WORKS, KILLS, MODES, QUEUE
from simulation.evidence import Evidence
from simulation.jobs import token
from simulation.journal import Errand
from simulation.replay import Call, Ledger, Row

__all__ = ["check_dispatched"]

# How many of a task may be at work at once, here or elsewhere.
_AT_ONCE = {"built_capped": 2}
# Which of a worker's own words must stand behind a verdict.
_BEHIND = {"finish": {"finished"}, "ack": {"started"}, "forget": {"pushed"}}

# An outage that is shorter may fall between two reads, and is not noticed.
_UNNOTICED = 6_000_000
# What a node's clock may be off between two beats.
_DRIFT = 100_000

Claim = tuple[str, int]


def check_dispatched(evidence: Evidence) -> Iterator[str]:
    if not evidence.story.hands:
        return
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    yield from checker.errands()
    yield from checker.at_the_end()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._ledger = Ledger()
        self._errands = [each for each in evidence.happenings if isinstance(each, Errand)]
        self._said: dict[Claim, list[Errand]] = {}
        for errand in self._errands:
            self._said.setdefault((errand.run, errand.fence), []).append(errand)
        self._aways = list(_aways(self._errands))
        # When each claim was dispatched.
        self._dispatched: dict[Claim, int] = {}
        # When the ledger last took a word of its worker.
        self._heard_at: dict[Claim, int] = {}
        # When it was cancelled before the queue had it.
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
        yield from self._message_with_its_run(call, before, after)
        for run, old in before.items():
            if old is not None and old["state"] == "dispatched":
                yield from self._moved(call, old, after[run])
        yield from self._not_too_many(call, after)
        self._hear(call)

    # --- dispatching

    def _message_with_its_run(self, call: Call, before: dict[str, Row | None], after: dict[str, Row]) -> Iterator[str]:
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
        yield from (f"run {run} was dispatched under {fence}, and no message" for run, fence in dispatched - sent)
        yield from (
            f"a message hands run {run} over under {fence}, and nobody else does" for run, fence in sent - dispatched
        )
        for claim in dispatched:
            if claim in self._dispatched:
                yield f"run {claim[0]} was dispatched twice under {claim[1]}"
            self._dispatched[claim] = call.at
        for run, fence in dispatched:
            if call.intent != "finish" or not _is_reported(call.args[2], run, fence):
                yield f"run {run} was dispatched under {fence}, and its owner did not say so"

    # --- while it is in other hands

    def _moved(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        name = f"run {old['id']} under {old['fence']}"
        match call.intent:
            case "apply_reports":
                yield from self._by_report(call, old, new, name)
            case "check_dispatched":
                yield from self._by_time(call, old, new, name)
            case _:
                if new["state"] != "dispatched":
                    yield f"{name} left its hands by a call that has no say in it"
                if new["losses"] != old["losses"] or new["attempts"] != old["attempts"]:
                    yield f"{name} was counted by a call that has no say in it"

    def _by_report(self, call: Call, old: Row, new: Row, name: str) -> Iterator[str]:
        words = [each for each in call.args[1] if each.id == old["id"] and each.fence == old["fence"]]
        if not words:
            yield f"{name} was written about by the word of another dispatch"
            return
        if new["losses"] != old["losses"]:
            yield f"{name} was lost by a report"
        if new["state"] == "dispatched":
            if new["attempts"] != old["attempts"]:
                yield f"{name} is still in other hands, and has {new['attempts']} attempts"
            return
        kinds = {word.kind for word in words}
        is_tried = kinds != {"release"} and new["verdict"] != "cancelled"
        if is_tried and new["attempts"] != old["attempts"] + 1:
            yield f"{name} went from {old['attempts']} to {new['attempts']} attempts"
        if new["state"] == "waiting":
            yield from self._put_back(call, new, kinds, name)
        else:
            yield from self._ended(old, new, kinds, name)

    def _put_back(self, call: Call, new: Row, kinds: set[str], name: str) -> Iterator[str]:
        if not kinds & {"fail", "undelivered"}:
            yield f"{name} went back by {sorted(kinds)}"
        delay = DISPATCHED_WORKS[new["task"]].retry.delay(new["attempts"])
        if new["due_at"] < call.at + delay:
            yield f"{name} is due again {new['due_at'] - call.at} us after it failed, and not after {delay}"

    def _ended(self, old: Row, new: Row, kinds: set[str], name: str) -> Iterator[str]:
        said = {each.what for each in self._said.get((old["id"], old["fence"]), ()) if each.at <= new["finished_at"]}
        told = f"{name} ended as {new['verdict']}({new['reason']}) by {sorted(kinds)}; outside it was {sorted(said)}"
        mode = MODES.get(old["task"], "finish")
        match new["verdict"]:
            case "succeeded" if not said & _BEHIND[mode]:
                yield told
            case "succeeded" if mode == "finish" and (new["result"] or "").strip('"') != token(old["id"], old["fence"]):
                yield f"{told}; its result is {new['result']}"
            case "failed" if not (said & {"failed", "killed"} or "undelivered" in kinds):
                yield told
            case "skipped" if "skipped" not in said:
                yield told
            case "cancelled" if not old["is_cancel_requested"]:
                yield f"{told}, and nobody asked for it"

    def _by_time(self, call: Call, old: Row, new: Row, name: str) -> Iterator[str]:
        """A loss has its price and its reason: the time that its own arguments allow is over."""
        if new["attempts"] != old["attempts"]:
            yield f"{name} has spent an attempt by its time"
        if old["is_cancel_requested"]:
            if new["state"] == "waiting":
                yield f"{name} was to be cancelled, and goes back"
            yield from self._given_up(call, old, new, name)
            return
        if new["state"] == "dispatched":
            if new["deadline"] <= old["deadline"] or new["losses"] != old["losses"]:
                yield f"{name} was looked at, and nothing was decided"
            return
        if new["losses"] != old["losses"] + (old["taken_at"] is not None):
            yield f"{name} was taken back, and its losses are {new['losses']}"
        if new["verdict"] == "lost" and not old["at_most_once"] and new["losses"] < 3:
            yield f"{name} was given up after {new['losses']} losses"
        yield from self._is_over(call, old, name)

    def _given_up(self, call: Call, old: Row, new: Row, name: str) -> Iterator[str]:
        """What was to be cancelled costs a loss if a worker had it, and ends before its time if nobody had it."""
        if new["state"] != "done":
            return
        if old["pushed_at"] is None and old["killed_at"] is None:
            self._withdrawn[old["id"], old["fence"]] = call.at
        if new["losses"] != old["losses"] + (old["taken_at"] is not None):
            yield f"{name} was given up, and its losses are {new['losses']}"
        patience = msgspec.json.decode(old["dispatch"])["progress_timeout"]
        is_over = old["killed_at"] is not None and old["killed_at"] + patience <= call.at
        if old["pushed_at"] is not None and not is_over and (old["taken_at"] is not None or QUEUE not in call.args[2]):
            yield f"{name} was given up, and a worker may have been at it, which had time to stop"

    def _is_over(self, call: Call, old: Row, name: str) -> Iterator[str]:
        agreed = msgspec.json.decode(old["dispatch"])
        claim = (old["id"], old["fence"])
        if old["pushed_at"] is None:
            yield f"{name} was taken back, and its message was still in the outbox"
        elif old["taken_at"] is None:
            yield from self._was_heard(call, agreed["ack_timeout"], name)
            if call.at < old["pushed_at"] + agreed["ack_timeout"]:
                yield f"{name} was taken back {call.at - old['pushed_at']} us after the queue got it"
        else:
            yield from self._was_heard(call, agreed["progress_timeout"], name)
            if call.at < self._heard_at.get(claim, 0) + agreed["progress_timeout"]:
                yield f"{name} was taken back {call.at - self._heard_at[claim]} us after a word of its worker"

    def _was_heard(self, call: Call, timeout: int, name: str) -> Iterator[str]:
        """For so long before it was judged the queue was there, and brought what was said."""
        hearing = call.args[2].get(QUEUE)
        if hearing is None:
            yield f"{name} was taken back by somebody who does not hear its worker"
            return
        for since, until in self._aways:
            deaf = min(until, hearing.until) - max(since, hearing.until - timeout)
            if until - since > _UNNOTICED and deaf > _DRIFT:
                yield f"{name} was taken back, and of the {timeout} us of silence {deaf} were an outage of the queue"

    def _not_too_many(self, call: Call, after: dict[str, Row]) -> Iterator[str]:
        for task, most in _AT_ONCE.items():
            if not any(row["task"] == task for row in after.values()):
                continue
            live = [row for row in self._ledger.live.values() if row["task"] == task]
            at_once = sum(row["state"] in ("running", "dispatched") for row in live)
            if at_once > most:
                yield f"{at_once} runs of {task} at once, here or elsewhere, and {most} may be"

    def _hear(self, call: Call) -> None:
        if call.intent != "apply_reports" or call.answer is None:
            return
        for report, answer in zip(call.args[1], call.answer, strict=True):
            if answer.answer == "done" and report.kind not in ("pushed", "undelivered"):
                self._heard_at[report.id, report.fence] = call.at

    # --- outside

    def errands(self) -> Iterator[str]:
        """A worker gets what was dispatched, and once."""
        by_run: dict[str, int] = {}
        for errand in self._errands:
            claim = (errand.run, errand.fence)
            if errand.what == "pushed" and not self._dispatched.get(claim, errand.at + 1) <= errand.at:
                yield f"the queue got run {errand.run} under {errand.fence}, and it was not dispatched"
            if errand.what == "pushed" and errand.at > self._withdrawn.get(claim, errand.at):
                yield f"the queue got run {errand.run} under {errand.fence} after it was cancelled"
            if errand.what == "started":
                by_run[errand.run] = by_run.get(errand.run, 0) + 1
                if DISPATCHED_WORKS[errand.task].on_lost == "fail" and by_run[errand.run] > errand.attempt:
                    yield f"run {errand.run} of {errand.task} must not run twice, and did"

    def at_the_end(self) -> Iterator[str]:
        for row in self._messages.values():
            if row["channel"] in (QUEUE, KILLS) and row["state"] in ("waiting", "sending"):
                yield f"message {row['key']} is {row['state']} at the end"


def _aways(errands: list[Errand]) -> Iterator[tuple[int, int]]:
    """From when to when the queue was away."""
    since: int | None = None
    for errand in errands:
        if errand.what == "went away" and since is None:
            since = errand.at
        elif errand.what == "came back" and since is not None:
            yield since, errand.at
            since = None


def _is_reported(outcomes: object, run: str, fence: int) -> bool:
    assert isinstance(outcomes, list | tuple)
    return any(each.id == run and each.fence == fence and each.kind == "dispatch" for each in outcomes)
