"""The log of a daemon: where it goes, from which level on, and how a record is written.

A log file is written with one call per record, at its end: several processes may share it, and a record is whole or not
there. It is opened anew when it was moved away, or on SIGUSR2; the old one is written until the new one is open, so
that no record is lost between the two. Records that a full disk did not take are counted, and reported when there is
room.

In a folder of another user a link could lead the log into any file of this one. So the file must be a regular one (or a
terminal) under its own name: no symbolic link, and for root no file that has a second name.

A record is a line of text, one of JSON, or one for the journal of systemd. It begins at the beginning of a line and
nowhere else, whatever a job has put into it: control characters are escaped, its length is bounded, and known secrets
are replaced.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from evertick.errors import InvalidSetting, Refused
from evertick.job.context import current_context
from evertick.text.log_level import TRACE
from evertick.text.printable import CONTROLS
from evertick.text.regular_file import kind_of

__all__ = [
    "LOG_FORMATS",
    "LOG_LEVELS",
    "JournalFormatter",
    "JsonFormatter",
    "LogFile",
    "Logs",
    "Redactor",
    "TextFormatter",
    "set_up_logs",
]

log = logging.getLogger("evertick.daemon")

_CHARS_MOST = 64 * 1024
# Shorter ones would be found everywhere.
_SECRET_LEAST = 4
_STARS = "***"
# The password in a URL, wherever one stands in a text.
_IN_URL = re.compile(r"(?<=://)([^\s/:@]{0,200}):[^\s/@]{1,1000}@")
_CONTROL = re.compile(f"[{CONTROLS}]")
# Fields of a record beside its message.
_FACTS = ("run", "task", "schedule")
# As syslog counts them.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LEAST_PRIORITY = 7


class Redactor:
    """Replaces known secrets and passwords of URLs."""

    def __init__(self) -> None:
        self._values: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        """Safe from any thread."""
        if len(value) >= _SECRET_LEAST and value not in self._values:
            # The longest first: one may be a part of another.
            self._values = tuple(sorted({*self._values, value}, key=len, reverse=True))

    def without(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, _STARS)
        return _IN_URL.sub(rf"\1:{_STARS}@", text) if "://" in text else text


class LogFormatter(logging.Formatter):
    """Common to all forms: the message of a record, safe to be written."""

    def __init__(self, hidden: Redactor, node: str | None = None) -> None:
        super().__init__()
        self._hidden = hidden
        self.node = node

    def words(self, record: logging.LogRecord) -> str:
        try:
            return self._safe(record.getMessage())
        except Exception as error:  # the arguments of a call do not fit its text
            return self._safe(f"{record.msg!r} with {record.args!r} ({type(error).__name__}: {error})")

    def trouble(self, record: logging.LogRecord) -> str:
        """The traceback and the stack that came with it."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return self._safe("\n".join(parts))

    def facts(self, record: logging.LogRecord) -> dict[str, str]:
        """The run that logged it, or that it is about."""
        context = current_context.get(None)
        inside: dict[str, Any] = (
            {} if context is None else {"run": context.run_id, "task": context.task, "schedule": context.schedule_key}
        )
        told = {name: getattr(record, name, inside.get(name)) for name in _FACTS}
        return {name: self._safe(str(value)) for name, value in told.items() if value is not None}

    def _safe(self, text: str) -> str:
        text = self._hidden.without(text)
        if len(text) > _CHARS_MOST:
            text = f"{text[:_CHARS_MOST]} … ({len(text) - _CHARS_MOST} more characters cut)"
        # Half a character, what is left of bytes that are no UTF-8, cannot be written.
        text = text.encode("utf-8", "backslashreplace").decode()
        return _CONTROL.sub(lambda found: _written_out(ord(found[0])), text)


