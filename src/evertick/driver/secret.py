"""Secrets by reference: a specification names a secret, and the node reads its value when a run needs it.

A value comes from the environment of the node (`EVERTICK_SECRET_<NAME>`) or from a file in the directory of secrets,
which other users must not be able to read. A specification never holds a value, so no listing, error or database does.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from evertick.errors import InvalidSetting, NotFound, Refused
from evertick.text.values import shown

__all__ = ["SECRET_VARIABLE", "Secret", "Secrets", "check_secret"]

SECRET_VARIABLE = "EVERTICK_SECRET_"  # noqa: S105 - the prefix of a name
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_MAX_BYTES = 64 * 1024


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to a secret: `Secret("DB_PASSWORD")`, in a file `{ secret = "DB_PASSWORD" }`."""

    name: str = msgspec.field(name="secret")


class Secrets:
    """The secrets of this node. Values are not cached, so the next run uses a changed secret."""

    def __init__(self, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._environ = environ

    def resolve(self, name: str) -> str:
        """The value. Raises `NotFound` if there is none, `Refused` if it is unusable or other users can read it."""
        check_secret(name, "secret")
        variable = variable_of(name)
        value = self._environ.get(variable)
        if value is None and self._folder is not None:
            value = _read(self._folder / name, name)
        if value is None:
            file = f", or write the value to {self._folder / name} (mode 0600)" if self._folder is not None else ""
            raise NotFound(f"secret {name!r} is not set", fix=f"set the environment variable {variable}{file}")
        if not value or "\0" in value:
            reason = "is empty" if not value else "contains a zero character"
            raise Refused(f"secret {name!r} {reason}", fix="set it to text without zero characters")
        return value


def check_secret(name: object, what: str) -> None:
    """Reject an invalid name: it becomes the name of a variable and of a file."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{what}: {shown(name)} is not a valid name of a secret",
            value=shown(name),
            fix="use up to 100 letters, digits, '_', '-' and '.', like 'DB_PASSWORD'",
        )


def variable_of(name: str) -> str:
    """The environment variable of a secret; shells do not allow '-' and '.' in names."""
    return SECRET_VARIABLE + re.sub(r"[.-]", "_", name).upper()


def _read(path: Path, name: str) -> str | None:
    try:
        # Non-blocking, because opening a named pipe would block the node.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(
            f"secret {name!r}: {path} cannot be read: {error.strerror}", fix="make the user of this node its owner"
        ) from None
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise Refused(f"secret {name!r}: {path} is not a regular file", fix="write the value to a regular file")
        if info.st_mode & 0o077:
            mode = stat.S_IMODE(info.st_mode)
            raise Refused(
                f"secret {name!r}: other users can read {path} (mode {mode:04o})", fix=f"run `chmod 600 {path}`"
            )
        if info.st_uid not in (0, os.geteuid()):
            raise Refused(
                f"secret {name!r}: {path} belongs to another user ({info.st_uid})",
                fix=f"run `chown {os.geteuid()} {path}`",
            )
        data = os.read(file, _MAX_BYTES + 1)
    finally:
        os.close(file)
    if len(data) > _MAX_BYTES:
        raise Refused(f"secret {name!r}: {path} has more than {_MAX_BYTES} bytes", fix="store a shorter value")
    try:
        # Editors end a file with a line break, which is not part of the secret.
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Refused(
            f"secret {name!r}: {path} is not UTF-8 text", fix="write the value as text, e.g. in base64"
        ) from None
