"""Tunes the interpreter of a process that only runs a node: its garbage collector, and the switching of its threads.

By default Python collects whenever there are 700 new objects (2,000 from 3.13 on), and a full collection takes longer
the more modules were imported: 16 ms, five times a second. With a full queue on PostgreSQL that was a fifth of the time
of a node. Runs leave no reference cycles, so fewer collections are enough. Objects that exist when a node has started
stay as long as the node, so they are never scanned.

By default a thread that waits for the interpreter gets it after at most 5 ms. The thread that writes to SQLite releases
the interpreter for each statement and then waits for an event loop that is busy with a batch of jobs: that was a fifth
of the time of a full queue (59,000 runs a second, and 70,600 with a tenth of a millisecond). A job that computes in a
thread also delays the event loop, which releases the interpreter whenever it polls for events: beside four such jobs a
timer was late by 23 ms at the median, and is late by half a millisecond now. A shorter interval costs nothing
measurable with one or two computing threads, and a sixth of the work of eight.

Only for a process of ours. A program that embeds a node decides for itself.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["calm_collector", "shorten_turns"]

# The defaults of Python, by its version. A user has chosen any other value, so it is not changed.
_BEGINS_WITH_OBJECTS = (700, 2_000)
_BEGINS_WITH_SECONDS = 0.005
_OBJECTS = 10_000
_TURN_SECONDS = 0.0001


def calm_collector() -> None:
    """Exclude existing objects from collections, and collect less often. Called once a node has started."""
    objects, *others = gc.get_threshold()
    if gc.isenabled() and objects in _BEGINS_WITH_OBJECTS:
        gc.set_threshold(_OBJECTS, *others)
        gc.collect()
        gc.freeze()


def shorten_turns() -> None:
    if sys.getswitchinterval() == _BEGINS_WITH_SECONDS:
        sys.setswitchinterval(_TURN_SECONDS)
