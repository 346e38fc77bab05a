"""A third-party driver for configuration files: it records its texts."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec

from evertick.driver.base import Driver
from evertick.driver.spec import DriverParts, Spec
from evertick.job.arguments import FreeArguments
from evertick.job.context import Context

__all__ = ["Echo", "EchoDriver"]


class Echo(Spec, frozen=True, kw_only=True):
    """A job that records its text."""

    driver: ClassVar[str] = "echo"
    short: ClassVar[str | None] = "text"

    text: str
    times: int = 1
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    # Waits until the test sets `may_end`.
    waits: bool = False

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        return EchoDriver(self, task, parts)


class EchoDriver:
    name = "echo"
    can_be_cancelled = True
    kill_after = 0
    texts: ClassVar[list[str]] = []
    # The texts of jobs that ran and were not closed since.
    open: ClassVar[list[str]] = []
    has_begun: ClassVar[asyncio.Event]
    may_end: ClassVar[asyncio.Event]

    def __init__(self, spec: Echo, task: str, parts: DriverParts) -> None:
        self._spec, self._parts = spec, parts
        self._is_open = False
        self._arguments = FreeArguments(task)

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> str:
        if not self._is_open:
            self._is_open = True
            EchoDriver.open.append(self._spec.text)
            self._parts.at_close(self._close)
        if self._spec.waits:
            EchoDriver.has_begun.set()
            await EchoDriver.may_end.wait()
        EchoDriver.texts.append(self._spec.text)
        return self._spec.text

    async def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            EchoDriver.open.remove(self._spec.text)
