"""All checks of a simulation. Without violations, all promises were kept.

They are independent of the code under test: they read only the journal, and have rules of their own. Of Evertick they
use only the time rules (`evertick.when`), which have their own tests.
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
    """Every violation, as text."""
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
