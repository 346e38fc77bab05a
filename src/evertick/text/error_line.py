"""What was raised, in one line, from the text of an error as the ledger keeps it.

A traceback ends with its message, and a message may have many lines: the last of them often says nothing. The line that
says the most is the one after the frames: the type, and the first line of the message. What Evertick itself raises is
a sentence that says everything: there the type is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["error_for_log", "what_was_raised"]

_LONGEST = 300
# Of a chain of exceptions the last one is what the job has raised.
_CHAINED = (
    "\nThe above exception was the direct cause of the following exception:\n",
    "\nDuring handling of the above exception, another exception occurred:\n",
)
_HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = "+ Exception Group Traceback (most recent call last):"
_GROUP_MARGIN = "  | "
_LEFT_OUT = "characters left out …"
# Behind it is a sentence; where there is none, the name of the type is all there is to say.
_OUR_TYPE = re.compile(r"\Aevertick\.errors\.(?:\w+: (?=\S))?")


def what_was_raised(error: str | None) -> str:
    """Type and first line of the message; the first line of what is no traceback, nothing for nothing."""
    lines = _last_of_chain(error or "").splitlines()
    if lines and lines[0].lstrip() == _GROUP_HEADER:
        lines = [line.removeprefix(_GROUP_MARGIN) for line in lines[1:]]
    elif lines and lines[0] == _HEADER:
        del lines[0]
    said = _after_frames(lines)
    first = next(said, "").strip()
    if first.endswith(":"):
        # The message begins with an empty line.
        first = f"{first} {next((line.strip() for line in said if line.strip()), '')}".strip()
    return _OUR_TYPE.sub("", first)[:_LONGEST]


def error_for_log(error: str | None) -> str:
    """A traceback whole: its lines say where. Anything else in one line and cut: it may quote the page of a server or
    the last words of a command, and the ledger has it all."""
    text = error or ""
    if text.lstrip().startswith((_HEADER, _GROUP_HEADER)) or any(mark in text for mark in _CHAINED):
        return text
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _last_of_chain(text: str) -> str:
    end_of_mark = max((text.rfind(mark) + len(mark) for mark in _CHAINED if mark in text), default=0)
    return text[end_of_mark:].strip("\n")


def _after_frames(lines: list[str]) -> Iterator[str]:
    """The lines of the message. Frames are indented; where a long text was cut, half a line may follow."""
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
