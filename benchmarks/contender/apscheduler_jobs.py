"""The jobs of APScheduler 3 and 4, which store the import path of a function."""

from __future__ import annotations

from benchmarks.contender import verbs

__all__ = ["count", "count_async", "fire", "fire_async"]


def count(number: int, sent_at: float = 0.0) -> None:
    verbs.tally.count(number, sent_at)


async def count_async(number: int, sent_at: float = 0.0) -> None:
    verbs.tally.count(number, sent_at)


def fire(number: int, second: int, period: int) -> None:
    verbs.tally.count(number, verbs.last_moment(second, period))


async def fire_async(number: int, second: int, period: int) -> None:
    fire(number, second, period)
