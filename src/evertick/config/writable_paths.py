"""Files and directories that the configuration names, and the daemon makes or writes: whether it can.

What can be nowhere is refused. What only this user may not do now, or what somebody else makes before the daemon starts
(systemd makes the directories of its unit), is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from evertick.config.directory import foreseen, wrong_with
from evertick.config.layer import Value
from evertick.config.problem import Problems

__all__ = ["check_places"]


def check_places(values: Mapping[str, Value], state: Path, problems: Problems, warnings: Problems) -> None:
    """`state`: the state directory, as it is after all defaults."""
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
        said = f"this user may not look into {there}, where {folder} may be; that of the daemon must, and write to it"
        warnings.add(value.origin.place, value.key, f"{said}; check it as that user, or name another")
    elif there != folder:
        said = f"there is no directory {folder}; run `mkdir -p {folder}` before the daemon starts"
        warnings.add(value.origin.place, value.key, said)
    elif not os.access(path if os.path.exists(path) and value.key == "log.file" else folder, os.W_OK):
        said = f"this user may not write to {folder}, and that of the daemon must; give it to him, or name another"
        warnings.add(value.origin.place, value.key, said)


def _check_directory(value: Value, problems: Problems, warnings: Problems) -> None:
    path: Path = value.value
    there, is_only_read = _nearest_there(path), value.key == "directories.config"
    if not os.path.isdir(there):
        problems.add(value.origin.place, value.key, f"{path} cannot be made, since {there} is a file; name another")
    elif (said := wrong_with(path)) is not None:
        problems.add(value.origin.place, value.key, said)
    elif (said := foreseen(path, is_only_read=is_only_read)) is not None:
        warnings.add(value.origin.place, value.key, said)
    elif not os.access(there, os.R_OK | os.X_OK if is_only_read and there == path else os.W_OK):
        what = "read" if is_only_read and there == path else "write to"
        fix = f"make {path} for him, or name another" if there != path else "give it to him, or name another"
        said = f"this user may not {what} {there}, and that of the daemon must; {fix}"
        warnings.add(value.origin.place, value.key, said)


def _nearest_there(path: Path) -> Path:
    """It, or what there is of the way to it."""
    return next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
