"""Measurements, their metrics and cases, and the arithmetic of samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from benchmarks.samples import Results
    from benchmarks.trial import Trial

__all__ = ["CPU", "Case", "Measured", "Measurement", "Metric", "alternate", "alternate_contenders", "percentile"]

T = TypeVar("T")

# By name of the metric: one sample, or several if the measurement alternates between sides itself.
Measured = Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """A column of a table."""

    name: str
    text: str
    unit: str
    # Show the ratio to the raw loop.
    has_ratio: bool = False
    # "more" or "less"; empty if neither is an advantage.
    better: str = ""
    # The metric of the raw loop, if one case measures both.
    beside: str = ""

    @property
    def is_of_server(self) -> bool:
        """SQLite has no server."""
        return "server" in self.name


# Processor time of the node or worker, and of the server.
CPU = (
    Metric("node_us", "node CPU", "µs each", better="less"),
    Metric("server_us", "server CPU", "µs each", better="less"),
)


@dataclass(frozen=True)
class Case:
    """One row in the table of a measurement."""

    measurement: str
    store: str
    contender: str
    processes: int
    number: int
    variant: str = ""

    @property
    def title(self) -> str:
        """The name in the output of the program."""
        words = [
            self.measurement,
            self.store,
            self.contender,
            f"{self.processes} process{'es' if self.processes > 1 else ''}",
            f"{self.number}",
            self.variant,
        ]
        return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Measurement:
    """One kind of measurement. `number_text` is the unit of `Case.number`."""

    name: str
    group: str
    title: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Trial], Measured]
    number_text: str = ""
    # It alternates between sides itself, so one round is enough.
    is_once: bool = False
    # Whether a case needs another round, given the results so far. Without it, each case needs every round.
    is_needed: Callable[[Case, Results], bool] | None = None
    # A short preview of all cases decides which of them get rounds.
    has_preview: bool = False

    def has_round(self, case: Case, results: Results) -> bool:
        """Whether the next round includes the case."""
        if self.is_once:
            return case not in results.cases
        return self.is_needed is None or self.is_needed(case, results)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the samples."""
    assert samples, "no samples"
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def alternate(turn: int, sides: Mapping[str, T]) -> list[tuple[str, T]]:
    """The sides in their order, reversed in every other turn, so that each goes first equally often."""
    pairs = list(sides.items())
    return pairs[::-1] if turn % 2 else pairs


def alternate_contenders(turn: int, cases: Sequence[Case]) -> list[Case]:
    """The same for neighbouring cases that differ only in their contender."""
    ordered: list[Case] = []
    for _, group in groupby(cases, lambda case: dataclasses.replace(case, contender="")):
        compared = list(group)
        ordered += compared[::-1] if turn % 2 else compared
    return ordered
