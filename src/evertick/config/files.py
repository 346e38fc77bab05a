"""The files of a configuration: where the first one is, and what it includes.

`include = ["conf.d/*.toml"]` stands at the top of a file. A pattern counts from the folder of its file; what it matches
is read by name. A file that was named plainly must be there, a pattern may match nothing. No order counts: a key that
two files set is refused.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from evertick.config.problem import Problems, toml_words
from evertick.config.toml import Document, read_document

__all__ = [
    "DEPTH_MAX",
    "FILES_MAX",
    "FILE_NAME",
    "INCLUDE",
    "Pattern",
    "find_file",
    "ignored_files",
    "patterns_of",
    "read_all",
    "read_folder",
    "searched_files",
    "warnings_in",
]

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

    That of the system counts as being there, so that reading it gives the reason. A closed home is that of another
    user, as `su` leaves it in the environment.
    """
    try:
        return path.is_file()
    except PermissionError:
        return path.parent == _SYSTEM


def _candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(FILE_NAME), Path(home) / "evertick" / FILE_NAME, _SYSTEM / FILE_NAME


INCLUDE = "include"
DEPTH_MAX = 8
FILES_MAX = 1_000
_MAGIC = "*?["
# Read, or out of the way on purpose.
_LEFT_OUT = re.compile(
    r"(?i)^\.|~$|\.(toml|bak|old|orig|save|swp|tmp|new|off|disabled|example|sample|md|txt|dpkg-\w+|rpm\w+)$"
)
_PASSED_OVER_MOST = 10


class ReadFile(Protocol):
    """How a file is read: `read_document`, or what answers more of one that is wrong."""

    def __call__(
        self, path: Path, problems: Problems, *, named_at: str = "", environ: Mapping[str, str]
    ) -> Document | None: ...


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are read if they are there."""

    folder: Path
    text: str

    def matched(self) -> list[Path]:
        """What is there, by name. A name without a pattern is answered whether it is there or not."""
        if not any(letter in self.text for letter in _MAGIC):
            return [self.folder / self.text]
        return sorted(self.folder / each for each in glob.glob(self.text, root_dir=self.folder, recursive=True))


def patterns_of(document: Document) -> list[Pattern]:
    """What a file includes."""
    given = document.data.get(INCLUDE, [])
    return [Pattern(folder=document.path.parent, text=each) for each in given] if _are_paths(given) else []


def read_all(
    path: Path, problems: Problems, read: ReadFile = read_document, *, environ: Mapping[str, str]
) -> list[Document]:
    """The file and all it includes."""
    found: list[Document] = []
    _read(path, "", (), found, problems, partial(read, environ=environ))
    return found


def read_folder(
    folder: Path, read: list[Document], problems: Problems, *, environ: Mapping[str, str]
) -> list[Document]:
    """What a folder holds, by name; those that were read already stay read once."""
    known = {each.path.resolve() for each in read}
    names = [each for each in Pattern(folder=folder, text="*.toml").matched() if each.resolve() not in known]
    if len(read) + len(names) > FILES_MAX:
        problems.add(str(folder), "", f"these are more than {FILES_MAX} files; join some of them")
        return []
    found = (read_document(name, problems, environ=environ) for name in names)
    return [document for document in found if document is not None]


def warnings_in(documents: Iterable[Document]) -> tuple[str, ...]:
    """Which other users can change the files; a folder is reported once."""
    return tuple(dict.fromkeys(each for document in documents for each in document.warnings))


def ignored_files(folder: Path) -> list[Path]:
    """Files in a folder of jobs that look as if they were meant to be read; not what editors and packagers leave."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file() and not _LEFT_OUT.search(entry.name))
    except OSError:
        return []
    return [folder / name for name in names[:_PASSED_OVER_MOST]]


def _read(
    path: Path,
    named_at: str,
    above: tuple[Path, ...],
    found: list[Document],
    problems: Problems,
    read: Callable[..., Document | None],
) -> None:
    real = path.resolve()
    if real in above:
        chain = " -> ".join(each.name for each in (*above[above.index(real) :], real))
        problems.add(named_at, INCLUDE, f"{path} includes itself ({chain}); take one of these includes away")
        return
    if any(each.path.resolve() == real for each in found):
        return  # two patterns may match the same file
    if len(found) >= FILES_MAX:
        problems.add(named_at, INCLUDE, f"these are more than {FILES_MAX} files; join some of them")
        return
    document = read(path, problems, named_at=named_at)
    if document is None:
        return
    found.append(document)
    for place, pattern in _patterns(document, problems):
        if len(above) + 1 >= DEPTH_MAX:
            problems.add(place, INCLUDE, f"files include each other {DEPTH_MAX} deep; include {pattern!r} further up")
            continue
        for each in Pattern(folder=path.parent, text=pattern).matched():
            _read(each, place, (*above, real), found, problems, read)


def _patterns(document: Document, problems: Problems) -> list[tuple[str, str]]:
    """Each pattern with its place."""
    given = document.data.get(INCLUDE, [])
    if not _are_paths(given):
        fix = 'write a list of paths, like include = ["conf.d/*.toml"]'
        problems.add(document.place((INCLUDE,)), INCLUDE, f"{toml_words(given):.100} is no list of paths; {fix}")
        return []
    return [(document.place((INCLUDE, number)), each) for number, each in enumerate(given)]


def _are_paths(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) and each for each in given)
