"""A node whose commands leave what `/proc` does not show: `python hidden_node.py URL FOLDER`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from process_watch import MARK

from evertick import Scheduler, Shell

url, folder = sys.argv[1:]
HIDE = f"{sys.executable} {Path(__file__).with_name('hide.py')}"
# It waits for the other to be hidden: until then it could be found.
LEAVE = f"setsid {HIDE} {folder}/$EVERTICK_RUN_ID & while [ ! -e {folder}/$EVERTICK_RUN_ID ]; do sleep 0.01; done"

logging.basicConfig(level=logging.INFO)
scheduler = Scheduler(url, stop_timeout="1s", drivers=["shell"])
scheduler.job("leaves", Shell(LEAVE, kill_after="300ms"))
scheduler.job("outlasts", Shell(f"{LEAVE}; wait", kill_after="300ms"), timeout="2s")
# Its own is hidden behind a parent that has left the group and takes TERM for its end.
BEHIND = f"setsid sh -c '{LEAVE}; wait' & wait"
scheduler.job("behind", Shell(BEHIND, kill_after="60s", env={"HEEDS_TERM": "1"}), timeout="2s")
# Of another user: a node without the right to signal others can only wait for it.
scheduler.job("stuck", Shell("setsid sleep 1000 & exit 0", user="nobody", cwd="/", env={MARK: os.environ[MARK]}))

if __name__ == "__main__":
    scheduler.run()
