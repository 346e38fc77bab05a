"""Users of the machine: as whom a command runs, and whether this node may run it so."""

from __future__ import annotations

import os
import pwd

import msgspec

from evertick.errors import JobFailed

__all__ = ["Account", "account_to_become", "is_user"]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def folder(self) -> str:
        """Where its commands begin. Users of services often have a home that is not there."""
        return self.home if os.path.isdir(self.home) else "/"


def account_to_become(user: str | int) -> Account | None:
    """The account of the user; None if this node is that user already. Raises `JobFailed` where it cannot be."""
    try:
        found = _entry_of(user)
    except (KeyError, ValueError, OverflowError):
        raise JobFailed(f"user: there is no user {user!r} on this machine; make it, or name another") from None
    if found.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise JobFailed(
            f"user: only root may run commands as {found.pw_name!r}, and this node runs as user {os.geteuid()}; start "
            "the node as root, or leave user out"
        )
    return Account(
        name=found.pw_name,
        uid=found.pw_uid,
        gid=found.pw_gid,
        groups=tuple(os.getgrouplist(found.pw_name, found.pw_gid)),
        home=found.pw_dir,
    )


def is_user(user: str | int) -> bool:
    """Whether this machine has a user of that name or number."""
    try:
        _entry_of(user)
    except (KeyError, ValueError, OverflowError):
        return False
    return True


def _entry_of(user: str | int) -> pwd.struct_passwd:
    return pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)
