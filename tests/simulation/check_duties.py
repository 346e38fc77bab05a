"""A duty has one living holder at a time, its term only grows, and only its holder acts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from simulation.duties import DUTIES
from simulation.evidence import SECOND, Evidence
from simulation.journal import DutyAct, RowChange
from simulation.replay import Ledger

__all__ = ["check_duties"]


def check_duties(evidence: Evidence) -> Iterator[str]:
    ledger = Ledger()
    for happening in evidence.happenings:
        match happening:
            case RowChange():
                if happening.table == "duties":
                    yield from _taking(ledger, happening)
                ledger.apply(happening)
            case DutyAct():
                yield from _act(ledger, happening)
    yield from _order(evidence)
    yield from _recovery(evidence)
    if evidence.story.has_duties:
        yield from _goes_on(evidence)


def _taking(ledger: Ledger, change: RowChange) -> Iterator[str]:
    row, before = change.row, ledger.duties.get(change.row["name"])
    if change.how == "delete" or not row["name"] or before is None:
        return
    if row["node"] is None or (row["node"], row["since"]) == (before["node"], before["since"]):
        if row["term"] != before["term"]:
            yield f"the term of {row['name']} went from {before['term']} to {row['term']}, and nobody took it"
        return
    if row["term"] != before["term"] + 1:
        yield f"{row['name']} was taken under term {row['term']} after term {before['term']}"
    if _is_alive(ledger, before["node"]):
        yield f"{row['name']} was taken from {before['node']}, which lives and has not resigned"
    if not _is_alive(ledger, row["node"]):
        yield f"{row['name']} was taken by {row['node']}, which is dead"


def _act(ledger: Ledger, act: DutyAct) -> Iterator[str]:
    row = ledger.duties.get(act.duty)
    held = None if row is None else (row["node"], row["term"])
    if held != (act.node, act.term) or not _is_alive(ledger, act.node):
        yield f"{act.who} acted for {act.duty} under term {act.term} at {act.at}, which it does not hold: {held}"


def _is_alive(ledger: Ledger, node: str | None) -> bool:
    found = None if node is None else ledger.nodes.get(node)
    return found is not None and found["died_at"] is None


def _order(evidence: Evidence) -> Iterator[str]:
    """What the outside world sees, whatever the tables say: terms in order, each of one machine."""
    acts = sorted((each for each in evidence.happenings if isinstance(each, DutyAct)), key=lambda act: act.duty)
    for duty, group in groupby(acts, key=lambda act: act.duty):
        newest, holders = 0, dict[int, str]()
        for act in group:
            if act.term < newest:
                yield f"{act.who} acted for {duty} under term {act.term}, and term {newest} had begun"
            newest = max(newest, act.term)
            if holders.setdefault(act.term, act.node) != act.node:
                yield f"term {act.term} of {duty} had two holders: {holders[act.term]} and {act.node}"


def _recovery(evidence: Evidence) -> Iterator[str]:
    """What a killed node held is held by another within its lease and a few beats, if anybody is there to take it."""
    if not evidence.is_gentle:
        return
    slack = 3 * evidence.beat + 2 * SECOND
    for deed in evidence.deeds:
        until, since = deed.at + evidence.lease + slack, deed.at - 2 * evidence.lease
        if deed.what != "killed" or until > evidence.ended_at or not evidence.calm.store_was_well(since, until):
            continue
        if any(evidence.calm.left_alone(machine, since, until) for machine in evidence.calm.up_since):
            yield from _still_held(evidence, deed.who, deed.at, until)


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


def _goes_on(evidence: Evidence) -> Iterator[str]:
    """When all is well again every duty is done."""
    paused = next((deed.at for deed in evidence.deeds if deed.who == "story" and deed.what == "all paused"), None)
    if paused is None:
        return
    # Its rhythm may have been noted by a node whose act came to nothing; two intervals are enough for everybody.
    rhythm = evidence.poll + int(6 * evidence.story.pace.step * SECOND)
    since = paused - rhythm
    # A job may kill its node late: its duties are done again when its lease is over, which may be after the story.
    killed = max((deed.at for deed in evidence.deeds if deed.what == "killed"), default=0)
    if evidence.ended_at < killed + evidence.lease + 3 * evidence.beat + 2 * SECOND + rhythm:
        return
    done = {each.duty for each in evidence.happenings if isinstance(each, DutyAct) and each.at >= since}
    for duty in DUTIES:
        if duty not in done:
            yield f"nobody does {duty} though all is well again"
