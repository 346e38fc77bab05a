"""What the engine knows about carrying out a task, whatever carries it out.

A driver turns stored arguments into a call and runs it. It is told to stop by its `Call`; whether it can be stopped at
once (a coroutine) or only asked (a thread) is its own business and declared by `can_be_cancelled`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from evertick.context import Context
from evertick.policy import RetryPolicy, never_again
from evertick.store.base import TaskTerms

__all__ = ["Driver", "OnLost", "OnUnreachable", "Work"]

OnLost = Literal["rerun", "fail"]
OnUnreachable = Literal["continue", "stop"]


class Driver(Protocol):
    """Carries out one kind of task."""

    name: str
    # True: cancelling the asyncio task that awaits `execute` ends the work. False: it can only be asked.
    can_be_cancelled: bool

    def prepare(self, args: bytes) -> dict[str, Any]:
        """Arguments as the work wants them. Raises InvalidArguments when the stored ones no longer fit."""
        ...

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Any:
        """Do the work; what it returns is the result, what it raises the error."""
        ...


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a node knows it: how to carry it out and how to judge it. Durations in microseconds."""

    task: str
    driver: Driver
    hash: str
    retry: RetryPolicy = never_again
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int | None = None
    on_lost: OnLost = "rerun"
    on_unreachable: OnUnreachable = "continue"

    @property
    def terms(self) -> TaskTerms:
        return TaskTerms(hash=self.hash, timeout=self.timeout, at_most_once=self.on_lost == "fail")
