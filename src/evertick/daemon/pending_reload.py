"""Daemons of this machine against a configuration: what they have not read yet, and what others of its name declare.

What jobs do is no part of the ledger: it is with the daemons, which read it from their file. Two files with one ledger,
one app and one name of their nodes stand for each other: what the one does not have looks as if it had gone from it. As
long as the other runs, it has not; to prune it would take away what a daemon runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from evertick.config.configuration import Configuration, changed_jobs, job_digests
from evertick.daemon.report import DaemonReport
from evertick.doctor.finding import Finding, Severity, named
from evertick.errors import Refused
from evertick.operations.apply import DeclaredPlan

__all__ = [
    "PendingReload",
    "about_daemons",
    "declared_elsewhere",
    "elsewhere_words",
    "pending_reload",
    "refuse_to_prune",
]

_OWN_NAME = "give one of the two files an `app` or a `name` of its own under [node]"


def about_daemons(daemons: Sequence[DaemonReport]) -> Iterator[Finding]:
    """What is wrong with the configuration that daemons have read again."""
    for daemon in daemons:
        which = "" if len(daemons) == 1 else f" {daemon.pid}"
        if daemon.problems:
            yield Finding(
                severity=Severity.WARNING,
                check="configuration_rejected",
                what=f"the new configuration of the daemon{which} does not hold: {daemon.problems[0]}",
                fix="correct it; `evertick config check` tells all that is wrong",
            )
        if daemon.wants_restart:
            yield Finding(
                severity=Severity.WARNING,
                check="restart_required",
                what=f"changed, but not in force before a restart: {named(daemon.wants_restart, 3)}",
                fix=f"restart the daemon{which} when it suits you: `systemctl restart evertick`, `/etc/init.d/evertick "
                f"restart`; one that nothing supervises by `kill {daemon.pid}`, and the command that started it",
            )


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


def pending_reload(loaded: Configuration, daemons: Sequence[DaemonReport]) -> PendingReload:
    """`daemons`: those of its ledger and app."""
    name, doing = loaded.settings["node_name"], job_digests(loaded)
    changed: dict[str, list[str]] = {}
    pending, known = [], [daemon for daemon in daemons if daemon.node == name]
    for daemon in known:
        differing = changed_jobs(daemon.does, doing)
        if differing or doing.keys() - daemon.does.keys():
            changed |= differing
            pending.append(daemon)
    file = "" if loaded.file is None else str(loaded.file.absolute())
    return PendingReload(changed=changed, daemons=tuple(pending), is_known=bool(known), file=file)


def declared_elsewhere(loaded: Configuration, plan: DeclaredPlan, daemons: Sequence[DaemonReport]) -> dict[str, str]:
    """By key, in words, what declares it. A daemon that goes by this very file only has to read it again."""
    found = {
        key: _declarer(nodes, [each for each in daemons if key in each.does], loaded)
        for key, nodes in plan.living.items()
    }
    return {key: declarer for key, declarer in found.items() if declarer is not None}


def _declarer(nodes: Sequence[str], daemons: Sequence[DaemonReport], loaded: Configuration) -> str | None:
    """`nodes` and those of the `daemons` here that have it. Nodes may share a name, so they are counted."""
    others = [each for each in daemons if not _is_of(each, loaded.file)]
    if others:
        return f"the daemon of {others[0].config or 'the environment alone'}, process {others[0].pid}"
    strangers = Counter(nodes) - Counter(each.node for each in daemons)
    return f"node {min(strangers)}, whose file is not known here" if strangers else None


def _is_of(daemon: DaemonReport, file: Path | None) -> bool:
    return daemon.config is not None and file is not None and Path(daemon.config).resolve() == file.resolve()


def elsewhere_words(elsewhere: Mapping[str, str]) -> str:
    """Like: report, tidy (the daemon of /srv/b/evertick.toml, process 12); for each that declares some."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, declarer in sorted(elsewhere.items()):
        keys[declarer].append(key)
    return "; ".join(f"{named(those)} ({declarer})" for declarer, those in keys.items())


def refuse_to_prune(elsewhere: Mapping[str, str]) -> None:
    if elsewhere:
        raise Refused(
            f"--prune would remove what live nodes declare: {elsewhere_words(elsewhere)}; nothing was applied: "
            f"{_OWN_NAME}, or, if they are to go, stop that node or have it read this configuration first"
        )
