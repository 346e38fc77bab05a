"""An error in one line, from its text in the ledger.

The line is the first one after the frames of the traceback: the type and the first line of the message. The last line
of a long message often says little. Errors of Evertick are full sentences, so their type is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["error_for_log", "error_summary"]

_LONGEST = 300
# In a chain of exceptions, the job raised the last one.
_CHAINED = (
    "\nThe above exception was the direct cause of the following exception:\n",
    "\nDuring handling of the above exception, another exception occurred:\n",
)
_HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = "+ Exception Group Traceback (most recent call last):"
_GROUP_MARGIN = "  | "
_LEFT_OUT = "characters left out …"
# The type is removed only if a message follows.
_OUR_TYPE = re.compile(r"\Aevertick\.errors\.(?:\w+: (?=\S))?")


def error_summary(error: str | None) -> str:
    """Type and first line of the message; without a traceback, the first line; empty for no error."""
    lines = _last_of_chain(error or "").splitlines()
    if lines and lines[0].lstrip() == _GROUP_HEADER:
        lines = [line.removeprefix(_GROUP_MARGIN) for line in lines[1:]]
    elif lines and lines[0] == _HEADER:
        del lines[0]
    message = _after_frames(lines)
    first = next(message, "").strip()
    if first.endswith(":"):
        # The message begins with an empty line.
        first = f"{first} {next((line.strip() for line in message if line.strip()), '')}".strip()
    return _OUR_TYPE.sub("", first)[:_LONGEST]


def error_for_log(error: str | None) -> str:
    """A whole traceback. Any other error in one line and cut, since it may quote a web page or the output of a command;
    the ledger has all of it."""
    text = error or ""
    if text.lstrip().startswith((_HEADER, _GROUP_HEADER)) or any(mark in text for mark in _CHAINED):
        return text
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _last_of_chain(text: str) -> str:
    end_of_mark = max((text.rfind(mark) + len(mark) for mark in _CHAINED if mark in text), default=0)
    return text[end_of_mark:].strip("\n")


def _after_frames(lines: list[str]) -> Iterator[str]:
    """The lines of the message. Frames are indented; after a cut, half a line may follow."""
    is_message = is_cut = False
    for line in lines:
        is_frame = line.startswith(" ") or not line
        if line.endswith(_LEFT_OUT) and not is_message:
            is_cut = True
        elif is_cut:
            is_cut = False
        elif is_message or not is_frame:
            is_message = True
            yield line
