"""The words that all explanations share: times, reasons, names of nodes, and why no node runs a task."""

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

# The end of an id: its beginning is the time of the start, which two nodes may share.
SHORT = 6
# A node beats five times in a lease: by this share of it a beat is late.
_SILENT_SHARE = 1 / 4
REPAIR = "put it right, then run `evertick db repair-clock`"
REMEDY = "restart one of the live nodes: it puts in force what its code or its configuration says"

_REASONS: dict[str, str] = {
    Reason.CLOCK: "the clock was wrong when it was recorded; `evertick db repair-clock` has put its times right",
    Reason.COALESCED: "a newer moment ran instead (catch-up is 'latest')",
    Reason.OVERLAP: "an earlier run of the schedule was still live",
    Reason.GRACE: "noticed later than the grace time allows",
    Reason.LIMIT: "more moments were owed than catch-up makes up for",
    Reason.DOWNTIME: "no node was there in time, and catch-up is 'skip'",
    Reason.PAUSED: "the schedule was paused",
    Reason.EDITED: "the schedule was edited before anybody noticed",
    Reason.REMOVED: "the schedule was removed",
    Reason.UNDECLARED: "no code declared the schedule at that time",
    Reason.REPLACED: "a newer fire took its place",
    Reason.EXPIRED: "it was not started in time",
    Reason.REQUESTED: "somebody asked for it",
    Reason.TIMEOUT: "it took longer than its timeout",
    Reason.ERROR: "the job raised an error",
    Reason.NODE_DIED: "its node died",
    Reason.NODE_GONE: "it was for one node alone, which has left or died",
    Reason.NO_NODE: "it is for every node, and no live one knew the task",
    Reason.SHUTDOWN: "its node was shut down, and it must not run twice, or elsewhere",
    Reason.UNREACHABLE: "its node could not reach the store",
    Reason.NO_SLOT: "the node that had claimed it had no slot free for it in time",
    Reason.NOT_TAKEN: "no worker took it in its time",
    Reason.NO_PROGRESS: "its worker fell silent",
    Reason.UNDELIVERED: "the queue that it was to be dispatched to did not take it",
    Reason.DUPLICATE: "another run has its unique key",
    Reason.BLACKOUT: "the blackout of the schedule was closed, and drops what comes then",
    Reason.BY_HAND: "somebody decided that it should not run",
    Reason.UNDONE: "somebody took back that it runs early",
    Reason.LATE: "it ran late, or for moments before it that nobody noticed in time",
}


def reason_words(reason: str) -> str:
    """Why a run ended, or a moment had none, in words."""
    return _REASONS.get(reason, reason)


def time_words(moment: datetime | None, rule: When | None) -> str:
    """By the clock of the rule, and its name; where there is none by that of this machine, with its offset."""
    if moment is None:
        return "-"
    if rule is not None:
        return f"{moment.astimezone(rule.zone):%Y-%m-%d %H:%M:%S} {rule.zone.key}"
    return moment.astimezone().replace(microsecond=0).isoformat(" ").replace("+00:00", " UTC")


# --- nodes


def living_of(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.died_at is None]


def driver_wanted(task: str, nodes: Iterable[Node]) -> str | None:
    """The driver of a task that nodes know and leave to others. None: none of them knows it so.

    The living know best, and of the dead the one that was started last.
    """
    knowing = [node for node in nodes if task in node.leaves]
    best = max(knowing, key=lambda node: (node.died_at is None, node.started_at), default=None)
    return None if best is None else best.leaves[task]


def why_no_node(task: str, nodes: Sequence[Node]) -> tuple[str, str]:
    """In words, of a task that none of these runs; and what helps. The dead among them tell what they knew."""
    living = living_of(nodes)
    if not living:
        return "no node is alive", f"start one {node_wanted(task, nodes)}"
    driver = driver_wanted(task, living)
    if driver is None:
        return f"no live node knows task {task!r}", "start one that does"
    known = f"no live node has the driver {driver!r} of task {task!r} enabled, though some know the task"
    return known, f"start a node with {driver!r} among its drivers, or enable it on one of them"


def node_wanted(task: str, nodes: Iterable[Node]) -> str:
    """Of the node that a task needs, behind "one", where none is alive."""
    driver = driver_wanted(task, nodes)
    return f"that knows task {task!r}" if driver is None else f"with the driver {driver!r}"


def heard_of(living: list[Node], now: datetime) -> list[Node]:
    """Whose lease holds. A node that was killed alone is never judged dead, since none is left to do it."""
    return [node for node in living if node.lease_until >= now]


def silent_for(node: Node, now: datetime) -> str:
    """Of a node that counts as alive, in words: how long ago its last beat is, where the next is late."""
    silent = now - node.beat_at
    return f"silent for {silent.total_seconds():.0f} s" if silent > _SILENT_SHARE * lease_of(node) else ""


def lease_of(node: Node) -> timedelta:
    return node.lease_until - node.beat_at


class Named(Protocol):
    """A node, or what is shown of one."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


def node_names(found: Iterable[Named]) -> dict[str, str]:
    """Names of nodes by id, each with the end of its id where others have the same."""
    pairs = [(node.id, node.name) for node in found]
    counts = Counter(name for _, name in pairs)
    return {node: name if counts[name] == 1 else f"{name} ({node[-SHORT:]})" for node, name in pairs}


def known_names(found: Iterable[Node]) -> dict[str, str]:
    """Names of nodes by id, of the living and the dead: with the ends of ids where some had a name at the same time."""
    by_name: dict[str, list[Node]] = defaultdict(list)
    for node in found:
        by_name[node.name].append(node)
    names: dict[str, str] = {}
    for name, nodes in by_name.items():
        names |= node_names(nodes) if _had_it_at_once(nodes) else {node.id: name for node in nodes}
    return names


def _had_it_at_once(nodes: Sequence[Node]) -> bool:
    """Whether one of them began before another had beaten for the last time. The end of a dead one is noticed later."""
    by_start = sorted(nodes, key=lambda node: node.started_at)
    last = None
    for node in by_start:
        if last is not None and node.started_at < last:
            return True
        last = node.beat_at if last is None else max(last, node.beat_at)
    return sum(node.died_at is None for node in nodes) > 1


def is_left_behind(key: str, declared: DeclaredBy | None, living: Sequence[Node]) -> bool:
    """Whether live nodes declare the schedule, and none of them as it is stored.

    The declaration that was stored last stays in force, also after the node that brought it has gone: nothing but the
    next start of a node compares. So a node that was started by mistake may leave its rule behind.
    """
    said = {node.declares[key] for node in living if key in node.declares}
    return declared is not None and bool(said) and declared.hash not in said
