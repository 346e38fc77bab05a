"""Where the file of a configuration is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FILE_NAME", "find_file", "searched_files"]

FILE_NAME = "evertick.toml"
_SYSTEM = Path("/etc/evertick")


def find_file(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that was named, else the first that is there: ./, the user's, the system's."""
    if path is not None:
        return Path(path)
    return next((each for each in _candidates(environ) if _is_there(each)), None)


def searched_files(environ: Mapping[str, str] = os.environ) -> str:
    """Where a file is looked for, in words."""
    return ", ".join(str(each) for each in _candidates(environ))


def _is_there(path: Path) -> bool:
    """Whether it is a file. In a directory that is closed to this user there may be one.

    That of the system counts as being there, so that reading it says what is in the way. A home that is closed is that
    of somebody else, as `su` and the like leave it in the environment.
    """
    try:
        return path.is_file()
    except PermissionError:
        return path.parent == _SYSTEM


def _candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(FILE_NAME), Path(home) / "evertick" / FILE_NAME, _SYSTEM / FILE_NAME
