"""Shared texts of explanations: times, reasons, names of nodes, and why no node runs a task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from evertick.model import Node, Reason
from evertick.store.base import DeclaredBy
from evertick.when import When

__all__ = [
    "REMEDY",
    "SHORT",
    "driver_wanted",
    "heard_of",
    "is_left_behind",
    "known_names",
    "lease_of",
    "living_of",
    "node_names",
    "node_wanted",
    "reason_words",
    "silent_for",
    "time_words",
    "why_no_node",
]

# Letters of the end of an id. Its beginning is the time of the start, which two nodes may share.
SHORT = 6
# A node sends five heartbeats per lease; after this share of a lease, the next one is late.
_SILENT_SHARE = 1 / 4
REPAIR = "correct it, then run `evertick db repair-clock`"
REMEDY = "restart one of the live nodes, which puts its declaration in force"

_REASONS: dict[str, str] = {
    Reason.CLOCK: "the clock was wrong when it was recorded; `evertick db repair-clock` has corrected its times",
    Reason.COALESCED: "a newer moment ran instead (catch-up is 'latest')",
    Reason.OVERLAP: "an earlier run of the schedule was still live",
    Reason.GRACE: "noticed later than the grace time allows",
    Reason.LIMIT: "more moments were missed than the catch-up limit allows",
    Reason.DOWNTIME: "no node was running in time, and catch-up is 'skip'",
    Reason.PAUSED: "the schedule was paused",
    Reason.EDITED: "the schedule was edited before a node recorded it",
    Reason.REMOVED: "the schedule was removed",
    Reason.UNDECLARED: "no code declared the schedule at that time",
    Reason.REPLACED: "a newer fire replaced it",
    Reason.EXPIRED: "it was not started in time",
    Reason.REQUESTED: "it was requested",
    Reason.TIMEOUT: "it timed out",
    Reason.ERROR: "the job raised an error",
    Reason.NODE_DIED: "its node died",
    Reason.NODE_GONE: "it was for one node only, which has stopped or died",
    Reason.NO_NODE: "it runs on every node, and no live node knew the task",
    Reason.SHUTDOWN: "its node was shut down, and it must not run twice, or elsewhere",
    Reason.UNREACHABLE: "its node could not reach the store",
    Reason.NO_SLOT: "the node that claimed it had no free slot in time",
    Reason.NOT_TAKEN: "no worker took it in time",
    Reason.NO_PROGRESS: "its worker stopped reporting",
    Reason.UNDELIVERED: "its queue did not accept the message",
    Reason.DUPLICATE: "another run has its unique key",
    Reason.BLACKOUT: "it was in the blackout of the schedule, which drops its moments",
    Reason.BY_HAND: "by hand, with skip-next",
    Reason.UNDONE: "its early run was undone",
    Reason.LATE: "it ran late, or in place of earlier missed moments",
}


def reason_words(reason: str) -> str:
    """The reason of a verdict as text."""
    return _REASONS.get(reason, reason)


def time_words(moment: datetime | None, rule: When | None) -> str:
    """The moment in the zone of the rule, with its name; without a rule in that of this machine, with its offset."""
    if moment is None:
        return "-"
    if rule is not None:
        return f"{moment.astimezone(rule.zone):%Y-%m-%d %H:%M:%S} {rule.zone.key}"
    return moment.astimezone().replace(microsecond=0).isoformat(" ").replace("+00:00", " UTC")


# --- nodes


def living_of(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.died_at is None]


def driver_wanted(task: str, nodes: Iterable[Node]) -> str | None:
    """The driver of a task that nodes know, but cannot run because it is not enabled there; None without such nodes.

    A live node is preferred, then the node that was started last.
    """
    candidates = [node for node in nodes if task in node.leaves]
    newest = max(candidates, key=lambda node: (node.died_at is None, node.started_at), default=None)
    return None if newest is None else newest.leaves[task]


def why_no_node(task: str, nodes: Sequence[Node]) -> tuple[str, str]:
    """Why none of these nodes runs a task, and the fix. `nodes`: also dead ones, which knew tasks."""
    living = living_of(nodes)
    if not living:
        return "no node is alive", f"start one {node_wanted(task, nodes)}"
    driver = driver_wanted(task, living)
    if driver is None:
        return f"no live node knows task {task!r}", "start one that does"
    problem = f"no live node has the driver {driver!r} of task {task!r} enabled, though some know the task"
    return problem, f"start a node with {driver!r} among its drivers, or enable it on one of them"


def node_wanted(task: str, nodes: Iterable[Node]) -> str:
    """The description of the node that a task needs, to follow "one"."""
    driver = driver_wanted(task, nodes)
    return f"that knows task {task!r}" if driver is None else f"with the driver {driver!r}"


def heard_of(living: list[Node], now: datetime) -> list[Node]:
    """The nodes with a valid lease. Without other nodes, a killed node is never declared dead."""
    return [node for node in living if node.lease_until >= now]


def silent_for(node: Node, now: datetime) -> str:
    """How long ago the last heartbeat was, if the next one is late; else empty."""
    age = now - node.beat_at
    return f"silent for {age.total_seconds():.0f} s" if age > _SILENT_SHARE * lease_of(node) else ""


def lease_of(node: Node) -> timedelta:
    return node.lease_until - node.beat_at


class Named(Protocol):
    """A node, or a part of one."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


def node_names(found: Iterable[Named]) -> dict[str, str]:
    """Names of nodes by id. A name that several nodes have is followed by the end of the id."""
    pairs = [(node.id, node.name) for node in found]
    counts = Counter(name for _, name in pairs)
    return {node: name if counts[name] == 1 else f"{name} ({node[-SHORT:]})" for node, name in pairs}


def known_names(found: Iterable[Node]) -> dict[str, str]:
    """Names of live and dead nodes by id. A name that several had at the same time is followed by the end of the id."""
    by_name: dict[str, list[Node]] = defaultdict(list)
    for node in found:
        by_name[node.name].append(node)
    names: dict[str, str] = {}
    for name, nodes in by_name.items():
        names |= node_names(nodes) if _overlap_in_time(nodes) else {node.id: name for node in nodes}
    return names


def _overlap_in_time(nodes: Sequence[Node]) -> bool:
    """Whether one of them started before the last heartbeat of another. A death is recorded later than that."""
    by_start = sorted(nodes, key=lambda node: node.started_at)
    last = None
    for node in by_start:
        if last is not None and node.started_at < last:
            return True
        last = node.beat_at if last is None else max(last, node.beat_at)
    return sum(node.died_at is None for node in nodes) > 1


def is_left_behind(key: str, declared: DeclaredBy | None, living: Sequence[Node]) -> bool:
    """Whether live nodes declare the schedule, and none of them as it is stored.

    The declaration of the node that started last stays in force after that node has ended, until another one starts. So
    a node that was started by mistake leaves its rule behind.
    """
    hashes = {node.declares[key] for node in living if key in node.declares}
    return declared is not None and bool(hashes) and declared.hash not in hashes
