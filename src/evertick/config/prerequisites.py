"""What a job needs and would not find here, as far as that shows without running anything or asking the network.

The machine that checks a file may be another than the one that runs it, so none of this is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from urllib.parse import urlsplit

from evertick.config.section import Http as HttpSection
from evertick.driver.http.address import allowed_of, is_own_name, literal_of, permitted
from evertick.driver.http.spec import Http, method_of
from evertick.driver.shell.spec import Shell, at_home, is_at_home
from evertick.driver.spec import Spec
from evertick.errors import JobFailed, Refused
from evertick.text.did_you_mean import alike

__all__ = ["Needs"]

# Others are sent as they are: who writes PURGE has a cache in front of him.
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE", "QUERY", "REPORT", "PROPFIND", "MKCOL")
_LOOPBACK = "127.0.0.1"


class Needs:
    """Looks once for each user and path, of which thousands of jobs share a few."""

    def __init__(self, http: HttpSection) -> None:
        self._allowed = allowed_of(http.allow, "http.allow", is_private=http.allow_private)
        self._is_user = cache(_is_user)
        self._is_missing = cache(_is_missing)
        self._may_become = cache(_may_become)

    def unmet(self, spec: Spec) -> Iterator[tuple[str, str]]:
        """By the field of the specification, what it does not find, and what to do."""
        match spec:
            case Shell():
                yield from self._unmet_by_command(spec)
            case Http():
                yield from self._unmet_by_request(spec)

    def _unmet_by_command(self, spec: Shell) -> Iterator[tuple[str, str]]:
        if spec.user is not None and not self._is_user(spec.user):
            yield "user", f"there is no user {spec.user!r} on this machine; make it, or name another"
        elif spec.user is not None and not self._may_become(spec.user):
            yield (
                "user",
                f"only a daemon of root may run commands as {spec.user!r}; start it as root, or take this away",
            )
        folder = _folder(spec)
        if folder is not None and self._is_missing(folder, is_folder=True):
            yield "cwd", f"there is no directory {folder} on this machine; make it, or correct the path"
        field = "shell" if isinstance(spec.command, str) else "command"
        program = spec.words[0]
        is_missing = os.path.isabs(program) and self._is_missing(program, is_folder=False)
        if _is_line(spec.command) and (is_missing or not os.path.isabs(program)):
            yield (
                field,
                f"a list is a program and its arguments, so this is a program that is called {program!r:.100}; write "
                "the line as one text, without brackets, or each word in quotes of its own",
            )
        # A name without a path is looked for by the PATH of the run.
        elif is_missing:
            yield field, f"there is no program {program} on this machine; install it, or correct the path"

    def _unmet_by_request(self, spec: Http) -> Iterator[tuple[str, str]]:
        method = method_of(spec)
        if method not in _METHODS and (meant := alike(method, _METHODS)) is not None:
            yield "method", f"{method!r} is no method that servers commonly know; write {meant!r}, if that is meant"
        host = (urlsplit(spec.url).hostname or "") if isinstance(spec.url, str) else ""
        address = _LOOPBACK if is_own_name(host) else literal_of(host)
        if address is None:
            return
        try:
            permitted(host, [address], self._allowed | allowed_of(spec.allow, "allow"))
        except Refused as refused:
            yield "url", str(refused)


def _folder(spec: Shell) -> str | None:
    """Where it begins, if that is known here: the home of another user is looked for by the run."""
    if spec.cwd is None or (is_at_home(spec.cwd) and spec.user is not None):
        return None
    return at_home(spec.cwd, os.path.expanduser("~"))


def _is_line(command: str | Sequence[str]) -> bool:
    """Whether a list holds what looks like a whole line: ["ls -la"]."""
    return not isinstance(command, str) and len(command) == 1 and len(command[0].split()) > 1


def _is_user(user: str | int) -> bool:
    # Not on every system; but shell jobs are refused where it is not.
    from evertick.driver.shell.spec import is_user

    return is_user(user)


def _may_become(user: str | int) -> bool:
    """Whether a node of this user may run commands as that one."""
    from evertick.driver.shell.spec import account_to_become

    try:
        account_to_become(user)
    except JobFailed:
        return False
    return True


def _is_missing(path: str, *, is_folder: bool) -> bool:
    """Whether it certainly is: what is in a directory that is closed to this user may be there."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return os.path.isdir(path) != is_folder
