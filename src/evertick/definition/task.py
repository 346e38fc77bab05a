"""Tasks: named work that can be enqueued and scheduled. A task of a function can still be called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Never, ParamSpec, Protocol, TypedDict, TypeVar, get_args

import msgspec

from evertick.aio.unawaited import logs_unawaited_calls
from evertick.definition.settings import (
    Settings,
    check_exceptions,
    check_key,
    check_labels,
    check_one_of,
    check_queue,
    refuse_other_names,
)
from evertick.driver.base import Driver, OnLost, OnUnreachable, Work
from evertick.driver.python.function import FunctionDriver, Threads
from evertick.driver.python.process import Children, Process, ProcessDriver, check_process
from evertick.driver.registry import check_spec
from evertick.driver.spec import AbsentDriver, DriverParts, Spec
from evertick.errors import InvalidArguments, InvalidInput, InvalidSetting, Refused
from evertick.job.arguments import FreeArguments, Signature
from evertick.job.context import Context, current
from evertick.model import UNIQUE_UNTIL, Run, UniqueUntil
from evertick.model.limits import Rate, make_concurrency, make_rate
from evertick.model.retry import RetryPolicy, never_again
from evertick.text.values import check_whole, shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY, to_us

__all__ = [
    "ENQUEUE_MANY_MAX",
    "TASK_OTHER_NAMES",
    "EnqueueOptions",
    "Enqueuer",
    "Placing",
    "SyncEnqueuer",
    "Task",
    "TaskOptions",
    "TaskRuntime",
    "check_kept_arguments",
    "encode_calls",
    "make_placing",
    "task_of_function",
    "task_of_spec",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# The limit of calls in one `enqueue_many`, which is one transaction.
ENQUEUE_MANY_MAX = 10_000
PRIORITY_MAX = 1_000
_UNIQUE_FOR_MAX = 366 * DAY


class TaskOptions(TypedDict, total=False):
    """Options of a task."""

    retry: RetryPolicy
    retry_on: type[BaseException] | Sequence[type[BaseException]]
    give_up_on: type[BaseException] | Sequence[type[BaseException]]
    timeout: Duration | None
    on_lost: OnLost
    on_unreachable: OnUnreachable
    process: bool | Process
    concurrency: int | None
    concurrency_key: str | None
    rate: str | None
    rate_key: str | None


class EnqueueOptions(TypedDict, total=False):
    """Options of one call of `enqueue` or `enqueue_many`."""

    delay: Duration | None
    at: datetime | None
    priority: int
    queue: str
    unique: str | None
    unique_until: UniqueUntil | None
    unique_for: Duration | None
    expires: Duration | None
    labels: Mapping[str, str] | None


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """Checked `EnqueueOptions`. Times in microseconds."""

    delay: int = 0
    at: int | None = None
    priority: int = 0
    queue: str = "default"
    unique: str | None = None
    unique_until: UniqueUntil = "end"
    unique_for: int | None = None
    expires: int | None = None
    labels: dict[str, str] = {}


class TaskRuntime(Protocol):
    """The part of a scheduler that its tasks use."""

    @property
    def settings(self) -> Settings: ...
    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]: ...
    @property
    def threads(self) -> Threads: ...
    @property
    def children(self) -> Children: ...
    def driver_parts(self, task: str, /) -> DriverParts: ...
    def use_database(self, url: str, /) -> None: ...

    async def enqueue(
        self, task: str, encoded: Sequence[bytes], placing: Placing, connection: object = None, /
    ) -> list[Run]:
        """Enqueue a run for each of the encoded arguments."""
        ...

    def call_sync(
        self, work: Callable[[object], Coroutine[Any, Any, T]], what: str, /, *, connection: object = None
    ) -> T:
        """Run the coroutine that `work` makes, and wait for it. `what` names the call in errors."""
        ...


_AT_ONCE = Placing()
_OPTIONS = (*EnqueueOptions.__annotations__, "connection")
# Names in other libraries.
_OTHER_NAMES = {"countdown": "delay", "eta": "at", "run_at": "at", "unique_key": "unique", "dedupe": "unique"}

# Names in other libraries. A number of retries there is a policy here.
_RETRY = "retry=Constant('10s', attempts=4): the first try and three more, ten seconds apart"
TASK_OTHER_NAMES = {
    **dict.fromkeys(("retries", "max_retries", "max_attempts", "attempts", "tries", "max_tries"), _RETRY),
    **dict.fromkeys(("retry_delay", "default_retry_delay", "retry_backoff", "backoff"), _RETRY),
    **dict.fromkeys(("time_limit", "max_runtime"), "timeout"),
    "autoretry_for": "retry_on",
    "dont_autoretry_for": "give_up_on",
    "max_instances": "concurrency",
    "rate_limit": "rate",
}


@logs_unawaited_calls
class Task(Generic[P, R]):
    """Work that Evertick can run. One that was made of a function stays callable as the function it was."""

    def __init__(
        self,
        runtime: TaskRuntime,
        name: str,
        driver: Driver,
        arguments: Signature | FreeArguments,
        options: TaskOptions,
        function: Callable[..., R] | None = None,
    ) -> None:
        if function is not None:
            functools.update_wrapper(self, function)
        # `written` names the object in the log, as a program writes it.
        self.name = self.written = name
        self.runtime = runtime
        self.arguments = arguments
        self._function = function
        self.work = make_work(name, driver, arguments, options)
        self._check_rate(self.work.rate)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself. If it takes a context and none is given, it gets the current one."""
        function = self._callable()
        if self.arguments.takes_context and not (args and isinstance(args[0], Context)):
            return function(current(), *args, **kwargs)
        return function(*args, **kwargs)

    def _callable(self) -> Callable[..., R]:
        if self._function is None:
            raise Refused(
                f"task {self.name!r} is a job of the driver {self.work.driver.name!r}, not a function",
                fix="enqueue it, or give it a schedule",
            )
        return self._function

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Enqueue one run. A node that knows the task runs it soon."""
        encoded = [self.arguments.encode(args, kwargs)]
        return (await self.runtime.enqueue(self.name, encoded, _AT_ONCE))[0]

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        """Enqueue one run per set of arguments, in one transaction: all of them, or none."""
        return await self.runtime.enqueue(self.name, encode_calls(self.arguments, calls), _AT_ONCE)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        queue: str = "default",
        unique: str | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        expires: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        connection: object = None,
        **unknown: Never,
    ) -> Enqueuer[P]:
        """Set options for a call: `task.options(delay="10m", priority=5).enqueue(...)`.

        delay, at: when the run is due. priority: higher first. unique: while a run with this key is live, enqueueing
        returns that run. unique_until="start": only until the run is first claimed. unique_for: for this long instead,
        live or not. expires: how long after its due time the run may start; later it is missed.
        connection: a connection of yours to the database of the ledger. The run is part of its transaction.
        """
        refuse_other_names(unknown, _OPTIONS, _OTHER_NAMES, "option", "options")
        placing = make_placing(
            delay=delay,
            at=at,
            priority=priority,
            queue=queue,
            unique=unique,
            unique_until=unique_until,
            unique_for=unique_for,
            expires=expires,
            labels=labels,
        )
        return Enqueuer(self, placing, connection)

    def _check_rate(self, rate: Rate | None) -> None:
        """Reject a rate that contradicts another task or the setting of the scheduler."""
        if rate is None:
            return
        if rate.of.varies and self.runtime.settings.rate_limits == "memory":
            raise InvalidSetting(
                f"task {self.name!r}: rate_key: {rate.of.text!r} names arguments, and with rate_limits='memory' a node "
                "decides what to claim before it knows them; use a text without braces, or rate_limits='store'",
                setting="rate_key",
            )
        for other in self.runtime.tasks.values():
            other_rate = other.work.rate
            is_shared = other_rate is not None and rate.of.text is not None and other_rate.of.text == rate.of.text
            if is_shared and str(other_rate) != str(rate):
                raise InvalidSetting(
                    f"task {self.name!r}: rate: {rate} differs from {other_rate} of task {other.name!r}, which shares "
                    f"rate_key {rate.of.text!r}; give both the same rate, or keys of their own",
                    setting="rate",
                )

    @property
    def sync(self) -> SyncEnqueuer[P]:
        """The blocking forms of `enqueue` and `enqueue_many`, for code without an event loop."""
        return SyncEnqueuer(Enqueuer(self, _AT_ONCE))

    def _enter_child(self, url: str) -> Callable[..., R]:
        """The function, for a child process. Runs that it enqueues are written to the database of the node."""
        self.runtime.use_database(url)
        return self._callable()

    def __repr__(self) -> str:
        return f"<Task {self.name}({self.arguments.text})>"


@logs_unawaited_calls
class Enqueuer(Generic[P]):
    """Enqueues one task with the given options."""

    def __init__(self, task: Task[P, Any], placing: Placing, connection: object = None) -> None:
        self.task, self.placing, self.connection = task, placing, connection
        self.written = f"{task.name}.options(...)"

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        encoded = [self.task.arguments.encode(args, kwargs)]
        return (await self.task.runtime.enqueue(self.task.name, encoded, self.placing, self.connection))[0]

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        encoded = encode_calls(self.task.arguments, calls)
        return await self.task.runtime.enqueue(self.task.name, encoded, self.placing, self.connection)

    @property
    def sync(self) -> SyncEnqueuer[P]:
        return SyncEnqueuer(self)


class SyncEnqueuer(Generic[P]):
    """The blocking forms of an `Enqueuer`."""

    def __init__(self, enqueuer: Enqueuer[P]) -> None:
        self._enqueuer = enqueuer

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        return self._call(lambda: self._enqueuer.enqueue(*args, **kwargs), "enqueue")

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        return self._call(lambda: self._enqueuer.enqueue_many(calls), "enqueue_many")

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        task, connection = self._enqueuer.task, self._enqueuer.connection
        return task.runtime.call_sync(lambda _: make(), f"{task.name}.sync.{what}()", connection=connection)


def make_placing(
    *,
    delay: Duration | None = None,
    at: datetime | None = None,
    priority: int = 0,
    queue: str = "default",
    unique: str | None = None,
    unique_until: UniqueUntil | None = None,
    unique_for: Duration | None = None,
    expires: Duration | None = None,
    labels: Mapping[str, str] | None = None,
) -> Placing:
    """Check `EnqueueOptions`."""
    if delay is not None and at is not None:
        raise InvalidSetting("delay and at both say when", fix="give one of them")
    return Placing(
        delay=0 if delay is None else duration_us(delay, what="delay"),
        at=None if at is None else to_us(at),
        priority=check_priority(priority),
        queue=check_queue(queue),
        unique=None if unique is None else check_key(unique, what="unique"),
        unique_until=check_unique_until(unique_until, unique, unique_for),
        unique_for=check_unique_for(unique_for, unique),
        expires=None if expires is None else duration_us(expires, what="expires"),
        labels=check_labels(labels or {}),
    )


def encode_calls(arguments: Signature | FreeArguments, calls: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """The arguments of many calls, each checked and encoded."""
    if not isinstance(calls, Iterable):
        raise InvalidInput(f"calls: {shown(calls)} is not a list of arguments", fix="pass [{...}, ...]")
    encoded = []
    for number, call in enumerate(calls):
        if number == ENQUEUE_MANY_MAX:
            raise InvalidInput(f"more than {ENQUEUE_MANY_MAX} calls at once", fix="enqueue them in several lists")
        encoded.append(arguments.encode((), call))
    return encoded


def check_kept_arguments(task: Task[Any, Any], args: Mapping[str, Any]) -> None:
    """Check the arguments that a schedule stores. They must be complete, since no caller adds any."""
    defaults = task.arguments.defaults
    missing = [name for name, default in defaults.items() if default is ... and name not in args]
    if missing and all(name in defaults for name in args):
        given = ", ".join(f"{name!r}: …" for name in missing)
        raise InvalidArguments(
            f"{task.name}({task.arguments.text}): missing a required argument: {missing[0]!r}; "
            f"write args={{{given}}}, or give it a default in the function"
        )
    task.arguments.encode((), args)


def task_of_function(runtime: TaskRuntime, name: str, function: Callable[..., R], options: TaskOptions) -> Task[Any, R]:
    """A task that calls a function, in this process or in a child process."""
    check_key(name, what="task")
    inside = FunctionDriver(function, name, runtime.threads)
    settings = check_process(options.get("process", False), name)
    driver: Driver = inside
    if settings is not None:
        driver = ProcessDriver(function, inside, settings, runtime.children, lambda: runtime.settings.url)
    return Task(runtime, name, driver, inside.signature, options, function)


def task_of_spec(runtime: TaskRuntime, name: str, spec: Spec, options: TaskOptions) -> Task[..., Any]:
    """A task of a specification. If this node does not run its driver, the task is left to other nodes."""
    check_key(name, what="task")
    check_spec(name, spec)
    if "process" in options:
        problem = f"task {name!r}: process: it is for functions; a job of {spec.driver!r} has no use for it"
        raise InvalidSetting(problem, setting="process")
    if spec.driver not in runtime.settings.drivers:
        return Task(runtime, name, AbsentDriver(spec.driver, name), FreeArguments(name), options)
    try:
        driver = spec.make_driver(name, runtime.driver_parts(name))
    except ImportError as error:
        raise InvalidSetting(
            f"task {name!r}: the driver {spec.driver!r} cannot be loaded ({error}); install what it needs, for a "
            f"built-in one with `pip install 'evertick[{spec.driver}]'`"
        ) from error
    return Task(runtime, name, driver, FreeArguments(name), options)


def make_work(name: str, driver: Driver, arguments: Signature | FreeArguments, options: TaskOptions) -> Work:
    """Check a task's options."""
    unknown = {option: value for option, value in options.items() if option not in TaskOptions.__annotations__}
    call, more = ("task", ["name"]) if isinstance(arguments, Signature) else ("job", [])
    known = [*TaskOptions.__annotations__, *more]
    refuse_other_names(unknown, known, TASK_OTHER_NAMES, "option", call, where=f"task {name!r}")
    retry = options.get("retry", never_again)
    if not isinstance(retry, RetryPolicy):
        problem = f"task {name!r}: retry: {shown(retry)} is not a retry policy"
        raise InvalidSetting(problem, setting="retry", value=shown(retry), fix="pass Constant, Linear or Exponential")
    timeout = options.get("timeout")
    on_lost = check_one_of(options.get("on_lost", "rerun"), get_args(OnLost), "on_lost", where=f"task {name!r}: ")
    # A task that must not run twice stops when another node may have claimed its run.
    default = "stop" if on_lost == "fail" else "continue"
    on_unreachable = check_one_of(
        options.get("on_unreachable", default), get_args(OnUnreachable), "on_unreachable", where=f"task {name!r}: "
    )
    if timeout is not None and duration_us(timeout, what="timeout") == 0:
        problem = f"task {name!r}: timeout: {shown(timeout)} leaves no time at all; leave it out for none"
        raise InvalidSetting(problem, setting="timeout")
    return Work(
        task=name,
        driver=driver,
        hash=arguments.hash,
        retry=retry,
        retry_on=check_exceptions(options.get("retry_on", Exception), "retry_on", where=f"task {name!r}: "),
        give_up_on=check_exceptions(options.get("give_up_on", ()), "give_up_on", where=f"task {name!r}: "),
        timeout=None if timeout is None else duration_us(timeout, what="timeout"),
        on_lost=on_lost,  # type: ignore[arg-type]
        on_unreachable=on_unreachable,  # type: ignore[arg-type]
        concurrency=make_concurrency(
            options.get("concurrency"), options.get("concurrency_key"), name, arguments.defaults
        ),
        rate=make_rate(options.get("rate"), options.get("rate_key"), name, arguments.defaults),
    )


