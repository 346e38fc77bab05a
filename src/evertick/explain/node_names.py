"""Nodes by the names that people gave them, each with the end of its id where a name is not enough.

Two nodes may share a name: by a mistake, or as workers of one program. A node that was started again has the name of
the one before it, and needs no more than that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from evertick.model import Node

__all__ = ["SHORT", "known_names", "node_names"]

# The end of an id: its beginning is the time of the start, which two nodes may share.
SHORT = 6


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
