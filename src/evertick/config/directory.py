"""The directories of a node: where they are, and that they are for this user alone.

What a node keeps (a database, a pidfile) and reads (secrets) is nobody else's business. A directory that is missing is
made with mode 0700. A wider one is tightened, which is told, if it is ours and holds nothing but what is ours. One that
others use, too, is never touched: it is told if they can read it, and refused if they could write to it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from evertick.errors import Refused

__all__ = ["default_state", "make_private", "wrong_with"]

_MODE = 0o700
_SYSTEM = Path("/var/lib/evertick")
# What Evertick itself has in its directories: the database with its log, the report of a daemon, a pidfile, the
# configuration, and what stands beside it.
_OWN = re.compile(r"evertick\..*|daemon\.json.*|jobs\.d|conf\.d|secrets")


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
    if (said := wrong_with(path)) is not None:
        raise Refused(said)
    if found.st_uid != os.geteuid():
        raise Refused(
            f"the directory {path} belongs to another user ({found.st_uid}), and is open to others (mode {wide:04o}); "
            f"run `chown {os.geteuid()} {path}` and `chmod 700 {path}`, or name another"
        )
    if not _holds_ours_alone(path):
        what = "write to" if wide & 0o022 else "read"
        return (
            f"others may {what} the directory {path} (mode {wide:04o}), which holds other things, too; run "
            f"`chmod 700 {path}`, or name one that is for Evertick alone"
        )
    path.chmod(_MODE)
    return f"the directory {path} was open to others (mode {wide:04o}); it has mode 0700 now"


def wrong_with(path: Path) -> str | None:
    """Why a directory that is there can be nobody's own, whoever asks; in words."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if not stat.S_ISDIR(mode):
        return f"{path} is no directory; name one, or take it away"
    if mode & (stat.S_IWOTH | stat.S_ISVTX):
        return (
            f"the directory {path} is for everybody (mode {stat.S_IMODE(mode):04o}); run "
            f"`mkdir -m 700 {path / 'evertick'}`, and name that"
        )
    return None


def _holds_ours_alone(path: Path) -> bool:
    with os.scandir(path) as entries:
        return all(_OWN.fullmatch(entry.name) for entry in entries)
