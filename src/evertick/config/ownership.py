"""Which users can change the files of a configuration, and so its commands: the rules of cron, ssh and sudo.

A file must belong to root or to the user of this process, and neither its group nor others may write to it. The same
holds for its folder and for each folder above, up to the home of that user or to the root of the file system, as sshd
does (StrictModes). Others may write to a folder with the sticky bit, like /tmp, and to one on a read-only file system,
such as ConfigMaps of Kubernetes with mode 0777. For a symbolic link the owner, its folders and its target are checked.

For root a violation is an error. For other users it is a warning, and write access of the user's private group (umask
002) is accepted. EVERTICK_TRUST_CONFIG=1 turns the check off.

The path is opened folder by folder, and the open descriptors are checked, so that nothing can be replaced between the
check and the reading.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from evertick.text.regular_file import open_regular

__all__ = ["TRUST_VARIABLE", "distrusted_file", "distrusted_folder", "is_refused", "open_owned"]

TRUST_VARIABLE = "EVERTICK_TRUST_CONFIG"
_ROOT = 0
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# The limit of the kernel.
_LINKS_MAX = 40
# O_PATH needs only search permission.
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Distrusted(msgspec.Struct, frozen=True):
    """A file, folder or link that another user can change."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def is_trusted(environ: Mapping[str, str]) -> bool:
    return environ.get(TRUST_VARIABLE) == "1"


def is_refused() -> bool:
    """Whether violations are errors: for root, since others could make it run any command."""
    return os.geteuid() == _ROOT


def open_owned(path: Path, environ: Mapping[str, str]) -> tuple[int, list[Distrusted]]:
    """Open the file; returns its descriptor and the violations. Raises OSError, as `open_regular` does."""
    if is_trusted(environ):
        return open_regular(path), []
    walk = _Walk()
    try:
        opened = walk.to_file(path)
    finally:
        walk.close()
    return opened, walk.distrusted()


def distrusted_file(path: Path, environ: Mapping[str, str]) -> list[Distrusted]:
    """The violations of a file that is not read now."""
    try:
        opened, found = open_owned(path, environ)
    except OSError:
        return []
    os.close(opened)
    return found


def distrusted_folder(path: Path, environ: Mapping[str, str]) -> list[Distrusted]:
    """The violations of a folder for imports. The sticky bit is not enough: a new file may be imported."""
    if is_trusted(environ):
        return []
    walk = _Walk()
    try:
        walk.to_folder(path)
    except OSError:
        return []
    finally:
        walk.close()
    return walk.distrusted()


