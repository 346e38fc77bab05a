"""The directories of a node: where they are, and that they are for this user alone.

What a node keeps (a database, a pidfile) and reads (secrets) is nobody else's business. A directory that is missing is
made with mode 0700; a wider one of ours is tightened, which is told; one of somebody else's is refused if others could
write to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from evertick.errors import Refused

__all__ = ["default_state", "make_private"]

_MODE = 0o700
_SYSTEM = Path("/var/lib/evertick")


def default_state(environ: Mapping[str, str]) -> Path:
    """Where state is kept if nobody says: as systemd tells it, or where this kind of user has such things."""
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.partition(":")[0])
    if os.geteuid() == 0:
        return _SYSTEM
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return Path(home) / "evertick"


def make_private(path: Path) -> str | None:
    """Have the directory there, for this user alone; answers what was to be mended, in words."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=_MODE, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise Refused(f"the directory {path} cannot be made: {error.strerror}; make it, or name another") from None
    wide = stat.S_IMODE(found.st_mode)
    if not wide & 0o077:
        return None
    if found.st_uid == os.geteuid():
        path.chmod(_MODE)
        return f"the directory {path} was open to others (mode {wide:04o}); it has mode 0700 now"
    if wide & 0o022:
        raise Refused(
            f"others may write to the directory {path} (mode {wide:04o}), and it belongs to another user "
            f"({found.st_uid}); run `chmod 700 {path}` as that user, or name another"
        )
    return f"others may read the directory {path} (mode {wide:04o}), which belongs to another user ({found.st_uid})"
