"""The specification of a shell job, its checks, the user it runs as, and the variables of a run."""

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
from evertick.text.values import shown
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import MINUTE, moment_text

if TYPE_CHECKING:
    from pwd import struct_passwd

__all__ = [
    "RUN_VARIABLES",
    "Account",
    "Shell",
    "account_for_user",
    "expand_home",
    "is_home_path",
    "is_user",
    "run_variables",
]

# The kernel limits one argument or variable to 128 KiB.
TEXT_MAX_BYTES = 100 * 1024
_WORDS_MAX = 1_000
_VARIABLES_MAX = 500
_STDIN_MAX_BYTES = 1024 * 1024
_KILL_AFTER_MAX = 5 * MINUTE
# Few programs start with less.
_MEMORY_MIN_BYTES = 16 * 1024 * 1024
_CODE_MAX = 255
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
_RESERVED_PREFIX = "EVERTICK_"
# The variables that `run_variables` sets.
RUN_VARIABLES = tuple(
    f"{_RESERVED_PREFIX}{name}"
    for name in ("APP", "TASK", "RUN_ID", "IDEMPOTENCY_KEY", "FIRE_AT", "ATTEMPT", "FENCE", "ARGS", "SCHEDULE")
)


class Shell(Spec, frozen=True):
    """Runs a command: `Shell("backup.sh --all")`, or `Shell(["backup", "--all"])` without a shell.

    command: text for the shell, or the program with its arguments. shell: the path of the shell, which is called with
    `-c`, or the path and its arguments before the text, like `["/bin/bash", "-euo", "pipefail", "-c"]`.
    cwd: the working directory, `~/…` in the home of the user; by default that of the node, or the home of another user.
    env: variables; a `Secret` is resolved for each run. clean_env: whether to omit the variables of the node.
    user: the name or number of the user that runs the command; a user other than the node's needs root.
    stdin: the text for standard input; default empty. success_codes, skip_codes, retry_codes: the meaning of exit
    codes. kill_after: the time between TERM and KILL when a run is stopped.
    memory_limit: the address space of each process, e.g. "512MiB". nice: 1 to 19 for a lower CPU priority.
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
            raise InvalidSetting(
                f"{what}: shell jobs need a POSIX system", setting="shell", fix="run this node on a POSIX system"
            )
        faults = Faults(what)
        with faults.of("command"):
            _check_command(self.command, f"{what}: command")
        with faults.of("shell"):
            _check_command(self.shell, f"{what}: shell")
        with faults.of("command", "shell", path=("shell",)):
            self._check_shell_is_used(what)
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
        """The program and its arguments."""
        if not isinstance(self.command, str):
            return list(self.command)
        return [self.shell, "-c", self.command] if isinstance(self.shell, str) else [*self.shell, self.command]

    @property
    def kill_after_us(self) -> int:
        return duration_us(self.kill_after, what="kill_after")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else size_bytes(self.memory_limit, what="memory_limit")

    def _check_shell_is_used(self, what: str) -> None:
        if not isinstance(self.command, str) and self.shell != "/bin/sh":
            raise InvalidSetting(
                f"{what}: shell: {shown(self.shell)} is not used for a command that is a list of words",
                setting="shell",
                value=shown(self.shell),
                fix="write the command as one text, or put the shell first in the list",
            )

    def _check_cwd(self, what: str) -> None:
        if self.cwd is None:
            return
        _check_text(self.cwd, f"{what}: cwd")
        if not os.path.isabs(self.cwd) and not is_home_path(self.cwd):
            raise InvalidSetting(
                f"{what}: cwd: {shown(self.cwd)} is not an absolute path",
                setting="cwd",
                value=shown(self.cwd),
                fix="write the full path, or '~/…' for a directory in the home of the user",
            )

    def _check_environment(self, what: str, faults: Faults) -> None:
        if len(self.env) > _VARIABLES_MAX:
            with faults.of("env"):
                raise InvalidSetting(
                    f"{what}: env: {len(self.env)} variables are more than {_VARIABLES_MAX}",
                    setting="env",
                    fix="set them in a file that the command reads",
                )
            return
        for name, value in self.env.items():
            with faults.of("env", path=("env", name)):
                _check_variable(name, value, f"{what}: env")

    def _check_stdin(self, what: str) -> None:
        if isinstance(self.stdin, Secret):
            check_secret(self.stdin.name, f"{what}: stdin")
        elif self.stdin is not None and _size(self.stdin, f"{what}: stdin") > _STDIN_MAX_BYTES:
            raise InvalidSetting(
                f"{what}: stdin: it has more than {_STDIN_MAX_BYTES} bytes", setting="stdin", fix="read it from a file"
            )

    def _check_user(self, what: str) -> None:
        if isinstance(self.user, str):
            _check_text(self.user, f"{what}: user")
        elif self.user is not None and not 0 <= self.user < 2**32 - 1:
            raise InvalidSetting(
                f"{what}: user: {shown(self.user)} is not a user id",
                setting="user",
                value=shown(self.user),
                fix=f"write the name of the user, or a number from 0 to {2**32 - 2}",
            )

    def _check_codes(self, what: str, faults: Faults) -> None:
        meanings: dict[int, str] = {}
        for field in ("success_codes", "skip_codes", "retry_codes"):
            for code in getattr(self, field):
                with faults.of(field):
                    if not 0 <= code <= _CODE_MAX:
                        raise InvalidSetting(
                            f"{what}: {field}: {code} is not an exit code",
                            setting=field,
                            value=str(code),
                            fix=f"write numbers from 0 to {_CODE_MAX}",
                        )
                other = meanings.setdefault(code, field)
                with faults.of(field, other):
                    if other != field:
                        raise InvalidSetting(
                            f"{what}: {field}: {code} is also in {other}",
                            setting=field,
                            value=str(code),
                            fix="keep it in one of them",
                        )

    def _check_kill_after(self, what: str) -> None:
        if duration_us(self.kill_after, what=f"{what}: kill_after") > _KILL_AFTER_MAX:
            limit, value = duration_text(_KILL_AFTER_MAX), shown(self.kill_after)
            raise InvalidSetting(
                f"{what}: kill_after: {value} is more than {limit}",
                setting="kill_after",
                value=value,
                fix=f"write at most {limit}",
            )

    def _check_memory(self, what: str) -> None:
        if self.memory_limit is None:
            return
        if size_bytes(self.memory_limit, what=f"{what}: memory_limit") < _MEMORY_MIN_BYTES:
            raise InvalidSetting(
                f"{what}: memory_limit: {shown(self.memory_limit)} is less than 16MiB, too little to start a program",
                setting="memory_limit",
                value=shown(self.memory_limit),
                fix="write at least 16MiB",
            )

    def _check_nice(self, what: str) -> None:
        if not -20 <= self.nice <= 19:
            raise InvalidSetting(
                f"{what}: nice: {self.nice} must be from -20 to 19",
                setting="nice",
                value=str(self.nice),
                fix="19 is the lowest priority",
            )


def is_home_path(path: str) -> bool:
    """Whether the path is in the home of the command's user."""
    return path == "~" or path.startswith("~/")


