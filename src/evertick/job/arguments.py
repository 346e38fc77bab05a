"""The arguments of a task: typed by the function's signature, kept as JSON, refused where they do not fit.

Never pickled: what is stored is data under a registered name, readable by people and by later versions of the code.
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

# Arguments are copied into every run that carries its own. Larger things belong in a table or a bucket, by reference.
ARGUMENTS_MAX_BYTES = 256 * 1024


class Signature:
    """What a task's function takes, apart from its context."""

    __slots__ = ("_bind", "_decoder", "_is_open", "_required", "defaults", "hash", "takes_context", "task", "text")

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self.task = task
        parameters, hints = _parameters(function, task)
        self.takes_context = bool(parameters) and hints.get(parameters[0].name) is Context
        own = parameters[1:] if self.takes_context else parameters
        self._bind = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in own])
        fields = [_field(p, hints.get(p.name, Any), task) for p in own if p.kind is not p.VAR_KEYWORD]
        # By name; ... where one must be given.
        self.defaults = {p.name: ... if p.default is p.empty else p.default for p in own if p.kind is not p.VAR_KEYWORD}
        self._required = {name for name, default in self.defaults.items() if default is ...}
        # **kwargs: it takes any.
        self._is_open = any(p.kind is p.VAR_KEYWORD for p in own)
        shape = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=not self._is_open, kw_only=True)
        self._decoder = msgspec.json.Decoder(shape)
        self.text = ", ".join(_written(p, hints) for p in own)
        # Not of the text for people: a run that is parked for its arguments waits for other types, not other words.
        typed = ", ".join(_typed(p, hints.get(p.name, Any)) for p in own)
        self.hash = blake2b(typed.encode(), digest_size=8).hexdigest()

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON. Refused with the offending name when they do not fit."""
        named = self._named(args, kwargs)
        try:
            data = encode_data(named, allows_bytes=True)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{self.task}({self.text}): arguments must be JSON-like data; {error}") from None
        self._check_bytes(named, self.decode(data))
        return data

    def _check_bytes(self, named: Mapping[str, Any], decoded: Mapping[str, Any]) -> None:
        """JSON keeps bytes as text, and only a parameter that is annotated with bytes makes bytes of that again."""
        given = bytes_in(named)
        if not given:
            return
        back = Counter(value for _, value in bytes_in(decoded))
        for path, value in given:
            if not back[value]:
                name = path.partition("[")[0]
                fix = f"pass text, or write `{name}: bytes` in the function" if name.isidentifier() else "pass text"
                raise InvalidArguments(
                    f"{self.task}({self.text}): {path}: {shown(value)} would come back as text; {fix}"
                )
            back[value] -= 1

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not args and type(kwargs) is dict and self._required <= kwargs.keys() <= self.defaults.keys():
            return kwargs  # as Python would bind it, at a tenth of the cost
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise InvalidArguments(f"{self.task}({self.text}): {shown(kwargs)} must be a dict of arguments by name")
        try:
            bound = self._bind.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.task}({self.text}): {self._unknown(kwargs) or error}") from None
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._bind.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            else:
                named[name] = value
        return named

    def _unknown(self, kwargs: Mapping[str, Any]) -> str | None:
        """About a name that no parameter has: `bind` would rather tell of the one that is missing instead."""
        name = next((name for name in kwargs if name not in self.defaults), None)
        if name is None or self._is_open:
            return None
        alike = get_close_matches(name, self.defaults, 1)
        return f"got an unexpected keyword argument {name!r}" + (f"; it is called {alike[0]!r}" if alike else "")

    def decode(self, data: bytes) -> dict[str, Any]:
        """Typed keyword arguments from JSON. Raises InvalidArguments when they no longer fit."""
        if data == b"{}" and not self.defaults:
            return {}
        if len(data) > ARGUMENTS_MAX_BYTES:
            raise InvalidArguments(
                f"{self.task}: arguments take {len(data)} bytes, more than {ARGUMENTS_MAX_BYTES}; "
                "pass a reference instead"
            )
        try:
            decoded = self._decoder.decode(data)
            named = msgspec.structs.asdict(decoded)
            if self._is_open:  # and what the struct does not name
                named = {**msgspec.json.decode(data), **named}
        except Exception as error:  # also whatever the user's own types raise while they are made
            raise InvalidArguments(f"{self.task}({self.text}): {error}") from None
        return named


class FreeArguments:
    """What a job without a function takes: any JSON-like data by name. It has the face of a `Signature`."""

    __slots__ = ("task",)

    takes_context = False
    text = "**arguments"
    # They always fit, so no run is ever parked for its arguments and waits for another hash.
    hash = "free"

    def __init__(self, task: str) -> None:
        self.task = task

    @property
    def defaults(self) -> Mapping[str, Any]:
        return _AnyName()

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON."""
        if args:
            raise InvalidArguments(f"{self.task}({self.text}): {shown(args[0])} has no name; pass arguments by name")
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise InvalidArguments(f"{self.task}({self.text}): {shown(kwargs)} must be a dict of arguments by name")
        try:
            data = encode_data(kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{self.task}({self.text}): arguments must be JSON-like data; {error}") from None
        self._check_size(data)
        return data

    def decode(self, data: bytes) -> dict[str, Any]:
        """The arguments from JSON. Raises InvalidArguments where they are none."""
        self._check_size(data)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArguments(f"{self.task}({self.text}): {error}") from None

    def _check_size(self, data: bytes) -> None:
        if len(data) > ARGUMENTS_MAX_BYTES:
            raise InvalidArguments(
                f"{self.task}: arguments take {len(data)} bytes, more than {ARGUMENTS_MAX_BYTES}; "
                "pass a reference instead"
            )


class _AnyName(Mapping[str, Any]):
    """Every name is one of an argument, and none has a default."""

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
            f"task {task!r}: its signature cannot be read: {error}; annotations are needed at run time, "
            "so import what they name outside of TYPE_CHECKING"
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"task {task!r}: its signature cannot be read: {error}") from None
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidArguments(
                f"task {task!r}: parameter {parameter} cannot be passed by name; "
                "arguments are kept by name, so give it one"
            )
    _refuse_likely_slip(parameters, hints, task)
    return parameters, hints


def _annotated(function: Any) -> Any:
    """What holds the annotations: the function inside a partial, the method behind a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _refuse_likely_slip(parameters: list[inspect.Parameter], hints: dict[str, Any], task: str) -> None:
    first = parameters[0].name if parameters else None
    if first in ("ctx", "context") and first not in hints:
        raise InvalidArguments(
            f"task {task!r}: {first!r} is not annotated; write `{first}: Context` to get the context"
        )
    if first == "self":
        raise InvalidArguments(f"task {task!r} is a method without its object; pass the bound method, or a function")


def _field(parameter: inspect.Parameter, hint: Any, task: str) -> tuple[str, Any] | tuple[str, Any, Any]:
    if hint is Context:
        raise InvalidArguments(f"task {task!r}: the Context must be the first parameter, not {parameter.name!r}")
    if _holds_custom(hint):
        raise InvalidArguments(
            f"task {task!r}: {parameter.name}: {_type_text(hint)} cannot be kept as JSON; "
            "use plain data, a dataclass or a msgspec.Struct"
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
    """As its author wrote it, without a type where none was given."""
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    if parameter.name in hints:
        return stars + _typed(parameter, hints[parameter.name])
    return f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")


def _type_text(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
