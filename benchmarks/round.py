"""One round: every measurement once, each in a fresh interpreter and an empty folder.

Rounds are repeated as a whole, so that a slow minute of the machine falls on all figures and not on one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import idle, imports, latency, lateness, raw, throughput
from benchmarks.figure import with_ratios
from benchmarks.fresh import in_fresh_process
from benchmarks.ledger import SqliteLedger
from benchmarks.peer.environment import PEERS
from benchmarks.peer.environment import measure as measure_peer
from benchmarks.size import Size

__all__ = ["measure_all"]

Measure = Callable[[SqliteLedger, Size], dict[str, float]]


def measure_all(folder: Path, size: Size, peers: Path | None) -> dict[str, float]:
    """The figures of one round. `peers` is the interpreter of their environment; None leaves them out."""
    figures: dict[str, float] = {}
    for measure in _measurements(peers):
        place = folder / "round"
        place.mkdir(parents=True)
        try:
            figures |= in_fresh_process(measure, SqliteLedger(place / "ledger.db"), size)
        finally:
            shutil.rmtree(place)
    return with_ratios(figures)


def _measurements(peers: Path | None) -> Iterator[Measure]:
    # What makes a ratio stands side by side.
    for at_once in (100, 1_000):
        yield partial(throughput.measure_execution, concurrency=at_once)
        yield partial(raw.measure_execution, batch=at_once)
    for name in throughput.LIMITS:
        yield partial(throughput.measure_limited, name=name)
    yield throughput.measure_enqueue
    yield raw.measure_enqueue
    yield partial(latency.measure, is_remote=False)
    yield partial(latency.measure, is_remote=True)
    yield lateness.measure_spread
    yield lateness.measure_herd
    yield idle.measure
    yield imports.measure
    if peers is not None:
        for peer in PEERS:
            yield partial(measure_peer, peer=peer, python=peers)
