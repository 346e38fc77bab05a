"""A worker that does the tasks of a Python program: functions, here or in processes of their own."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from evertick.driver.base import Driver
from evertick.driver.queue.contract import DispatchMessage
from evertick.errors import NotFound

if TYPE_CHECKING:
    from evertick.scheduler.scheduler import Scheduler

__all__ = ["TasksExecutor"]


class TasksExecutor:
    """The tasks that a scheduler was given. It is not started, and its database is not opened."""

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
