"""The log of a daemon: its destination, level and format.

Each record is appended to the log file with one write, so that several processes may share the file. The file is
reopened when it was moved away, and on SIGUSR2; records go to the old file until the new one is open. Records that
could not be written, for example to a full disk, are counted, and the count is logged later.

In a directory of another user, a link could redirect the log into any file of this user. So the log must be a regular
file or a terminal: no symbolic link, and for root no file with several hard links.

A record is one line of text, JSON or journal format. A job cannot forge records: control characters are escaped, the
length is bounded, and known secrets are replaced.
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
from evertick.text.values import shown

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
# Shorter secrets would match everywhere.
_SECRET_LEAST = 4
_STARS = "***"
# The password of a URL, anywhere in a text.
_IN_URL = re.compile(r"(?<=://)([^\s/:@]{0,200}):[^\s/@]{1,1000}@")
_CONTROL = re.compile(f"[{CONTROLS}]")
# Fields of a record beside its message.
_FACTS = ("run", "task", "schedule")
# The priorities of syslog.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LEAST_PRIORITY = 7


class Redactor:
    """Replaces known secrets and passwords of URLs."""

    def __init__(self) -> None:
        self._values: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        """Thread-safe."""
        if len(value) >= _SECRET_LEAST and value not in self._values:
            # The longest first, since one may be a part of another.
            self._values = tuple(sorted({*self._values, value}, key=len, reverse=True))

    def without(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, _STARS)
        return _IN_URL.sub(rf"\1:{_STARS}@", text) if "://" in text else text


class LogFormatter(logging.Formatter):
    """Makes the parts of a record safe to write, for all formats."""

    def __init__(self, hidden: Redactor, node: str | None = None) -> None:
        super().__init__()
        self._hidden = hidden
        self.node = node

    def words(self, record: logging.LogRecord) -> str:
        try:
            return self._safe(record.getMessage())
        except Exception as error:  # the arguments do not fit the format string
            return self._safe(f"{record.msg!r} with {record.args!r} ({type(error).__name__}: {error})")

    def trouble(self, record: logging.LogRecord) -> str:
        """The traceback and the stack of the record."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return self._safe("\n".join(parts))

    def facts(self, record: logging.LogRecord) -> dict[str, str]:
        """The run that logged it, or that it is about."""
        context = current_context.get(None)
        inside: dict[str, Any] = (
            {} if context is None else {"run": context.run_id, "task": context.task, "schedule": context.schedule_key}
        )
        fields = {name: getattr(record, name, inside.get(name)) for name in _FACTS}
        return {name: self._safe(str(value)) for name, value in fields.items() if value is not None}

    def _safe(self, text: str) -> str:
        text = self._hidden.without(text)
        if len(text) > _CHARS_MOST:
            text = f"{text[:_CHARS_MOST]} … ({len(text) - _CHARS_MOST} more characters cut)"
        # Surrogates, from bytes that are not UTF-8, cannot be written.
        text = text.encode("utf-8", "backslashreplace").decode()
        return _CONTROL.sub(lambda found: _escaped(ord(found[0])), text)


