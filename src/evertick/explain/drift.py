"""Whether what is in force of a schedule is what the code of live nodes says.

The declaration that was stored last stays in force, also after the node that brought it has gone: nothing but the next
start of a node compares. So a node that was started by mistake may leave its rule behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from evertick.model import Node
from evertick.store.base import DeclaredBy

__all__ = ["REMEDY", "is_left_behind"]

REMEDY = "restart one of the live nodes: it puts in force what its code or its configuration says"


def is_left_behind(key: str, declared: DeclaredBy | None, living: Sequence[Node]) -> bool:
    """Whether live nodes declare the schedule, and none of them as it is stored."""
    said = {node.declares[key] for node in living if key in node.declares}
    return declared is not None and bool(said) and declared.hash not in said
