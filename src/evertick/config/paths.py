"""The files and directories of a configuration: where they are, and whether they are private, readable and writable.

The state directory (database, pidfile) and that of secrets are for one user alone. A missing directory is made with
mode 0700. A wider mode is changed to 0700, with a warning, if the directory belongs to this user and has only files of
Evertick. With other files it is a warning if others can read it, an error if they can write to it. A directory that is
only read may belong to root and be open to a group: the service is in that group, and cannot change its own jobs.

A path that cannot exist is an error. A missing permission of this user, or a directory that systemd makes for its unit,
is a warning.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from evertick.config.layer import Value
from evertick.config.problem import Problems, fix_for
from evertick.errors import Refused
from evertick.text.regular_file import open_regular

__all__ = ["check_files", "check_writable_paths", "default_state", "folder_problem", "make_private"]

_MODE = 0o700
_ROOT = 0
_SYSTEM = Path("/var/lib/evertick")
# Files of Evertick in its directories: the database with its log, the report of a daemon, a pidfile, the configuration
# and the files beside it.
_OWN = re.compile(r"evertick\..*|daemon[.-].*json.*|jobs\.d|conf\.d|secrets")


def default_state(environ: Mapping[str, str]) -> Path:
    """The default state directory: that of systemd, else the usual place of this user."""
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.partition(":")[0])
    if os.geteuid() == 0:
        return _SYSTEM
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return Path(home) / "evertick"


def make_private(path: Path, *, is_only_read: bool = False) -> str | None:
    """Make the directory only for this user. Returns a warning if its mode was, or should be, changed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=_MODE, exist_ok=True)
        found = _Found.at(path)
    except OSError as error:
        raise Refused(f"the directory {path} cannot be made: {error.strerror}; make it, or name another") from None
    if found.is_closed(is_only_read):
        return None
    if (problem := directory_problem(path)) is not None:
        raise Refused(problem)
    if not found.is_ours:
        fix = f"run `chown {os.geteuid()} {path}` and `chmod 700 {path}`"
        if is_only_read and found.owner == _ROOT:
            fix = f"run `chgrp {os.getegid()} {path}` and `chmod 750 {path}`"
        raise Refused(f"{found.of_another()}; {fix}, or name another")
    if not _holds_ours_alone(path):
        return found.shared()
    path.chmod(_MODE)
    return f"the directory {path} was open to others (mode {found.mode:04o}); it has mode 0700 now"


def directory_warning(path: Path, *, is_only_read: bool = False) -> str | None:
    """A warning of what `make_private` would reject or change, besides `directory_problem`. Changes nothing.

    The daemon may run as another user than this one, so the fix must hold for both.
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
    """An existing directory."""

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
        """Whether only its owner has access. A directory of root that is only read may be readable for its group."""
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


def directory_problem(path: Path) -> str | None:
    """Why an existing directory cannot be private."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if not stat.S_ISDIR(mode):
        return f"{path} is not a directory; name one, or remove this key"
    if mode & (stat.S_IWOTH | stat.S_ISVTX):
        return (
            f"the directory {path} is open to all users (mode {stat.S_IMODE(mode):04o}); run "
            f"`mkdir -m 700 {path / 'evertick'}`, and name that"
        )
    return None


def _holds_ours_alone(path: Path) -> bool:
    with os.scandir(path) as entries:
        return all(_OWN.fullmatch(entry.name) for entry in entries)


_AUTHORITIES = ("http.ca", "database.ssl.ca", "redis.ssl.ca", "nats.ssl.ca")
_FILES = (
    *_AUTHORITIES,
    *(f"{section}.ssl.{name}" for section in ("database", "redis", "nats") for name in ("cert", "key")),
    "nats.credentials",
)


def folder_problem(path: Path) -> str | None:
    """Why a folder cannot be read: a pattern would only match nothing in it."""
    try:
        with os.scandir(path):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is not a directory; make it, or remove this key"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; {fix_for(error)}"


def check_files(values: Mapping[str, Value], problems: Problems, *, only: Sequence[str] | None = None) -> None:
    """Reject files that would fail at the first connection. `only`: the sections to check."""
    for key in _FILES:
        if only is not None and key.partition(".")[0] not in only:
            continue
        value, url = values[key], values.get(f"{key.partition('.')[0]}.url")
        if url is not None and url.origin.rank > value.origin.rank:
            continue  # it belongs to a server that a stronger layer replaces
        if value.is_set and (problem := _wrong_with(value.value, is_authority=key in _AUTHORITIES)):
            problems.add(value.origin.place, key, problem)


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


def check_writable_paths(values: Mapping[str, Value], state: Path, problems: Problems, warnings: Problems) -> None:
    """`state`: the state directory, after all defaults."""
    # The daemon has its directories there before it writes anything else. That of the configuration, if it is there
    # already, may be one that it only reads.
    config = values["directories.config"].value
    own = (state,) if config is None or os.path.exists(config) else (state, config)
    for key in ("log.file", "daemon.pidfile"):
        if (value := values[key]).is_set:
            _check_file(value, problems, Problems() if value.value.parent in own else warnings)
    for key in ("directories.state", "directories.config"):
        if (value := values[key]).is_set:
            _check_directory(value, problems, warnings)


def _check_file(value: Value, problems: Problems, warnings: Problems) -> None:
    path: Path = value.value
    folder, there = path.parent, _nearest_there(path.parent)
    # Not by the methods of a path, which raise in a directory that is closed to this user.
    if os.path.isdir(path):
        problems.add(value.origin.place, value.key, f"{path} is a directory; name a file")
    elif not os.path.isdir(there):
        problems.add(value.origin.place, value.key, f"{path} cannot be made, since {there} is a file; name another")
    elif there != folder and not os.access(there, os.X_OK):
        problem = (
            f"this user may not look into {there}, where {folder} may be; that of the daemon must, and write to it"
        )
        warnings.add(value.origin.place, value.key, f"{problem}; check it as that user, or name another")
    elif there != folder:
        problem = f"there is no directory {folder}; run `mkdir -p {folder}` before the daemon starts"
        warnings.add(value.origin.place, value.key, problem)
    elif not os.access(path if os.path.exists(path) and value.key == "log.file" else folder, os.W_OK):
        problem = f"this user may not write to {folder}, and that of the daemon must; give it to him, or name another"
        warnings.add(value.origin.place, value.key, problem)


def _check_directory(value: Value, problems: Problems, warnings: Problems) -> None:
    path: Path = value.value
    there, is_only_read = _nearest_there(path), value.key == "directories.config"
    if not os.path.isdir(there):
        problems.add(value.origin.place, value.key, f"{path} cannot be made, since {there} is a file; name another")
    elif (problem := directory_problem(path)) is not None:
        problems.add(value.origin.place, value.key, problem)
    elif (problem := directory_warning(path, is_only_read=is_only_read)) is not None:
        warnings.add(value.origin.place, value.key, problem)
    elif not os.access(there, os.R_OK | os.X_OK if is_only_read and there == path else os.W_OK):
        what = "read" if is_only_read and there == path else "write to"
        fix = f"make {path} for him, or name another" if there != path else "give it to him, or name another"
        problem = f"this user may not {what} {there}, and that of the daemon must; {fix}"
        warnings.add(value.origin.place, value.key, problem)


def _nearest_there(path: Path) -> Path:
    """The path, or the part of it that exists."""
    return next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
