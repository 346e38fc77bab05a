"""How a record of the log is written: a line of text, one of JSON, or one for the journal of systemd.

Whatever a job or a library has put into its words, it stays what it is: a record begins at the beginning of a line and
nowhere else, control characters are written out, its length is bounded, and secrets that are known as such are not in
it.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from evertick.job.context import current_context
from evertick.text.printable import CONTROLS

__all__ = ["Hidden", "JournalLines", "JsonLines", "LogFormatter", "TextLines"]

_CHARS_MOST = 64 * 1024
# Shorter ones would be found everywhere.
_SECRET_LEAST = 4
_STARS = "***"
# The password in a URL, wherever one stands in a text.
_IN_URL = re.compile(r"(?<=://)([^\s/:@]{0,200}):[^\s/@]{1,1000}@")
_CONTROL = re.compile(f"[{CONTROLS}]")
# What goes with a record beside its words.
_FACTS = ("run", "task", "schedule")
# As syslog counts them.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LEAST_PRIORITY = 7


class Hidden:
    """The secrets that no line may hold."""

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
    """What all forms share: the words of a record, safe to be written."""

    def __init__(self, hidden: Hidden, node: str | None = None) -> None:
        super().__init__()
        self._hidden = hidden
        self.node = node

    def words(self, record: logging.LogRecord) -> str:
        try:
            return self._safe(record.getMessage())
        except Exception as error:  # the arguments of somebody's call do not fit its text
            return self._safe(f"{record.msg!r} with {record.args!r} ({type(error).__name__}: {error})")

    def trouble(self, record: logging.LogRecord) -> str:
        """The traceback and the stack that came with it."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return self._safe("\n".join(parts))

    def facts(self, record: logging.LogRecord) -> dict[str, str]:
        """The run that said it, or that it is about."""
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


class TextLines(LogFormatter):
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


class JournalLines(TextLines):
    """For the journal, which knows the time by itself and reads how grave a line is from its beginning."""

    def format(self, record: logging.LogRecord) -> str:
        grave = next((number for level, number in _PRIORITIES if record.levelno >= level), _LEAST_PRIORITY)
        return f"<{grave}>" + _set_in(f"{record.name}: {self._told(record)}", f"<{grave}>    ")


class JsonLines(LogFormatter):
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
