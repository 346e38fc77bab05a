"""Tasks: work under a name that can be enqueued and scheduled. Most are functions, and stay callable as such."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypedDict, TypeVar, get_args

import msgspec

from evertick.aio.unawaited import tells_unawaited
from evertick.definition.settings import (
    check_exceptions,
    check_key,
    check_labels,
    check_one_of,
    check_queue,
    refuse_other_names,
)
from evertick.driver.base import Driver, OnLost, OnUnreachable, Work
from evertick.driver.python.function import FunctionDriver
from evertick.driver.python.process import Process, ProcessDriver, check_process
from evertick.driver.registry import check_spec
from evertick.driver.spec import AbsentDriver, Spec
from evertick.errors import InvalidArguments, InvalidInput, InvalidSetting, Refused
from evertick.job.arguments import FreeArguments, Signature
from evertick.job.context import Context, current
from evertick.model import UNIQUE_UNTIL, Cause, NewRun, Run, UniqueUntil
from evertick.model.limits import Rate, make_concurrency, make_rate
from evertick.model.retry import RetryPolicy, never_again
from evertick.text.values import check_whole, shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY, to_us

if TYPE_CHECKING:
    from evertick.scheduler.runtime import Runtime

__all__ = [
    "ENQUEUE_MANY_MAX",
    "TASK_OTHER_NAMES",
    "Enqueuer",
    "SyncEnqueuer",
    "Task",
    "TaskOptions",
    "check_kept_arguments",
    "task_of_function",
    "task_of_spec",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# One transaction each; a longer list is for the caller to cut, who then knows what is in.
ENQUEUE_MANY_MAX = 10_000
PRIORITY_MAX = 1_000
_UNIQUE_FOR_MAX = 366 * DAY


class TaskOptions(TypedDict, total=False):
    """How a task is carried out and judged."""

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


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when an enqueued run goes. Times in microseconds."""

    delay: int = 0
    at: int | None = None
    priority: int = 0
    queue: str = "default"
    unique: str | None = None
    unique_until: UniqueUntil = "end"
    unique_for: int | None = None
    expires: int | None = None
    labels: dict[str, str] = {}


_AT_ONCE = Placing()
# Options of a call, and what other libraries call them.
_OPTIONS = (*Placing.__struct_fields__, "connection")
_OTHER_NAMES = {"countdown": "delay", "eta": "at", "run_at": "at", "unique_key": "unique", "dedupe": "unique"}

# What other libraries call the options of a task. Where theirs is a number, ours is a policy: how often and how soon.
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


