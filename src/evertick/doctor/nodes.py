"""Findings about nodes and duties: no node, late heartbeats, different code, failing duties, duties without a node."""

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
    """alive, silent, stopped, dead, or killed: its process is gone from this machine, but its lease is still valid."""
    if node.died_at is None and node.id in killed:
        return "killed"
    if node.died_at is not None:
        # Other nodes declare a death only after the lease; before that, the node itself has signed off.
        return "stopped" if node.died_at <= node.lease_until else "dead"
    return "alive" if node.lease_until >= moment else "silent"


def about_nodes(
    nodes: Sequence[Node], now: datetime, *, has_work: bool, killed: Mapping[str, int] | None = None
) -> Iterator[Finding]:
    """Findings about live nodes. `killed`: the process id by node id, for nodes whose process is gone."""
    living = [node for node in nodes if is_alive(node, now, killed or {})]
    if not living:
        effect = ": nothing fires and nothing runs" if has_work else ", and nothing is scheduled"
        yield Finding(
            severity=Severity.ERROR if has_work else Severity.WARNING,
            check="no_node",
            what=f"no node is alive{effect}",
            fix="start one with `evertick daemon` or `evertick run module:attribute`",
        )
    present = [node for node in nodes if node.died_at is None]
    names = node_names(present)
    for node in present:
        yield from _about_beat(node, names[node.id], now, (killed or {}).get(node.id))


def is_alive(node: Node, now: datetime, killed: Container[str] = ()) -> bool:
    return node.died_at is None and node.lease_until >= now and node.id not in killed


def _about_beat(node: Node, name: str, now: datetime, process: int | None) -> Iterator[Finding]:
    age, lease = now - node.beat_at, node.lease_until - node.beat_at
    if process is not None:
        yield Finding(
            severity=Severity.WARNING,
            check="killed_node",
            what=f"node {name} was killed: its process {process} is gone from this machine",
            fix="start it again; its runs are reassigned when its lease has expired",
            about=(node.id,),
        )
    elif node.lease_until < now:
        yield Finding(
            severity=Severity.WARNING,
            check="silent_node",
            what=f"node {name} is silent for {span(age)}, and its lease has expired",
            fix="if its process is gone, another node takes over its runs; if it still runs, check whether its machine "
            "is overloaded or cannot reach the store",
            about=(node.id,),
        )
    elif lease and age > LATE_BEAT_SHARE * lease:
        yield Finding(
            severity=Severity.WARNING,
            check="late_beat",
            what=f"node {name} has sent no heartbeat for {age.total_seconds():.1f} s, with a lease of "
            f"{lease.total_seconds():.0f} s",
            fix="if it was killed, other nodes take over its runs and duties when its lease expires; if it still runs, "
            "check whether its machine is overloaded or suspended, or the store was locked",
            about=(node.id,),
        )


def about_programs(living: Sequence[Node], now: datetime) -> Iterator[Finding]:
    """Findings about jobs that block an event loop, and about nodes with different code."""
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
            fix="this is normal during an update; afterwards restart the old ones",
        )


def _about_blockers(node: Node, name: str, now: datetime) -> Iterator[Finding]:
    """A job that blocks the event loop delays all other jobs of its node, which then look slow."""
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
            fix="make it a plain function (def), which runs in a thread, or use await for its blocking calls; the log "
            "of the node has the stack",
            about=(job, node.id),
        )


def _about_declarations(living: Sequence[Node]) -> Iterator[Finding]:
    """The declaration of the node that starts last is in force, so with different programs it depends on chance."""
    hashes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    names = node_names(living)
    for node in living:
        for key, declared in node.declares.items():
            hashes[key][declared].append(names[node.id])
    for key, by_hash in sorted(hashes.items()):
        if len(by_hash) > 1:
            groups = " against ".join(named(sorted(alike)) for alike in by_hash.values())
            yield Finding(
                severity=Severity.WARNING,
                check="declared_differently",
                what=f"live nodes declare schedule {key} differently ({groups}); the declaration of the last one "
                "started is in force",
                fix="run the same code or the same file everywhere, or give one of them another key",
                about=(key,),
            )


def _about_shared_names(living: Sequence[Node]) -> Iterator[Finding]:
    """Nodes of the same name replace each other: each pauses schedules of the others that it does not declare."""
    by_name: dict[str, list[Node]] = defaultdict(list)
    for node in living:
        by_name[declarer_of(node.name)].append(node)
    names = node_names(living)
    for name, alike in sorted(by_name.items()):
        common = set.intersection(*(set(node.declares) for node in alike))
        different = sorted({key for node in alike for key in node.declares} - common)
        if different:
            nodes = named(sorted(names[node.id] for node in alike))
            yield Finding(
                severity=Severity.WARNING,
                check="one_name",
                what=f"the nodes with the name {name!r} do not declare the same schedules ({nodes}): not all have "
                f"{named(different)}; when those that have them stop, the others pause them",
                fix="this is normal during an update; else give each program or file its own name (node_name, or "
                "node.name in a configuration), or let all declare the same schedules",
                about=tuple(different),
            )


# --- duties ----------------------------------------------------------------------------------------------------------


def about_duties(duties: Sequence[Duty], nodes: Sequence[Node], now: datetime) -> Iterator[Finding]:
    """`nodes`: also dead ones, because a duty without a holder is normal shortly after a death."""
    by_name = {duty.name: duty for duty in duties}
    for duty in duties:
        if duty.node is not None and duty.error is not None and not _has_recovered(duty, now):
            yield _failing(duty, duty.error)
    if not _is_settled(nodes, now):
        return
    for name in (*OWN_DUTIES, *(duty.name for duty in duties if duty.name not in OWN_DUTIES)):
        if name not in by_name or by_name[name].node is None:
            yield _unheld(name)


def _has_recovered(duty: Duty, now: datetime) -> bool:
    """Whether a duty without ticks runs again; it keeps the error of its last end."""
    return duty.next_at is None and duty.ticked_at is not None and now - duty.ticked_at > SETTLED


def _is_settled(nodes: Sequence[Node], now: datetime) -> bool:
    """Whether a node has been alive long enough to take its duties, and none has just ended."""
    is_settled = any(node.died_at is None and now - node.started_at > SETTLED for node in nodes)
    return is_settled and not any(node.died_at and now - node.died_at <= SETTLED for node in nodes)


def _failing(duty: Duty, error: str) -> Finding:
    own = OWN_DUTIES.get(duty.name)
    effect = "" if own is None else f"; until then no node {own.does}"
    return Finding(
        severity=Severity.WARNING,
        check="failing_duty",
        what=f"duty {duty.name} fails on node {duty.node_name or duty.node}: {error_summary(error)}{effect}",
        fix=f"correct its code; `evertick duties {duty.name}` shows the traceback",
        about=(duty.name,),
    )


def _unheld(name: str) -> Finding:
    own = OWN_DUTIES.get(name)
    if own is None:
        return Finding(
            severity=Severity.NOTE,
            check="unheld_duty",
            what=f"no live node holds duty {name}: none of them declares it, or takes part in duties",
            fix="start a node whose code declares it; if no code does, it is deleted automatically",
            about=(name,),
        )
    return Finding(
        severity=Severity.WARNING,
        check="unheld_duty",
        what=f"no live node holds duty {name}: no node {own.does}",
        fix="let at least one node take part in duties: leave out duties=False of its Scheduler",
        about=(name,),
    )
