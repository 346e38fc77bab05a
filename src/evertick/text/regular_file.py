"""Opens files that a user names, only if they are regular files, and without waiting.

Opening a named pipe waits for another process, and opening a device may act on it: a tape rewinds, a watchdog starts.
So the type is checked before the file is opened, and again on the open file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

__all__ = ["NotRegular", "kind_of", "open_regular", "read_regular"]

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# Streams that the caller opened for this process, like <(command) of a shell, and /dev/null.
_STREAM = re.compile(r"/dev/(?:null|stdin|fd/\d+)|/proc/self/fd/\d+")


class NotRegular(OSError):
    """A pipe, a device or a socket stands in place of a file."""

    def __init__(self, mode: int) -> None:
        super().__init__(errno.EINVAL, f"it is {kind_of(mode)}, not a regular file")


def kind_of(mode: int) -> str:
    """The type of a file with this mode, in words."""
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "a regular file")


def open_regular(path: str | Path, *, dir_fd: int | None = None, follow: bool = True) -> int:
    """Open a file for reading. Raises OSError, and NotRegular if it is not a regular file."""
    _refuse(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow).st_mode)
    opened = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW), dir_fd=dir_fd)
    try:
        _refuse(os.fstat(opened).st_mode)
    except OSError:
        os.close(opened)
        raise
    return opened


def read_regular(path: str | Path, most: int, *, may_be_stream: bool = False) -> bytes:
    """The content, up to one byte more than `most`, so that the caller sees that it is too long.

    `may_be_stream`: /dev/stdin, /dev/fd/N and /dev/null are allowed.
    """
    is_stream = may_be_stream and _STREAM.fullmatch(str(path)) is not None
    with open(path if is_stream else open_regular(path), "rb") as file:
        return file.read(most + 1)


def _refuse(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise NotRegular(mode)
