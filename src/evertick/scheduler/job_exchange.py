"""Exchanges all jobs of a running node in one step: first in the ledger, then in the node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec

from evertick.aio.cooperative import in_turns
from evertick.definition.declarations import Declarations
from evertick.definition.settings import Settings
from evertick.definition.task import Task
from evertick.driver.base import Driver, Work
from evertick.errors import EvertickError
from evertick.operations.apply import apply_declared, plan_declared

if TYPE_CHECKING:
    from evertick.scheduler.runtime import Runtime

__all__ = ["Close", "JobExchange", "JobSet", "close_each"]

log = logging.getLogger("evertick.scheduler")

Close = Callable[[], Awaitable[None]]
# How often to check whether a replaced driver still has running work.
_RETIRED_SECONDS = 1.0


class JobSet(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks and declarations of a scheduler, which are exchanged in one step."""

    tasks: dict[str, Task[Any, Any]]
    task_places: dict[str, str]
    declarations: Declarations
    # By task, the callbacks that close the connections of its driver.
    closing: dict[str, list[Close]]
    settings: Settings

    def works(self) -> dict[str, Work]:
        """The tasks that this node runs."""
        drivers = self.settings.drivers
        return {name: task.work for name, task in self.tasks.items() if task.work.driver.name in drivers}

    def left_to_others(self) -> dict[str, str]:
        """The tasks that this node leaves to others, each with its driver."""
        drivers = self.settings.drivers
        return {name: driver for name, task in self.tasks.items() if (driver := task.work.driver.name) not in drivers}


class JobExchange:
    """Exchanges the jobs of a scheduler, and closes drivers that are not needed any more."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # Whether tasks are being added to a new set, which is allowed after the start too.
        self.is_adding = False
        # Replaced drivers that may still have running work, with the callbacks that close them.
        self._retired: list[tuple[Driver, list[Close]]] = []
        self._retiring: asyncio.Task[None] | None = None

    async def prepare(self, gone: Set[str], adds: Iterable[Callable[[], None]], *, tz: str) -> JobSet:
        """The present jobs without the tasks in `gone` and with those that `adds` add.

        The present jobs stay in force, also after an error.
        """
        before = self._runtime.jobs
        jobs = JobSet(
            tasks={name: task for name, task in before.tasks.items() if name not in gone},
            task_places={name: place for name, place in before.task_places.items() if name not in gone},
            declarations=before.declarations.without_file(),
            closing={name: closing for name, closing in before.closing.items() if name not in gone},
            settings=msgspec.structs.replace(before.settings, tz=tz),
        )
        await in_turns(adds, lambda add: self._add_to(jobs, add))
        return jobs

    def _add_to(self, jobs: JobSet, add: Callable[[], None]) -> None:
        before = self._runtime.jobs
        self._runtime.jobs, self.is_adding = jobs, True
        try:
            add()
        finally:
            self._runtime.jobs, self.is_adding = before, False

    async def take(self, jobs: JobSet, *, disabled: Collection[str] = ()) -> EvertickError | None:
        """Exchange the jobs: in the ledger, in one transaction, and then in this node.

        An error before the commit leaves everything as it was. Schedules that are not among the jobs any more are
        paused in the same transaction, so that none fires for a task that this node has dropped. `disabled` are
        schedules that stay known. Returns the error if the node could not record its own tasks in the ledger; the jobs
        are in force then, and taking them again records them.
        """
        runtime, before = self._runtime, self._runtime.jobs
        works = jobs.works()
        reached = runtime.dispatching(works.values())
        context = await runtime.context()
        plan = await plan_declared(
            context,
            declarations=jobs.declarations,
            tz=jobs.settings.tz,
            disabled=disabled,
            dropped={each.key for each in before.declarations} - {each.key for each in jobs.declarations},
            own_node=runtime.node_id,
            days=1,
        )
        try:
            # First, because new schedules of undeclared keys look abandoned to other nodes.
            await self._say_declared(jobs.declarations.hashes() | before.declarations.hashes())
            await apply_declared(context, plan, tz=jobs.settings.tz)
        except Exception:
            with contextlib.suppress(EvertickError):  # the next successful reload records it
                await self._say_declared(before.declarations.hashes())
            raise
        runtime.jobs = jobs
        self._retire(before, jobs)
        if runtime.engine is not None:
            try:
                await runtime.engine.know(works, jobs.declarations.hashes(), *reached, jobs.left_to_others())
            except EvertickError as error:
                return error
        return None

    async def _say_declared(self, declares: Mapping[str, str]) -> None:
        if self._runtime.engine is not None:
            await self._runtime.engine.declare(declares)

    def _retire(self, before: JobSet, jobs: JobSet) -> None:
        """Close drivers that are not needed any more, once their running work has ended."""
        for name, closing in before.closing.items():
            if closing and jobs.closing.get(name) is not closing:
                self._retired.append((before.tasks[name].work.driver, closing))
        if self._retired and (self._retiring is None or self._retiring.done()):
            self._retiring = asyncio.get_running_loop().create_task(self._close_retired(), name="evertick retired")

    async def _close_retired(self) -> None:
        while self._retired:
            engine = self._runtime.engine
            busy = [] if engine is None else engine.drivers_at_work()
            free = [each for each in self._retired if not any(each[0] is driver for driver in busy)]
            self._retired = [each for each in self._retired if each not in free]
            for _, closing in free:
                await close_each(closing)
            if self._retired:
                await asyncio.sleep(_RETIRED_SECONDS)

    def end(self) -> list[list[Close]]:
        """Stop waiting for replaced drivers, and return the callbacks that close them."""
        if self._retiring is not None:
            self._retiring.cancel()
        retired, self._retired = self._retired, []
        return [closing for _, closing in retired]


async def close_each(closing: Sequence[Close]) -> None:
    for close in closing:
        try:
            await close()
        except Exception:  # the others must be closed too
            log.exception("driver: could not be closed")
