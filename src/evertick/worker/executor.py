"""The executors of a worker choose the driver for a message.

A command runs as a shell job, with the same variables, exit codes and supervision, and gets the message as JSON on its
standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from evertick.text.did_you_mean import alike
from evertick.text.values import shown

if TYPE_CHECKING:
    from evertick.scheduler.scheduler import Scheduler

__all__ = ["CommandExecutor", "Executor", "TasksExecutor"]


class Executor(Protocol):
    """Finds the driver for each message."""

    def driver_for(self, dispatched: DispatchMessage) -> Driver:
        """Raises `NotFound` if this worker cannot execute the task."""
        ...

    async def close(self) -> None: ...


class CommandExecutor:
    """One command, in any language, for all tasks. The message names the task."""

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
            similar = alike(dispatched.task, self._drivers)
            name = shown(dispatched.task)
            raise NotFound(
                f"this worker has no task {name}" + (f" (did you mean {similar!r}?)" if similar else ""),
                value=name,
                fix=f"define it with @scheduler.task(name={name}) in the module that the worker was started with",
            )
        return driver

    async def close(self) -> None:
        await self._scheduler.close()
