"""What can be wrong with duties: one that fails, one that nobody holds though nodes live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity
from evertick.engine.loops import OWN_DUTIES
from evertick.model import Duty, Node
from evertick.text.error_line import what_was_raised

__all__ = ["about_duties"]

# What is over by then: the first beat of a node, the handing over of a duty, a failed start of one that has no ticks.
_SETTLED = timedelta(minutes=1)


def about_duties(duties: Sequence[Duty], nodes: Sequence[Node], now: datetime) -> Iterator[Finding]:
    """Of nodes all that are known: a death of late tells that a duty is only between two holders."""
    by_name = {duty.name: duty for duty in duties}
    for duty in duties:
        if duty.node is not None and duty.error is not None and not _goes_well_again(duty, now):
            yield _failing(duty, duty.error)
    if not _is_settled(nodes, now):
        return
    for name in (*OWN_DUTIES, *(duty.name for duty in duties if duty.name not in OWN_DUTIES)):
        if name not in by_name or by_name[name].node is None:
            yield _held_by_nobody(name)


def _goes_well_again(duty: Duty, now: datetime) -> bool:
    """One without ticks keeps the error that it last ended with while it is at it again."""
    return duty.next_at is None and duty.ticked_at is not None and now - duty.ticked_at > _SETTLED


def _is_settled(nodes: Sequence[Node], now: datetime) -> bool:
    """Whether some node has lived for long enough to hold whatever it takes part in, and nobody has just left."""
    is_someone_there = any(node.died_at is None and now - node.started_at > _SETTLED for node in nodes)
    return is_someone_there and not any(node.died_at and now - node.died_at <= _SETTLED for node in nodes)


def _failing(duty: Duty, error: str) -> Finding:
    own = OWN_DUTIES.get(duty.name)
    undone = "" if own is None else f"; until it is mended nobody {own.does}"
    return Finding(
        severity=Severity.WARNING,
        check="failing_duty",
        what=f"duty {duty.name} fails on node {duty.node_name or duty.node}: {what_was_raised(error)}{undone}",
        fix=f"mend what it does; `evertick duties {duty.name}` shows the whole error, with its file and line",
        about=(duty.name,),
    )


def _held_by_nobody(name: str) -> Finding:
    own = OWN_DUTIES.get(name)
    if own is None:
        return Finding(
            severity=Severity.NOTE,
            check="unheld_duty",
            what=f"duty {name} is held by nobody, though nodes live: none of them declares it, or takes part in duties",
            fix="start a node whose code declares it; if no code does any more, it is forgotten by itself",
            about=(name,),
        )
    return Finding(
        severity=Severity.WARNING,
        check="unheld_duty",
        what=f"duty {name} is held by nobody, though nodes live: nobody {own.does}",
        fix="let one node at least take part in duties: leave out duties=False where its Scheduler is made",
        about=(name,),
    )
