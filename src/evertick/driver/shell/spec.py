"""A shell job: its command, how it is started and judged, as which user, and the variables of its run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from evertick.driver.base import Driver
from evertick.driver.secret import Secret, check_secret
from evertick.driver.spec import DriverParts, Spec
from evertick.driver.spec_errors import Faults
from evertick.errors import InvalidSetting, JobFailed
from evertick.job.context import Context, record_of
from evertick.text.byte_size import size_bytes
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import MINUTE, moment_text

if TYPE_CHECKING:
    from pwd import struct_passwd

__all__ = [
    "RUN_VARIABLES",
    "Account",
    "Shell",
    "account_to_become",
    "at_home",
    "is_at_home",
    "is_user",
    "run_variables",
]

# Of one argument or variable the kernel takes 128 KiB.
TEXT_MAX_BYTES = 100 * 1024
_WORDS_MAX = 1_000
_VARIABLES_MAX = 500
_STDIN_MAX_BYTES = 1024 * 1024
_KILL_AFTER_MOST = 5 * MINUTE
# Less than that, and hardly a program starts.
_MEMORY_LEAST = 16 * 1024 * 1024
_CODE_MOST = 255
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
_OURS = "EVERTICK_"
# All that `run_variables` sets.
RUN_VARIABLES = tuple(
    f"{_OURS}{name}"
    for name in ("APP", "TASK", "RUN_ID", "IDEMPOTENCY_KEY", "FIRE_AT", "ATTEMPT", "FENCE", "ARGS", "SCHEDULE")
)


class Shell(Spec, frozen=True):
    """Runs a command: `Shell("backup.sh --all")`, or `Shell(["backup", "--all"])` without a shell in between.

    command: text for the shell, or the program with its arguments. shell: what runs the text: its path, which gets
    `-c`, or the path with the arguments that come before the text, like `["/bin/bash", "-euo", "pipefail", "-c"]`.
    cwd: the folder it runs in, `~/…` in the home of its user; default the node's, for another user that user's home.
    env: variables; a `Secret` as a value is looked up in the run. clean_env: without those of the node.
    user: the name or number of the user it runs as; other users than the node's need root.
    stdin: the text that it reads; default none. success_codes, skip_codes, retry_codes: what its exit code means.
    kill_after: how long after TERM the KILL comes when a run is stopped.
    memory_limit: how much address space each of its processes may have, e.g. "512MiB". nice: 1 to 19 to stand back.
    """

    driver: ClassVar[str] = "shell"
    short: ClassVar[str | None] = "command"

    command: str | Sequence[str]
    shell: str | Sequence[str] = "/bin/sh"
    cwd: str | None = None
    env: Mapping[str, str | Secret] = msgspec.field(default_factory=dict)
    clean_env: bool = False
    user: str | int | None = None
    stdin: str | Secret | None = None
    success_codes: Sequence[int] = (0,)
    skip_codes: Sequence[int] = ()
    retry_codes: Sequence[int] = ()
    kill_after: str | int | float = "10s"
    memory_limit: str | int | None = None
    nice: int = 0

    def check(self, task: str) -> None:
        what = f"task {task!r}: shell"
        if os.name == "nt":
            raise InvalidSetting(f"{what}: shell jobs need a POSIX system; run this node on one")
        faults = Faults()
        with faults.of("command"):
            _check_command(self.command, f"{what}: command")
        with faults.of("shell"):
            _check_command(self.shell, f"{what}: shell")
        with faults.of("command", "shell"):
            self._check_need_of_shell(what)
        with faults.of("cwd"):
            self._check_cwd(what)
        self._check_environment(what, faults)
        with faults.of("stdin"):
            self._check_stdin(what)
        with faults.of("user"):
            self._check_user(what)
        self._check_codes(what, faults)
        with faults.of("kill_after"):
            self._check_kill_after(what)
        with faults.of("memory_limit"):
            self._check_memory(what)
        with faults.of("nice"):
            self._check_nice(what)
        faults.raise_any()

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        from evertick.driver.shell.driver import ShellDriver

        return ShellDriver(self, task, parts)

    @property
    def words(self) -> list[str]:
        """The program and its arguments, as it is started."""
        if not isinstance(self.command, str):
            return list(self.command)
        return [self.shell, "-c", self.command] if isinstance(self.shell, str) else [*self.shell, self.command]

    @property
    def kill_after_us(self) -> int:
        return duration_us(self.kill_after, what="kill_after")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else size_bytes(self.memory_limit, what="memory_limit")

    def _check_need_of_shell(self, what: str) -> None:
        if not isinstance(self.command, str) and self.shell != "/bin/sh":
            raise InvalidSetting(
                f"{what}: shell: {self.shell!r} has nothing to do with a command that is a list of words; write the "
                "command as one text, or put the shell first in the list"
            )

    def _check_cwd(self, what: str) -> None:
        if self.cwd is None:
            return
        _check_text(self.cwd, f"{what}: cwd")
        if not os.path.isabs(self.cwd) and not is_at_home(self.cwd):
            raise InvalidSetting(
                f"{what}: cwd: {self.cwd!r:.100} is not absolute; write the whole path, or '~/…' for one in the home "
                "of its user"
            )

    def _check_environment(self, what: str, faults: Faults) -> None:
        if len(self.env) > _VARIABLES_MAX:
            with faults.of("env"):
                raise InvalidSetting(f"{what}: env: {len(self.env)} variables are more than {_VARIABLES_MAX}")
            return
        for name, value in self.env.items():
            with faults.of("env"):
                _check_variable(name, value, f"{what}: env")

    def _check_stdin(self, what: str) -> None:
        if isinstance(self.stdin, Secret):
            check_secret(self.stdin.name, f"{what}: stdin")
        elif self.stdin is not None and _size(self.stdin, f"{what}: stdin") > _STDIN_MAX_BYTES:
            raise InvalidSetting(f"{what}: stdin: it has more than {_STDIN_MAX_BYTES} bytes; put it into a file")

    def _check_user(self, what: str) -> None:
        if isinstance(self.user, str):
            _check_text(self.user, f"{what}: user")
        elif self.user is not None and not 0 <= self.user < 2**32 - 1:
            raise InvalidSetting(
                f"{what}: user: {self.user!r} is no number of a user; write its name, or a number from 0 on"
            )

    def _check_codes(self, what: str, faults: Faults) -> None:
        meanings: dict[int, str] = {}
        for field in ("success_codes", "skip_codes", "retry_codes"):
            for code in getattr(self, field):
                with faults.of(field):
                    if not 0 <= code <= _CODE_MOST:
                        raise InvalidSetting(f"{what}: {field}: {code} is no exit code; they go from 0 to {_CODE_MOST}")
                other = meanings.setdefault(code, field)
                with faults.of(field, other):
                    if other != field:
                        raise InvalidSetting(
                            f"{what}: {field}: {code} is in {other}, too; an exit code has one meaning"
                        )

    def _check_kill_after(self, what: str) -> None:
        if duration_us(self.kill_after, what=f"{what}: kill_after") > _KILL_AFTER_MOST:
            most = duration_text(_KILL_AFTER_MOST)
            raise InvalidSetting(f"{what}: kill_after: {self.kill_after!r} is more than {most}; write less")

    def _check_memory(self, what: str) -> None:
        if self.memory_limit is None:
            return
        if size_bytes(self.memory_limit, what=f"{what}: memory_limit") < _MEMORY_LEAST:
            raise InvalidSetting(
                f"{what}: memory_limit: {self.memory_limit!r} is less than 16MiB, in which hardly a program starts; "
                "write more"
            )

    def _check_nice(self, what: str) -> None:
        if not -20 <= self.nice <= 19:
            raise InvalidSetting(f"{what}: nice: {self.nice} must be from -20 to 19; 19 stands back the most")


def is_at_home(path: str) -> bool:
    """Whether it begins in the home of the user: that of the command, not of the node."""
    return path == "~" or path.startswith("~/")


def at_home(path: str, home: str) -> str:
    return home + path[1:] if is_at_home(path) else path


def _check_variable(name: str, value: str | Secret, what: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise InvalidSetting(
            f"{what}: {name!r:.100} is no name of a variable; use letters, digits and '_', no digit first"
        )
    if name.startswith(_OURS):
        raise InvalidSetting(f"{what}: {name!r}: names with {_OURS!r} are set by Evertick; use another")
    if isinstance(value, Secret):
        check_secret(value.name, f"{what}: {name}")
    else:
        _check_text(value, f"{what}: {name}", may_be_empty=True)


def _check_command(command: str | Sequence[str], what: str) -> None:
    if isinstance(command, str):
        _check_text(command, what)
        return
    if not 1 <= len(command) <= _WORDS_MAX:
        raise InvalidSetting(f"{what}: a list of {len(command)} words; it must have 1 to {_WORDS_MAX}")
    for number, word in enumerate(command):
        _check_text(word, what, may_be_empty=number > 0)


def _check_text(text: Any, what: str, *, may_be_empty: bool = False) -> None:
    if not may_be_empty and not text.strip():
        raise InvalidSetting(f"{what}: {text!r:.20} is empty; write something, or leave it out")
    if "\0" in text:
        raise InvalidSetting(f"{what}: it holds a zero character, which no command can be given; leave it out")
    if _size(text, what) > TEXT_MAX_BYTES:
        raise InvalidSetting(f"{what}: it has more than {TEXT_MAX_BYTES} bytes; put it into a file")


def _size(text: str, what: str) -> int:
    """In bytes, as programs get it: names of files that are no UTF-8 stay what they are."""
    try:
        return len(text.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidSetting(f"{what}: {text!r:.60} holds half a character; write it anew") from None


# --- the user


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the machine that a command runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def folder(self) -> str:
        """Where its commands start. Users of services often have a home that does not exist."""
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


def _entry_of(user: str | int) -> struct_passwd:
    import pwd  # POSIX only, like the jobs; specifications are read everywhere

    return pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)


# --- the variables of a run


def run_variables(context: Context, app: str) -> dict[str, str]:
    """The variables of one attempt. A run that belongs to no schedule has no EVERTICK_SCHEDULE."""
    variables = {
        "EVERTICK_APP": app,
        "EVERTICK_TASK": context.task,
        "EVERTICK_RUN_ID": context.run_id,
        "EVERTICK_IDEMPOTENCY_KEY": context.run_id,
        "EVERTICK_FIRE_AT": moment_text(record_of(context).run.fire_at),
        "EVERTICK_ATTEMPT": str(context.attempt),
        "EVERTICK_FENCE": str(context.fence),
        "EVERTICK_ARGS": record_of(context).run.args.decode(),
    }
    if context.schedule_key is not None:
        variables["EVERTICK_SCHEDULE"] = context.schedule_key
    return variables
