"""Tasks: functions under a name, that can be called, enqueued and scheduled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, get_args

import msgspec

from evertick.context import Context, current
from evertick.driver.base import OnLost, OnUnreachable, Work
from evertick.driver.function import FunctionDriver
from evertick.errors import InvalidInput, InvalidSetting
from evertick.model import Cause, NewRun, Run
from evertick.policy import RetryPolicy, never_again
from evertick.settings import check_key, check_labels, check_one_of
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import to_us

if TYPE_CHECKING:
    from evertick.scheduler import Scheduler

__all__ = ["ENQUEUE_MANY_MAX", "Enqueuer", "SyncEnqueuer", "Task", "TaskOptions"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# One transaction each; a longer list is for the caller to cut, who then knows what is in.
ENQUEUE_MANY_MAX = 10_000
PRIORITY_MAX = 1_000


class TaskOptions(TypedDict, total=False):
    """How a task is carried out and judged."""

    retry: RetryPolicy
    retry_on: type[BaseException] | Sequence[type[BaseException]]
    give_up_on: type[BaseException] | Sequence[type[BaseException]]
    timeout: Duration | None
    on_lost: OnLost
    on_unreachable: OnUnreachable


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when an enqueued run goes. Times in microseconds."""

    delay: int = 0
    at: int | None = None
    priority: int = 0
    queue: str = "default"
    unique: str | None = None
    expires: int | None = None
    labels: dict[str, str] = {}


class Task(Generic[P, R]):
    """A function that Evertick can run. It stays callable as the function it was."""

    def __init__(self, scheduler: Scheduler, function: Callable[..., R], name: str, options: TaskOptions) -> None:
        self.name = check_key(name, what="task")
        self._scheduler = scheduler
        self._function = function
        self._driver = FunctionDriver(function, self.name, scheduler._threads)
        self.work = make_work(self.name, self._driver, options)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now. One that takes a context gets the current one if none is given."""
        if self._driver.signature.takes_context and not (args and isinstance(args[0], Context)):
            return self._function(current(), *args, **kwargs)
        return self._function(*args, **kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Have it run soon, once, on a node that knows it."""
        return await Enqueuer(self, Placing()).enqueue(*args, **kwargs)

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        """One run per set of arguments, in one transaction: all of them, or none."""
        return await Enqueuer(self, Placing()).enqueue_many(calls)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        queue: str = "default",
        unique: str | None = None,
        expires: Duration | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Enqueuer[P]:
        """Say where and when: `task.options(delay="10m", priority=5).enqueue(...)`.

        delay, at: when it is due. priority: higher first. unique: while a run with this key is live, enqueueing answers
        that run. expires: how long after its due time it may still start; later it is missed.
        """
        if delay is not None and at is not None:
            raise InvalidSetting("delay and at both say when; give one of them")
        placing = Placing(
            delay=0 if delay is None else duration_us(delay, what="delay"),
            at=None if at is None else to_us(at),
            priority=check_priority(priority),
            queue=check_key(queue, what="queue"),
            unique=None if unique is None else check_key(unique, what="unique"),
            expires=None if expires is None else duration_us(expires, what="expires"),
            labels=check_labels(labels or {}),
        )
        return Enqueuer(self, placing)

    @property
    def sync(self) -> SyncEnqueuer[P]:
        """The plain forms, for code without an event loop."""
        return SyncEnqueuer(Enqueuer(self, Placing()))

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as they are kept. Raises InvalidArguments when they do not fit."""
        return self._driver.signature.encode(args, kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}({self._driver.signature.text})>"


class Enqueuer(Generic[P]):
    """Enqueues one task with the given options."""

    def __init__(self, task: Task[P, Any], placing: Placing) -> None:
        self._task = task
        self._placing = placing

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        run = self._new_run(self._task.encode_call(args, kwargs))
        return (await self._task._scheduler._enqueue([run]))[0]

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        if not isinstance(calls, Iterable):
            raise InvalidInput(f"calls: {calls!r} is no list of arguments; pass [{{...}}, ...]")
        runs = []
        for number, call in enumerate(calls):
            if number == ENQUEUE_MANY_MAX:
                raise InvalidInput(f"more than {ENQUEUE_MANY_MAX} calls at once; enqueue them in several lists")
            runs.append(self._new_run(self._task.encode_call((), call)))
        return await self._task._scheduler._enqueue(runs)

    @property
    def sync(self) -> SyncEnqueuer[P]:
        return SyncEnqueuer(self)

    def _new_run(self, args: bytes) -> NewRun:
        placing = self._placing
        return NewRun(
            id=self._task._scheduler._clock.new_id(),
            task=self._task.name,
            cause=Cause.ENQUEUE,
            fire_at=placing.at,
            due_at=placing.at,
            delay=placing.delay,
            args=args,
            queue=placing.queue,
            priority=placing.priority,
            expires=placing.expires,
            labels=placing.labels,
            unique_key=placing.unique,
        )


class SyncEnqueuer(Generic[P]):
    """The plain forms of an enqueuer."""

    def __init__(self, enqueuer: Enqueuer[P]) -> None:
        self._enqueuer = enqueuer

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        return self._call(lambda: self._enqueuer.enqueue(*args, **kwargs), "enqueue")

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        return self._call(lambda: self._enqueuer.enqueue_many(calls), "enqueue_many")

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        return self._enqueuer._task._scheduler._portal.call(make, f"{self._enqueuer._task.name}.sync.{what}()")


def make_work(name: str, driver: FunctionDriver, options: TaskOptions) -> Work:
    """Check a task's options."""
    unknown = sorted(set(options) - set(TaskOptions.__annotations__))
    if unknown:
        known = ", ".join(TaskOptions.__annotations__)
        raise InvalidSetting(f"task {name!r}: unknown option {unknown[0]!r}; known are {known}")
    retry = options.get("retry", never_again)
    if not isinstance(retry, RetryPolicy):
        raise InvalidSetting(f"task {name!r}: retry: {retry!r} is no policy; pass Constant, Linear or Exponential")
    timeout = options.get("timeout")
    on_lost = check_one_of(options.get("on_lost", "rerun"), get_args(OnLost), f"task {name!r}: on_lost")
    # What must not run twice must not run on while nobody knows whether it was given to another node.
    default = "stop" if on_lost == "fail" else "continue"
    on_unreachable = check_one_of(
        options.get("on_unreachable", default), get_args(OnUnreachable), f"task {name!r}: on_unreachable"
    )
    if timeout is not None and duration_us(timeout, what="timeout") == 0:
        raise InvalidSetting(f"task {name!r}: timeout: {timeout!r} leaves no time at all; leave it out for none")
    return Work(
        task=name,
        driver=driver,
        hash=driver.signature.hash,
        retry=retry,
        retry_on=_types(options.get("retry_on", Exception), name, "retry_on"),
        give_up_on=_types(options.get("give_up_on", ()), name, "give_up_on"),
        timeout=None if timeout is None else duration_us(timeout, what="timeout"),
        on_lost=on_lost,  # type: ignore[arg-type]
        on_unreachable=on_unreachable,  # type: ignore[arg-type]
    )


def check_priority(priority: Any) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise InvalidSetting(f"priority: {priority!r} must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}")
    return priority


def _types(value: Any, name: str, what: str) -> tuple[type[BaseException], ...]:
    types = (value,) if isinstance(value, type) or not isinstance(value, Sequence) else tuple(value)
    for each in types:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise InvalidSetting(f"task {name!r}: {what}: {each!r} is no type of exception")
    return types
