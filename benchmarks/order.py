"""Who goes first, where two take turns: not always the same one, who would find the machine as the other left it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["by_turn"]

T = TypeVar("T")


def by_turn(turn: int, all_of_them: Mapping[str, T]) -> list[tuple[str, T]]:
    """In their order, and in every other turn the other way round."""
    pairs = list(all_of_them.items())
    return pairs[::-1] if turn % 2 else pairs
