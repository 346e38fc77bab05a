"""The garbage collector of a process that is ours alone.

By default Python looks for cycles whenever there are 700 new objects more than before (2,000 from 3.13 on), and each
look that goes over everything takes the longer the more was imported: 16 ms, five times a second. With a full queue on
PostgreSQL that was a fifth of a node's time. Runs leave no cycles behind, so it is enough to look more rarely; and what
is there when a node has started stays as long as it, so nobody needs to look at it at all.

Only for a process that we run. In a program that holds a node inside, this is the program's to decide.
"""

from __future__ import annotations

import gc

__all__ = ["calm_collector"]

# What Python begins with, by its version. Another number is somebody's choice, and stays.
_BEGINS_WITH = (700, 2_000)
_OBJECTS = 10_000


def calm_collector() -> None:
    """Once a node has started: keep what is there out of the looks, and look more rarely."""
    objects, *others = gc.get_threshold()
    if gc.isenabled() and objects in _BEGINS_WITH:
        gc.set_threshold(_OBJECTS, *others)
        gc.collect()
        gc.freeze()
