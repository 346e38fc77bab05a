"""Exchanging the jobs of a node for others in one step, while it runs: first in the ledger, then here."""

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
# How often to look whether a driver that was exchanged is still at work.
_RETIRED_SECONDS = 1.0


class JobSet(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks and declarations of a scheduler, to be exchanged for others in one step."""

    tasks: dict[str, Task[Any, Any]]
    task_places: dict[str, str]
    declarations: Declarations
    # By task, how its driver closes what it has opened.
    closing: dict[str, list[Close]]
    settings: Settings

    def works(self) -> dict[str, Work]:
        """Those that this node runs."""
        drivers = self.settings.drivers
        return {name: task.work for name, task in self.tasks.items() if task.work.driver.name in drivers}

    def left_to_others(self) -> dict[str, str]:
        """The others, each with its driver."""
        drivers = self.settings.drivers
        return {name: driver for name, task in self.tasks.items() if (driver := task.work.driver.name) not in drivers}


class JobExchange:
    """Exchanges the jobs of a scheduler, and closes the drivers that this leaves without work."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # While tasks are added to a set that is not in force, also after the start.
        self.is_adding = False
        # Drivers that were exchanged and may still be at work, with how they close.
        self._retired: list[tuple[Driver, list[Close]]] = []
        self._retiring: asyncio.Task[None] | None = None

    async def prepare(self, gone: Set[str], adds: Iterable[Callable[[], None]], *, tz: str) -> JobSet:
        """The jobs with others of a configuration: without the tasks in `gone`, with those that `adds` add.

        Others who look in between see everything here as before, and so it is also when it raises.
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
        """Have these jobs. The ledger first, all of it in one transaction, then this node: whatever fails before the
        ledger has them raises, and leaves everything as it was. Schedules that are not among them any more are paused
        with it: nothing is to fire that this node has just forgotten. `disabled`: those that are known all the same.

        Answers what has kept the word of this node about itself from the ledger, if anything has; they hold all the
        same, and taking them again says it again.
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
            # First of all: until the node says that it declares them, new schedules look as if no node did.
            await self._say_declared(jobs.declarations.hashes() | before.declarations.hashes())
            await apply_declared(context, plan, tz=jobs.settings.tz)
        except Exception:
            with contextlib.suppress(EvertickError):  # a reload that comes through says it
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
        """Close what drivers have opened that are not needed any more, when nothing that they carry out is left."""
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
        """Look no more; answers what is still to be closed."""
        if self._retiring is not None:
            self._retiring.cancel()
        retired, self._retired = self._retired, []
        return [closing for _, closing in retired]


async def close_each(closing: Sequence[Close]) -> None:
    for close in closing:
        try:
            await close()
        except Exception:  # one that fails must not keep the others open
            log.exception("a driver could not be closed")