class TextFormatter(LogFormatter):
    """`2026-01-31 09:00:00.000+01:00 WARNING evertick.tend: …`; further lines of a record are indented."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        moment = at.isoformat(" ", "milliseconds")
        return _indented(f"{moment} {record.levelname:<7} {record.name}: {self._text(record)}", "    ")

    def _text(self, record: logging.LogRecord) -> str:
        facts = self.facts(record)
        about = " ".join(f"{name}={value}" for name, value in facts.items())
        trouble = self.trouble(record)
        return self.words(record) + (f" [{about}]" if about else "") + (f"\n{trouble}" if trouble else "")


class JournalFormatter(TextFormatter):
    """For the journal, which adds the time, and reads the priority from the start of each line."""

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), _LEAST_PRIORITY)
        return f"<{priority}>" + _indented(f"{record.name}: {self._text(record)}", f"<{priority}>    ")


class JsonFormatter(LogFormatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.words(record),
            "node": self.node,
            **self.facts(record),
            "trouble": self.trouble(record),
        }
        return msgspec.json.encode({name: value for name, value in fields.items() if value}).decode()


def _escaped(number: int) -> str:
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _indented(text: str, indent: str) -> str:
    return text.replace("\n", f"\n{indent}")


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
_STUCK = "log file %s: reopening failed (%s); still writing to the old file"
# Libraries that log the whole URL of each request.
_VERBOSE_LIBRARIES = ("httpx", "httpcore")
_VERBOSE_ALL = 2
_VERBOSE_TRACE = 3


class Logs(msgspec.Struct, frozen=True):
    """The log of this process."""

    handler: logging.Handler
    lines: LogFormatter
    hidden: Redactor

    def reopen(self) -> None:
        """Reopen the log, if it is a file."""
        if isinstance(self.handler, LogFile):
            self.handler.reopen()

    def name_node(self, name: str) -> None:
        """Set the node of further records."""
        self.lines.node = name


def set_up_logs(
    *, file: Path | None, form: LogFormat = "text", level: str = "info", verbose: int = 0, environ: Mapping[str, str]
) -> Logs:
    """Send all records of this process to one log."""
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
    # A handler that fails would print to stderr, which a daemon does not have.
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    threading.excepthook = _log_dead_thread
    return Logs(handler, lines, hidden)


def _set_levels(level: str, verbose: int) -> None:
    if level not in LOG_LEVELS:
        text = shown(level)
        problem = f"log level: {text} must be one of {', '.join(LOG_LEVELS)}"
        raise InvalidSetting(problem, setting="log level", value=text)
    root_level, own_level = LOG_LEVELS[level], logging.NOTSET
    if verbose >= _VERBOSE_TRACE:
        root_level = TRACE
    elif verbose >= _VERBOSE_ALL:
        root_level = min(root_level, logging.DEBUG)
    elif verbose:
        own_level = min(root_level, logging.DEBUG)
    logging.getLogger().setLevel(root_level)
    logging.getLogger("evertick").setLevel(own_level)
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(logging.NOTSET if verbose >= _VERBOSE_ALL else logging.WARNING)


def _leads_to_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Whether the journal reads this stream, which systemd names in JOURNAL_STREAM."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    status = os.fstat(descriptor)
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def _log_dead_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and ended.exc_type is not SystemExit:
        name = "?" if ended.thread is None else ended.thread.name
        log.error("thread %r: failed", name, exc_info=ended.exc_value)


class LogFile(logging.Handler):
    """A log file that may be moved away at any time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path.absolute()
        self._file = -1
        self._is_torn = False
        self._lost = 0
        # Whether the log says already that reopening failed.
        self._is_stuck = False
        try:
            self._open()
        except OSError as error:
            folder = self.path.parent
            exists = isinstance(error, PermissionError) or os.path.isdir(folder)
            fix = f"let this user write to {folder}" if exists else f"create the directory {folder}"
            fix = "remove it" if isinstance(error, _Unfit) else fix
            fix = f"{fix}, or name another --log-file"
            if self.path.is_relative_to("/dev"):  # removing /dev/stdout would break the machine
                fix = "leave --log-file out to log to stderr, or name a file"
            problem = f"log file {self.path}: opening failed ({error.strerror})"
            raise Refused(problem, setting="--log-file", value=str(self.path), fix=fix) from error

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode()
        if not self._is_moved_away() or (error := self._reopen()) is None:
            self._is_stuck = False
        elif not self._is_stuck:
            self._is_stuck = True
            fields = {"name": log.name, "levelno": logging.WARNING, "levelname": "WARNING"}
            warning = logging.makeLogRecord({**fields, "msg": _STUCK, "args": (self.path, error.strerror)})
            self._write(f"{self.format(warning)}\n".encode())
        if self._lost and self._write(f"({self._lost} records before this one could not be written)\n".encode()):
            self._lost = 0
        if not self._write(line):
            self._lost += 1

    def reopen(self) -> None:
        self.acquire()
        try:
            error = self._reopen()
            self._is_stuck = error is not None
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
        """Open the new file first, so that a failure keeps the old one."""
        opened = _opened(self.path)
        before, self._file, self._is_torn = self._file, opened, False
        if before >= 0:
            os.close(before)

    def _reopen(self) -> OSError | None:
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
        """Whether the whole line was written. After half a line, the next write starts a new line."""
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
    """The path exists and must not be used as a log file."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


def _opened(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # it will be created
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
