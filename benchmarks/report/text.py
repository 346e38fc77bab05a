"""Titles, numbers and Markdown of the report."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from benchmarks.contender.contenders import CONTENDERS
from benchmarks.measurement import Case

__all__ = [
    "STORE_TITLES",
    "case_title",
    "contender_title",
    "count_text",
    "filled",
    "number_text",
    "range_text",
    "row",
    "share_text",
    "table",
]

STORE_TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "broker": "a broker", "": ""}
# From here on, a share with one digit would be rounded to a hundred.
_ALMOST = 99.95
_TITLES = {each.name: each.title for each in CONTENDERS}
_WIDTH = 120


def contender_title(case: Case) -> str:
    return _TITLES[case.contender]


def case_title(case: Case) -> str:
    words = [contender_title(case), *([case.variant] if case.variant else [])]
    if case.processes > 1:
        words.append(f"{case.processes} processes")
    return ", ".join(words)


def number_text(value: float) -> str:
    """Three significant digits, or the whole number from a thousand on."""
    size = abs(value)
    if 1 <= size < 1_000:
        # Rounded first, so that 9.996 becomes 10.0 and not 10.00.
        value = float(f"{value:.3g}")
        size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 10 or value == 0:
        return f"{value:.0f}" if size >= 100 or value == 0 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.4f}"


def share_text(value: float) -> str:
    """In percent; nearly 100 is not rounded to 100."""
    return f"{math.floor(value * 1_000) / 1_000:g}" if _ALMOST <= value < 100 else number_text(value)


def range_text(low: str, high: str) -> str:
    return f"[{low}..{high}]"


def count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(row(each) for each in [head, ["---"] * len(head), *rows])


def filled(text: str, indent: str = "") -> str:
    """Wrapped at the line length of the repository."""
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
