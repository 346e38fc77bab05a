"""What a user sees who may not look into a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def closed_to_us(folder: Path) -> Iterator[None]:
    """The folder, closed to the user of this process: root becomes somebody else for a while."""
    is_root, mode = os.geteuid() == 0, folder.stat().st_mode
    folder.chmod(0o700 if is_root else 0)
    if is_root:
        os.setresuid(_NOBODY, _NOBODY, 0)
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        folder.chmod(mode)
