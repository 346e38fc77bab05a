"""A store that was opened before its process was forked: refused, with what to do instead."""

from __future__ import annotations

import os

from evertick.errors import Forked

__all__ = ["refuse_fork"]


def refuse_fork(description: str, opener: int | None) -> None:
    """`opener`: the process that has opened the store; None while nobody has."""
    if opener is not None and opener != os.getpid():
        raise Forked(
            f"the {description} was opened by process {opener}, and this is a fork of it; connections and threads do "
            "not survive that. Open the store in each worker, after the fork: under a web server that preloads the "
            "application, in the hook that starts a worker"
        )