def expand_home(path: str, home: str) -> str:
    return home + path[1:] if is_home_path(path) else path


def _check_variable(name: str, value: str | Secret, what: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise InvalidSetting(
            f"{what}: {shown(name)} is not a valid variable name",
            setting="env",
            value=shown(name),
            fix="use letters, digits and '_', and no digit first",
        )
    if name.startswith(_RESERVED_PREFIX):
        raise InvalidSetting(
            f"{what}: {name!r}: the prefix {_RESERVED_PREFIX!r} is reserved for Evertick",
            setting="env",
            value=shown(name),
            fix="use another name",
        )
    if isinstance(value, Secret):
        check_secret(value.name, f"{what}: {name}")
    else:
        _check_text(value, f"{what}: {name}", may_be_empty=True)


def _check_command(command: str | Sequence[str], what: str) -> None:
    if isinstance(command, str):
        _check_text(command, what)
        return
    if not 1 <= len(command) <= _WORDS_MAX:
        raise InvalidSetting(
            f"{what}: a list of {len(command)} words must have 1 to {_WORDS_MAX}", value=shown(command)
        )
    for number, word in enumerate(command):
        _check_text(word, what, may_be_empty=number > 0)


def _check_text(text: Any, what: str, *, may_be_empty: bool = False) -> None:
    if not may_be_empty and not text.strip():
        raise InvalidSetting(f"{what}: {shown(text)} is empty", value=shown(text), fix="write a value, or remove it")
    if "\0" in text:
        raise InvalidSetting(
            f"{what}: it contains a zero character, which the kernel does not accept", fix="remove the character"
        )
    if _size(text, what) > TEXT_MAX_BYTES:
        raise InvalidSetting(f"{what}: it has more than {TEXT_MAX_BYTES} bytes", fix="write it to a file")


def _size(text: str, what: str) -> int:
    """The size in bytes, as programs receive it: file names that are not UTF-8 are allowed."""
    try:
        return len(text.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidSetting(
            f"{what}: {shown(text)} contains an unpaired surrogate", value=shown(text), fix="replace the character"
        ) from None


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
        """The initial directory of its commands. Service users often have a home that does not exist."""
        return self.home if os.path.isdir(self.home) else "/"


def account_for_user(user: str | int) -> Account | None:
    """The account of the user; None if it is the user of this node. Raises `JobFailed` if it cannot be used."""
    try:
        entry = _passwd_entry(user)
    except (KeyError, ValueError, OverflowError):
        raise JobFailed(
            f"user: {user!r} does not exist on this machine",
            setting="user",
            value=shown(user),
            fix="create the user, or name another",
        ) from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise JobFailed(
            f"user: only root can run commands as {entry.pw_name!r}, and this node runs as user {os.geteuid()}",
            setting="user",
            value=shown(user),
            fix="run the node as root, or remove user",
        )
    return Account(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        home=entry.pw_dir,
    )


def is_user(user: str | int) -> bool:
    """Whether this machine has a user with this name or number."""
    try:
        _passwd_entry(user)
    except (KeyError, ValueError, OverflowError):
        return False
    return True


def _passwd_entry(user: str | int) -> struct_passwd:
    import pwd  # POSIX only; specifications are also read on Windows

    return pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)


# --- the variables of a run


def run_variables(context: Context, app: str) -> dict[str, str]:
    """The variables of one attempt. EVERTICK_SCHEDULE is set only for runs of a schedule."""
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
