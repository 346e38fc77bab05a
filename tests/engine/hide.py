"""Like ssh-agent, forbids reading its memory, so that `/proc` with `hidepid` hides it. `python hide.py FILE`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_DUMPABLE = 4

if "HEEDS_TERM" not in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0) == 0
Path(sys.argv[1]).write_text(str(os.getpid()))
while True:
    signal.pause()