def check_unique_until(until: Any, unique: str | None, unique_for: Any) -> UniqueUntil:
    if until is None:
        return "end"
    if unique is None:
        problem = f"unique_until: {shown(until)} says how long a key is unique"
        raise InvalidSetting(problem, setting="unique_until", value=shown(until), fix="give the key with unique=")
    if unique_for is not None:
        problem = "unique_until and unique_for both say how long the key is unique; give one of them"
        raise InvalidSetting(problem, setting="unique_until")
    return "start" if check_one_of(until, UNIQUE_UNTIL, "unique_until") == "start" else "end"


def check_unique_for(period: Duration | None, unique: str | None) -> int | None:
    if period is None:
        return None
    if unique is None:
        problem = f"unique_for: {shown(period)} says how long a key is unique"
        raise InvalidSetting(problem, setting="unique_for", value=shown(period), fix="give the key with unique=")
    us = duration_us(period, what="unique_for")
    if not 0 < us <= _UNIQUE_FOR_MAX:
        raise InvalidSetting(
            f"unique_for: {shown(period)} must be more than nothing and at most {duration_text(_UNIQUE_FOR_MAX)}",
            setting="unique_for",
        )
    return us


def check_priority(priority: Any) -> int:
    return check_whole(priority, "priority", -PRIORITY_MAX, PRIORITY_MAX)
