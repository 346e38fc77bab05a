"""The program whose jobs are in a store of APScheduler."""

from __future__ import annotations

import asyncio
from typing import Any

called: list[tuple[Any, ...]] = []


def report(kind: str = "short", *, copies: int = 1) -> None:
    called.append(("report", kind, copies))


async def remind(user: int, text: str = "hello") -> None:
    called.append(("remind", user, text))


def tidy() -> None:
    called.append(("tidy",))


async def dawdle() -> None:
    await asyncio.sleep(86_400)


class Stock:
    @staticmethod
    def count(shelf: str) -> None:
        called.append(("count", shelf))

    def move(self, to: str) -> None:
        """Of an object, which only a pickle could keep."""


class Customer:
    pass
