"""What is measured: figures with their units, and measurements, each of which gives some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.results import Results
    from benchmarks.stage import Stage

__all__ = ["CPU", "Case", "Figure", "Measured", "Measurement"]

# By name of the figure: one sample, or several where a measurement takes turns by itself.
Measured = Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Figure:
    """A column of a table."""

    name: str
    text: str
    unit: str
    # Whether its ratio to the raw loop says something.
    has_ratio: bool = False
    # "more" or "less": others may be better at it. What is neither is no merit.
    better: str = ""
    # The figure of the raw loop, where one case has both.
    beside: str = ""

    @property
    def is_of_server(self) -> bool:
        """SQLite has none."""
        return self.text.partition(",")[0] == "server"


# Of a node or worker, and of the server; measured wherever something is at work.
CPU = (
    Figure("node_us", "node", "us each", better="less"),
    Figure("server_us", "server", "us each", better="less"),
)


@dataclass(frozen=True)
class Measurement:
    """One kind of measurement, which is a table on the page. `number_text` says what the number of a case is."""

    name: str
    group: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[Stage], Measured]
    number_text: str = ""
    # Taking turns by itself.
    is_once: bool = False
    # Whether a case needs one more round, by what was found so far; all do where there is no such question.
    is_needed: Callable[[Case, Results], bool] | None = None
    # All cases are looked at briefly before the first round, to see which of them need any.
    has_preview: bool = False

    def has_round(self, case: Case, results: Results) -> bool:
        """Whether a case is in the round that begins."""
        if self.is_once:
            return case not in results.cases
        return self.is_needed is None or self.is_needed(case, results)


@dataclass(frozen=True)
class Case:
    """One line of the table of a measurement."""

    measurement: str
    store: str
    contender: str
    processes: int
    number: int
    variant: str = ""

    @property
    def title(self) -> str:
        """As the terminal tells it."""
        words = [
            self.measurement,
            self.store,
            self.contender,
            f"{self.processes} process{'es' if self.processes > 1 else ''}",
            f"{self.number}",
            self.variant,
        ]
        return ", ".join(word for word in words if word)
