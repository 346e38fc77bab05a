"""Death is written once, only of the dead, and their work goes on elsewhere in time."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.evidence import SECOND, Evidence
from simulation.replay import Call, Ledger, Row

__all__ = ["check_nodes"]

# One for jobs that were told to stop, five each for the last writes, for what is under way, for signing off.
_LAST_WORDS_SECONDS = 20.0


def check_nodes(evidence: Evidence) -> Iterator[str]:
    ledger = Ledger()
    for call in evidence.calls:
        for change in call.changes:
            if change.table == "nodes" and change.how == "update":
                yield from _death(evidence, ledger, call, change.row)
            ledger.apply(change)
    yield from _recovery(evidence)
    yield from _stops(evidence)


def _death(evidence: Evidence, ledger: Ledger, call: Call, row: Row) -> Iterator[str]:
    node = row["id"]
    if ledger.nodes[node]["died_at"] is not None:
        yield f"node {node} was dead already, and is written about again by {call.intent}"
    if call.intent != "judge":
        return
    if row["lease_until"] >= call.at:
        yield f"node {node} was judged {row['lease_until'] - call.at} us before its lease ran out"
    machine = ledger.machine_of[node]
    # Where one beat in ten is lost, five in a row are lost now and then, and the node is as good as dead.
    if evidence.story.climate.lost_share <= 0.03 and evidence.calm.left_alone(
        machine, row["lease_until"] - evidence.lease, call.at
    ):
        yield f"node {node} on {machine} was declared dead by {call.who}, and nothing was wrong with it"


def _stops(evidence: Evidence) -> Iterator[str]:
    """A stop is bounded, whatever the store does: the time given to the work, and a little for last words."""
    gone = {deed.who: deed.at for deed in evidence.deeds if deed.what == "gone"}
    killed = {deed.who for deed in evidence.deeds if deed.what in ("killed", "frozen")}
    asked: dict[str, tuple[int, float]] = {}
    for deed in evidence.deeds:
        if deed.what == "stopping":
            asked.setdefault(deed.who, (deed.at, float(deed.about)))
    for machine, (at, seconds) in asked.items():
        if machine in killed or machine not in evidence.calm.up_since or evidence.calm.up_since[machine] > at:
            continue
        until = at + int((seconds + _LAST_WORDS_SECONDS) * SECOND)
        if gone.get(machine, until + 1) > until:
            yield f"{machine} was asked to stop in {seconds} s at {at}, and was gone at {gone.get(machine)}"


def _recovery(evidence: Evidence) -> Iterator[str]:
    """What a killed node held is taken over within its lease and a few beats, if anybody is there to do it."""
    if not evidence.is_gentle:
        return
    slack = 3 * evidence.beat + 2 * SECOND
    for deed in evidence.deeds:
        if deed.what != "killed":
            continue
        until = deed.at + evidence.lease + slack
        since = deed.at - 2 * evidence.lease
        if until > evidence.ended_at or not evidence.calm.store_was_well(since, until):
            continue
        if any(evidence.calm.left_alone(machine, since, until) for machine in evidence.calm.up_since):
            yield from _still_held(evidence, deed.who, deed.at, until)


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