@tells_unawaited
class Task(Generic[P, R]):
    """Work that Evertick can run. One that was made of a function stays callable as the function it was."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        driver: Driver,
        arguments: Signature | FreeArguments,
        options: TaskOptions,
        function: Callable[..., R] | None = None,
    ) -> None:
        if function is not None:
            functools.update_wrapper(self, function)
        # How a program writes it, in the log.
        self.name = self.written = name
        self.runtime = runtime
        self.arguments = arguments
        self._function = function
        self.work = make_work(name, driver, arguments, options)
        self._check_rate(self.work.rate)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now. One that takes a context gets the current one if none is given."""
        function = self._callable()
        if self.arguments.takes_context and not (args and isinstance(args[0], Context)):
            return function(current(), *args, **kwargs)
        return function(*args, **kwargs)

    def _callable(self) -> Callable[..., R]:
        if self._function is None:
            raise Refused(
                f"task {self.name!r} is a job of the driver {self.work.driver.name!r} and no function that could be "
                "called; enqueue it, or give it a schedule"
            )
        return self._function

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Have it run soon, once, on a node that knows it."""
        runs = _new_runs(self, _AT_ONCE, [self.arguments.encode(args, kwargs)])
        return (await self.runtime.enqueue(runs))[0]

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        """One run per set of arguments, in one transaction: all of them, or none."""
        return await self.runtime.enqueue(_new_runs(self, _AT_ONCE, _encode_calls(self, calls)))

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
        """Say where and when: `task.options(delay="10m", priority=5).enqueue(...)`.

        delay, at: when it is due. priority: higher first. unique: while a run with this key is live, enqueueing answers
        that run; unique_until="start": only until it is first claimed; unique_for: for so long instead, live or not.
        expires: how long after its due time it may still start; later it is missed.
        connection: your own, to the database of the ledger: enqueue inside your transaction, which commits it.
        """
        refuse_other_names(unknown, _OPTIONS, _OTHER_NAMES, "option", "options")
        if delay is not None and at is not None:
            raise InvalidSetting("delay and at both say when; give one of them")
        placing = Placing(
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
        return Enqueuer(self, placing, connection)

    def _check_rate(self, rate: Rate | None) -> None:
        """Refuse a rate that contradicts another task, or the setting of the scheduler."""
        if rate is None:
            return
        if rate.of.varies and self.runtime.settings.rate_limits == "memory":
            raise InvalidSetting(
                f"task {self.name!r}: rate_key: {rate.of.text!r} names arguments, and with rate_limits='memory' a node "
                "decides what to claim before it knows them; use a text without braces, or rate_limits='store'"
            )
        for other in self.runtime.tasks.values():
            theirs = other.work.rate
            is_shared = theirs is not None and rate.of.text is not None and theirs.of.text == rate.of.text
            if is_shared and str(theirs) != str(rate):
                raise InvalidSetting(
                    f"task {self.name!r}: rate: {rate} differs from {theirs} of task {other.name!r}, which shares "
                    f"rate_key {rate.of.text!r}; give both the same rate, or keys of their own"
                )

    @property
    def sync(self) -> SyncEnqueuer[P]:
        """The blocking forms of `enqueue` and `enqueue_many`, for code without an event loop."""
        return SyncEnqueuer(Enqueuer(self, _AT_ONCE))

    def _enter_child(self, url: str) -> Callable[..., R]:
        """The function, for a child process that has found this task; what it enqueues goes to the node's database."""
        self.runtime.use_database(url)
        return self._callable()

    def __repr__(self) -> str:
        return f"<Task {self.name}({self.arguments.text})>"


@tells_unawaited
class Enqueuer(Generic[P]):
    """Enqueues one task with the given options."""

    def __init__(self, task: Task[P, Any], placing: Placing, connection: object = None) -> None:
        self.task, self.placing, self.connection = task, placing, connection
        self.written = f"{task.name}.options(...)"

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        runs = _new_runs(self.task, self.placing, [self.task.arguments.encode(args, kwargs)])
        return (await self.task.runtime.enqueue(runs, self.connection))[0]

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        runs = _new_runs(self.task, self.placing, _encode_calls(self.task, calls))
        return await self.task.runtime.enqueue(runs, self.connection)

    @property
    def sync(self) -> SyncEnqueuer[P]:
        return SyncEnqueuer(self)


class SyncEnqueuer(Generic[P]):
    """The blocking forms of an enqueuer."""

    def __init__(self, enqueuer: Enqueuer[P]) -> None:
        self._enqueuer = enqueuer

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        return self._call(lambda: self._enqueuer.enqueue(*args, **kwargs), "enqueue")

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Run]:
        return self._call(lambda: self._enqueuer.enqueue_many(calls), "enqueue_many")

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        task, connection = self._enqueuer.task, self._enqueuer.connection
        return task.runtime.call_sync(lambda _: make(), f"{task.name}.sync.{what}()", connection=connection)


def _encode_calls(task: Task[Any, Any], calls: Iterable[Mapping[str, Any]]) -> list[bytes]:
    if not isinstance(calls, Iterable):
        raise InvalidInput(f"calls: {shown(calls)} is no list of arguments; pass [{{...}}, ...]")
    encoded = []
    for number, call in enumerate(calls):
        if number == ENQUEUE_MANY_MAX:
            raise InvalidInput(f"more than {ENQUEUE_MANY_MAX} calls at once; enqueue them in several lists")
        encoded.append(task.arguments.encode((), call))
    return encoded


