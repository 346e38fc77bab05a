"""Senders: functions that deliver the messages of a channel, and the checks of their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from evertick.definition.settings import check_exceptions, refuse_bare, refuse_other_names
from evertick.definition.task import TASK_OTHER_NAMES
from evertick.driver.base import REMEMBER, RETRY, TIMEOUT, Sender
from evertick.driver.python.function import Threads, is_async, refuse_generator
from evertick.errors import InvalidSetting
from evertick.model.message import check_name
from evertick.model.retry import RetryPolicy
from evertick.text.values import shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY

__all__ = ["SenderOptions", "check_channel", "make_sender"]

_CONCURRENCY_MAX = 1_000
_REMEMBER_MAX = 366 * DAY


class SenderOptions(TypedDict, total=False):
    """retry: the retry policy. give_up_on: errors that are not retried. timeout: how long a delivery may take.
    concurrency: deliveries at once on one node. remember: how long the keys of delivered messages are kept."""

    retry: RetryPolicy
    give_up_on: type[BaseException] | Sequence[type[BaseException]]
    timeout: Duration
    concurrency: int
    remember: Duration


def check_channel(channel: Any) -> str:
    refuse_bare(channel, "sender", "the name of its channel", "'webhook'")
    return check_name(channel, "channel")


def make_sender(channel: str, function: Callable[..., Any], options: SenderOptions, threads: Threads) -> Sender:
    name = check_channel(channel)
    known = list(SenderOptions.__annotations__)
    unknown = {option: value for option, value in options.items() if option not in known}
    refuse_other_names(unknown, known, TASK_OTHER_NAMES, "option", "sender", where=f"sender {name!r}")
    if not callable(function) or isinstance(function, type):
        raise InvalidSetting(f"sender {name!r}: {shown(function)} is not a function")
    _check_takes_message(function, name)
    retry = options.get("retry", RETRY)
    if not isinstance(retry, RetryPolicy):
        raise InvalidSetting(
            f"sender {name!r}: retry: {shown(retry)} is not a retry policy",
            value=shown(retry),
            fix="pass Constant, Linear or Exponential",
        )
    concurrency = options.get("concurrency", 10)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _CONCURRENCY_MAX:
        raise InvalidSetting(
            f"sender {name!r}: concurrency: {shown(concurrency)} must be a whole number from 1 to {_CONCURRENCY_MAX}"
        )
    can_be_cancelled = is_async(function)
    return Sender(
        channel=name,
        deliver=function if can_be_cancelled else lambda message: threads.call(lambda: function(message)),
        can_be_cancelled=can_be_cancelled,
        retry=retry,
        give_up_on=check_exceptions(options.get("give_up_on", ()), "give_up_on", where=f"sender {name!r}: "),
        timeout=_within(options.get("timeout", TIMEOUT / 1e6), f"sender {name!r}: timeout", 1, DAY),
        concurrency=concurrency,
        remember=_within(options.get("remember", REMEMBER / 1e6), f"sender {name!r}: remember", 0, _REMEMBER_MAX),
    )


def _check_takes_message(function: Callable[..., Any], name: str) -> None:
    """Reject a function that does not take a message; its deliveries would be retried for hours."""
    refuse_generator(function, f"sender {name!r}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some functions in C have no signature
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidSetting(
            f"sender {name!r}: its function takes {signature}, but gets one Message",
            fix="write `(message: Message)`",
        ) from None


def _within(given: Duration, what: str, least: int, most: int) -> int:
    us = duration_us(given, what=what)
    if not least <= us <= most:
        raise InvalidSetting(f"{what}: {shown(given)} must be more than nothing and at most {duration_text(most)}")
    return us
