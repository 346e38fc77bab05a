"""Every change of a run is legal, guarded, counted correctly, and leads to one verdict.

The rules are defined here a second time, and not shared with the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator

from evertick.model import NewRun, Outcome, Run
from simulation.dispatched import DISPATCHED_WORKS
from simulation.evidence import SECOND, Evidence
from simulation.jobs import WORKS
from simulation.replay import Call, Ledger, Row

__all__ = ["check_runs"]

_NEXT = {
    None: {"waiting", "blocked", "running"},
    "waiting": {"waiting", "running", "blocked", "parked", "done"},
    "blocked": {"blocked", "waiting", "done"},
    "parked": {"parked", "waiting", "done"},
    "running": {"running", "waiting", "parked", "dispatched", "done"},
    "dispatched": {"dispatched", "waiting", "done"},
    "done": {"done"},
}
# The verdicts that each call may give.
_ENDS = {
    "finish": {"succeeded", "failed", "cancelled", "skipped", "lost"},
    "rehome": {"lost", "cancelled"},
    "apply_reports": {"succeeded", "failed", "cancelled", "skipped"},
    "check_dispatched": {"lost", "cancelled"},
    "claim": {"missed"},
    "cancel": {"cancelled"},
    "record_fires": {"cancelled"},
    "change_schedules": {"cancelled"},
}
_DEADLINE_MARGIN = 60 * SECOND
_LOSSES_MAX = 3


def check_runs(evidence: Evidence) -> Iterator[str]:
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    yield from checker.at_the_end()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.ledger = Ledger()
        self._moments: dict[tuple[int, int], str] = {}
        # (run, fence) of accepted outcomes.
        self._taken: set[tuple[str, int]] = set()
        self._not_before: dict[str, int] = {}
        # Runs that were returned to a user.
        self._acknowledged: set[str] = set()

    def step(self, call: Call) -> Iterator[str]:
        ledger = self.ledger
        touched = [change.row["id"] for change in call.changes if change.table in ("runs", "history")]
        before = {run: ledger.live.get(run) for run in touched}
        fence_before = ledger.fence
        for change in call.changes:
            if change.table in ("runs", "history"):
                yield from self._check_change(call, ledger.live.get(change.row["id"]), change.row)
            if change.table == "runs" and change.how == "insert":
                yield from self._check_insert(call, change.row)
            if change.table == "log_chunks":
                yield from self._check_log(change.row)
            ledger.apply(change)
        for run, old in before.items():
            new = ledger.live.get(run) or ledger.done.get(run)
            if new is not None:
                yield from self._check_step(call, old, new, fence_before)
        yield from self._check_answers(call, before)
        if call.intent == "claim":
            yield from self._check_order(call, before)
        if call.intent == "enqueue" and call.answer is not None:
            self._acknowledged |= {run.id for run in call.answer}
            if any(
                asked.unique_key is None and asked.id != run.id for asked, run in zip(*_enqueued(call), strict=True)
            ):
                yield "an enqueue without a unique key was answered with another run"
        yield from self._check_blocked_and_unique(touched)
        for change in call.changes:
            if change.table == "schedules" and change.how == "delete":
                yield from self._check_removed(change.row)

    # --- one row, one change

    def _check_change(self, call: Call, old: Row | None, new: Row) -> Iterator[str]:
        if new["id"] in self.ledger.done:
            yield f"{_name(new)} changed after its verdict"
        state = None if old is None else old["state"]
        if new["state"] not in _NEXT[state]:
            yield f"{_name(new)} went from {state} to {new['state']}"
        if old is not None and old["cause"] != new["cause"]:
            yield from self._check_undo(call, old, new)

    def _check_undo(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        """An undone early run leaves its moment; only an unstarted run can be undone."""
        self._moments.pop((old["schedule_id"], old["fire_at"]), None)
        if (old["cause"], new["cause"]) != ("fire", "trigger") or not call.who.startswith("people"):
            yield f"{_name(new)} has the cause {new['cause']} instead of {old['cause']}"
        if old["state"] not in ("waiting", "blocked", "parked") or old["attempts"] or old["losses"]:
            yield f"{_name(new)} was undone although it had started"

    def _check_insert(self, call: Call, row: Row) -> Iterator[str]:
        if row["cause"] == "fire":
            moment = (row["schedule_id"], row["fire_at"])
            if moment in self._moments:
                yield f"{_name(row)} is a second run of the moment {moment}"
            self._moments[moment] = row["id"]
        if row["attempts"] or row["losses"]:
            yield f"{_name(row)} begins with attempts {row['attempts']} and losses {row['losses']}"

    # --- one run, one call

    def _check_step(self, call: Call, old: Row | None, new: Row, fence_before: int) -> Iterator[str]:
        is_claimed = new["state"] == "running" and (old is None or old["fence"] != new["fence"])
        if is_claimed:
            yield from self._check_claim(call, old, new, fence_before)
        if old is None:
            return
        if old["state"] == "running" and not (new["state"] == "running" and not is_claimed):
            yield from self._check_left_running(call, old, new)
        yield from self._check_counts(call, old, new)
        if new["state"] == "done":
            yield from self._check_verdict(call, old, new)
        if call.intent == "note" and old["progress"] != new["progress"]:
            yield from self._check_note(call, old)

    def _check_claim(self, call: Call, old: Row | None, new: Row, fence_before: int) -> Iterator[str]:
        name = _name(new)
        if call.intent not in ("claim", "rehome", "record_fires"):
            yield f"{name} was claimed by {call.intent}"
        if new["fence"] is None or new["fence"] <= fence_before:
            yield f"{name} was claimed under fence {new['fence']}, not above {fence_before}"
        owner = self.ledger.nodes.get(new["node"])
        if owner is None or owner["died_at"] is not None:
            yield f"{name} was claimed by node {new['node']}, which is dead"
        elif self.ledger.machine_of[new["node"]] != call.who:
            yield f"{name} was claimed by {call.who} for node {new['node']} of another machine"
        if old is not None and old["is_cancel_requested"]:
            yield f"{name} was claimed despite a requested cancel"
        if call.intent == "rehome":
            return
        # The due time of the new row, because the same call may have freed the run before.
        due_at = new["due_at"]
        if call.at < due_at:
            yield f"{name} was claimed {due_at - call.at} us before it was due"
        if call.at < self._not_before.get(new["id"], 0):
            yield f"{name} was retried {self._not_before[new['id']] - call.at} us too soon"
        if new["expires"] is not None and call.at > due_at + new["expires"]:
            yield f"{name} was claimed {call.at - due_at - new['expires']} us after it expired"

    def _check_left_running(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        """A claim ends by an outcome of its node, or because the node is dead or the run long overdue."""
        name = _name(old)
        match call.intent:
            case "finish":
                node, outcomes = call.args[1], call.args[2]
                own = [each for each in outcomes if each.id == old["id"] and each.fence == old["fence"]]
                if node != old["node"] or not own:
                    yield f"{name}, held by {old['node']} under {old['fence']}, was ended by another claim"
            case "rehome":
                owner = self.ledger.nodes.get(old["node"])
                is_dead = owner is None or owner["died_at"] is not None
                is_over = old["deadline"] is not None and old["deadline"] + _DEADLINE_MARGIN < call.at
                if not is_dead and not is_over:
                    yield f"{name} was taken from {old['node']}, which is not dead"
            case _:
                yield f"{name} stopped running by {call.intent}"

    def _check_counts(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        name = _name(new)
        lost = new["losses"] - old["losses"]
        if old["state"] != "dispatched" and lost != (1 if call.intent == "rehome" and old["state"] == "running" else 0):
            yield f"{name}: losses went from {old['losses']} to {new['losses']}"
        if new["losses"] > _LOSSES_MAX:
            yield f"{name} was lost {new['losses']} times"
        if new["losses"] >= _LOSSES_MAX and new["state"] != "done":
            yield f"{name} was lost {new['losses']} times and is still live"
        if new["at_most_once"] and lost and new["state"] != "done":
            yield f"{name} is at-most-once, was lost, and is still live"
        new_attempts = new["attempts"] - old["attempts"]
        judged = {"done", "retry"}
        # An outcome that is sent again counts once.
        is_judged = call.intent == "finish" and any(
            each.id == new["id"] and each.fence == old["fence"] and each.kind in judged and answer == "done"
            for each, answer in zip(call.args[2], call.answer.answers, strict=True)
        )
        if old["state"] != "dispatched" and new_attempts != (1 if is_judged else 0):
            yield f"{name}: attempts went from {old['attempts']} to {new['attempts']}"
        if new["attempts"] > _attempts_of(new["task"]):
            yield f"{name} was tried {new['attempts']} times"

    def _check_verdict(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        name, verdict = _name(new), new["verdict"]
        if verdict not in _ENDS.get(call.intent, ()):
            yield f"{name} ended as {verdict} by {call.intent}"
        if new["finished_at"] != call.at:
            yield f"{name} finished at {new['finished_at']}, written at {call.at}"
        if verdict == "missed" and (new["expires"] is None or call.at <= old["due_at"] + new["expires"]):
            yield f"{name} was ended as expired before it was"
        if call.intent == "finish" and verdict == "cancelled" and not old["is_cancel_requested"]:
            yield f"{name} ended as cancelled without a requested cancel"
        # A run in the own queue of a node cannot go to another node.
        may_go_on = not old["at_most_once"] and not old["queue"].startswith("@")
        if call.intent == "rehome" and verdict == "lost" and new["losses"] < _LOSSES_MAX and may_go_on:
            yield f"{name} ended as lost after {new['losses']} losses"
        if verdict == "failed" and new["attempts"] < _attempts_of(new["task"]):
            yield f"{name} failed for good after {new['attempts']} attempts"

    def _check_note(self, call: Call, old: Row) -> Iterator[str]:
        node, notes = call.args[1], call.args[2]
        if node != old["node"] or not any(note.id == old["id"] and note.fence == old["fence"] for note in notes):
            yield f"{_name(old)} got a note of another claim"

    def _check_log(self, chunk: Row) -> Iterator[str]:
        held = self.ledger.live.get(chunk["run"])
        if held is None or held["state"] != "running" or held["fence"] != chunk["fence"]:
            yield f"log lines of run {chunk['run']} were accepted under fence {chunk['fence']}, which has ended"

    # --- answers of calls

    def _check_answers(self, call: Call, before: dict[str, Row | None]) -> Iterator[str]:
        if call.intent != "finish" or call.answer is None:
            return
        for outcome, answer in zip(call.args[2], call.answer.answers, strict=True):
            claim = (outcome.id, outcome.fence)
            name = f"{outcome.kind} of run {outcome.id} under {outcome.fence}"
            held = before.get(outcome.id)
            is_held = held is not None and held["fence"] == outcome.fence and held["node"] == call.args[1]
            match answer:
                case "done":
                    if not is_held:
                        yield f"{name} was accepted although the claim had ended"
                    self._taken.add(claim)
                    self._expect_pause(call, outcome)
                case "already":
                    if claim not in self._taken:
                        yield f"{name} was answered with `already` although it was not accepted before"
                case "lost":
                    # After a release, `already` is possible only until the next claim; `lost` is harmless.
                    if claim in self._taken and outcome.kind in ("done", "retry"):
                        yield f"{name} was accepted, then answered with `lost`"

    def _expect_pause(self, call: Call, outcome: Outcome) -> None:
        row = self.ledger.live.get(outcome.id)
        if outcome.kind == "retry" and row is not None:
            work = (WORKS | DISPATCHED_WORKS)[row["task"]]
            delay = 3 * SECOND if row["task"] == "asking" else work.retry.delay(row["attempts"])
            self._not_before[outcome.id] = call.at + delay
        elif outcome.kind == "release":
            self._not_before.pop(outcome.id, None)

    def _check_order(self, call: Call, before: dict[str, Row | None]) -> Iterator[str]:
        """Highest priority first, then longest due. Runs that the claim itself unblocks come after it."""
        claimed = [change.row for change in call.changes if change.table == "runs" and change.row["state"] == "running"]
        if not claimed:
            return
        last = min((row["priority"], -row["due_at"]) for row in claimed)
        slot = int(call.who.partition(".")[0][1:])
        unknown = self._evidence.story.unknown_tasks[slot]
        unblocked = {run for run, old in before.items() if old is not None and old["state"] == "blocked"}
        for row in self.ledger.live.values():
            if (
                row["id"] not in unblocked
                and row["task"] not in unknown
                and (not row["queue"].startswith("@") or row["queue"] == f"@{claimed[0]['node']}")
                and row["state"] == "waiting"
                and row["due_at"] <= call.at
                and (row["priority"], -row["due_at"]) > last
            ):
                yield f"{_name(row)} (priority {row['priority']}) was passed over"

    # --- between calls

    def _check_blocked_and_unique(self, touched: list[str]) -> Iterator[str]:
        if not touched:
            return
        keys: dict[str, str] = {}
        for row in self.ledger.live.values():
            if row["state"] == "blocked" and row["limit_key"] is None and row["blocked_on"] not in self.ledger.live:
                yield f"{_name(row)} is blocked on {row['blocked_on']}, which has ended"
            if row["unique_key"] is not None:
                if row["unique_key"] in keys:
                    yield f"{_name(row)} and {keys[row['unique_key']]} have the same unique key"
                keys[row["unique_key"]] = row["id"]

    def _check_removed(self, schedule: Row) -> Iterator[str]:
        for row in self.ledger.live_of(schedule["id"]):
            if row["state"] not in ("running", "dispatched"):
                yield f"{_name(row)} is {row['state']}, and its schedule was removed"

    def at_the_end(self) -> Iterator[str]:
        triggered = {
            action.detail for action in self._evidence.actions if action.what == "trigger" and _is_id(action.detail)
        }
        for run in sorted((self._acknowledged | triggered) - set(self.ledger.done) - set(self.ledger.live)):
            yield f"run {run} was returned to a user, and is not in the ledger"
        for row in self.ledger.live.values():
            yield f"{_name(row)} never ended: {row}"
        if not self._evidence.have_all_stopped:
            yield "a node did not stop when it was asked to"


def _enqueued(call: Call) -> tuple[list[NewRun], list[Run]]:
    return list(call.args[1]), call.answer


def _is_id(value: object) -> bool:
    return isinstance(value, str) and len(value) == 36 and value.count("-") == 4


def _name(row: Row) -> str:
    return f"run {row['id'][9:18]}…{row['id'][-4:]} of {row['task']}"


def _attempts_of(task: str) -> int:
    """A job that raises Retry has ten attempts, independent of its policy."""
    return 10 if task == "asking" else (WORKS | DISPATCHED_WORKS)[task].retry.attempts
