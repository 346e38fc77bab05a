"""A worker that runs one command for every run that it takes, in a language of anybody's choice.

The command reads the whole message as JSON on its standard input, has the variables of a shell job, and is judged by
its exit code as one: it is one, under the same keeper.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evertick.clock import Clock
from evertick.driver.base import Driver
from evertick.driver.python.function import Threads
from evertick.driver.python.pool import Children
from evertick.driver.queue.contract import DispatchMessage, encode
from evertick.driver.secret import Secrets
from evertick.driver.shell.spec import Shell
from evertick.driver.spec import DriverParts

__all__ = ["CommandExecutor"]


class CommandExecutor:
    """One command for all tasks; the message says which is meant."""

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
