"""What jobs do is no part of the ledger: it is with the daemons, which read it from their file. Here a configuration is
held against what the daemons on this machine have read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from evertick.cli.database import Ledger, daemons_of
from evertick.config.configuration import Configuration, changed_jobs, job_digests
from evertick.daemon.report import DaemonReport

__all__ = ["PendingReload", "look_at_daemons"]


class PendingReload(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemons here have not read yet."""

    # By job, the keys whose values differ from what one of them does.
    changed: dict[str, list[str]] = {}
    # Those that do otherwise, or lack a job.
    daemons: tuple[DaemonReport, ...] = ()
    # Whether one of this node runs here, so that what jobs do is known.
    is_known: bool = False
    # The file that was looked at.
    file: str = ""

    def hints(self) -> Iterator[str]:
        for daemon in self.daemons:
            which = f"the daemon here, process {daemon.pid},"
            if daemon.config != self.file:
                yield f"{which} goes by {daemon.config}: what its jobs do changes with that file"
            elif daemon.reload == "change":
                yield f"{which} takes up what jobs do within two seconds of a change of the file"
            else:
                how = f"`kill -USR1 {daemon.pid}` tells it to" if daemon.reload == "signal" else "restart it"
                yield f"{which} has not read the file yet: {how}; until then new jobs wait, and others do as before"


def look_at_daemons(loaded: Configuration) -> PendingReload:
    """Those of the same ledger, app and node; none that this user may not ask."""
    ledger = Ledger(url=loaded.database_url, app=loaded.node.app, state_directory=loaded.state_directory)
    name, doing = loaded.settings["node_name"], job_digests(loaded)
    changed: dict[str, list[str]] = {}
    behind, known = [], [daemon for daemon in daemons_of(ledger) if daemon.node == name]
    for daemon in known:
        differing = changed_jobs(daemon.does, doing)
        if differing or doing.keys() - daemon.does.keys():
            changed |= differing
            behind.append(daemon)
    file = "" if loaded.file is None else str(loaded.file.absolute())
    return PendingReload(changed=changed, daemons=tuple(behind), is_known=bool(known), file=file)
