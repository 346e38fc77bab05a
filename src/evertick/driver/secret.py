"""Secrets by reference: a specification names one, its value is looked up when a run needs it.

A value comes from the environment of the node (`EVERTICK_SECRET_<NAME>`) or from a file of its own in the folder of
secrets, which other users must not be able to read. It is in no specification, and so in no listing, error or database.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from evertick.errors import InvalidSetting, NotFound, Refused

__all__ = ["SECRET_VARIABLE", "Secret", "Secrets", "check_secret"]

SECRET_VARIABLE = "EVERTICK_SECRET_"  # noqa: S105 - the beginning of a name
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_MAX_BYTES = 64 * 1024


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret by its name: `Secret("DB_PASSWORD")`, in a file `{ secret = "DB_PASSWORD" }`."""

    name: str = msgspec.field(name="secret")


class Secrets:
    """Where this node finds the values. Looked up anew each time: a changed secret counts from the next run on."""

    def __init__(self, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._environ = environ

    def resolve(self, name: str) -> str:
        """The value. Raises `NotFound` where there is none, `Refused` where others could have read it."""
        check_secret(name, "secret")
        variable = variable_of(name)
        value = self._environ.get(variable)
        if value is None and self._folder is not None:
            value = _read(self._folder / name, name)
        if value is None:
            place = f", or put it into the file {self._folder / name} (mode 0600)" if self._folder is not None else ""
            raise NotFound(f"secret {name!r} is not there; set the environment variable {variable}{place}")
        if not value or "\0" in value:
            raise Refused(f"secret {name!r} is {'empty' if not value else 'no text: it holds a zero'}; set it anew")
        return value


def check_secret(name: object, what: str) -> None:
    """Refuse what cannot be the name of a secret; it becomes the name of a variable and of a file."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{what}: {name!r:.120} cannot be the name of a secret; use up to 100 letters, digits, '_', '-' and '.', "
            "like 'DB_PASSWORD'"
        )


def variable_of(name: str) -> str:
    """The environment variable of a secret: shells know no '-' and '.' in names."""
    return SECRET_VARIABLE + re.sub(r"[.-]", "_", name).upper()


def _read(path: Path, name: str) -> str | None:
    try:
        # Not blocking: a pipe of that name must not hold up the node.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(
            f"secret {name!r} cannot be read from {path}: {error.strerror}; give it to the user of this node"
        ) from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"secret {name!r}: {path} is no file; put the value into one")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise Refused(f"secret {name!r}: others may read {path} (mode {mode:04o}); run `chmod 600 {path}`")
        if found.st_uid not in (0, os.geteuid()):
            raise Refused(
                f"secret {name!r}: {path} belongs to another user ({found.st_uid}); run `chown {os.geteuid()} {path}`"
            )
        data = os.read(file, _MAX_BYTES + 1)
    finally:
        os.close(file)
    if len(data) > _MAX_BYTES:
        raise Refused(f"secret {name!r}: {path} has more than {_MAX_BYTES} bytes; a secret is a word, not a file")
    try:
        # An editor ends the last line; that end is not part of the secret.
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Refused(f"secret {name!r}: {path} is no UTF-8 text; write it as text, e.g. in base64") from None
