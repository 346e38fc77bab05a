"""Checks of the body of an answer, and the program that makes them where the body is long.

A server chooses the body. To search it, or to read it as JSON, may take time that doubles with every letter, and memory
of many times its size. Nothing can stop that within a process, whose threads all wait for it: so a process of its own
does it, with limits. It is started by the path of this file, and has the standard library and msgspec alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    # The process has the standard library alone; it gets the path of msgspec.
    sys.path.append(sys.argv[1])

import msgspec

__all__ = ["CHECK_SECONDS", "CheckFailure", "Checks", "check", "check_apart"]

CHECK_SECONDS = 2
_MEMORY_MAX_BYTES = 2 * 1024**3
# As much of a value as its error may show, and more.
_SHOWN_MAX_CHARS = 4_096


class Checks(msgspec.Struct, frozen=True):
    """A text, an expression, and values by their JSON pointers."""

    contains: str | None = None
    matches: str | None = None
    json: dict[str, Any] = {}


class CheckFailure(msgspec.Struct, frozen=True):
    """The first of them that does not hold. text: the value that is there, as JSON, or why there is no JSON."""

    what: Literal["contains", "matches", "no json", "absent", "unequal", "endless"]
    pointer: str = ""
    text: str = ""
    is_cut: bool = False


_missed = msgspec.json.Decoder(CheckFailure | None)


def check(wanted: Checks, body: str) -> CheckFailure | None:
    """Here and now: for short bodies, and without an expression."""
    if wanted.contains is not None and wanted.contains not in body:
        return CheckFailure("contains")
    if wanted.matches is not None and re.search(wanted.matches, body) is None:
        return CheckFailure("matches")
    return _unequal(wanted.json, body) if wanted.json else None


def check_apart(wanted: Checks, body: str) -> CheckFailure | None:
    """By a process of its own. Waits for it, so it is called in a thread."""
    request = msgspec.json.encode(wanted) + b"\n" + body.encode("utf-8", "surrogatepass")
    command = [sys.executable, "-I", "-S", str(Path(__file__)), str(Path(msgspec.__file__).parent.parent)]
    try:
        # Twice the time of its own: a machine may be busy.
        done = subprocess.run(command, input=request, capture_output=True, timeout=2 * CHECK_SECONDS)  # noqa: S603 - ours
        return _missed.decode(done.stdout) if done.returncode == 0 else CheckFailure("endless")
    except (subprocess.TimeoutExpired, msgspec.MsgspecError):
        return CheckFailure("endless")


def _unequal(wanted: dict[str, Any], body: str) -> CheckFailure | None:
    try:
        document = msgspec.json.decode(body.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        return CheckFailure("no json", text=str(error))
    for pointer, value in wanted.items():
        try:
            found = _at(document, pointer)
        except LookupError:
            return CheckFailure("absent", pointer)
        if not _is_same(found, value):
            text = msgspec.json.encode(found).decode()
            return CheckFailure("unequal", pointer, text[:_SHOWN_MAX_CHARS], is_cut=len(text) > _SHOWN_MAX_CHARS)
    return None


def _at(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901)."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list):
            if not re.fullmatch(r"0|[1-9]\d{0,9}", name, re.ASCII):
                raise LookupError(name)
            document = document[int(name)]
        elif isinstance(document, dict):
            document = document[name]
        else:
            raise LookupError(name)
    return document


def _is_same(found: Any, wanted: Any) -> bool:
    """As JSON has it: true is not 1, and 1 is 1.0."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_is_same(found[name], wanted[name]) for name in found)
    if isinstance(found, list) and isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(_is_same, found, wanted))
    return bool(found == wanted)


def _main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CHECK_SECONDS, CHECK_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX_BYTES, _MEMORY_MAX_BYTES))
    except (ImportError, ValueError, OSError):
        pass
    wanted, _, body = sys.stdin.buffer.read().partition(b"\n")
    missed = check(msgspec.json.decode(wanted, type=Checks), body.decode("utf-8", "surrogatepass"))
    sys.stdout.buffer.write(msgspec.json.encode(missed))


if __name__ == "__main__":
    _main()
