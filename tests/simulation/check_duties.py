"""A duty has one live holder at a time, its term only grows, and only its holder acts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from simulation.duties import DUTIES
from simulation.evidence import SECOND, Evidence
from simulation.journal import DutyEvent, RowChange
from simulation.replay import Ledger

__all__ = ["check_duties"]


def check_duties(evidence: Evidence) -> Iterator[str]:
    ledger = Ledger()
    for event in evidence.events:
        match event:
            case RowChange():
                if event.table == "duties":
                    yield from _check_take(ledger, event)
                ledger.apply(event)
            case DutyEvent():
                yield from _check_act(ledger, event)
    yield from _check_order(evidence)
    yield from _check_recovery(evidence)
    if evidence.story.has_duties:
        yield from _check_continues(evidence)


def _check_take(ledger: Ledger, change: RowChange) -> Iterator[str]:
    row, before = change.row, ledger.duties.get(change.row["name"])
    if change.how == "delete" or not row["name"] or before is None:
        return
    if row["node"] is None or (row["node"], row["since"]) == (before["node"], before["since"]):
        if row["term"] != before["term"]:
            yield f"the term of {row['name']} went from {before['term']} to {row['term']}, without a new holder"
        return
    if row["term"] != before["term"] + 1:
        yield f"{row['name']} was taken under term {row['term']} after term {before['term']}"
    if _is_alive(ledger, before["node"]):
        yield f"{row['name']} was taken from {before['node']}, which is alive and has not resigned"
    if not _is_alive(ledger, row["node"]):
        yield f"{row['name']} was taken by {row['node']}, which is dead"


def _check_act(ledger: Ledger, act: DutyEvent) -> Iterator[str]:
    row = ledger.duties.get(act.duty)
    held = None if row is None else (row["node"], row["term"])
    if held != (act.node, act.term) or not _is_alive(ledger, act.node):
        yield f"{act.who} acted for {act.duty} under term {act.term} at {act.at}, which it does not hold: {held}"


def _is_alive(ledger: Ledger, node: str | None) -> bool:
    found = None if node is None else ledger.nodes.get(node)
    return found is not None and found["died_at"] is None


def _check_order(evidence: Evidence) -> Iterator[str]:
    """The acts alone: terms are in order, and each belongs to one node."""
    acts = sorted((each for each in evidence.events if isinstance(each, DutyEvent)), key=lambda act: act.duty)
    for duty, group in groupby(acts, key=lambda act: act.duty):
        newest, holders = 0, dict[int, str]()
        for act in group:
            if act.term < newest:
                yield f"{act.who} acted for {duty} under term {act.term}, and term {newest} had begun"
            newest = max(newest, act.term)
            if holders.setdefault(act.term, act.node) != act.node:
                yield f"term {act.term} of {duty} had two holders: {holders[act.term]} and {act.node}"


def _check_recovery(evidence: Evidence) -> Iterator[str]:
    """Another undisturbed node takes a duty of a killed node within its lease and a few heartbeats."""
    if not evidence.has_few_faults:
        return
    slack = 3 * evidence.beat + 2 * SECOND
    for action in evidence.actions:
        until, since = action.at + evidence.lease + slack, action.at - 2 * evidence.lease
        if (
            action.what != "killed"
            or until > evidence.ended_at
            or not evidence.disturbances.was_store_available(since, until)
        ):
            continue
        if any(
            evidence.disturbances.was_undisturbed(machine, since, until) for machine in evidence.disturbances.up_since
        ):
            yield from _still_held(evidence, action.who, action.at, until)


def _still_held(evidence: Evidence, machine: str, killed: int, until: int) -> Iterator[str]:
    ledger = Ledger()
    for call in evidence.calls:
        if call.at > until:
            break
        for change in call.changes:
            ledger.apply(change)
    for name, row in ledger.duties.items():
        if ledger.machine_of.get(row["node"]) == machine and row["since"] <= killed:
            yield f"duty {name} is still held by {machine}, which was killed at {killed}"


def _check_continues(evidence: Evidence) -> Iterator[str]:
    """Every duty is done again after the faults have ended."""
    paused = next(
        (action.at for action in evidence.actions if action.who == "story" and action.what == "all paused"), None
    )
    if paused is None:
        return
    # A node may have recorded the next tick and then failed to act, so allow two intervals.
    rhythm = evidence.poll + int(6 * evidence.story.pace.step * SECOND)
    since = paused - rhythm
    # A job may kill its node late. Its duties are free after its lease, which may be after the end of the story.
    killed = max((action.at for action in evidence.actions if action.what == "killed"), default=0)
    if evidence.ended_at < killed + evidence.lease + 3 * evidence.beat + 2 * SECOND + rhythm:
        return
    done = {each.duty for each in evidence.events if isinstance(each, DutyEvent) and each.at >= since}
    for duty in DUTIES:
        if duty not in done:
            yield f"{duty} is not done although the faults have ended"
