"""The recorded events of jobs agree with the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.dispatched import DISPATCHED_WORKS
from simulation.evidence import SECOND, Evidence
from simulation.jobs import TALK, WORKS, token
from simulation.journal import JobEvent
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
        # The claims that hold now, and the end of the others.
        self._held: dict[str, int] = {}
        self._released: dict[tuple[str, int], int] = {}
        # The time of a requested cancel of a running run.
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
                    self._note_claim(call.at, change.row)
                if change.table == "nodes" and change.how == "insert":
                    self._joins.setdefault(call.who, []).append((change.row["id"], call.at))
        self._events: dict[tuple[str, int], list[JobEvent]] = {}
        for job in evidence.jobs:
            self._events.setdefault((job.run, job.fence), []).append(job)

    def _note_claim(self, at: int, row: Row) -> None:
        held = self._held.get(row["id"])
        if held is not None and (row["state"] != "running" or row["fence"] != held):
            self._released[row["id"], self._held.pop(row["id"])] = at
        if row["state"] == "running" and row["fence"] is not None:
            self._held[row["id"]] = row["fence"]
        if row["state"] == "running" and row["fence"] is not None:
            self._claims.setdefault((row["id"], row["fence"]), (at, row))
            if row["is_cancel_requested"]:
                self._cancels.setdefault(row["id"], at)

    def starts(self) -> Iterator[str]:
        by_run: dict[str, int] = {}
        for (run, fence), events in self._events.items():
            starts = [job for job in events if job.what == "started"]
            by_run[run] = by_run.get(run, 0) + len(starts)
            if len(starts) != 1:
                yield f"run {run} was started {len(starts)} times under fence {fence}"
            claim = self._claims.get((run, fence))
            if claim is None or claim[0] > starts[0].at:
                yield f"run {run} was started under fence {fence} and not claimed before"
            elif self._ledger.machine_of[claim[1]["node"]] != starts[0].who:
                yield f"run {run} was claimed by {claim[1]['node']} and started by {starts[0].who}"
            if WORKS[starts[0].task].on_lost == "fail" and by_run[run] > 1:
                yield f"run {run} of {starts[0].task} is at-most-once, and was started {by_run[run]} times"

    def slots(self) -> Iterator[str]:
        """No node runs more jobs than it has slots, including abandoned ones."""
        running: dict[str, set[tuple[str, int]]] = {}
        for job in self._evidence.jobs:
            active = running.setdefault(job.who, set())
            if job.what == "started":
                active.add((job.run, job.fence))
            elif job.what != "ignored":
                active.discard((job.run, job.fence))
            slots = self._evidence.story.nodes[int(job.who.partition(".")[0][1:])]
            if len(active) > slots:
                yield f"{job.who} has {len(active)} running jobs and {slots} slots"

    def verdicts(self) -> Iterator[str]:
        """The verdict of a run agrees with the events of its last claim."""
        for row in self._ledger.done.values():
            if row["task"] in DISPATCHED_WORKS:
                continue  # check_dispatched
            events = {
                job.what for job in self._events.get((row["id"], row["fence"]), ()) if job.at <= row["finished_at"]
            }
            expected = {
                "succeeded": {"returned"},
                "failed": {"raised", "cancelled", "ignored"},
                "skipped": {"skipped"},
            }.get(row["verdict"])
            text = f"run {row['id']} ended as {row['verdict']}({row['reason']}) under fence {row['fence']}"
            if expected is not None and not events & expected:
                yield f"{text}; events of its job: {sorted(events)}"
            if row["verdict"] == "failed" and "raised" not in events and row["reason"] != "timeout":
                yield f"{text}; its job was stopped and did not fail"
            if row["verdict"] == "succeeded" and (row["result"] or "").strip('"') != token(row["id"], row["fence"]):
                yield f"run {row['id']} under fence {row['fence']} has the result {row['result']}"

    def done_is_done(self) -> Iterator[str]:
        """A job that ended on an undisturbed node is not run again."""
        evidence = self._evidence
        for (run, fence), events in self._events.items():
            ended = next((job for job in events if job.what in ("returned", "skipped")), None)
            claim = self._claims.get((run, fence))
            if ended is None or claim is None or claim[1]["deadline"] is not None:
                continue
            until = ended.at + evidence.lease
            died_at = self._ledger.nodes[claim[1]["node"]]["died_at"]
            if died_at is not None and died_at <= until:
                continue
            is_undisturbed = evidence.disturbances.was_undisturbed(ended.who, claim[0], until)
            if is_undisturbed and evidence.disturbances.was_store_available(claim[0] - evidence.lease, until):
                row = self._ledger.done.get(run)
                if row is None or (row["fence"] != fence and run not in self._cancels):
                    yield f"run {run} {ended.what} under fence {fence}, and was run again"

    def stops(self) -> Iterator[str]:
        """A cancel and a timeout reach a job on an undisturbed node."""
        evidence = self._evidence
        for (run, fence), (at, row) in self._claims.items():
            machine = self._ledger.machine_of[row["node"]]
            asked = (
                [self._cancels[run] + 2 * evidence.beat] if run in self._cancels and self._cancels[run] >= at else []
            )
            asked += [] if row["deadline"] is None else [row["deadline"]]
            if not asked or not evidence.has_few_faults:
                continue
            until = min(asked) + _PATIENCE + 2 * SECOND
            if not evidence.disturbances.was_undisturbed(machine, at - evidence.lease, until):
                continue
            if not evidence.disturbances.was_store_available(at - evidence.lease, until):
                continue
            if any(job.at > until for job in self._events.get((run, fence), ()) if job.what == "returned") and not any(
                job.what == "ignored" for job in self._events[run, fence]
            ):
                yield f"run {run} under fence {fence} was not stopped by a cancel or timeout"
            if self._held_until(run, fence) > until:
                yield f"run {run} was still held under fence {fence} long after a cancel or timeout"

    def dead_work_stops(self) -> Iterator[str]:
        """A node that learns of its death stops its jobs before it joins again."""
        for (run, fence), events in self._events.items():
            claim = self._claims.get((run, fence))
            ended = next((job for job in events if job.what in ("returned", "raised", "skipped")), None)
            if claim is None or ended is None or ended.task == "deaf":
                continue
            rejoined_at = [at for node, at in self._joins[ended.who] if node != claim[1]["node"] and at > claim[0]]
            if any(at < ended.at for at in rejoined_at):
                yield f"run {run} continued under fence {fence} after its node had joined again"

    def retries(self) -> Iterator[str]:
        """Only a failure spends an attempt."""
        for (run, fence), at in self._retried.items():
            events = {job.what for job in self._events.get((run, fence), ()) if job.at <= at}
            row = self._claims[run, fence][1]
            is_over_time = row["deadline"] is not None and at >= row["deadline"]
            if "raised" not in events and not (is_over_time and events & {"cancelled", "ignored"}):
                yield f"run {run} spent an attempt under fence {fence}; events of its job: {sorted(events)}"

    def _held_until(self, run: str, fence: int) -> int:
        return self._released.get((run, fence), self._evidence.ended_at)

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
