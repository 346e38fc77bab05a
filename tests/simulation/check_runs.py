"""What must hold of every run, step by step: legal changes, guarded writes, honest counts, one verdict.

Written from the promises, with its own tables: it shares no rule with the code under test.
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
# Which calls may end a run, and how.
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
        # (run, fence) of outcomes that were taken.
        self._taken: set[tuple[str, int]] = set()
        self._not_before: dict[str, int] = {}
        # Runs that people were promised.
        self._promised: set[str] = set()

    def step(self, call: Call) -> Iterator[str]:
        ledger = self.ledger
        touched = [change.row["id"] for change in call.changes if change.table in ("runs", "history")]
        before = {run: ledger.live.get(run) for run in touched}
        fence_before = ledger.fence
        for change in call.changes:
            if change.table in ("runs", "history"):
                yield from self._change(call, ledger.live.get(change.row["id"]), change.row)
            if change.table == "runs" and change.how == "insert":
                yield from self._insert(call, change.row)
            if change.table == "log_chunks":
                yield from self._log(change.row)
            ledger.apply(change)
        for run, old in before.items():
            new = ledger.live.get(run) or ledger.done.get(run)
            if new is not None:
                yield from self._step_of_run(call, old, new, fence_before)
        yield from self._answers(call, before)
        if call.intent == "claim":
            yield from self._order(call, before)
        if call.intent == "enqueue" and call.answer is not None:
            self._promised |= {run.id for run in call.answer}
            if any(
                asked.unique_key is None and asked.id != run.id for asked, run in zip(*_enqueued(call), strict=True)
            ):
                yield "an enqueue without a unique key was answered with another run"
        yield from self._standing(touched)
        for change in call.changes:
            if change.table == "schedules" and change.how == "delete":
                yield from self._removed(change.row)

    # --- one row, one change

    def _change(self, call: Call, old: Row | None, new: Row) -> Iterator[str]:
        if new["id"] in self.ledger.done:
            yield f"{_name(new)} comes back after its verdict"
        state = None if old is None else old["state"]
        if new["state"] not in _NEXT[state]:
            yield f"{_name(new)} went from {state} to {new['state']}"
        if old is not None and old["cause"] != new["cause"]:
            yield from self._given_back(call, old, new)

    def _given_back(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        """A run before its time that somebody takes back leaves its moment, if nobody has begun it."""
        self._moments.pop((old["schedule_id"], old["fire_at"]), None)
        if (old["cause"], new["cause"]) != ("fire", "trigger") or not call.who.startswith("people"):
            yield f"{_name(new)} has the cause {new['cause']} instead of {old['cause']}"
        if old["state"] not in ("waiting", "blocked", "parked") or old["attempts"] or old["losses"]:
            yield f"{_name(new)} was taken back though it had begun"

    def _insert(self, call: Call, row: Row) -> Iterator[str]:
        if row["cause"] == "fire":
            moment = (row["schedule_id"], row["fire_at"])
            if moment in self._moments:
                yield f"{_name(row)} is a second run of the moment {moment}"
            self._moments[moment] = row["id"]
        if row["attempts"] or row["losses"]:
            yield f"{_name(row)} begins with attempts {row['attempts']} and losses {row['losses']}"

    # --- one run, one call

    def _step_of_run(self, call: Call, old: Row | None, new: Row, fence_before: int) -> Iterator[str]:
        is_claimed = new["state"] == "running" and (old is None or old["fence"] != new["fence"])
        if is_claimed:
            yield from self._claim(call, old, new, fence_before)
        if old is None:
            return
        if old["state"] == "running" and not (new["state"] == "running" and not is_claimed):
            yield from self._left_running(call, old, new)
        yield from self._counts(call, old, new)
        if new["state"] == "done":
            yield from self._ended(call, old, new)
        if call.intent == "note" and old["progress"] != new["progress"]:
            yield from self._noted(call, old)

    def _claim(self, call: Call, old: Row | None, new: Row, fence_before: int) -> Iterator[str]:
        name = _name(new)
        if call.intent not in ("claim", "rehome", "record_fires"):
            yield f"{name} was claimed by a call that claims nothing"
        if new["fence"] is None or new["fence"] <= fence_before:
            yield f"{name} was claimed under fence {new['fence']}, not above {fence_before}"
        owner = self.ledger.nodes.get(new["node"])
        if owner is None or owner["died_at"] is not None:
            yield f"{name} was claimed by node {new['node']}, which is dead"
        elif self.ledger.machine_of[new["node"]] != call.who:
            yield f"{name} was claimed by {call.who} for node {new['node']} of another machine"
        if old is not None and old["is_cancel_requested"]:
            yield f"{name} was claimed though its cancel was asked for"
        if call.intent == "rehome":
            return
        # As it stood when it was claimed: the same call may have freed it before.
        due_at = new["due_at"]
        if call.at < due_at:
            yield f"{name} was claimed {due_at - call.at} us before it was due"
        if call.at < self._not_before.get(new["id"], 0):
            yield f"{name} was tried again {self._not_before[new['id']] - call.at} us too soon"
        if new["expires"] is not None and call.at > due_at + new["expires"]:
            yield f"{name} was claimed {call.at - due_at - new['expires']} us after it expired"

    def _left_running(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        """A claim ends by its owner's word, or because its owner is dead or long over time."""
        name = _name(old)
        match call.intent:
            case "finish":
                node, outcomes = call.args[1], call.args[2]
                said = [each for each in outcomes if each.id == old["id"] and each.fence == old["fence"]]
                if node != old["node"] or not said:
                    yield f"{name}, held by {old['node']} under {old['fence']}, was ended by the word of another claim"
            case "rehome":
                owner = self.ledger.nodes.get(old["node"])
                is_dead = owner is None or owner["died_at"] is not None
                is_over = old["deadline"] is not None and old["deadline"] + _DEADLINE_MARGIN < call.at
                if not is_dead and not is_over:
                    yield f"{name} was taken from {old['node']}, which is not dead"
            case _:
                yield f"{name} stopped running by a call that has no say in it"

    def _counts(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        name = _name(new)
        lost = new["losses"] - old["losses"]
        if old["state"] != "dispatched" and lost != (1 if call.intent == "rehome" and old["state"] == "running" else 0):
            yield f"{name}: losses went from {old['losses']} to {new['losses']}"
        if new["losses"] > _LOSSES_MAX:
            yield f"{name} was lost {new['losses']} times"
        if new["losses"] >= _LOSSES_MAX and new["state"] != "done":
            yield f"{name} was lost {new['losses']} times and goes on"
        if new["at_most_once"] and lost and new["state"] != "done":
            yield f"{name} must not run twice, was lost, and goes on"
        tried = new["attempts"] - old["attempts"]
        judged = {"done", "retry"}
        # An outcome that is sent again is known already, and counts once.
        is_judged = call.intent == "finish" and any(
            each.id == new["id"] and each.fence == old["fence"] and each.kind in judged and answer == "done"
            for each, answer in zip(call.args[2], call.answer.answers, strict=True)
        )
        if old["state"] != "dispatched" and tried != (1 if is_judged else 0):
            yield f"{name}: attempts went from {old['attempts']} to {new['attempts']}"
        if new["attempts"] > _attempts_of(new["task"]):
            yield f"{name} was tried {new['attempts']} times"

    def _ended(self, call: Call, old: Row, new: Row) -> Iterator[str]:
        name, verdict = _name(new), new["verdict"]
        if verdict not in _ENDS.get(call.intent, ()):
            yield f"{name} ended as {verdict} by {call.intent}"
        if new["finished_at"] != call.at:
            yield f"{name} finished at {new['finished_at']}, written at {call.at}"
        if verdict == "missed" and (new["expires"] is None or call.at <= old["due_at"] + new["expires"]):
            yield f"{name} was called expired before it was"
        if call.intent == "finish" and verdict == "cancelled" and not old["is_cancel_requested"]:
            yield f"{name} ended as cancelled, and nobody asked for it"
        # What is for one node alone is nobody else's to try.
        may_go_on = not old["at_most_once"] and not old["queue"].startswith("@")
        if call.intent == "rehome" and verdict == "lost" and new["losses"] < _LOSSES_MAX and may_go_on:
            yield f"{name} was given up after {new['losses']} losses"
        if verdict == "failed" and new["attempts"] < _attempts_of(new["task"]):
            yield f"{name} failed for good after {new['attempts']} attempts"

    def _noted(self, call: Call, old: Row) -> Iterator[str]:
        node, notes = call.args[1], call.args[2]
        if node != old["node"] or not any(note.id == old["id"] and note.fence == old["fence"] for note in notes):
            yield f"{_name(old)} was written about by another claim than its own"

    def _log(self, chunk: Row) -> Iterator[str]:
        held = self.ledger.live.get(chunk["run"])
        if held is None or held["state"] != "running" or held["fence"] != chunk["fence"]:
            yield f"lines of run {chunk['run']} were taken under fence {chunk['fence']}, which holds it no more"

    # --- what a call answers

    def _answers(self, call: Call, before: dict[str, Row | None]) -> Iterator[str]:
        if call.intent != "finish" or call.answer is None:
            return
        for outcome, answer in zip(call.args[2], call.answer.answers, strict=True):
            said = (outcome.id, outcome.fence)
            held = before.get(outcome.id)
            is_held = held is not None and held["fence"] == outcome.fence and held["node"] == call.args[1]
            match answer:
                case "done":
                    if not is_held:
                        yield f"the outcome of run {outcome.id} under {outcome.fence} was taken, and it was not held"
                    self._taken.add(said)
                    self._expect_pause(call, outcome)
                case "already":
                    if said not in self._taken:
                        yield f"{outcome.kind} of run {outcome.id} under {outcome.fence} is called known, and was not"
                case "lost":
                    # Who released a run can be told so only until the next claim; it makes no difference to them.
                    if said in self._taken and outcome.kind in ("done", "retry"):
                        yield f"run {outcome.id} under {outcome.fence}: {outcome.kind} was taken, then called lost"

    def _expect_pause(self, call: Call, outcome: Outcome) -> None:
        row = self.ledger.live.get(outcome.id)
        if outcome.kind == "retry" and row is not None:
            work = (WORKS | DISPATCHED_WORKS)[row["task"]]
            delay = 3 * SECOND if row["task"] == "asking" else work.retry.delay(row["attempts"])
            self._not_before[outcome.id] = call.at + delay
        elif outcome.kind == "release":
            self._not_before.pop(outcome.id, None)

    def _order(self, call: Call, before: dict[str, Row | None]) -> Iterator[str]:
        """Highest priority first, then longest due. What a limit lets through because of a claim comes after it."""
        claimed = [change.row for change in call.changes if change.table == "runs" and change.row["state"] == "running"]
        if not claimed:
            return
        last = min((row["priority"], -row["due_at"]) for row in claimed)
        slot = int(call.who.partition(".")[0][1:])
        unknown = self._evidence.story.lacks[slot]
        let_through = {run for run, old in before.items() if old is not None and old["state"] == "blocked"}
        for row in self.ledger.live.values():
            if (
                row["id"] not in let_through
                and row["task"] not in unknown
                and (not row["queue"].startswith("@") or row["queue"] == f"@{claimed[0]['node']}")
                and row["state"] == "waiting"
                and row["due_at"] <= call.at
                and (row["priority"], -row["due_at"]) > last
            ):
                yield f"{_name(row)} (priority {row['priority']}) was passed over"

    # --- what holds between calls

    def _standing(self, touched: list[str]) -> Iterator[str]:
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

    def _removed(self, schedule: Row) -> Iterator[str]:
        for row in self.ledger.live_of(schedule["id"]):
            if row["state"] not in ("running", "dispatched"):
                yield f"{_name(row)} is {row['state']}, and its schedule was removed"

    def at_the_end(self) -> Iterator[str]:
        triggered = {deed.detail for deed in self._evidence.deeds if deed.what == "trigger" and _is_id(deed.detail)}
        for run in sorted((self._promised | triggered) - set(self.ledger.done) - set(self.ledger.live)):
            yield f"run {run} was promised, and is not in the ledger"
        for row in self.ledger.live.values():
            yield f"{_name(row)} never came to an end: {row}"
        if not self._evidence.are_all_gone:
            yield "a node did not stop when it was asked to"


def _enqueued(call: Call) -> tuple[list[NewRun], list[Run]]:
    return list(call.args[1]), call.answer


def _is_id(heard: object) -> bool:
    return isinstance(heard, str) and len(heard) == 36 and heard.count("-") == 4


def _name(row: Row) -> str:
    return f"run {row['id'][9:18]}…{row['id'][-4:]} of {row['task']}"


def _attempts_of(task: str) -> int:
    """A job that asks for a retry itself gets ten, whatever its policy."""
    return 10 if task == "asking" else (WORKS | DISPATCHED_WORKS)[task].retry.attempts