class TextFormatter(LogFormatter):
    """`2026-01-31 09:00:00.000+01:00 WARNING evertick.tend: …`; further lines of the same record are set in."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        moment = at.isoformat(" ", "milliseconds")
        return _set_in(f"{moment} {record.levelname:<7} {record.name}: {self._told(record)}", "    ")

    def _told(self, record: logging.LogRecord) -> str:
        facts = self.facts(record)
        about = " ".join(f"{name}={value}" for name, value in facts.items())
        trouble = self.trouble(record)
        return self.words(record) + (f" [{about}]" if about else "") + (f"\n{trouble}" if trouble else "")


class JournalFormatter(TextFormatter):
    """For the journal, which knows the time by itself and reads how grave a line is from its beginning."""

    def format(self, record: logging.LogRecord) -> str:
        grave = next((number for level, number in _PRIORITIES if record.levelno >= level), _LEAST_PRIORITY)
        return f"<{grave}>" + _set_in(f"{record.name}: {self._told(record)}", f"<{grave}>    ")


class JsonFormatter(LogFormatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        told = {
            "at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.words(record),
            "node": self.node,
            **self.facts(record),
            "trouble": self.trouble(record),
        }
        return msgspec.json.encode({name: value for name, value in told.items() if value}).decode()


def _written_out(number: int) -> str:
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _set_in(text: str, by: str) -> str:
    return text.replace("\n", f"\n{by}")


LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
LOG_LEVELS: Mapping[str, int] = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_MODE = 0o640
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_STUCK = "the log file %s cannot be opened anew (%s); the old one is written on"
# Libraries that log every request with its whole address.
_TALKATIVE = ("httpx", "httpcore")
_VERBOSE_ALL = 2
_VERBOSE_TRACE = 3


class Logs(msgspec.Struct, frozen=True):
    """The log of this process."""

    handler: logging.Handler
    lines: LogFormatter
    hidden: Redactor

    def reopen(self) -> None:
        """Go on in a new file, if it is a file."""
        if isinstance(self.handler, LogFile):
            self.handler.reopen()

    def name_node(self, name: str) -> None:
        """What is written from now on is of this node."""
        self.lines.node = name


def set_up_logs(
    *, file: Path | None, form: LogFormat = "text", level: str = "info", verbose: int = 0, environ: Mapping[str, str]
) -> Logs:
    """Everything that is logged in this process goes there, and nowhere else."""
    hidden = Redactor()
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if file is None else LogFile(file)
    is_journal = file is None and _leads_to_journal(sys.stderr.fileno(), environ)
    kind = JsonFormatter if form == "json" else JournalFormatter if is_journal else TextFormatter
    lines = kind(hidden)
    handler.setFormatter(lines)
    root = logging.getLogger()
    for before in root.handlers[:]:
        root.removeHandler(before)
    root.addHandler(handler)
    _set_levels(level, verbose)
    # A handler that fails could only print to a terminal, which is gone.
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    threading.excepthook = _tell_of_thread
    return Logs(handler, lines, hidden)


def _set_levels(level: str, verbose: int) -> None:
    if level not in LOG_LEVELS:
        raise InvalidSetting(f"log level: {level!r} must be one of {', '.join(LOG_LEVELS)}")
    all_of_it, ours = LOG_LEVELS[level], logging.NOTSET
    if verbose >= _VERBOSE_TRACE:
        all_of_it = TRACE
    elif verbose >= _VERBOSE_ALL:
        all_of_it = min(all_of_it, logging.DEBUG)
    elif verbose:
        ours = min(all_of_it, logging.DEBUG)
    logging.getLogger().setLevel(all_of_it)
    logging.getLogger("evertick").setLevel(ours)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.NOTSET if verbose >= _VERBOSE_ALL else logging.WARNING)


def _leads_to_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Whether what is written there is read by the journal: the variable names the very stream that it reads."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    facts = os.fstat(descriptor)
    return (device, inode) == (str(facts.st_dev), str(facts.st_ino))


def _tell_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and ended.exc_type is not SystemExit:
        name = "?" if ended.thread is None else ended.thread.name
        log.error("thread %r has ended by an error", name, exc_info=ended.exc_value)


class LogFile(logging.Handler):
    """A log file that may be moved away at any time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path.absolute()
        self._file = -1
        self._is_torn = False
        self._lost = 0
        # Whether the log says already that the new file cannot be opened.
        self._is_stuck = False
        try:
            self._open()
        except OSError as error:
            folder = self.path.parent
            is_there = isinstance(error, PermissionError) or os.path.isdir(folder)
            fix = f"let this user write to {folder}" if is_there else f"make the directory {folder}"
            fix = "remove it" if isinstance(error, _Unfit) else fix
            raise Refused(
                f"the log file {self.path} cannot be opened ({error.strerror}); {fix}, or name another --log-file"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode()
        if not self._is_moved_away() or (error := self._go_on_in_new_file()) is None:
            self._is_stuck = False
        elif not self._is_stuck:
            self._is_stuck = True
            facts = {"name": log.name, "levelno": logging.WARNING, "levelname": "WARNING"}
            told = logging.makeLogRecord({**facts, "msg": _STUCK, "args": (self.path, error.strerror)})
            self._write(f"{self.format(told)}\n".encode())
        if self._lost and self._write(f"({self._lost} records before this one could not be written)\n".encode()):
            self._lost = 0
        if not self._write(line):
            self._lost += 1

    def reopen(self) -> None:
        self.acquire()
        try:
            error = self._go_on_in_new_file()
            self._is_stuck = error is not None  # which is said here
        finally:
            self.release()
        if error is not None:
            log.warning(_STUCK, self.path, error.strerror)

    def close(self) -> None:
        self.acquire()
        try:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        finally:
            self.release()
        super().close()

    def _open(self) -> None:
        """The new one first: if that fails, the old one is still there."""
        opened = _opened(self.path)
        before, self._file, self._is_torn = self._file, opened, False
        if before >= 0:
            os.close(before)

    def _go_on_in_new_file(self) -> OSError | None:
        try:
            self._open()
        except OSError as error:
            return error
        return None

    def _is_moved_away(self) -> bool:
        try:
            return not os.path.samestat(os.lstat(self.path), os.fstat(self._file))
        except OSError:
            return True

    def _write(self, line: bytes) -> bool:
        """Whether it is written, whole. What follows half a line begins a new one."""
        left = b"\n" + line if self._is_torn else line
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            self._is_torn = self._is_torn or len(left) < len(line)
            return False
        self._is_torn = False
        return True


class _Unfit(OSError):
    """There is something of that name which must not be written to."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


def _opened(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # it is made then
        _check(os.lstat(path))
    opened = os.open(path, _FLAGS, _MODE)
    try:
        _check(os.fstat(opened))
        os.set_blocking(opened, True)
    except OSError:
        os.close(opened)
        raise
    return opened


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISCHR(found.st_mode):
        raise _Unfit(f"it is {kind_of(found.st_mode)}, not a regular file")
    if found.st_nlink > 1 and stat.S_ISREG(found.st_mode) and os.geteuid() == 0:
        raise _Unfit(f"it has {found.st_nlink} hard links, so another user may have linked a file of root there")
