"""Nodes and duties: no node, late heartbeats, different code, duties that fail or that no node holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime

from evertick.doctor.finding import Finding, Severity, named
from evertick.doctor.thresholds import LATE_BEAT_SHARE, SETTLED
from evertick.engine.loops import OWN_DUTIES
from evertick.engine.node import declarer_of
from evertick.explain.words import node_names
from evertick.model import Duty, Node, blockers_of_loop
from evertick.text.error_line import error_summary
from evertick.text.time_span import span

__all__ = ["about_duties", "about_nodes", "about_programs", "is_alive", "node_state"]


def node_state(node: Node, moment: datetime, killed: Container[str] = ()) -> str:
    """alive, silent, stopped, dead, or killed: its process on this machine is gone, though its lease still holds."""
    if node.died_at is None and node.id in killed:
        return "killed"
    if node.died_at is not None:
        # Others write a node off only after its lease; within it, only the node itself can have said so.
        return "stopped" if node.died_at <= node.lease_until else "dead"
    return "alive" if node.lease_until >= moment else "silent"


def about_nodes(
    nodes: Sequence[Node], now: datetime, *, has_work: bool, killed: Mapping[str, int] | None = None
) -> Iterator[Finding]:
    """Whether they live. `killed`: by the id of a node whose process on this machine is gone, its process."""
    living = [node for node in nodes if is_alive(node, now, killed or {})]
    if not living:
        what = "nothing fires and nothing runs" if has_work else "nothing is scheduled"
        yield Finding(
            severity=Severity.ERROR if has_work else Severity.WARNING,
            check="no_node",
            what=f"no node is alive: {what}" if has_work else f"no node is alive, and {what}",
            fix="start one with `evertick daemon` or `evertick run module:attribute`",
        )
    present = [node for node in nodes if node.died_at is None]
    names = node_names(present)
    for node in present:
        yield from _about_beat(node, names[node.id], now, (killed or {}).get(node.id))


def is_alive(node: Node, now: datetime, killed: Container[str] = ()) -> bool:
    return node.died_at is None and node.lease_until >= now and node.id not in killed


def _about_beat(node: Node, name: str, now: datetime, process: int | None) -> Iterator[Finding]:
    silent, lease = now - node.beat_at, node.lease_until - node.beat_at
    if process is not None:
        yield Finding(
            severity=Severity.WARNING,
            check="killed_node",
            what=f"node {name} was killed: its process {process} is gone from this machine",
            fix="start it again; its runs are reassigned when its lease has run out",
            about=(node.id,),
        )
    elif node.lease_until < now:
        yield Finding(
            severity=Severity.WARNING,
            check="silent_node",
            what=f"node {name} is silent for {span(silent)}, its lease has run out",
            fix="if its process is gone, another node takes its runs over; if it is there, see what holds it up",
            about=(node.id,),
        )
    elif lease and silent > LATE_BEAT_SHARE * lease:
        yield Finding(
            severity=Severity.WARNING,
            check="late_beat",
            what=f"node {name} has not beaten for {silent.total_seconds():.1f} s of its lease of "
            f"{lease.total_seconds():.0f} s",
            fix="if it was killed, others take its runs and duties over when its lease ends; if it is there, see "
            "whether its machine is overloaded or stands still, or whether the store was locked",
            about=(node.id,),
        )


def about_programs(living: Sequence[Node], now: datetime) -> Iterator[Finding]:
    """Jobs that block an event loop, and programs that differ."""
    names = node_names(living)
    for node in living:
        yield from _about_blockers(node, names[node.id], now)
    yield from _about_declarations(living)
    yield from _about_shared_names(living)
    versions = sorted({node.version for node in living})
    if len(versions) > 1:
        yield Finding(
            severity=Severity.NOTE,
            check="versions",
            what=f"live nodes run different versions of Evertick: {', '.join(versions)}",
            fix="fine during an update; afterwards restart the old ones",
        )


def _about_blockers(node: Node, name: str, now: datetime) -> Iterator[Finding]:
    """Jobs that block an event loop hold up all others of their node, which then look slow."""
    for job, tick in blockers_of_loop(node).items():
        if tick.last_at is None:
            continue
        until = tick.next_at or now
        ago = "" if tick.next_at is None else f", {max((now - until).total_seconds(), 0) / 60:.0f} min ago"
        verb = "has blocked" if ago else "blocks"
        since = f"for {(until - tick.last_at).total_seconds():.0f} s{ago}"
        yield Finding(
            severity=Severity.WARNING,
            check="blocked_loop",
            what=f"{job} {verb} the event loop of node {name} {since}: the other jobs of that node wait for it",
            fix="make it a plain function (def), which runs in a thread, or await what it waits for; the log of the "
            "node shows the stack",
            about=(job, node.id),
        )


def _about_declarations(living: Sequence[Node]) -> Iterator[Finding]:
    """The node that starts last wins: with two programs that differ, that is by chance."""
    hashes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    names = node_names(living)
    for node in living:
        for key, declared in node.declares.items():
            hashes[key][declared].append(names[node.id])
    for key, by_hash in sorted(hashes.items()):
        if len(by_hash) > 1:
            who = " against ".join(named(sorted(alike)) for alike in by_hash.values())
            yield Finding(
                severity=Severity.WARNING,
                check="declared_differently",
                what=f"schedule {key} is declared differently by live nodes ({who}); the last one started has won",
                fix="run the same code or the same file everywhere, or give one of them another key",
                about=(key,),
            )


def _about_shared_names(living: Sequence[Node]) -> Iterator[Finding]:
    """Nodes of one name stand for each other: what the one that is left does not declare, it pauses."""
    by_name: dict[str, list[Node]] = defaultdict(list)
    for node in living:
        by_name[declarer_of(node.name)].append(node)
    names = node_names(living)
    for name, alike in sorted(by_name.items()):
        common = set.intersection(*(set(node.declares) for node in alike))
        apart = sorted({key for node in alike for key in node.declares} - common)
        if apart:
            who = named(sorted(names[node.id] for node in alike))
            yield Finding(
                severity=Severity.WARNING,
                check="one_name",
                what=f"nodes of one name, {name!r}, do not declare the same schedules ({who}): not all have "
                f"{named(apart)}; when those that have them stop, the others pause them",
                fix="fine during an update; else give each program or file a name of its own (node_name, or node.name "
                "in a configuration), or let all declare the same",
                about=tuple(apart),
            )


# --- duties ----------------------------------------------------------------------------------------------------------


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
            yield _unheld(name)


def _goes_well_again(duty: Duty, now: datetime) -> bool:
    """One without ticks keeps the error that it last ended with while it is at it again."""
    return duty.next_at is None and duty.ticked_at is not None and now - duty.ticked_at > SETTLED


def _is_settled(nodes: Sequence[Node], now: datetime) -> bool:
    """Whether some node has lived for long enough to hold all duties that it takes part in, and none has just left."""
    is_settled = any(node.died_at is None and now - node.started_at > SETTLED for node in nodes)
    return is_settled and not any(node.died_at and now - node.died_at <= SETTLED for node in nodes)


def _failing(duty: Duty, error: str) -> Finding:
    own = OWN_DUTIES.get(duty.name)
    undone = "" if own is None else f"; until it is corrected nobody {own.does}"
    return Finding(
        severity=Severity.WARNING,
        check="failing_duty",
        what=f"duty {duty.name} fails on node {duty.node_name or duty.node}: {error_summary(error)}{undone}",
        fix=f"correct what it does; `evertick duties {duty.name}` shows the whole error, with its file and line",
        about=(duty.name,),
    )


def _unheld(name: str) -> Finding:
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
