"""Whether this process is a child that carries out a task, and what it must not do then.

A child imports the module of its function, and with it whatever that module does when it is imported. Starting a
scheduler there would start a node, which starts children, which import the module. Enqueueing there would enqueue again
with every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evertick.errors import Refused

__all__ = ["check_may_open_store", "check_may_start", "importing_for"]

# The task that the module is being imported for, and the one that this process is there for.
_importing_for: str | None = None
_is_child = False


@contextmanager
def importing_for(task: str) -> Iterator[None]:
    """While the module of a task's function is imported in a child."""
    global _importing_for, _is_child
    _importing_for, _is_child = task, True
    try:
        yield
    finally:
        _importing_for = None


def check_may_start() -> None:
    """Refuse to start a scheduler while a module is imported in a child."""
    if _importing_for is not None:
        raise Refused(
            f"a child process imports this module to find the function of task {_importing_for!r}, and the module "
            "starts a scheduler while it is imported; put that under `if __name__ == '__main__':`"
        )


def check_may_open_store(url: str) -> None:
    """Refuse what would be lost or endless, had a child a store of its own."""
    if _importing_for is not None:
        raise Refused(
            f"a child process imports this module to find the function of task {_importing_for!r}, and the module "
            "uses the store while it is imported; put that under `if __name__ == '__main__':`, or into a function"
        )
    if _is_child and url.partition("?")[0] in ("sqlite://", "sqlite://:memory:"):
        raise Refused(
            "this job runs in a child process, and its scheduler keeps its ledger in the memory of another; "
            "keep it in a file to use it from here"
        )
