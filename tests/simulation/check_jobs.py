"""What jobs say of themselves, held against what the ledger says of them."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.dispatched import DISPATCHED_WORKS
from simulation.evidence import SECOND, Evidence
from simulation.jobs import TALK, WORKS, token
from simulation.journal import Job
from simulation.replay import Ledger, Row

__all__ = ["check_jobs"]

_PATIENCE = 6 * SECOND


def check_jobs(evidence: Evidence) -> Iterator[str]:
    checker = _Checker(evidence)
    yield from checker.starts()
    yield from checker.slots()
    yield from checker.verdicts()
    yield from checker.done_is_done()
    yield from checker.stops()
    yield from checker.dead_work_stops()
    yield from checker.retries()
    yield from checker.logs()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        self._claims: dict[tuple[str, int], tuple[int, Row]] = {}
        # Which claims hold now, and when the others ended.
        self._held: dict[str, int] = {}
        self._left: dict[tuple[str, int], int] = {}
        # When a cancel of a running run was asked for.
        self._cancels: dict[str, int] = {}
        # (run, fence) of attempts that were put back for a retry, with the time of it.
        self._retried: dict[tuple[str, int], int] = {}
        # The incarnations of each machine, with the time of their join.
        self._joins: dict[str, list[tuple[str, int]]] = {}
        for call in evidence.calls:
            if call.intent == "finish" and call.answer is not None:
                for outcome, answer in zip(call.args[2], call.answer.answers, strict=True):
                    if outcome.kind == "retry" and answer == "done":
                        self._retried[outcome.id, outcome.fence] = call.at
            for change in call.changes:
                self._ledger.apply(change)
                if change.table in ("runs", "history"):
                    self._see(call.at, change.row)
                if change.table == "nodes" and change.how == "insert":
                    self._joins.setdefault(call.who, []).append((change.row["id"], call.at))
        self._words: dict[tuple[str, int], list[Job]] = {}
        for job in evidence.jobs:
            self._words.setdefault((job.run, job.fence), []).append(job)

    def _see(self, at: int, row: Row) -> None:
        held = self._held.get(row["id"])
        if held is not None and (row["state"] != "running" or row["fence"] != held):
            self._left[row["id"], self._held.pop(row["id"])] = at
        if row["state"] == "running" and row["fence"] is not None:
            self._held[row["id"]] = row["fence"]
        if row["state"] == "running" and row["fence"] is not None:
            self._claims.setdefault((row["id"], row["fence"]), (at, row))
            if row["is_cancel_requested"]:
                self._cancels.setdefault(row["id"], at)

    def starts(self) -> Iterator[str]:
        by_run: dict[str, int] = {}
        for (run, fence), words in self._words.items():
            starts = [job for job in words if job.what == "started"]
            by_run[run] = by_run.get(run, 0) + len(starts)
            if len(starts) != 1:
                yield f"run {run} was started {len(starts)} times under fence {fence}"
            claim = self._claims.get((run, fence))
            if claim is None or claim[0] > starts[0].at:
                yield f"run {run} was started under fence {fence} and not claimed before"
            elif self._ledger.machine_of[claim[1]["node"]] != starts[0].who:
                yield f"run {run} was claimed by {claim[1]['node']} and started by {starts[0].who}"
            if WORKS[starts[0].task].on_lost == "fail" and by_run[run] > 1:
                yield f"run {run} of {starts[0].task} must not run twice, and was started {by_run[run]} times"

    def slots(self) -> Iterator[str]:
        """No node has more work going on than it has slots, abandoned work included."""
        going_on: dict[str, set[tuple[str, int]]] = {}
        for job in self._evidence.jobs:
            at_work = going_on.setdefault(job.who, set())
            if job.what == "started":
                at_work.add((job.run, job.fence))
            elif job.what != "ignored":
                at_work.discard((job.run, job.fence))
            slots = self._evidence.story.nodes[int(job.who.partition(".")[0][1:])]
            if len(at_work) > slots:
                yield f"{job.who} has {len(at_work)} jobs at work, and {slots} slots"

    def verdicts(self) -> Iterator[str]:
        """A run ends as what its last claim came to."""
        for row in self._ledger.done.values():
            if row["task"] in DISPATCHED_WORKS:
                continue  # its worker knows
            words = {job.what for job in self._words.get((row["id"], row["fence"]), ()) if job.at <= row["finished_at"]}
            expected = {
                "succeeded": {"returned"},
                "failed": {"raised", "cancelled", "ignored"},
                "skipped": {"skipped"},
            }.get(row["verdict"])
            told = f"run {row['id']} ended as {row['verdict']}({row['reason']}) under fence {row['fence']}"
            if expected is not None and not words & expected:
                yield f"{told}; its job said {sorted(words)}"
            if row["verdict"] == "failed" and "raised" not in words and row["reason"] != "timeout":
                yield f"{told}; its job did not fail, it was stopped"
            if row["verdict"] == "succeeded" and (row["result"] or "").strip('"') != token(row["id"], row["fence"]):
                yield f"run {row['id']} under fence {row['fence']} has the result {row['result']}"

    def done_is_done(self) -> Iterator[str]:
        """What came to its end on a node that was left alone is not run again."""
        evidence = self._evidence
        for (run, fence), words in self._words.items():
            ended = next((job for job in words if job.what in ("returned", "skipped")), None)
            claim = self._claims.get((run, fence))
            if ended is None or claim is None or claim[1]["deadline"] is not None:
                continue
            until = ended.at + evidence.lease
            died_at = self._ledger.nodes[claim[1]["node"]]["died_at"]
            if died_at is not None and died_at <= until:
                continue
            is_calm = evidence.calm.left_alone(ended.who, claim[0], until)
            if is_calm and evidence.calm.store_was_well(claim[0] - evidence.lease, until):
                row = self._ledger.done.get(run)
                if row is None or (row["fence"] != fence and run not in self._cancels):
                    yield f"run {run} {ended.what} under fence {fence}, and was run again"

    def stops(self) -> Iterator[str]:
        """A cancel and a timeout reach a job on a node that is left alone."""
        evidence = self._evidence
        for (run, fence), (at, row) in self._claims.items():
            machine = self._ledger.machine_of[row["node"]]
            asked = (
                [self._cancels[run] + 2 * evidence.beat] if run in self._cancels and self._cancels[run] >= at else []
            )
            asked += [] if row["deadline"] is None else [row["deadline"]]
            if not asked or not evidence.is_gentle:
                continue
            until = min(asked) + _PATIENCE + 2 * SECOND
            if not evidence.calm.left_alone(machine, at - evidence.lease, until):
                continue
            if not evidence.calm.store_was_well(at - evidence.lease, until):
                continue
            if any(job.at > until for job in self._words.get((run, fence), ()) if job.what == "returned") and not any(
                job.what == "ignored" for job in self._words[run, fence]
            ):
                yield f"run {run} under fence {fence} was told to stop and did not hear of it"
            if self._held_until(run, fence) > until:
                yield f"run {run} was still held under fence {fence} long after it was told to stop"

    def dead_work_stops(self) -> Iterator[str]:
        """A node that learns of its death stops what it holds before it begins anew."""
        for (run, fence), words in self._words.items():
            claim = self._claims.get((run, fence))
            ended = next((job for job in words if job.what in ("returned", "raised", "skipped")), None)
            if claim is None or ended is None or ended.task == "deaf":
                continue
            begun_anew = [at for node, at in self._joins[ended.who] if node != claim[1]["node"] and at > claim[0]]
            if any(at < ended.at for at in begun_anew):
                yield f"run {run} went on under fence {fence} after its node had begun anew"

    def retries(self) -> Iterator[str]:
        """Only a failure is tried again at the cost of an attempt."""
        for (run, fence), at in self._retried.items():
            words = {job.what for job in self._words.get((run, fence), ()) if job.at <= at}
            row = self._claims[run, fence][1]
            is_over_time = row["deadline"] is not None and at >= row["deadline"]
            if "raised" not in words and not (is_over_time and words & {"cancelled", "ignored"}):
                yield f"run {run} lost an attempt under fence {fence}, and its job said {sorted(words)}"

    def _held_until(self, run: str, fence: int) -> int:
        return self._left.get((run, fence), self._evidence.ended_at)

    def logs(self) -> Iterator[str]:
        for (run, fence), lines in self._evidence.logs.items():
            if lines != [f"line {number}" for number in range(len(lines))]:
                yield f"the log of run {run} under fence {fence} reads {lines}"
            if (run, fence) not in self._claims:
                yield f"run {run} has a log under fence {fence}, and no claim"
        for row in self._ledger.done.values():
            if row["task"] == "talking" and row["verdict"] == "succeeded":
                lines = self._evidence.logs.get((row["id"], row["fence"]), [])
                if len(lines) != TALK:
                    yield f"run {row['id']} succeeded under fence {row['fence']}, and its log has {len(lines)} lines"
