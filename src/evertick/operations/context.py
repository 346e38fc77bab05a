"""The context of an operation: the store, the caller, and the engine of this process, if it has one."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec

from evertick.aio.unawaited import Owner
from evertick.clock import Clock
from evertick.definition.declarations import Declarations
from evertick.definition.duties import Duties
from evertick.definition.options import make_definition
from evertick.definition.settings import Settings, check_key
from evertick.definition.task import Task, check_kept_arguments
from evertick.engine.engine import EngineHealth
from evertick.errors import InvalidArguments, InvalidInput
from evertick.ledger.editor import Editor, no_schedule
from evertick.ledger.override_editor import OverrideEditor
from evertick.model import Run
from evertick.model.hooks import Event, EventKind, Hooks
from evertick.store.base import Store, StoredSchedule
from evertick.text.values import encode_data, has_control, shown
from evertick.when import from_us

__all__ = [
    "Actor",
    "Context",
    "ContextSource",
    "EngineLink",
    "check_limit",
    "check_note",
    "checked",
    "refuse_wrong_call",
    "run_id_of",
    "stored_schedule",
]

_LIMIT_MAX = 1_000_000
_NOTE_LONGEST = 1_000

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
# By operation, the check of its arguments.
_CHECKS: dict[Callable[..., Any], Callable[..., None]] = {}


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """The caller: code, or a user with a login `name`."""

    kind: Literal["code", "user"] = "code"
    name: str = ""
    origin: str = "code"

    @classmethod
    def of_command_line(cls) -> Actor:
        """The user of this process."""
        import getpass  # only the command line needs it

        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a user id without an account, as in containers
            name = f"uid {os.getuid()}"
        return cls(kind="user", name=name, origin="cli")


class EngineLink(Protocol):
    """The engine of this process, for operations."""

    def wake_fires(self) -> None: ...
    def wake_runs(self) -> None: ...
    def wake_messages(self) -> None: ...
    def cancel(self, run_ids: list[str], /) -> None: ...
    def health(self) -> EngineHealth: ...


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The open store of an app, and the definitions of this process."""

    store: Store
    settings: Settings
    clock: Clock
    actor: Actor
    tasks: Mapping[str, Task[Any, Any]]
    declarations: Declarations
    duties: Duties
    hooks: Hooks
    # None: this process runs no engine. A started node without slots has none either.
    engine: EngineLink | None = None
    is_started: bool = False
    # Errors of a reloaded configuration that was rejected.
    configuration_problems: tuple[str, ...] = ()

    @property
    def app(self) -> str:
        return self.settings.app

    def for_app(self, app: str) -> Context:
        """The same ledger, for another app."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, app=app))

    def editor(self) -> Editor:
        return Editor(self.store, self.app, self.clock, self.settings.tz, self.settings.schedule_limits)

    def override_editor(self) -> OverrideEditor:
        return OverrideEditor(self.store, self.app, self.clock, self.settings.tz, self.settings.schedule_limits)

    def encode_arguments(self, task: str, args: Mapping[str, Any]) -> bytes:
        given = make_definition("", {"args": args}).args
        self.check_arguments(task, given)
        return msgspec.json.encode(given)

    def check_arguments(self, task: str, args: Mapping[str, Any]) -> None:
        """Check arguments against the signature of a known task. Other nodes check those of their own tasks."""
        if task in self.tasks:
            check_kept_arguments(self.tasks[task], args)
            return
        try:
            encode_data(args)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{task}: arguments must be JSON-like data: {error}", setting="args") from None

    def wake_fires(self) -> None:
        if self.engine is not None:
            self.engine.wake_fires()

    def wake_runs(self) -> None:
        if self.engine is not None:
            self.engine.wake_runs()

    def wake_messages(self) -> None:
        if self.engine is not None:
            self.engine.wake_messages()

    def tell(self, kind: EventKind, key: str, note: str = "") -> None:
        if kind in self.hooks.wanted:
            at = from_us(self.clock.now_us())
            self.hooks.tell(Event(kind=kind, app=self.app, at=at, schedule_key=key, note=note))


class ContextSource(Owner, Protocol):
    """Makes a context on demand, for operations that open the store when they are awaited."""

    async def context(self) -> Context: ...


def checked(**checks: Callable[[Any], object]) -> Callable[[F], F]:
    """Check arguments of an operation by name when it is called, before the store is opened."""

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters
        places = {name: [*parameters].index(name) for name in checks}

        def check(*args: Any, **kwargs: Any) -> None:
            for name, place in places.items():
                default = parameters[name].default
                value = args[place] if place < len(args) else kwargs.get(name, default)
                if value is not default:
                    checks[name](value)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return await function(*args, **kwargs)

        _CHECKS[call] = check
        return cast("F", call)

    return decorate


def refuse_wrong_call(function: Callable[..., Coroutine[Any, Any, Any]], *args: object, **kwargs: object) -> None:
    """Refuse arguments of an operation that do not fit its signature or fail its checks. Needs no store."""
    # Python checks the signature when it creates the coroutine.
    inspect.unwrap(function)(None, *args, **kwargs).close()
    if (check := _CHECKS.get(function)) is not None:
        check(None, *args, **kwargs)


async def stored_schedule(context: Context, key: str) -> StoredSchedule:
    found = await context.store.stored_schedules(context.app, keys=[key])
    if not found:
        raise no_schedule(context.app, key)
    return found[0]


def run_id_of(run: Any) -> str:
    if isinstance(run, Run):
        return run.id
    if not isinstance(run, str):
        raise InvalidInput(
            f"run: {shown(run)} is not a run", setting="run", value=shown(run), fix="pass a Run or the id of one"
        )
    return check_key(run, what="run")


def check_note(note: Any) -> str:
    if not isinstance(note, str):
        raise _invalid_note(f"{shown(note)} is not text", note, "pass a str")
    if has_control(note, in_lines=True):
        raise _invalid_note(f"{shown(note)} has control characters or surrogates", note, "write plain text")
    if len(note) > _NOTE_LONGEST:
        raise _invalid_note(f"{shown(note)} is too long", note, f"write at most {_NOTE_LONGEST:,} characters")
    return note


def _invalid_note(problem: str, note: object, fix: str) -> InvalidInput:
    return InvalidInput(f"note: {problem}", setting="note", value=shown(note), fix=fix)


def check_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _LIMIT_MAX:
        problem = f"limit: {shown(limit)} must be a whole number from 1 to {_LIMIT_MAX}"
        raise InvalidInput(problem, setting="limit", value=shown(limit))
    return limit