def _new_runs(task: Task[Any, Any], placing: Placing, encoded: list[bytes]) -> list[NewRun]:
    ids = task.runtime.clock.new_ids(len(encoded))
    name, cause = task.name, Cause.ENQUEUE
    return [
        NewRun(
            id=id_,
            task=name,
            cause=cause,
            fire_at=placing.at,
            due_at=placing.at,
            delay=placing.delay,
            args=args,
            queue=placing.queue,
            priority=placing.priority,
            expires=placing.expires,
            labels=placing.labels,
            unique_key=placing.unique,
            unique_until=placing.unique_until,
            unique_for=placing.unique_for,
        )
        for id_, args in zip(ids, encoded, strict=True)
    ]


def check_kept_arguments(task: Task[Any, Any], args: Mapping[str, Any]) -> None:
    """The arguments that a schedule keeps. There is no caller who could pass what is missing."""
    defaults = task.arguments.defaults
    missing = [name for name, default in defaults.items() if default is ... and name not in args]
    if missing and all(name in defaults for name in args):
        given = ", ".join(f"{name!r}: …" for name in missing)
        raise InvalidArguments(
            f"{task.name}({task.arguments.text}): missing a required argument: {missing[0]!r}; "
            f"write args={{{given}}}, or give it a default in the function"
        )
    task.arguments.encode((), args)


def task_of_function(runtime: Runtime, name: str, function: Callable[..., R], options: TaskOptions) -> Task[Any, R]:
    """A task that calls a function: here, or in a process of its own."""
    check_key(name, what="task")
    inside = FunctionDriver(function, name, runtime.threads)
    settings = check_process(options.get("process", False), name)
    driver: Driver = inside
    if settings is not None:
        driver = ProcessDriver(function, inside, settings, runtime.children, lambda: runtime.settings.url)
    return Task(runtime, name, driver, inside.signature, options, function)


def task_of_spec(runtime: Runtime, name: str, spec: Spec, options: TaskOptions) -> Task[..., Any]:
    """A task that does what its specification says. Where this node does not run its driver, others do."""
    check_key(name, what="task")
    check_spec(name, spec)
    if "process" in options:
        raise InvalidSetting(f"task {name!r}: process: it is for functions; a job of {spec.driver!r} has no use for it")
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
        raise InvalidSetting(f"task {name!r}: retry: {shown(retry)} is no policy; pass Constant, Linear or Exponential")
    timeout = options.get("timeout")
    on_lost = check_one_of(options.get("on_lost", "rerun"), get_args(OnLost), f"task {name!r}: on_lost")
    # A task that must not run twice must not run on while another node may have been given it.
    default = "stop" if on_lost == "fail" else "continue"
    on_unreachable = check_one_of(
        options.get("on_unreachable", default), get_args(OnUnreachable), f"task {name!r}: on_unreachable"
    )
    if timeout is not None and duration_us(timeout, what="timeout") == 0:
        raise InvalidSetting(f"task {name!r}: timeout: {shown(timeout)} leaves no time at all; leave it out for none")
    return Work(
        task=name,
        driver=driver,
        hash=arguments.hash,
        retry=retry,
        retry_on=check_exceptions(options.get("retry_on", Exception), f"task {name!r}: retry_on"),
        give_up_on=check_exceptions(options.get("give_up_on", ()), f"task {name!r}: give_up_on"),
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
        raise InvalidSetting("unique_until and unique_for both say how long the key is unique; give one of them")
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
            f"unique_for: {shown(period)} must be more than nothing and at most {duration_text(_UNIQUE_FOR_MAX)}"
        )
    return us


def check_priority(priority: Any) -> int:
    return check_whole(priority, "priority", -PRIORITY_MAX, PRIORITY_MAX)
