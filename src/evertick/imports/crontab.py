"""Reads a crontab as Debian's cron does, and makes jobs of its lines.

A line sets a variable for the lines below it, or says when to run what. Of a command, what follows the first `%` is its
input, with every further `%` the end of a line; `\\%` is a `%`. What cron itself would refuse is refused here, too, and
not taken for something that only Evertick understands.

cron starts a job though the last one may still run, forgets what it missed while it was down, and never runs one again;
its jobs see hardly any environment, and start in the home of their user. The jobs say all that: an import changes
nothing by itself.
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
# An item of a field as cron knows it; Evertick knows more, which cron would refuse.
_ITEM = re.compile(r"(?i)(\*|\d+|[a-z]{3})(?:-(\d+|[a-z]{3}))?(/\d+)?")
_NAMES = {
    3: ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    4: ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_FIRST = {3: 1, 4: 0}
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
# The behaviour of cron. A job has it whatever the defaults of its configuration are, as far as there is a key for it.
_AS_CRON: Mapping[str, Any] = {
    "overlap": "allow",
    "catch_up": "skip",
    "retry": {"constant": "1h", "attempts": 1},
    "on_lost": "fail",
}
# The PATH that cron gives to commands.
_PATH = "/usr/bin:/bin"

_MAIL = (
    "cron mails what jobs print; here it is kept with each run (`evertick logs RUN`), a monitor can ask "
    '`evertick status` and `evertick failed --json`, and in Python a hook on "failed" can send a mail'
)
# Variables by which cron does something that is not done here.
_FOR_CRON = {
    "MAILTO": _MAIL,
    "MAILFROM": _MAIL,
    "CONTENT_TYPE": "it describes mails, which are not sent",
    "CONTENT_TRANSFER_ENCODING": "it describes mails, which are not sent",
    "RANDOM_DELAY": 'to spread the jobs below over so many minutes, give them jitter, e.g. jitter = "10m"',
    "START_HOURS_RANGE": "it is for anacron; name the hours in the rule",
}


class CrontabOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read it.

    has_users: each line names its user, as in /etc/crontab and /etc/cron.d. user: whose crontab it is, else.
    home: where its commands start, unless the user or a line HOME= says so.
    tz: the zone that its times are in. honours_cron_tz: a line CRON_TZ= changes that for what follows it.
    is_user: whether the machine that the jobs are for has a user of this name; default: not checked.
    must_be_user: whether a word in place of a program can only be the user of a crontab of the system.
    taken: names that other jobs have, and where.
    file_name: that of a file in /etc/cron.d, for jobs whose command names no program that says what they do.
    is_enabled: whether its jobs run as soon as the file is read; else each says that it is disabled.
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
        raise InvalidInput(f"crontab: {len(text)} characters are more than {_TEXT_MAX}; import it in parts")
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > _LINES_MAX:
        raise InvalidInput(f"crontab: {len(lines)} lines are more than {_LINES_MAX}; import it in parts")
    reader = _Reader(options)
    for number, line in enumerate(lines, 1):
        reader.read(number, line)
    if lines[-1].strip():
        reader.note("check", "no line break follows; some crons leave such a last line out")
    return ImportResult(jobs=tuple(reader.jobs), notes=tuple(reader.notes))


class _Reader:
    """Goes down the lines with the variables that the lines above have set."""

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
        if found is not None and found[2] and not _HEADING.match(text) and _wrong_in(found[1]) is None:
            self.note("check", f"left out, as cron does: {_short(line)}")
        elif text and not _HEADING.match(text):
            self._comments.append(text)

    # --- variables

    def _read_variable(self, name: str, value: str) -> None:
        if name == "LOGNAME":
            self.note("dropped", f"LOGNAME={value}: cron, too, has the name of the user there, whatever a line says")
            return
        if not _ENVIRONMENT_NAME.fullmatch(name) or name.startswith("EVERTICK_"):
            self.note("dropped", f"{name}={value}: a shell cannot use a variable of this name; choose another")
            return
        # Commands see what is meant for cron, too.
        self._variables[name] = value
        if name == "CRON_TZ":
            self._read_zone(value)
        elif name in _FOR_CRON and (value or name != "MAILTO"):
            # An empty MAILTO asks for no mails, which is what happens.
            self.note("dropped", f"{name}={value}: {_FOR_CRON[name]}")
        elif name == "TZ":
            self.note(
                "check", f"TZ={value} is what the commands below see; their times are in {self._zone}, as cron has it"
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
            self.note("dropped", f"CRON_TZ={value}: no such zone; the times below stay in {self._zone}")
            return
        self.note(
            "check",
            f"CRON_TZ={value}: the times below are in {self._zone}. Debian's cron ignores this line; to have what it "
            "does, import with --ignore-cron-tz",
        )

    # --- jobs

    def _read_entry(self, line: str) -> None:
        found = _FIELDS.fullmatch(line)
        if found is None:
            self.note("lost", f"{_short(line)}: neither a time with a command nor NAME=value; cron refuses it, too")
            return
        when, rest = " ".join(found[1].split()), found[2] or ""
        user = self._options.user
        if self._options.has_users:
            owner = _USER.fullmatch(rest)
            user, rest = (self._owner(owner[1], owner[2]), owner[2] or "") if owner else (None, "")
        if not rest:
            missing = "a user and a command" if self._options.has_users else "a command"
            self.note("lost", f"{_short(line)}: {missing} must follow the time; cron refuses it, too")
            return
        command, stdin = _split_command(rest)
        if when.lower() == "@reboot":
            self._lose_reboot(command)
        elif (wrong := _wrong_in(when)) is not None:
            self.note("lost", f"{_short(line)}: {wrong}")
        else:
            self._keep(line, when, command, stdin, user)
            self._look_closer(when, rest, command)

    def _owner(self, written: str, command: str | None) -> str:
        """The user that a line names; anything else there becomes a note."""
        user, _, more = written.partition(":")
        if not command:
            return user
        if more:
            self.note("dropped", f"{_short(written)}: a job runs with the groups of its user; cron refuses such a line")
        if not self._options.is_user(user):
            self.note(
                "check",
                f"there is no user {_short(user)} on this machine, so cron refuses the line, and its runs fail where "
                "there is none; make the user, or name another",
            )
        return user

    def _keep(self, line: str, when: str, command: str, stdin: str | None, user: str | None) -> None:
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
        # A job of another user starts in the home of that user by itself.
        home = env.get("HOME") or (self._options.home if user is None else None)
        if home is not None and home.startswith("/"):
            spec["cwd"] = home
            env["HOME"] = home
        if stdin is not None:
            spec["stdin"] = stdin
        return {**spec, "clean_env": True, "env": env}

    def _lose_reboot(self, command: str) -> None:
        self.note(
            "lost",
            f"@reboot {_short(command)}: it is no moment, and the start of a daemon is no boot; have the system start "
            'it once at every boot, by a systemd unit of Type=oneshot, as shown under "At every boot" in how-to '
            '"Come from cron"',
        )

    def _look_closer(self, when: str, rest: str, command: str) -> None:
        if re.search(r"(?:^|[ ,])(?:\d+|[A-Za-z]{3})/\d", when):
            self.note(
                "check", f"{when}: crons differ about a step without a range; here n/m goes from n to the maximum"
            )
        first, more = [*command.split(maxsplit=1), "", ""][:2]
        # No command begins with an option.
        is_command = bool(more) and not more.startswith("-")
        if not self._options.has_users and is_command and self._options.must_be_user(first):
            self.note(
                "check",
                f"{_short(command)}: it runs a program called {first}, which is the name of a user; a crontab of the "
                "system, in which each line names its user, is imported with --system",
            )
        if "\\\\" in rest:
            self.note("check", f"{_short(command)}: some crons make one backslash of two; here they stay two")


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _wrong_in(when: str) -> str | None:
    """Why cron, or Evertick, would refuse this time; None where both know it."""
    if when.startswith("@"):
        known = when.lower() in NICKNAMES or when.lower() == "@reboot"
        return None if known else f"there is no nickname {_short(when)}"
    for position, field in enumerate(when.split()):
        for item in field.split(","):
            wrong = _wrong_item(position, item)
            if wrong is not None:
                return wrong
    try:
        Cron(when)
    except InvalidWhen as error:
        return str(error)
    return None


def _wrong_item(position: int, item: str) -> str | None:
    found = _ITEM.fullmatch(item)
    if found is None or (found[1] == "*" and found[2]):
        return f"cron knows no {_short(item)}"
    names = _NAMES.get(position, ())
    low, high = (_number(text, names, _FIRST.get(position, 0)) for text in (found[1], found[2]))
    if low is not None and high is not None and low > high:
        return f"cron refuses {_short(item)}, which ends before it begins; write two ranges"
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
        elif text[at] == "\\":  # and whatever follows: a second backslash escapes nothing
            command.append(text[at : at + 2])
            at += 2
        elif text[at] == "%":
            return "".join(command).rstrip(), _input(text[at + 1 :])
        else:
            command.append(text[at])
            at += 1
    return "".join(command), None


def _input(text: str) -> str:
    """The standard input; it ends with a line break."""
    lines = re.sub(r"\\%|%", lambda found: "%" if len(found[0]) == 2 else "\n", text)
    return lines if lines.endswith("\n") else lines + "\n"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def local_zone(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str | None:
    """The name of this machine's zone, which a crontab means: by TZ, the link of localtime, or /etc/timezone."""
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
