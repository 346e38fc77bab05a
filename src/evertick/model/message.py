"""Checks and makes messages for the outbox: bounded and JSON-like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from evertick.errors import InvalidInput
from evertick.model import NewMessage
from evertick.text.values import encode_data, has_control, shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY

__all__ = [
    "BODY_MAX_BYTES",
    "DELAY_MAX",
    "HEADERS_MAX_BYTES",
    "NAME_MAX_CHARS",
    "check_name",
    "dispatch_key",
    "dispatch_message",
    "kill_message",
    "new_message",
]

# A message is read and written at every attempt; larger data belongs elsewhere, by reference.
BODY_MAX_BYTES = 256 * 1024
HEADERS_MAX_BYTES = 8 * 1024
NAME_MAX_CHARS = 200
DELAY_MAX = 366 * DAY


def new_message(
    id_: str,
    channel: Any,
    body: Any,
    *,
    key: Any = None,
    delay: Duration | None = None,
    headers: Any = None,
    caused_by: str | None = None,
) -> NewMessage:
    """A message to send. The default key is its id."""
    return NewMessage(
        id=id_,
        channel=check_name(channel, "channel"),
        key=id_ if key is None else check_name(key, "key"),
        body=_encoded(body),
        headers=_checked_headers(headers),
        delay=0 if delay is None else _checked_delay(delay),
        caused_by=caused_by,
    )


def dispatch_key(run: str, fence: int) -> str:
    """The key of the message that dispatches a run; the same if it is sent again."""
    return f"{run}:{fence}"


def dispatch_message(id_: str, channel: str, body: Any, headers: Any, run: str, fence: int) -> NewMessage:
    """The message that dispatches a run under this fence."""
    return NewMessage(
        id=id_,
        channel=check_name(channel, "channel"),
        key=dispatch_key(run, fence),
        body=_encoded(body),
        headers=_checked_headers(headers or None),
        caused_by=run,
        dispatches=fence,
    )


def kill_message(id_: str, channel: str, run: str, fence: int, why: str) -> NewMessage:
    """The message that tells a worker to stop a run with this fence, or not to start it."""
    body = msgspec.json.encode({"v": 1, "run": run, "fence": fence, "why": why})
    return NewMessage(id=id_, channel=channel, key=f"{dispatch_key(run, fence)}:kill", body=body, caused_by=run)


def check_name(name: Any, what: str) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"{what}: {shown(name)} is not text", setting=what, value=shown(name), fix="pass a string")
    if not 1 <= len(name) <= NAME_MAX_CHARS or name != name.strip() or not name.isprintable():
        raise InvalidInput(
            f"{what}: {shown(name)} must have 1 to {NAME_MAX_CHARS} printable characters, not {len(name)}, "
            "and no space around them",
            setting=what,
            value=shown(name),
        )
    return name


def _encoded(body: Any) -> bytes:
    try:
        data = encode_data(body, "body")
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"body: it is not JSON-like data ({error})", setting="body", fix="pass dicts, lists, strings and numbers"
        ) from None
    if len(data) > BODY_MAX_BYTES:
        raise InvalidInput(
            f"body: it has {len(data)} bytes, more than {BODY_MAX_BYTES}",
            setting="body",
            fix="store large data elsewhere and send a reference",
        )
    return data


def _checked_headers(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping) or not all(isinstance(part, str) for pair in headers.items() for part in pair):
        raise InvalidInput(
            f"headers: {shown(headers)} must be a dict of strings by name", setting="headers", value=shown(headers)
        )
    for name, value in headers.items():
        if has_control(name) or has_control(value):
            raise InvalidInput(
                f"headers: {shown(name)}: {shown(value)} must not contain control characters, line ends or surrogates",
                setting="headers",
                value=shown(value),
            )
    size = len(msgspec.json.encode(headers))
    if size > HEADERS_MAX_BYTES:
        raise InvalidInput(
            f"headers: they have {size} bytes, more than {HEADERS_MAX_BYTES}",
            setting="headers",
            fix="put more into the body",
        )
    return dict(headers)


def _checked_delay(delay: Duration) -> int:
    us = duration_us(delay, what="delay")
    if us > DELAY_MAX:
        raise InvalidInput(
            f"delay: {shown(delay)} is more than {duration_text(DELAY_MAX)}", setting="delay", value=shown(delay)
        )
    return us
