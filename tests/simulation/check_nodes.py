"""A death is recorded once, only of dead nodes, and their runs are reassigned in time."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.evidence import SECOND, Evidence
from simulation.replay import Call, Ledger, Row

__all__ = ["check_nodes"]

# 1 s for stopped jobs, 5 s each for last writes, calls in flight and leaving, and a margin.
_STOP_MARGIN_SECONDS = 20.0


def check_nodes(evidence: Evidence) -> Iterator[str]:
    ledger = Ledger()
    for call in evidence.calls:
        for change in call.changes:
            if change.table == "nodes" and change.how == "update":
                yield from _check_death(evidence, ledger, call, change.row)
            ledger.apply(change)
    yield from _check_recovery(evidence)
    yield from _check_stops(evidence)


def _check_death(evidence: Evidence, ledger: Ledger, call: Call, row: Row) -> Iterator[str]:
    node = row["id"]
    if ledger.nodes[node]["died_at"] is not None:
        yield f"node {node} was dead already, and was changed by {call.intent}"
    if call.intent != "judge":
        return
    if row["lease_until"] >= call.at:
        yield f"node {node} was declared dead {row['lease_until'] - call.at} us before its lease expired"
    machine = ledger.machine_of[node]
    # If one heartbeat in ten is lost, five in a row are lost now and then, and the lease expires.
    if evidence.story.fault_rates.lost_share <= 0.03 and evidence.disturbances.was_undisturbed(
        machine, row["lease_until"] - evidence.lease, call.at
    ):
        yield f"node {node} on {machine} was declared dead by {call.who} without a disturbance"


def _check_stops(evidence: Evidence) -> Iterator[str]:
    """A stop is bounded, also without the store: the stop time for jobs, and a margin."""
    stopped_at = {action.who: action.at for action in evidence.actions if action.what == "gone"}
    killed = {action.who for action in evidence.actions if action.what in ("killed", "frozen")}
    stop_requests: dict[str, tuple[int, float]] = {}
    for action in evidence.actions:
        if action.what == "stopping":
            stop_requests.setdefault(action.who, (action.at, float(action.about)))
    for machine, (at, seconds) in stop_requests.items():
        if (
            machine in killed
            or machine not in evidence.disturbances.up_since
            or evidence.disturbances.up_since[machine] > at
        ):
            continue
        until = at + int((seconds + _STOP_MARGIN_SECONDS) * SECOND)
        if stopped_at.get(machine, until + 1) > until:
            yield f"{machine} was asked to stop in {seconds} s at {at}, and stopped at {stopped_at.get(machine)}"


def _check_recovery(evidence: Evidence) -> Iterator[str]:
    """Runs of a killed node are reassigned within its lease and a few heartbeats by an undisturbed node."""
    if not evidence.has_few_faults:
        return
    slack = 3 * evidence.beat + 2 * SECOND
    for action in evidence.actions:
        if action.what != "killed":
            continue
        until = action.at + evidence.lease + slack
        since = action.at - 2 * evidence.lease
        if until > evidence.ended_at or not evidence.disturbances.was_store_available(since, until):
            continue
        if any(
            evidence.disturbances.was_undisturbed(machine, since, until) for machine in evidence.disturbances.up_since
        ):
            yield from _still_held(evidence, action.who, action.at, until)


def _still_held(evidence: Evidence, machine: str, killed: int, until: int) -> Iterator[str]:
    ledger = Ledger()
    held: dict[str, int] = {}
    for call in evidence.calls:
        if call.at > until:
            break
        for change in call.changes:
            ledger.apply(change)
    for row in ledger.live.values():
        if row["state"] == "running" and ledger.machine_of.get(row["node"]) == machine and row["started_at"] <= killed:
            held[row["id"]] = row["fence"]
    for run, fence in held.items():
        yield f"run {run} is still held by the killed {machine} under fence {fence}"
