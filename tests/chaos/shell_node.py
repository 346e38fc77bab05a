"""A node whose jobs are commands with stubborn children: `python shell_node.py URL FOLDER`."""

from __future__ import annotations

import logging
import sys

from evertick import Scheduler, Shell

url, folder = sys.argv[1:]
# Each attempt leaves a line with its run and fence, and starts what nobody finds by group or session.
COMMAND = f"""
if [ -e {folder}/go ]; then echo "$EVERTICK_RUN_ID $EVERTICK_FENCE 2" >> {folder}/witness; exit 0; fi
setsid sh -c 'trap "" TERM HUP; sleep 1000; sleep 1000' &
sh -c 'trap "" TERM; sleep 1000; sleep 1000' &
trap "" TERM HUP
echo "$EVERTICK_RUN_ID $EVERTICK_FENCE 1" >> {folder}/witness
while [ ! -e {folder}/go ]; do sleep 0.05; done
"""

logging.basicConfig(level=logging.INFO)
scheduler = Scheduler(url, lease="4.5s", stop_timeout="1s", drivers=["shell"])
scheduler.job("stubborn", Shell(COMMAND, kill_after="300ms"))

if __name__ == "__main__":
    scheduler.run()
