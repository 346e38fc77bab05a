"""Jobs without a function: a task is a name and a specification, and the specification makes its driver.

A specification is plain data that was checked where it was written. It is the node's own, from its code or its
configuration: the database has the name of the task and the arguments of its runs, and never what to run. Its file is
light to import; whatever the driver needs beyond that is imported by `make_driver`.
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

    # The name of the namespace that the runs are in.
    app: str
    # The app and the id of the ledger that it is in, known while that is open. Where fleets share a broker each needs
    # reports of its own, also if they gave their apps one name.
    fleet: Callable[[], str]
    # An attempt has the clock that it runs under in its context; this one is for what is beside attempts.
    clock: Clock
    threads: Threads
    children: Children
    # How to reach what a driver talks to, by the driver's name: settings, or a URL. Filled by the configuration, which
    # may come later than the job; so look when it is needed.
    connections: Mapping[str, object]
    # The value of a secret by its name, at the time of the run. It must not be shown.
    resolve_secret: Callable[[str], str]
    # Have something closed when the scheduler closes, or when another driver has taken the place of this one and
    # nothing that it carries out is left. It may be used again after that.
    at_close: Callable[[Callable[[], Awaitable[None]]], None]
    # Shared by the drivers of several tasks, by a name of their choice. Objects with an async `close` are closed
    # when the scheduler closes; it, too, may be used again.
    shared: dict[str, object]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of one job, by one kind of driver."""

    # The name of the kind: "shell", "http", "redis", "nats", or a third party's own.
    driver: ClassVar[str]
    # The field that one value in place of a table stands for: `shell = "backup.sh"`.
    short: ClassVar[str | None] = None

    def check(self, task: str) -> None:
        """Refuse what cannot be, by an `InvalidSetting` that names the task, the field, the value and the fix."""

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        """The driver of the task. It opens nothing yet: the task may never run here."""
        raise NotImplementedError(f"{type(self).__name__}.make_driver")


class AbsentDriver:
    """Stands for the driver of a task that this node does not run: it can be enqueued here, and runs elsewhere."""

    can_be_cancelled = True
    kill_after = 0

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self._arguments = FreeArguments(task)

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Never:
        raise AssertionError(f"task {context.task!r} is claimed by a node that does not run {self.name!r}")
