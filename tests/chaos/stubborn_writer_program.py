"""A node whose job writes to a register until it is refused: `python stubborn_writer_program.py URL FOLDER`."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from torment.witness import NODE_VARIABLE, Witness

from evertick import Context, Scheduler

url, folder = sys.argv[1], Path(sys.argv[2])
os.environ[NODE_VARIABLE] = str(os.getpid())
witness = Witness(folder)
scheduler = Scheduler(url, lease="2s", stop_timeout="1s", poll_interval="1s")


@scheduler.task
def write(ctx: Context) -> None:
    """In a thread, which nobody can stop: only its fence is in the way of what it writes."""
    is_first = True
    while not (folder / "enough").exists():
        if not witness.write("account", ctx, is_first=is_first):
            return
        is_first = False
        time.sleep(0.02)  # the rhythm of the work


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    scheduler.run()
