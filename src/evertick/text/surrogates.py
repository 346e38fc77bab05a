"""Replaces unpaired surrogates, which UTF-8 cannot encode, by U+FFFD.

JavaScript cuts an emoji in two, Java writes the halves as bytes, Python has them in file names. Input with such
characters is still read: a broken character must not cost the message.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["json_bytes", "json_without_surrogates", "without_surrogates"]

# Matches escaped backslashes as well, so that the text after one is not taken for an escape.
_ESCAPE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for each unpaired surrogate; a pair becomes its character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_without_surrogates(data: bytes) -> bytes:
    """JSON without unpaired surrogates, as bytes or escapes; for data that msgspec rejected."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], without_surrogates(text).encode())


def json_bytes(value: Any) -> bytes:
    """The value as JSON; it is copied only if it has surrogates. Raises like `msgspec.json.encode`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return without_surrogates(value)
        case dict():
            return {_mended(name): _mended(each) for name, each in value.items()}
        case list() | tuple():
            return [_mended(each) for each in value]
        case _:
            return value
