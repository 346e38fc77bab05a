"""Halves of surrogate pairs: texts that no UTF-8 can hold, as programs and other languages make them.

JavaScript cuts an emoji in two, Java writes the halves as bytes, Python has them in names of files. What comes from
outside is read with U+FFFD in their place: a broken letter must not cost the message that it is in.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["json_bytes", "mended_json", "mended_text"]

# An escaped backslash is one, too, so that what follows it is not taken for an escape.
_ESCAPE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def mended_text(text: str) -> str:
    """The text with U+FFFD for each half; two halves that follow each other become their letter."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mended_json(data: bytes) -> bytes:
    """JSON in which no half is left, neither as bytes nor as an escape; for data that was refused as it is."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], mended_text(text).encode())


def json_bytes(value: Any) -> bytes:
    """The value as JSON. Only where it holds halves it is copied; raises like `msgspec.json.encode` for what is no
    JSON-like data."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return mended_text(value)
        case dict():
            return {_mended(name): _mended(each) for name, each in value.items()}
        case list() | tuple():
            return [_mended(each) for each in value]
        case _:
            return value
