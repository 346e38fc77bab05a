"""What a node asks of its store and brings outside, batch by batch with counts and times, for whoever listens at TRACE.

One look at the logger per batch, after the answer: nothing is counted or put into words unless somebody listens, and
nothing here is asked per run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from logging import Logger

from evertick.clock import Clock
from evertick.text.log_level import TRACE

__all__ = ["is_traced", "tally", "trace"]


def is_traced(log: Logger) -> bool:
    return log.isEnabledFor(TRACE)


def trace(log: Logger, clock: Clock, since: float, words: str, *values: object) -> None:
    """`since`: when it was asked for, by `clock.elapsed`."""
    log.log(TRACE, f"{words} in %.1f ms", *values, (clock.elapsed() - since) * 1e3)


def tally(kinds: Iterable[str]) -> str:
    """How many of each: "3 done, 1 retry"."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items())) or "none"
