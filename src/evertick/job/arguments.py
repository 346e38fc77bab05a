"""The arguments of a task: checked against the function's signature and stored as JSON.

They are never pickled: the store holds plain data, which people and later versions of the code can read.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any

import msgspec

from evertick.errors import InvalidArguments
from evertick.job.context import Context
from evertick.text.values import bytes_in, encode_data, shown

__all__ = ["ARGUMENTS_MAX_BYTES", "FreeArguments", "Signature"]

# Arguments are copied into each run that has its own. Store larger data elsewhere and pass a reference.
ARGUMENTS_MAX_BYTES = 256 * 1024


class Signature:
    """The parameters of a task's function, without its context."""

    __slots__ = ("_bind", "_decoder", "_is_open", "_required", "defaults", "hash", "takes_context", "task", "text")

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self.task = task
        parameters, hints = _parameters(function, task)
        self.takes_context = bool(parameters) and hints.get(parameters[0].name) is Context
        own = parameters[1:] if self.takes_context else parameters
        self._bind = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in own])
        fields = [_field(p, hints.get(p.name, Any), task) for p in own if p.kind is not p.VAR_KEYWORD]
        # By name; `...` for a required parameter.
        self.defaults = {p.name: ... if p.default is p.empty else p.default for p in own if p.kind is not p.VAR_KEYWORD}
        self._required = {name for name, default in self.defaults.items() if default is ...}
        # Whether there is a **kwargs.
        self._is_open = any(p.kind is p.VAR_KEYWORD for p in own)
        shape = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=not self._is_open, kw_only=True)
        self._decoder = msgspec.json.Decoder(shape)
        self.text = ", ".join(_written(p, hints) for p in own)
        # From the types and not from `text`: a run parked for its arguments waits for other types.
        typed = ", ".join(_typed(p, hints.get(p.name, Any)) for p in own)
        self.hash = blake2b(typed.encode(), digest_size=8).hexdigest()

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON. Raises InvalidArguments with the name that does not fit."""
        named = self._named(args, kwargs)
        try:
            data = encode_data(named, allows_bytes=True)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{self.task}({self.text}): arguments must be JSON-like data: {error}") from None
        self._check_bytes(named, self.decode(data))
        return data

    def _check_bytes(self, named: Mapping[str, Any], decoded: Mapping[str, Any]) -> None:
        """Reject bytes that are decoded as text, because no parameter is annotated with bytes."""
        given = bytes_in(named)
        if not given:
            return
        restored = Counter(value for _, value in bytes_in(decoded))
        for path, value in given:
            if not restored[value]:
                name = path.partition("[")[0]
                raise InvalidArguments(
                    f"{self.task}({self.text}): {path}: {shown(value)} would come back as text",
                    value=shown(value),
                    fix=f"pass text, or write `{name}: bytes` in the function" if name.isidentifier() else "pass text",
                )
            restored[value] -= 1

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not args and type(kwargs) is dict and self._required <= kwargs.keys() <= self.defaults.keys():
            return kwargs  # the result of `bind` at a tenth of its cost
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise InvalidArguments(
                f"{self.task}({self.text}): {shown(kwargs)} must be a dict of arguments by name", value=shown(kwargs)
            )
        try:
            bound = self._bind.bind(*args, **kwargs)
        except TypeError as error:
            raise self._unknown_name(kwargs) or InvalidArguments(f"{self.task}({self.text}): {error}") from None
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._bind.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            else:
                named[name] = value
        return named

    def _unknown_name(self, kwargs: Mapping[str, Any]) -> InvalidArguments | None:
        """The error for an unknown name; `bind` may report a missing parameter instead."""
        name = next((name for name in kwargs if name not in self.defaults), None)
        if name is None or self._is_open:
            return None
        alike = get_close_matches(name, self.defaults, 1)
        return InvalidArguments(
            f"{self.task}({self.text}): got an unexpected keyword argument {name!r}",
            value=repr(name),
            fix=f"it is called {alike[0]!r}" if alike else None,
        )

    def decode(self, data: bytes) -> dict[str, Any]:
        """Typed keyword arguments from JSON. Raises InvalidArguments if they no longer fit."""
        if data == b"{}" and not self.defaults:
            return {}
        if len(data) > ARGUMENTS_MAX_BYTES:
            raise _too_large(data, self.task)
        try:
            decoded = self._decoder.decode(data)
            named = msgspec.structs.asdict(decoded)
            if self._is_open:  # the struct lacks the names of **kwargs
                named = {**msgspec.json.decode(data), **named}
        except Exception as error:  # the user's types may raise any error
            raise InvalidArguments(f"{self.task}({self.text}): {error}") from None
        return named


class FreeArguments:
    """The arguments of a job without a function: any JSON-like data by name. Same interface as `Signature`."""

    __slots__ = ("task",)

    takes_context = False
    text = "**arguments"
    # Constant, because arguments always fit and no run is parked for them.
    hash = "free"

    def __init__(self, task: str) -> None:
        self.task = task

    @property
    def defaults(self) -> Mapping[str, Any]:
        return _AnyName()

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON."""
        if args:
            raise InvalidArguments(
                f"{self.task}({self.text}): {shown(args[0])} has no name",
                value=shown(args[0]),
                fix="pass arguments by name",
            )
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise InvalidArguments(
                f"{self.task}({self.text}): {shown(kwargs)} must be a dict of arguments by name", value=shown(kwargs)
            )
        try:
            data = encode_data(kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{self.task}({self.text}): arguments must be JSON-like data: {error}") from None
        if len(data) > ARGUMENTS_MAX_BYTES:
            raise _too_large(data, self.task)
        return data

    def decode(self, data: bytes) -> dict[str, Any]:
        """The arguments from JSON. Raises InvalidArguments if it is not a JSON object."""
        if len(data) > ARGUMENTS_MAX_BYTES:
            raise _too_large(data, self.task)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArguments(f"{self.task}({self.text}): {error}") from None


class _AnyName(Mapping[str, Any]):
    """Contains every name, each without a default."""

    def __contains__(self, name: object) -> bool:
        return bool(name)

    def __getitem__(self, name: str) -> Any:
        return ...

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _parameters(function: Callable[..., Any], task: str) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(_annotated(function))
    except NameError as error:
        raise InvalidArguments(
            f"task {task!r}: its signature cannot be read: {error}",
            fix="annotations are used at run time, so import their names outside of TYPE_CHECKING",
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"task {task!r}: its signature cannot be read: {error}") from None
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidArguments(
                f"task {task!r}: parameter {parameter} cannot be passed by name",
                value=str(parameter),
                fix="arguments are stored by name, so use a keyword parameter",
            )
    _check_first_parameter(parameters, hints, task)
    return parameters, hints


def _annotated(function: Any) -> Any:
    """The object that has the annotations: the function inside a partial, the method of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _check_first_parameter(parameters: list[inspect.Parameter], hints: dict[str, Any], task: str) -> None:
    """Reject likely mistakes: a context without its annotation, and an unbound method."""
    first = parameters[0].name if parameters else None
    if first in ("ctx", "context") and first not in hints:
        raise InvalidArguments(
            f"task {task!r}: parameter {first!r} has no annotation",
            value=repr(first),
            fix=f"write `{first}: Context` to get the context",
        )
    if first == "self":
        raise InvalidArguments(f"task {task!r}: it is an unbound method", fix="pass the bound method, or a function")


def _too_large(data: bytes, task: str) -> InvalidArguments:
    return InvalidArguments(
        f"{task}: arguments have {len(data)} bytes, more than {ARGUMENTS_MAX_BYTES}", fix="pass a reference to the data"
    )


def _field(parameter: inspect.Parameter, hint: Any, task: str) -> tuple[str, Any] | tuple[str, Any, Any]:
    if hint is Context:
        raise InvalidArguments(
            f"task {task!r}: parameter {parameter.name!r} is a Context", fix="make the Context the first parameter"
        )
    if _holds_custom(hint):
        raise InvalidArguments(
            f"task {task!r}: {parameter.name}: {_type_text(hint)} cannot be stored as JSON",
            value=_type_text(hint),
            fix="use plain data, a dataclass or a msgspec.Struct",
        )
    if parameter.default is parameter.empty:
        return parameter.name, hint
    default = parameter.default
    return parameter.name, hint, msgspec.field(default_factory=lambda: default)


def _holds_custom(hint: Any) -> bool:
    try:
        return _is_custom(msgspec.inspect.type_info(hint))
    except TypeError:
        return True


def _is_custom(info: Any) -> bool:
    if isinstance(info, msgspec.inspect.CustomType):
        return True
    inner = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type")]
    several = [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    return any(_is_custom(part) for part in [*inner, *several] if isinstance(part, msgspec.inspect.Type))


def _typed(parameter: inspect.Parameter, hint: Any) -> str:
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {_type_text(hint)}{default}"


def _written(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> str:
    """The parameter as in the source: without a type if it has none."""
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    if parameter.name in hints:
        return stars + _typed(parameter, hints[parameter.name])
    return f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")


def _type_text(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
