"""How long a thread of a process that is ours alone keeps the others from Python.

By default whoever waits for the interpreter gets it after 5 ms at the latest. The thread that writes to SQLite leaves
it for each statement and has to come back, each time behind an event loop that is busy with a batch of jobs: that was a
fifth of the time of a full queue (59,000 runs a second, and 70,600 with a tenth of a millisecond). And a plain job that
computes in a thread holds up the event loop, which leaves the interpreter whenever it looks for what has come: beside
four of them a timer of it was late by 23 ms at the median, and is by half a millisecond. Shorter turns cost nothing
that could be seen with one or two threads that compute, and a sixth of what eight of them do together.

Only for a process that we run. In a program that holds a node inside, this is the program's to decide.
"""

from __future__ import annotations

import sys

__all__ = ["shorten_turns"]

# What Python begins with. Another number is somebody's choice, and stays.
_BEGINS_WITH_SECONDS = 0.005
_TURN_SECONDS = 0.0001


def shorten_turns() -> None:
    if sys.getswitchinterval() == _BEGINS_WITH_SECONDS:
        sys.setswitchinterval(_TURN_SECONDS)
