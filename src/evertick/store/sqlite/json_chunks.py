"""Rows that go in and come out many at a time, as JSON texts: in parts that SQLite has no limit against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["PART_MOST", "in_parts"]

T = TypeVar("T")

# SQLite takes and gives texts of up to a gigabyte; the largest arguments or results of so many runs are half of that.
PART_MOST = 1_000


def in_parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + PART_MOST] for first in range(0, len(items), PART_MOST))
