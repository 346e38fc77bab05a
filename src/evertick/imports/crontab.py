"""Reads a crontab as Debian's cron does, and converts its lines to jobs.

A line sets a variable for the lines below it, or has a time and a command. In a command, the text after the first `%`
is standard input, each further `%` is a line break, and `\\%` is a `%`. Lines that cron rejects are rejected here, even
if Evertick supports their syntax.

cron starts a job while the last one is running, ignores moments it missed while it was down, and never retries; jobs
get a minimal environment and start in the home of their user. The imported jobs set all of this explicitly, so an
import does not change their behaviour.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from evertick.errors import InvalidInput, InvalidWhen
from evertick.imports.imported import ImportResult, Job, Note, renamed_note
from evertick.imports.job_names import free_name, name_for
from evertick.when import Cron
from evertick.when.cron_text import NICKNAMES
from evertick.when.zone import zone_named

__all__ = ["CrontabOptions", "local_zone", "read_crontab"]

_TEXT_MAX = 1024 * 1024
_LINES_MAX = 10_000
_SHOWN = 80
_DESCRIPTION_MAX = 300

_VARIABLE = re.compile(r"""[ \t]*("[^"]*"|'[^']*'|[^\s=]+)[ \t]*=[ \t]*(.*?)[ \t]*""")
_FIELDS = re.compile(r"[ \t]*(@[^ \t]+|(?:[^ \t]+[ \t]+){4}[^ \t]+)(?:[ \t]+(.*))?")
_USER = re.compile(r"([^ \t]+)(?:[ \t]+(.*))?")
_HEADING = re.compile(r"(?i)m(in\w*)?\s+h(our)?\s+d\w*\s+m\w*\s+(d\w*|w\w*)\b")
# An item of a field in the syntax of cron, which is smaller than that of Evertick.
_ITEM = re.compile(r"(?i)(\*|\d+|[a-z]{3})(?:-(\d+|[a-z]{3}))?(/\d+)?")
_NAMES = {
    3: ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    4: ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_FIRST = {3: 1, 4: 0}
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
# The behaviour of cron, set in each job, so that [defaults] of a configuration do not change it.
_AS_CRON: Mapping[str, Any] = {
    "overlap": "allow",
    "catch_up": "skip",
    "retry": {"constant": "1h", "attempts": 1},
    "on_lost": "fail",
}
# The PATH of commands under cron.
_PATH = "/usr/bin:/bin"

_MAIL = (
    "cron mails the output of jobs; Evertick stores it with each run (`evertick logs RUN`). Monitors can use "
    '`evertick status` and `evertick failed --json`, and in Python a hook on "failed" can send a mail'
)
# Variables that control cron, without effect in Evertick.
_FOR_CRON = {
    "MAILTO": _MAIL,
    "MAILFROM": _MAIL,
    "CONTENT_TYPE": "it is for mails, which are not sent",
    "CONTENT_TRANSFER_ENCODING": "it is for mails, which are not sent",
    "RANDOM_DELAY": 'to delay the jobs below at random, set jitter, e.g. jitter = "10m"',
    "START_HOURS_RANGE": "it is for anacron; write the hours in the rule",
}


class CrontabOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading a crontab.

    has_users: each line names its user, as in /etc/crontab and /etc/cron.d. user: the owner of the crontab otherwise.
    home: the working directory of commands, unless a user or a line HOME= sets it.
    tz: the time zone of the crontab. honours_cron_tz: whether a line CRON_TZ= changes it for the lines below.
    is_user: whether the target machine has a user with this name; by default not checked.
    must_be_user: whether the first word of a command must be a user name, so that it is a crontab of the system.
    taken: the names of other jobs, with their places.
    file_name: the name of a file in /etc/cron.d, for jobs whose command has no telling program name.
    is_enabled: whether the jobs run as soon as the file is read; otherwise each job is written as disabled.
    """

    tz: str
    has_users: bool = False
    user: str | None = None
    home: str | None = None
    honours_cron_tz: bool = True
    is_user: Callable[[str], bool] = lambda name: True
    must_be_user: Callable[[str], bool] = lambda name: name == "root"
    taken: Mapping[str, object] = {}
    is_enabled: bool = True
    file_name: str = ""


def read_crontab(text: str, options: CrontabOptions) -> ImportResult:
    if len(text) > _TEXT_MAX:
        raise InvalidInput(f"crontab: {len(text)} characters are more than {_TEXT_MAX}", fix="import it in parts")
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > _LINES_MAX:
        raise InvalidInput(f"crontab: {len(lines)} lines are more than {_LINES_MAX}", fix="import it in parts")
    reader = _Reader(options)
    for number, line in enumerate(lines, 1):
        reader.read(number, line)
    if lines[-1].strip():
        reader.note("check", "the last line has no line break; some crons ignore such a line")
    return ImportResult(jobs=tuple(reader.jobs), notes=tuple(reader.notes))


class _Reader:
    """Reads the lines in order and keeps the variables that they set."""

    def __init__(self, options: CrontabOptions) -> None:
        self._options = options
        self._zone = options.tz
        self._variables: dict[str, str] = {}
        self._comments: list[str] = []
        self._where = ""
        self._names: set[str] = set()
        self.jobs: list[Job] = []
        self.notes: list[Note] = []

    def note(self, kind: Any, text: str) -> None:
        self.notes.append(Note(where=self._where, kind=kind, text=text))

    def read(self, number: int, line: str) -> None:
        self._where = f"line {number}"
        stripped = line.strip(" \t")
        if not stripped:
            self._comments.clear()
        elif stripped.startswith("#"):
            self._read_comment(stripped)
        elif found := _VARIABLE.fullmatch(line):
            self._read_variable(_unquoted(found[1]), _unquoted(found[2]))
            self._comments.clear()
        else:
            self._read_entry(stripped)
            self._comments.clear()

    def _read_comment(self, line: str) -> None:
        text = line.lstrip("# \t").rstrip()
        found = _FIELDS.fullmatch(text)
        if found is not None and found[2] and not _HEADING.match(text) and _time_problem(found[1]) is None:
            self.note("check", f"commented out, not imported: {_short(line)}")
        elif text and not _HEADING.match(text):
            self._comments.append(text)

    # --- variables

    def _read_variable(self, name: str, value: str) -> None:
        if name == "LOGNAME":
            self.note("dropped", f"LOGNAME={value}: cron also ignores it and sets the name of the user")
            return
        if not _ENVIRONMENT_NAME.fullmatch(name) or name.startswith("EVERTICK_"):
            self.note("dropped", f"{name}={value}: not a valid variable name for a job; use another name")
            return
        # Commands also see the variables for cron.
        self._variables[name] = value
        if name == "CRON_TZ":
            self._read_zone(value)
        elif name in _FOR_CRON and (value or name != "MAILTO"):
            # No note for an empty MAILTO, which turns mails off.
            self.note("dropped", f"{name}={value}: {_FOR_CRON[name]}")
        elif name == "TZ":
            self.note(
                "check", f"TZ={value} is set for the commands below; their times are in {self._zone}, as under cron"
            )

    def _read_zone(self, value: str) -> None:
        if not self._options.honours_cron_tz:
            self.note(
                "dropped", f"CRON_TZ={value} is ignored, as Debian's cron does: the times below are in {self._zone}"
            )
            return
        try:
            self._zone = zone_named(value).key if value else self._options.tz
        except InvalidWhen:
            self.note("dropped", f"CRON_TZ={value}: unknown time zone; the times below stay in {self._zone}")
            return
        self.note(
            "check",
            f"CRON_TZ={value}: the times below are in {self._zone}. Debian's cron ignores this line; to ignore it, "
            "too, import with --ignore-cron-tz",
        )

    # --- jobs

    def _read_entry(self, line: str) -> None:
        found = _FIELDS.fullmatch(line)
        if found is None:
            self.note("lost", f"{_short(line)}: neither a time with a command nor NAME=value; cron rejects it, too")
            return
        when, rest = " ".join(found[1].split()), found[2] or ""
        user = self._options.user
        if self._options.has_users:
            owner = _USER.fullmatch(rest)
            user, rest = (self._owner(owner[1], owner[2]), owner[2] or "") if owner else (None, "")
        if not rest:
            missing = "a user and a command" if self._options.has_users else "a command"
            self.note("lost", f"{_short(line)}: {missing} must follow the time; cron rejects it, too")
            return
        command, stdin = _split_command(rest)
        if when.lower() == "@reboot":
            self._note_reboot(command)
        elif (problem := _time_problem(when)) is not None:
            self.note("lost", f"{_short(line)}: {problem}")
        else:
            self._add(line, when, command, stdin, user)
            self._note_doubts(when, rest, command)

    def _owner(self, written: str, command: str | None) -> str:
        """The user that a line names, with notes about a group or an unknown user."""
        user, _, group = written.partition(":")
        if not command:
            return user
        if group:
            self.note("dropped", f"{_short(written)}: a job runs with the groups of its user; cron rejects such a line")
        if not self._options.is_user(user):
            self.note(
                "check",
                f"user {_short(user)} does not exist on this machine: cron rejects the line, and runs of the job fail; "
                "create the user, or name another",
            )
        return user

    def _add(self, line: str, when: str, command: str, stdin: str | None, user: str | None) -> None:
        spec = self._spec(command, stdin, user)
        self.jobs.append(
            Job(
                name=self._name(command, repr((when, command, stdin, user, self._zone))),
                where=self._where,
                source=line,
                description=" ".join(self._comments)[:_DESCRIPTION_MAX].strip(),
                rule={"cron": when, "tz": self._zone},
                options=_AS_CRON if self._options.is_enabled else {"enabled": False, **_AS_CRON},
                driver="shell",
                spec=spec,
            )
        )

    def _name(self, command: str, identity: str) -> str:
        taken = self._options.taken
        name = name_for(command, identity, self._names, self._options.file_name)
        free = free_name(name, self._names | taken.keys()) if name in taken else name
        if free != name:
            self.notes.append(renamed_note(self._where, name, taken[name], free))
        self._names.add(free)
        return free

    def _spec(self, command: str, stdin: str | None, user: str | None) -> Mapping[str, Any]:
        env = {"PATH": _PATH, **self._variables}
        spec: dict[str, Any] = {"command": command}
        if "SHELL" in env:
            spec["shell"] = env["SHELL"]
        if user is not None:
            spec["user"] = user
        # A job of another user starts in that user's home by default.
        home = env.get("HOME") or (self._options.home if user is None else None)
        if home is not None and home.startswith("/"):
            spec["cwd"] = home
            env["HOME"] = home
        if stdin is not None:
            spec["stdin"] = stdin
        return {**spec, "clean_env": True, "env": env}

    def _note_reboot(self, command: str) -> None:
        self.note(
            "lost",
            f"@reboot {_short(command)}: Evertick has no boot trigger, and the start of a daemon is not a boot; use a "
            'systemd unit of Type=oneshot, as shown under "At every boot" in how-to "Come from cron"',
        )

    def _note_doubts(self, when: str, rest: str, command: str) -> None:
        if re.search(r"(?:^|[ ,])(?:\d+|[A-Za-z]{3})/\d", when):
            self.note(
                "check", f"{when}: cron versions differ about a step without a range; in Evertick n/m begins at n"
            )
        first, more = [*command.split(maxsplit=1), "", ""][:2]
        # If an option follows the first word, that word is the program and not a user.
        is_command = bool(more) and not more.startswith("-")
        if not self._options.has_users and is_command and self._options.must_be_user(first):
            self.note(
                "check",
                f"{_short(command)}: the program {first} has the name of a user; import a system crontab, in which "
                "each line names its user, with --system",
            )
        if "\\\\" in rest:
            self.note("check", f"{_short(command)}: some crons read two backslashes as one; Evertick keeps both")


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _time_problem(when: str) -> str | None:
    """Why cron or Evertick rejects this time; None: both accept it."""
    if when.startswith("@"):
        known = when.lower() in NICKNAMES or when.lower() == "@reboot"
        return None if known else f"unknown nickname {_short(when)}"
    for position, field in enumerate(when.split()):
        for item in field.split(","):
            problem = _item_problem(position, item)
            if problem is not None:
                return problem
    try:
        Cron(when)
    except InvalidWhen as error:
        return str(error)
    return None


def _item_problem(position: int, item: str) -> str | None:
    parts = _ITEM.fullmatch(item)
    if parts is None or (parts[1] == "*" and parts[2]):
        return f"cron does not support {_short(item)}"
    names = _NAMES.get(position, ())
    low, high = (_number(text, names, _FIRST.get(position, 0)) for text in (parts[1], parts[2]))
    if low is not None and high is not None and low > high:
        return f"cron rejects {_short(item)}, because its end is before its start; write two ranges"
    return None


def _number(text: str | None, names: tuple[str, ...], first: int) -> int | None:
    if text is None or text == "*":
        return None
    if text.isdigit():
        return int(text[:4])
    return names.index(text.lower()) + first if text.lower() in names else None


def _split_command(text: str) -> tuple[str, str | None]:
    """The command and its input, if it has one."""
    command, at = [], 0
    while at < len(text):
        if text.startswith("\\%", at):
            command.append("%")
            at += 2
        elif text[at] == "\\":  # with the next character: a second backslash escapes nothing
            command.append(text[at : at + 2])
            at += 2
        elif text[at] == "%":
            return "".join(command).rstrip(), _input(text[at + 1 :])
        else:
            command.append(text[at])
            at += 1
    return "".join(command), None


def _input(text: str) -> str:
    """The text for standard input, with a line break at its end."""
    lines = re.sub(r"\\%|%", lambda found: "%" if len(found[0]) == 2 else "\n", text)
    return lines if lines.endswith("\n") else lines + "\n"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def local_zone(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str | None:
    """The time zone of this machine, from TZ, the link /etc/localtime, or /etc/timezone."""
    return next((name for name in _zone_names(root, environ) if _is_zone(name)), None)


def _zone_names(root: Path, environ: Mapping[str, str]) -> list[str]:
    names = [environ.get("TZ", "").removeprefix(":")]
    with contextlib.suppress(OSError):  # a copy, or none at all
        names.append(os.readlink(root / "etc/localtime").rpartition("zoneinfo/")[2])
    with contextlib.suppress(OSError, UnicodeDecodeError):
        names.append((root / "etc/timezone").read_text()[:200].strip())
    return names


def _is_zone(name: str) -> bool:
    try:
        zone_named(name)
    except InvalidWhen:
        return False
    return bool(name)
