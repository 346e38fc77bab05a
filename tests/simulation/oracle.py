"""Holds what happened against the promises. No violations: all were kept.

Independent of the code under test: it reads the journal of a simulation and what jobs said of themselves, and reckons
with rules of its own. Of Evertick it uses the rules of time alone, which have their own proofs.
"""

from __future__ import annotations

from simulation.check_dispatched import check_dispatched
from simulation.check_duties import check_duties
from simulation.check_every_node import check_every_node
from simulation.check_jobs import check_jobs
from simulation.check_limits import check_limits
from simulation.check_moments import check_moments
from simulation.check_nodes import check_nodes
from simulation.check_outbox import check_outbox
from simulation.check_runs import check_runs
from simulation.check_unique import check_unique
from simulation.evidence import Evidence

__all__ = ["check"]


def check(evidence: Evidence) -> list[str]:
    """Every broken promise, in words."""
    return [
        f"{name}: {found}"
        for name, each in (
            ("runs", check_runs),
            ("jobs", check_jobs),
            ("nodes", check_nodes),
            ("duties", check_duties),
            ("limits", check_limits),
            ("unique", check_unique),
            ("outbox", check_outbox),
            ("dispatched", check_dispatched),
            ("every node", check_every_node),
            ("moments", check_moments),
        )
        for found in each(evidence)
    ]
