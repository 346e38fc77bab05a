"""What can be wrong with nodes: no node, late heartbeats, different code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

from evertick.doctor.finding import Finding, Severity, named
from evertick.engine.node import declarer_of
from evertick.explain.words import node_names
from evertick.model import Node, blockers_of_loop

__all__ = ["about_nodes"]

# A node beats five times in a lease: by this share of it two beats are missing and the third is due.
_LATE_SHARE = 0.6


def about_nodes(nodes: Sequence[Node], now: datetime, *, has_schedules: bool) -> Iterator[Finding]:
    living = [node for node in nodes if node.died_at is None]
    if not living and has_schedules:
        yield Finding(
            severity=Severity.WARNING,
            check="no_node",
            what="no node is alive: nothing fires and nothing runs",
            fix="start one with `evertick daemon` or `evertick run module:attribute`",
        )
    names = node_names(living)
    for node in living:
        yield from _about_beat(node, names[node.id], now)
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


def _about_beat(node: Node, name: str, now: datetime) -> Iterator[Finding]:
    silent, lease = now - node.beat_at, node.lease_until - node.beat_at
    if node.lease_until < now:
        yield Finding(
            severity=Severity.WARNING,
            check="silent_node",
            what=f"node {name} is silent for {silent.total_seconds():.0f} s, its lease has run out",
            fix="if its process is gone, another node takes its runs over; if it is there, see what holds it up",
            about=(node.id,),
        )
    elif lease and silent > _LATE_SHARE * lease:
        yield Finding(
            severity=Severity.WARNING,
            check="late_beat",
            what=f"node {name} has not beaten for {silent.total_seconds():.1f} s of its lease of "
            f"{lease.total_seconds():.0f} s",
            fix="if it was killed, others take its runs and duties over when its lease ends; if it is there, see "
            "whether its machine is overloaded or stands still, or whether the store was locked",
            about=(node.id,),
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
    """Who starts last wins: with two programs that differ, that is by chance."""
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
