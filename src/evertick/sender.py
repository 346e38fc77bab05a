"""How a function becomes the sender of a channel: its options, checked where they are written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from evertick.driver.function import Threads
from evertick.driver.sender import REMEMBER, RETRY, TIMEOUT, Sender
from evertick.errors import InvalidSetting
from evertick.message import check_name
from evertick.model import Message
from evertick.policy import RetryPolicy
from evertick.settings import refuse_bare
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY

__all__ = ["SenderOptions", "check_channel", "make_sender"]

_CONCURRENCY_MAX = 1_000
_REMEMBER_MAX = 366 * DAY


class SenderOptions(TypedDict, total=False):
    """retry: when to try again, and how often. give_up_on: errors after which there is no other try. timeout: how long
    a delivery may take. concurrency: deliveries at once on one node. remember: how long the key of a message that was
    delivered is known."""

    retry: RetryPolicy
    give_up_on: type[BaseException] | Sequence[type[BaseException]]
    timeout: Duration
    concurrency: int
    remember: Duration


def check_channel(channel: Any) -> str:
    refuse_bare(channel, "sender", "the name of its channel", "webhook")
    return check_name(channel, "channel")


def make_sender(channel: str, function: Callable[..., Any], options: SenderOptions, threads: Threads) -> Sender:
    name = check_channel(channel)
    unknown = sorted(set(options) - set(SenderOptions.__annotations__))
    if unknown:
        known = ", ".join(SenderOptions.__annotations__)
        raise InvalidSetting(f"sender {name!r}: unknown option {unknown[0]!r}; known are {known}")
    if not callable(function) or isinstance(function, type):
        raise InvalidSetting(f"sender {name!r}: {function!r} is no function")
    _check_takes_message(function, name)
    retry = options.get("retry", RETRY)
    if not isinstance(retry, RetryPolicy):
        raise InvalidSetting(f"sender {name!r}: retry: {retry!r} is no policy; pass Constant, Linear or Exponential")
    concurrency = options.get("concurrency", 10)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _CONCURRENCY_MAX:
        raise InvalidSetting(
            f"sender {name!r}: concurrency: {concurrency!r} must be a whole number from 1 to {_CONCURRENCY_MAX}"
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
    return Sender(
        channel=name,
        deliver=function if is_async else _in_thread(function, threads),
        can_be_cancelled=is_async,
        retry=retry,
        give_up_on=_types(options.get("give_up_on", ()), name),
        timeout=_within(options.get("timeout", TIMEOUT / 1e6), f"sender {name!r}: timeout", 1, DAY),
        concurrency=concurrency,
        remember=_within(options.get("remember", REMEMBER / 1e6), f"sender {name!r}: remember", 0, _REMEMBER_MAX),
    )


def _check_takes_message(function: Callable[..., Any], name: str) -> None:
    """Refused here, not at the first delivery: that would be tried again for hours."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"sender {name!r}: a generator does nothing until it is iterated; pass a function")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # of some functions that are written in C nobody can tell
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidSetting(
            f"sender {name!r}: its function takes {signature}, but gets one Message and nothing else; write "
            "`(message: Message)`"
        ) from None


def _in_thread(function: Callable[[Message], Any], threads: Threads) -> Callable[[Message], Any]:
    async def deliver(message: Message) -> object:
        result = await threads.call(lambda: function(message))
        # A plain function around an async one (a decorator) only makes the coroutine; the work is still to be done.
        return await result if inspect.isawaitable(result) else result

    return deliver


def _within(given: Duration, what: str, least: int, most: int) -> int:
    us = duration_us(given, what=what)
    if not least <= us <= most:
        raise InvalidSetting(f"{what}: {given!r} must be more than nothing and at most {duration_text(most)}")
    return us


def _types(value: Any, name: str) -> tuple[type[BaseException], ...]:
    types = (value,) if isinstance(value, type) or not isinstance(value, Sequence) else tuple(value)
    for each in types:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise InvalidSetting(
                f"sender {name!r}: give_up_on: {each!r:.60} is no type of exception; pass the type itself, or a tuple"
            )
    return types
