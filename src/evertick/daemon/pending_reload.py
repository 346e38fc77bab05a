"""Compares the daemons of this machine with a configuration: changes they have not read, and jobs that others declare.

The work of a job (its command or request) is not in the ledger; each daemon reads it from its file. If two files have
the same ledger, app and node name, a job of one file looks removed in the other. It must not be pruned while a daemon
still runs it.
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
    "daemon_findings",
    "declared_elsewhere",
    "declarers_text",
    "pending_reload",
    "refuse_to_prune",
]

_OWN_NAME = "give one of the two files its own `app` or `name` under [node]"


def daemon_findings(daemons: Sequence[DaemonReport]) -> Iterator[Finding]:
    """Findings about configurations that daemons have reloaded."""
    for daemon in daemons:
        which = "" if len(daemons) == 1 else f" {daemon.pid}"
        if daemon.problems:
            yield Finding(
                severity=Severity.WARNING,
                check="configuration_rejected",
                what=f"the daemon{which} rejected its new configuration: {daemon.problems[0]}",
                fix="correct it; `evertick config check` lists all problems",
            )
        if daemon.wants_restart:
            yield Finding(
                severity=Severity.WARNING,
                check="restart_required",
                what=f"changes to {named(daemon.wants_restart, 3)} take effect after a restart",
                fix=f"restart the daemon{which} at a convenient time: `systemctl restart evertick` or "
                f"`/etc/init.d/evertick restart`; without a supervisor, `kill {daemon.pid}` and start it again",
            )


class PendingReload(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that the daemons of this machine have not read yet."""

    # By job, the keys whose values differ from those of a daemon.
    changed: dict[str, list[str]] = {}
    # Daemons with other values, or without a job.
    daemons: tuple[DaemonReport, ...] = ()
    # Whether a daemon of this node runs here, so that the work of its jobs is known.
    is_known: bool = False
    # The configuration file that was compared.
    file: str = ""

    def hints(self) -> Iterator[str]:
        for daemon in self.daemons:
            which = f"the daemon on this machine, process {daemon.pid},"
            if daemon.config != self.file:
                yield f"{which} uses {daemon.config}: its jobs change with that file"
            elif daemon.reload == "change":
                yield f"{which} reloads the file within two seconds of a change"
            else:
                how = f"run `kill -USR1 {daemon.pid}`" if daemon.reload == "signal" else "restart it"
                yield f"{which} has not reloaded the file: {how}; until then new jobs wait, and others run unchanged"


def pending_reload(loaded: Configuration, daemons: Sequence[DaemonReport]) -> PendingReload:
    """`daemons`: the daemons of the same ledger and app."""
    name, digests = loaded.settings["node_name"], job_digests(loaded)
    changed: dict[str, list[str]] = {}
    pending, known = [], [daemon for daemon in daemons if daemon.node == name]
    for daemon in known:
        differing = changed_jobs(daemon.does, digests)
        if differing or digests.keys() - daemon.does.keys():
            changed |= differing
            pending.append(daemon)
    file = "" if loaded.file is None else str(loaded.file.absolute())
    return PendingReload(changed=changed, daemons=tuple(pending), is_known=bool(known), file=file)


def declared_elsewhere(loaded: Configuration, plan: DeclaredPlan, daemons: Sequence[DaemonReport]) -> dict[str, str]:
    """By key, the other daemon or node that declares it. A daemon that uses this file only has to reload it."""
    found = {
        key: _declarer(nodes, [each for each in daemons if key in each.does], loaded)
        for key, nodes in plan.living.items()
    }
    return {key: declarer for key, declarer in found.items() if declarer is not None}


def _declarer(nodes: Sequence[str], daemons: Sequence[DaemonReport], loaded: Configuration) -> str | None:
    """`nodes`: live nodes that declare the schedule; `daemons`: daemons here that have it. Nodes may share a name."""
    others = [each for each in daemons if not _uses(each, loaded.file)]
    if others:
        return f"the daemon of {others[0].config or 'the environment alone'}, process {others[0].pid}"
    unknown = Counter(nodes) - Counter(each.node for each in daemons)
    return f"node {min(unknown)}, whose file is not known here" if unknown else None


def _uses(daemon: DaemonReport, file: Path | None) -> bool:
    return daemon.config is not None and file is not None and Path(daemon.config).resolve() == file.resolve()


def declarers_text(elsewhere: Mapping[str, str]) -> str:
    """For example: "report, tidy (the daemon of /srv/b/evertick.toml, process 12)"."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, declarer in sorted(elsewhere.items()):
        keys[declarer].append(key)
    return "; ".join(f"{named(own)} ({declarer})" for declarer, own in keys.items())


def refuse_to_prune(elsewhere: Mapping[str, str]) -> None:
    if elsewhere:
        raise Refused(
            f"--prune would remove schedules that live nodes declare: {declarers_text(elsewhere)}; nothing was applied",
            setting="--prune",
            fix=f"{_OWN_NAME}; to remove these schedules, first stop that node or have it load this configuration",
        )
