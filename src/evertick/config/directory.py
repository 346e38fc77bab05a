"""The directories of a node: where they are, and that they are for this user alone.

What a node keeps (a database, a pidfile) and reads (secrets) is nobody else's business. A directory that is missing is
made with mode 0700. A wider one is tightened, which is told, if it is ours and holds nothing but what is ours. One that
others use, too, is never touched: it is told if they can read it, and refused if they could write to it.

What is only read may be root's, and open to a group: the service is in it, and cannot change what it is told to run.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from evertick.errors import Refused

__all__ = ["default_state", "foreseen", "make_private", "wrong_with"]

_MODE = 0o700
_ROOT = 0
_SYSTEM = Path("/var/lib/evertick")
# What Evertick itself has in its directories: the database with its log, the report of a daemon, a pidfile, the
# configuration, and what stands beside it.
_OWN = re.compile(r"evertick\..*|daemon[.-].*json.*|jobs\.d|conf\.d|secrets")


def default_state(environ: Mapping[str, str]) -> Path:
    """Where state is kept if nobody says: as systemd tells it, or where this kind of user has such things."""
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.partition(":")[0])
    if os.geteuid() == 0:
        return _SYSTEM
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return Path(home) / "evertick"


def make_private(path: Path, *, is_only_read: bool = False) -> str | None:
    """Have the directory there, for this user alone; answers what was to be mended, in words."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=_MODE, exist_ok=True)
        found = _Found.at(path)
    except OSError as error:
        raise Refused(f"the directory {path} cannot be made: {error.strerror}; make it, or name another") from None
    if found.is_closed(is_only_read):
        return None
    if (said := wrong_with(path)) is not None:
        raise Refused(said)
    if not found.is_ours:
        fix = f"run `chown {os.geteuid()} {path}` and `chmod 700 {path}`"
        if is_only_read and found.owner == _ROOT:
            fix = f"run `chgrp {os.getegid()} {path}` and `chmod 750 {path}`"
        raise Refused(f"{found.of_another()}; {fix}, or name another")
    if not _holds_ours_alone(path):
        return found.shared()
    path.chmod(_MODE)
    return f"the directory {path} was open to others (mode {found.mode:04o}); it has mode 0700 now"


def foreseen(path: Path, *, is_only_read: bool = False) -> str | None:
    """What `make_private` would refuse or mend, in words; nothing is changed, and `wrong_with` is not told again.

    Who asks may be another than the user of the daemon, so that nothing is advised that holds for one of them alone.
    """
    try:
        found = _Found.at(path)
        if found.is_closed(is_only_read):
            return None
        if not found.is_ours:
            fix = f"give it to the user of the daemon, and run `chmod 700 {path}`"
            if is_only_read and found.owner == _ROOT:
                fix = f"give it to the group of the daemon, and run `chmod 750 {path}`"
            return f"{found.of_another()}, so that a daemon of this user would not start; {fix}"
        if not _holds_ours_alone(path):
            return found.shared()
    except OSError:
        return None
    return f"the directory {path} is open to others (mode {found.mode:04o}); a daemon of this user gives it mode 0700"


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A directory as it is there."""

    path: Path
    owner: int
    mode: int

    @classmethod
    def at(cls, path: Path) -> _Found:
        found = path.stat()
        return cls(path=path, owner=found.st_uid, mode=stat.S_IMODE(found.st_mode))

    @property
    def is_ours(self) -> bool:
        return self.owner == os.geteuid()

    def is_closed(self, is_only_read: bool) -> bool:
        """To everybody but its owner; or, of root's that are only read, to everybody but a group that reads."""
        is_for_group = is_only_read and self.owner == _ROOT
        return not self.mode & (0o1027 if is_for_group else 0o077)

    def of_another(self) -> str:
        return (
            f"the directory {self.path} belongs to another user ({self.owner}), and is open to others "
            f"(mode {self.mode:04o})"
        )

    def shared(self) -> str:
        what = "write to" if self.mode & 0o022 else "read"
        return (
            f"others may {what} the directory {self.path} (mode {self.mode:04o}), which holds other things, too; run "
            f"`chmod 700 {self.path}`, or name one that is for Evertick alone"
        )


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
