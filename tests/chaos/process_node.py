"""A node whose tasks run in children that have children of their own. Every start is witnessed in a file."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from evertick import Context, Process, Scheduler

url, folder = sys.argv[1], Path(sys.argv[2])
scheduler = Scheduler(url, lease="4500ms", stop_timeout="100ms", node_name="chaos")


def work(ctx: Context, name: str) -> str:
    subprocess.Popen(["sh", "-c", "sleep 1000; sleep 1000"])
    subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"], start_new_session=True)
    with (folder / "witness").open("a") as witness:
        witness.write(f"{name} {ctx.fence} {os.getpid()}\n")
    while not (folder / "go").exists():
        time.sleep(0.02)  # the work; it looks at nothing else
    return name


cold = scheduler.task(process=True, name="cold")(work)
warm = scheduler.task(process=Process(warm=2), name="warm")(work)


@scheduler.every("1s", process=True)
def often() -> None: ...


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    scheduler.run()
