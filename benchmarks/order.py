"""Who goes first, where some are compared: not always the same one, who finds the machine as the others left it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from benchmarks.figure import Case

__all__ = ["by_turn", "in_turn"]

T = TypeVar("T")


def by_turn(turn: int, all_of_them: Mapping[str, T]) -> list[tuple[str, T]]:
    """In their order, and in every other turn the other way round."""
    pairs = list(all_of_them.items())
    return pairs[::-1] if turn % 2 else pairs


def in_turn(turn: int, cases: Sequence[Case]) -> list[Case]:
    """The same of cases that differ by their contender alone, and so stand side by side."""
    ordered: list[Case] = []
    for _, group in groupby(cases, lambda case: dataclasses.replace(case, contender="")):
        alike = list(group)
        ordered += alike[::-1] if turn % 2 else alike
    return ordered
