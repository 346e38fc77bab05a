"""A unique key has one run at a time: while that is live, until its first start, or for a period."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from evertick.model import Definition, NewRun
from simulation.evidence import Evidence
from simulation.replay import Call, Ledger, Row

__all__ = ["check_unique"]


def check_unique(evidence: Evidence) -> Iterator[str]:
    checker = _Checker()
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))


class _Checker:
    def __init__(self) -> None:
        self._ledger = Ledger()
        # The runs that got each key, with the time.
        self._runs_by_key: dict[str, list[tuple[NewRun, int]]] = {}
        self._claimed: set[str] = set()

    def step(self, call: Call) -> Iterator[str]:
        wanted = {run.id: run for run in _new_runs(call) if run.unique_key is not None}
        for change in call.changes:
            if change.table == "runs" and change.how == "insert" and change.row["id"] in wanted:
                yield from self._check_new_run(call, wanted[change.row["id"]])
            if change.table == "runs" and change.row["state"] == "running":
                self._claimed.add(change.row["id"])
            if change.table == "gaps" and change.row["reason"] == "duplicate":
                yield from self._check_duplicate(call, change.row)
            self._ledger.apply(change)
        if call.intent == "enqueue" and call.answer is not None:
            yield from self._check_answers(call)

    def _check_new_run(self, call: Call, run: NewRun) -> Iterator[str]:
        assert run.unique_key is not None
        for holder in self._holders(run.unique_key, call.at):
            yield f"run {run.id} was recorded although run {holder} has its unique key {run.unique_key}"
        self._runs_by_key.setdefault(run.unique_key, []).append((run, call.at))

    def _check_answers(self, call: Call) -> Iterator[str]:
        for requested, answer in zip(call.args[1], call.answer, strict=True):
            if answer.id != requested.id and answer.id not in self._holders(requested.unique_key or "", call.at):
                yield f"{requested.unique_key} was answered with run {answer.id}, which does not have it"

    def _check_duplicate(self, call: Call, gap: Row) -> Iterator[str]:
        definition = msgspec.json.decode(self._ledger.schedules[gap["schedule_id"]]["definition"], type=Definition)
        if not self._holders(definition.unique or "", call.at):
            yield f"the moment {gap['last_at']} was skipped for the key {definition.unique}, which no run has"

    def _holders(self, key: str, at: int) -> list[str]:
        return [run.id for run, since in self._runs_by_key.get(key, ()) if self._holds(run, since, at)]

    def _holds(self, run: NewRun, since: int, at: int) -> bool:
        if run.unique_for is not None:
            return at < since + run.unique_for
        return run.id in self._ledger.live and not (run.unique_until == "start" and run.id in self._claimed)


def _new_runs(call: Call) -> list[NewRun]:
    match call.intent:
        case "enqueue":
            return list(call.args[1]) if call.args else []
        case "record_fires":
            return [run for advance in call.args[2] for run in advance.runs] if call.args else []
        case "change_schedules":
            settled = [change.settle for change in call.args[1]] if call.args else []
            return [run for advance in settled if advance is not None for run in advance.runs]
        case _:
            return []
