"""The executors of a worker: they answer the driver that carries out a message, as on a node.

A command reads the whole message as JSON on its standard input, has the variables of a shell job, and is judged by its
exit code as one: it is one, under the same keeper.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

import msgspec

from evertick.clock import Clock
from evertick.driver.base import Driver
from evertick.driver.python.function import Threads
from evertick.driver.python.process import Children
from evertick.driver.queue.contract import DispatchMessage, encode
from evertick.driver.secret import Secrets
from evertick.driver.shell.spec import Shell
from evertick.driver.spec import DriverParts
from evertick.errors import NotFound

if TYPE_CHECKING:
    from evertick.scheduler.scheduler import Scheduler

__all__ = ["CommandExecutor", "Executor", "TasksExecutor"]


class Executor(Protocol):
    """Finds the driver for each message."""

    def driver_for(self, dispatched: DispatchMessage) -> Driver:
        """Raises `NotFound` where this worker cannot carry it out."""
        ...

    async def close(self) -> None: ...


class CommandExecutor:
    """One command, in any language, for all tasks; the message names the task."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        clock: Clock,
        success_codes: Sequence[int] = (0,),
        skip_codes: Sequence[int] = (),
        retry_codes: Sequence[int] = (),
        kill_after: str = "10s",
    ) -> None:
        self._shell = Shell(
            command=list(command),
            success_codes=tuple(success_codes),
            skip_codes=tuple(skip_codes),
            retry_codes=tuple(retry_codes),
            kill_after=kill_after,
        )
        self._shell.check("worker")
        self._children = Children()
        self._parts = DriverParts(
            app="",
            fleet=lambda: "",
            clock=clock,
            threads=Threads(),
            children=self._children,
            connections={},
            resolve_secret=Secrets().resolve,
            at_close=lambda _: None,
            shared={},
        )
        self._children.open()

    def driver_for(self, dispatched: DispatchMessage) -> Driver:
        shell = msgspec.structs.replace(self._shell, stdin=encode(dispatched).decode())
        return shell.make_driver(dispatched.task, msgspec.structs.replace(self._parts, app=dispatched.app))

    async def close(self) -> None:
        await self._children.close()


class TasksExecutor:
    """The tasks of a Python program. Its scheduler is not started, and its database is not opened."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._drivers = {name: task.work.driver for name, task in scheduler.runtime.tasks.items()}
        scheduler.runtime.children.open()

    def driver_for(self, dispatched: DispatchMessage) -> Driver:
        driver = self._drivers.get(dispatched.task)
        if driver is None:
            alike = get_close_matches(dispatched.task, self._drivers, 1)
            meant = f"; {alike[0]!r} is meant?" if alike else ""
            raise NotFound(
                f"this worker has no task {dispatched.task!r}{meant}; define it with "
                f"@scheduler.task(name={dispatched.task!r}) in the module that the worker was started with"
            )
        return driver

    async def close(self) -> None:
        await self._scheduler.close()
