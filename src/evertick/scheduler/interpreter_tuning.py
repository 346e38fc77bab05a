"""The interpreter of a process that is ours alone: its garbage collector, and the turns of its threads.

By default Python looks for cycles whenever there are 700 new objects more than before (2,000 from 3.13 on), and each
look that goes over everything takes the longer the more was imported: 16 ms, five times a second. With a full queue on
PostgreSQL that was a fifth of a node's time. Runs leave no cycles behind, so it is enough to look more rarely; and what
is there when a node has started stays as long as it, so it needs no look at all.

By default a thread that waits for the interpreter gets it after 5 ms at the latest. The thread that writes to SQLite
leaves it for each statement and has to come back, each time behind an event loop that is busy with a batch of jobs:
that was a fifth of the time of a full queue (59,000 runs a second, and 70,600 with a tenth of a millisecond). And a
plain job that computes in a thread holds up the event loop, which leaves the interpreter whenever it looks for what has
come: beside four of them a timer of it was late by 23 ms at the median, and is by half a millisecond. Shorter turns
cost nothing that could be seen with one or two threads that compute, and a sixth of what eight of them do together.

Only for a process that we run. In a program that holds a node inside, both are the program's to decide.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["calm_collector", "shorten_turns"]

# Python's defaults; the threshold by its version. Another number was chosen by the user, and stays.
_BEGINS_WITH_OBJECTS = (700, 2_000)
_BEGINS_WITH_SECONDS = 0.005
_OBJECTS = 10_000
_TURN_SECONDS = 0.0001


def calm_collector() -> None:
    """Once a node has started: keep what is there out of the looks, and look more rarely."""
    objects, *others = gc.get_threshold()
    if gc.isenabled() and objects in _BEGINS_WITH_OBJECTS:
        gc.set_threshold(_OBJECTS, *others)
        gc.collect()
        gc.freeze()


def shorten_turns() -> None:
    if sys.getswitchinterval() == _BEGINS_WITH_SECONDS:
        sys.setswitchinterval(_TURN_SECONDS)
