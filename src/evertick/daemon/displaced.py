"""A daemon that starts in place of another: by another file, with the same ledger, app and name of its nodes.

Two folders, each with its `evertick.toml`, share the ledger of their user unless they say otherwise. To the ledger the
second is the first with other jobs, so those of the first are paused as if they had been taken out of their file.
"""

from __future__ import annotations

from collections.abc import Iterable

from evertick.daemon.report import DaemonReport
from evertick.doctor.finding import named
from evertick.engine.node import declarer_of

__all__ = ["replaced_daemon_warning"]


def replaced_daemon_warning(ours: DaemonReport, others: Iterable[DaemonReport]) -> str | None:
    """Whose jobs this start pauses, in words, and how to keep them."""
    for other in others:
        left = sorted(other.does.keys() - ours.does.keys())
        if left and other.config != ours.config and _whose(other) == _whose(ours):
            return (
                f"{other.config or 'the environment alone'} has jobs that {ours.config} has not ({named(left)}): both "
                f"go by the ledger {ours.database}, the app {ours.app!r} and the node name "
                f"{declarer_of(ours.node)!r}, so these jobs are paused while no daemon of that file runs; give one of "
                "the two files an `app` or a `name` of its own under [node]"
            )
    return None


def _whose(report: DaemonReport) -> tuple[str, str, str]:
    return report.database, report.app, declarer_of(report.node)
