"""A measurement inside of a process: in a new one, so that nothing an earlier one has allocated is measured again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from benchmarks.program import FORKING, LOOKING

__all__ = ["in_fresh_process"]

P = ParamSpec("P")
R = TypeVar("R")


def in_fresh_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of a module in a new process. What it raises is raised here, its death too."""
    with ProcessPoolExecutor(1, mp_context=FORKING) as pool:
        with LOOKING:  # the process is started by it
            answer = pool.submit(function, *args, **kwargs)
        return answer.result()
