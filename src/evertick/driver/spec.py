"""Jobs without a function: the task is a name and a specification, which makes the driver.

A specification is plain data, checked where it is written. It comes from the code or configuration of the node; the
database has only the name of the task and the arguments of its runs. Its module must be cheap to import: `make_driver`
imports the libraries of the driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Never

import msgspec

from evertick.clock import Clock
from evertick.driver.base import Driver
from evertick.driver.python.function import Threads
from evertick.driver.python.process import Children
from evertick.job.arguments import FreeArguments
from evertick.job.context import Context

__all__ = ["AbsentDriver", "DriverParts", "Spec"]


class DriverParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a scheduler that its drivers use."""

    # The namespace of the runs.
    app: str
    # The app and the id of its ledger; available while the ledger is open. It separates the reports of fleets that
    # share a broker and have apps of the same name.
    fleet: Callable[[], str]
    # For work outside of attempts; an attempt has its clock in its context.
    clock: Clock
    threads: Threads
    children: Children
    # Connections by the name of the driver: settings, or a URL. The configuration may add them after the job, so read
    # them when they are needed.
    connections: Mapping[str, object]
    # Returns the current value of a secret by name. Never log or store it.
    resolve_secret: Callable[[str], str]
    # Registers a function that is called when the scheduler closes, or when another driver has replaced this one and
    # its last run has ended. The driver may be used again after that.
    at_close: Callable[[Callable[[], Awaitable[None]]], None]
    # Objects that drivers of several tasks share, by a name they choose. An object with an async `close` is closed when
    # the scheduler closes, and may be used again after that.
    shared: dict[str, object]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of one job, for one driver."""

    # The name of the driver: "shell", "http", "redis", "nats", or that of a third party.
    driver: ClassVar[str]
    # The field that a single value in place of a table sets: `shell = "backup.sh"`.
    short: ClassVar[str | None] = None

    def check(self, task: str) -> None:
        """Raise an `InvalidSetting` that names the task, the field, the value and the fix."""

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        """Make the driver of the task. It must not open connections yet: the task may never run on this node."""
        raise NotImplementedError(f"{type(self).__name__}.make_driver")


class AbsentDriver:
    """The driver of a task that this node only enqueues; other nodes run it."""

    can_be_cancelled = True
    kill_after = 0

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self._arguments = FreeArguments(task)

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Never:
        raise AssertionError(f"task {context.task!r} was claimed by a node that does not run driver {self.name!r}")
