"""Files that the configuration names, and Evertick reads: whether they can be read, and what to do if not."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from evertick.config.layer import Value
from evertick.config.problem import Problems
from evertick.text.regular_file import NotRegular, open_regular

__all__ = ["check_files", "fix_for", "wrong_with_folder"]

_AUTHORITIES = ("http.ca", "database.ssl.ca", "redis.ssl.ca", "nats.ssl.ca")
_FILES = (
    *_AUTHORITIES,
    *(f"{section}.ssl.{name}" for section in ("database", "redis", "nats") for name in ("cert", "key")),
    "nats.credentials",
)


def fix_for(error: OSError) -> str:
    """What whoever named the file may do about it."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "make it, or correct the path"
        case IsADirectoryError():
            return "name a file"
        case NotRegular():
            return "name a file"
        case PermissionError():
            return "let this user read it"
        case _:
            return "correct the path, or let this user read it"


def wrong_with_folder(path: Path) -> str | None:
    """Why what is in it cannot be read, in words: a pattern that looks into it would only match nothing."""
    try:
        with os.scandir(path):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is no directory; make it, or take this key away"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; {fix_for(error)}"


def check_files(values: Mapping[str, Value], problems: Problems, *, only: Sequence[str] | None = None) -> None:
    """Refuse what would fail only at the first connection. `only`: the sections to look at."""
    for key in _FILES:
        if only is not None and key.partition(".")[0] not in only:
            continue
        value, url = values[key], values.get(f"{key.partition('.')[0]}.url")
        if url is not None and url.origin.rank > value.origin.rank:
            continue  # it is of another server than the one that counts
        if value.is_set and (said := _wrong_with(value.value, is_authority=key in _AUTHORITIES)):
            problems.add(value.origin.place, key, said)


def _wrong_with(path: Path, *, is_authority: bool) -> str | None:
    try:
        os.close(open_regular(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; {fix_for(error)}"
    if not is_authority:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError, ValueError):
        return f"{path} holds no certificates in PEM format; name a file that does"
    return None
