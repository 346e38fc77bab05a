"""Tests as another user: one that may not look into a directory, or that owns a part of the files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

_NOBODY = 65534


@contextmanager
def as_other_user() -> Iterator[int]:
    """For a while this process, which is root, is another user: answers its number."""
    os.setresuid(_NOBODY, _NOBODY, 0)
    try:
        yield _NOBODY
    finally:
        os.setresuid(0, 0, 0)


@contextmanager
def closed_to_us(folder: Path) -> Iterator[None]:
    """The folder, closed to the user of this process: root becomes another user for a while."""
    is_root, mode = os.geteuid() == 0, folder.stat().st_mode
    folder.chmod(0o700 if is_root else 0)
    try:
        with as_other_user() if is_root else nullcontext():
            yield
    finally:
        folder.chmod(mode)
