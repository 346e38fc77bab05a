"""Schedules that a configuration does not have, and that a live node declares which goes by another one.

Two files with one ledger, one app and one name of their nodes stand for each other: what the one does not have looks as
if it had gone from it. As long as the other runs, it has not; to prune it would take away what a daemon runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from evertick.cli.database import Ledger, daemons_of
from evertick.config.configuration import Configuration
from evertick.daemon.report import DaemonReport
from evertick.doctor.finding import named
from evertick.errors import Refused
from evertick.operations.apply import DeclaredPlan

__all__ = ["declared_elsewhere", "elsewhere_words", "refuse_to_prune"]

_FIX = "give one of the two files an `app` or a `name` of its own under [node]"


def declared_elsewhere(loaded: Configuration, plan: DeclaredPlan) -> dict[str, str]:
    """By key, in words, who declares it. A daemon that goes by this very file only has to read it again."""
    if not plan.living:
        return {}
    ledger = Ledger(url=loaded.database_url, app=loaded.node.app, state_directory=loaded.state_directory)
    daemons = daemons_of(ledger)
    found = {
        key: _who(nodes, [each for each in daemons if key in each.does], loaded) for key, nodes in plan.living.items()
    }
    return {key: who for key, who in found.items() if who is not None}


def _who(nodes: Sequence[str], daemons: Sequence[DaemonReport], loaded: Configuration) -> str | None:
    """`nodes` and those of the `daemons` here that have it. Nodes may share a name, so they are counted."""
    others = [each for each in daemons if not _is_of(each, loaded.file)]
    if others:
        return f"the daemon of {others[0].config or 'the environment alone'}, process {others[0].pid}"
    strangers = Counter(nodes) - Counter(each.node for each in daemons)
    return f"node {min(strangers)}, whose file is not known here" if strangers else None


def _is_of(daemon: DaemonReport, file: Path | None) -> bool:
    return daemon.config is not None and file is not None and Path(daemon.config).resolve() == file.resolve()


def elsewhere_words(elsewhere: Mapping[str, str]) -> str:
    """Like: report, tidy (the daemon of /srv/b/evertick.toml, process 12); for each of those who declare some."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, who in sorted(elsewhere.items()):
        keys[who].append(key)
    return "; ".join(f"{named(those)} ({who})" for who, those in keys.items())


def refuse_to_prune(elsewhere: Mapping[str, str]) -> None:
    if elsewhere:
        raise Refused(
            f"--prune would remove what live nodes declare: {elsewhere_words(elsewhere)}; nothing was applied: {_FIX}, "
            "or, if they are to go, stop that node or have it read this configuration first"
        )
