"""What the engine knows about carrying out a task, whatever carries it out.

A driver turns stored arguments into a call and runs it. It is told to stop by its `Call`; whether it can be stopped at
once (a coroutine) or only asked (a thread) is its own business and declared by `can_be_cancelled`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal, Protocol

import msgspec

from evertick.driver.place import type_name
from evertick.errors import Retry
from evertick.job.context import Context
from evertick.model.limits import Concurrency, Rate
from evertick.model.retry import RetryPolicy, never_again
from evertick.store.base import TaskTerms

__all__ = ["Driver", "OnLost", "OnUnreachable", "Reported", "Work"]

OnLost = Literal["rerun", "fail"]
OnUnreachable = Literal["continue", "stop"]


class Driver(Protocol):
    """Carries out one kind of task."""

    name: str
    # True: cancelling the asyncio task that awaits `execute` ends the work. False: it can only be asked.
    can_be_cancelled: bool
    # How long it takes itself, in microseconds, to end work that does not stop when told to.
    kill_after: int

    def prepare(self, args: bytes) -> dict[str, Any]:
        """Arguments as the work wants them. Raises InvalidArguments when the stored ones no longer fit."""
        ...

    def execute(self, context: Context, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Do the work; what it returns is the result, what it raises the error."""
        ...


class Reported(Exception):
    """What a job raised in another process: its text with the traceback, and its types by name, as told from there."""

    def __init__(self, text: str, *, types: frozenset[str], retry: Retry | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.types = types
        # What the job asked for, if it was a `Retry`.
        self.retry = retry

    def is_a(self, kinds: tuple[type[BaseException], ...]) -> bool:
        return any(type_name(kind) in self.types for kind in kinds)


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
    concurrency: Concurrency | None = None
    rate: Rate | None = None

    @property
    def kill_after(self) -> int:
        return self.driver.kill_after

    @property
    def terms(self) -> TaskTerms:
        return TaskTerms(
            hash=self.hash,
            # Others may take a run that is long past its deadline. What is being killed is not past it yet.
            timeout=None if self.timeout is None else self.timeout + self.kill_after,
            at_most_once=self.on_lost == "fail",
            concurrency=self.concurrency,
            rate=self.rate,
        )