class _Folder(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    descriptor: int


class _Walk:
    """Opens a path folder by folder, and follows its links."""

    def __init__(self) -> None:
        self._user = os.geteuid()
        self._folders: list[_Folder] = []
        self._links = 0
        self._end = "/"
        # Folders come before their content.
        self._found: dict[str, Distrusted] = {}

    def to_file(self, path: Path) -> int:
        parent, name = self._follow(path)
        opened = open_regular(name, dir_fd=parent.descriptor, follow=False)
        self._end = os.path.join(parent.path, name)
        self._check(self._end, os.fstat(opened), place=str(path), what="this file")
        return opened

    def to_folder(self, path: Path) -> None:
        self._follow(path / "x", is_end_there=False)
        last = self._folders[-1]
        self._end = last.path
        is_closed = _is_read_only(last.descriptor)
        self._check(last.path, os.fstat(last.descriptor), place=last.path, what="this folder", is_closed=is_closed)

    def distrusted(self) -> list[Distrusted]:
        """The violations, nearest to the file first. As in sshd, folders above the home are not checked."""
        home = _home_of(self._user)
        above = {*map(str, Path(home).parents)} if self._end.startswith(f"{home}/") else set()
        return [each for path, each in reversed(self._found.items()) if path not in above]

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop().descriptor)

    def _follow(self, path: Path, *, is_end_there: bool = True) -> tuple[_Folder, str]:
        """The folder and the name at the end of the path, with links resolved."""
        left = deque(_parts(os.path.join(os.getcwd(), path)))
        self._enter("/")
        while left:
            name, here = left.popleft(), self._folders[-1]
            if name == "..":
                if len(self._folders) > 1:
                    os.close(self._folders.pop().descriptor)
                continue
            if not left and not is_end_there:
                return here, name
            found = os.stat(name, dir_fd=here.descriptor, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                left.extendleft(reversed(self._target(here, name, found)))
            elif left:
                self._enter(name)
            else:
                return here, name
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def _enter(self, name: str) -> None:
        before = self._folders[-1] if self._folders else None
        path = name if before is None else os.path.join(before.path, name)
        opened = os.open(name, _LOOK, dir_fd=None if before is None else before.descriptor)
        self._folders.append(_Folder(path=path, descriptor=opened))
        found = os.fstat(opened)
        is_closed = bool(found.st_mode & stat.S_ISVTX) or _is_read_only(opened)
        self._check(path, found, place=path, what="what is in this folder", is_closed=is_closed)

    def _target(self, here: _Folder, name: str, found: os.stat_result) -> list[str]:
        """The parts of the target of a link."""
        self._links += 1
        if self._links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        path = os.path.join(here.path, name)
        self._check(path, found, place=path, what="this link")
        target = os.readlink(name, dir_fd=here.descriptor)
        if target.startswith("/"):
            while len(self._folders) > 1:
                os.close(self._folders.pop().descriptor)
        return _parts(target)

    def _check(self, path: str, found: os.stat_result, *, place: str, what: str, is_closed: bool = False) -> None:
        """`is_closed`: other users cannot replace entries of this folder, even if its mode allows it."""
        who = [] if found.st_uid in (_ROOT, self._user) else [f"its owner, {_user_words(found.st_uid)},"]
        # The mode of a link is always 0777 and has no effect.
        mode = 0 if is_closed or stat.S_ISLNK(found.st_mode) else found.st_mode
        if mode & stat.S_IWGRP and not _is_private_group(found.st_gid, self._user):
            who.append(f"group {_group_name(found.st_gid)}")
        if mode & stat.S_IWOTH:
            who.append("every user")
        if not who:
            return
        me, quoted = _user_name(self._user), shlex.quote(path)
        chown = "chown -h" if what == "this link" else "chown"
        fixes = [f"`{chown} {me} {quoted}`"] if found.st_uid not in (_ROOT, self._user) else []
        fixes += [f"`chmod go-w {quoted}`"] if mode & _OTHERS else []
        problem = (
            f"{' and '.join(who)} can change {what}, and so decide what {me} runs (owner {_user_name(found.st_uid)}, "
            f"group {_group_name(found.st_gid)}, mode {stat.S_IMODE(found.st_mode):04o}); run {' and '.join(fixes)}, "
            f"or set {TRUST_VARIABLE}=1 to accept it"
        )
        self._found[path] = Distrusted(place, problem)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _is_read_only(descriptor: int) -> bool:
    """Whether the file system is mounted read-only, so that its modes give no right to write."""
    return bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY)


def _home_of(user: int) -> str:
    """From the user database, since sudo may leave the environment of another user."""
    with suppress(KeyError):
        return os.path.realpath(pwd.getpwuid(user).pw_dir)
    return "/"


def _is_private_group(group: int, user: int) -> bool:
    """Whether it is the group that has the name of this user, and no other member. Root has none."""
    try:
        me, its = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    if user == _ROOT or me.pw_gid != group or its.gr_name != me.pw_name or {*its.gr_mem} - {me.pw_name}:
        return False
    return not any(each.pw_gid == group and each.pw_uid != user for each in pwd.getpwall())


def _user_name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def _user_words(user: int) -> str:
    name = _user_name(user)
    return f"user {name}" if name == str(user) else f"user {name} ({user})"


def _group_name(group: int) -> str:
    with suppress(KeyError):
        return grp.getgrgid(group).gr_name
    return str(group)
