"""An every-node moment has one run for each live node, none twice, and none on another node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from evertick.model import Definition
from simulation.evidence import SECOND, Evidence
from simulation.replay import Call, Ledger, Row

__all__ = ["check_every_node"]

# The time between reading the nodes and recording the runs, on an undisturbed node.
_SOON = 8 * SECOND


def check_every_node(evidence: Evidence) -> Iterator[str]:
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        self._joined_at: dict[str, int] = {}
        # The nodes that have a run for a moment of a schedule.
        self._nodes_with_run: dict[tuple[int, int], set[str]] = defaultdict(set)
        # Runs that were recorded under overlap "skip".
        self._under_skip: set[str] = set()

    def step(self, call: Call) -> Iterator[str]:
        made: dict[tuple[int, int], str] = {}
        skipped: dict[tuple[int, int], set[str]] = defaultdict(set)
        for change in call.changes:
            row = change.row
            if change.table == "nodes" and change.how == "insert":
                self._joined_at[row["id"]] = call.at
            if change.table == "runs" and change.how == "insert" and row["cause"] == "every-node":
                made[row["schedule_id"], row["fire_at"]] = row["task"]
                yield from self._check_new_run(row)
            if change.table in ("runs", "history") and row["queue"].startswith("@"):
                yield from self._check_owner(call, row)
            if change.table == "runs" and change.how == "insert" and row["queue"].startswith("@"):
                yield from self._check_overlap(call, row)
            if change.table == "gaps" and row["reason"].startswith("overlap on "):
                skipped[row["schedule_id"], row["first_at"]].add(row["reason"].removeprefix("overlap on "))
            if change.table == "gaps" and row["reason"] == "no_node":
                yield from self._check_no_node(call, row)
            self._ledger.apply(change)
        for moment, task in made.items():
            yield from self._check_every_node_has_run(call, moment, task, skipped[moment])

    def _check_new_run(self, row: Row) -> Iterator[str]:
        moment, node = (row["schedule_id"], row["fire_at"]), row["queue"].removeprefix("@")
        if node in self._nodes_with_run[moment]:
            yield f"node {node} has a second run of the moment {moment}"
        self._nodes_with_run[moment].add(node)

    def _check_overlap(self, call: Call, row: Row) -> Iterator[str]:
        """Not for edits: they settle by the old definition, which is not in the ledger any more."""
        definition = msgspec.json.decode(self._ledger.schedules[row["schedule_id"]]["definition"], type=Definition)
        if definition.overlap != "skip" or call.intent != "record_fires":
            return
        for other in self._ledger.live_of(row["schedule_id"]):
            if other["queue"] == row["queue"] and other["id"] in self._under_skip:
                yield f"node {row['queue']} still has run {other['id']}, and got {row['id']} in parallel"
        self._under_skip.add(row["id"])

    def _check_owner(self, call: Call, row: Row) -> Iterator[str]:
        node = row["queue"].removeprefix("@")
        if row["state"] == "running" and row["node"] != node:
            yield f"run {row['id']} belongs to {node}, and was claimed by {row['node']}"
        owner = self._ledger.nodes.get(node)
        is_alive = owner is not None and owner["died_at"] is None
        if row["state"] == "done" and row["reason"] == "node_gone" and is_alive:
            yield f"run {row['id']} was ended by {call.intent} although its node {node} is alive"

    def _check_every_node_has_run(
        self, call: Call, moment: tuple[int, int], task: str, skipped: set[str]
    ) -> Iterator[str]:
        for node, row in self._live_nodes(call, task):
            if node not in self._nodes_with_run[moment] and row["name"] not in skipped:
                yield f"node {node} ({row['name']}) was alive, and has no run of the moment {moment}"

    def _check_no_node(self, call: Call, gap: Row) -> Iterator[str]:
        schedule = self._ledger.schedules[gap["schedule_id"]]
        task = msgspec.json.decode(schedule["definition"], type=Definition).task
        for node, row in self._live_nodes(call, task):
            yield f"the moment {gap['first_at']} was missed without a node although {node} ({row['name']}) was alive"

    def _live_nodes(self, call: Call, task: str) -> Iterator[tuple[str, Row]]:
        """The nodes that the caller must have seen alive."""
        evidence, at = self._evidence, call.at
        is_fast = evidence.has_few_faults and evidence.disturbances.was_undisturbed(call.who, at - _SOON, at)
        since = at - (_SOON if is_fast else 2 * evidence.lease + 2 * _SOON)
        for node, row in self._ledger.nodes.items():
            slot = int(row["name"].removeprefix("n"))
            if (
                row["died_at"] is None
                and self._joined_at[node] <= since
                and task not in evidence.story.unknown_tasks[slot]
            ):
                yield node, row
