"""The names of keys in Redis, for nodes and workers alike; `docs/reference/worker-contract.md` has them in words."""

from __future__ import annotations

from typing import Final

from evertick.driver.queue.contract import pair_of

__all__ = [
    "FIELD",
    "KILL_CHANNEL",
    "NODES",
    "REMEMBER_SECONDS",
    "REPORTS_MOST",
    "WORKERS",
    "kill_key",
    "reports_key",
    "taken_key",
]

# The field of an entry in a stream that holds the JSON.
FIELD: Final = "m"
# Consumer groups: of the nodes that read reports, of the workers that read a queue that is a stream. All members of a
# group go by its name: an entry goes to one of them anyway, and nobody has to clear up after those that are gone.
NODES: Final = "nodes"
WORKERS: Final = "workers"
KILL_CHANNEL: Final = "evertick:kill"
# How long it is known that a dispatch was taken, or is not wanted any more: longer than any may wait to be taken.
REMEMBER_SECONDS: Final = 86_400
# Reports that nobody reads are dropped at some time, the oldest first, before they fill the memory of the server.
REPORTS_MOST: Final = 1_000_000


def taken_key(run: str, fence: int) -> str:
    return f"evertick:taken:{pair_of(run, fence)}"


def kill_key(run: str, fence: int) -> str:
    return f"evertick:kill:{pair_of(run, fence)}"


def reports_key(namespace: str, fleet: str) -> str:
    return f"{namespace}:reports:{fleet}"
