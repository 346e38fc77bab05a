"""Checks of the body of an HTTP response, and the program that checks a long body.

The server chooses the body. Matching it or parsing it as JSON may take exponential time, or many times its size in
memory, and Python cannot interrupt either. A long body is therefore checked by a child process with limits. It runs
this file, with the standard library and msgspec only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    # The process starts without site packages (-S), so it gets the path of msgspec.
    sys.path.append(sys.argv[1])

import msgspec

__all__ = ["CHECK_SECONDS", "CheckFailure", "Checks", "check", "check_in_child"]

CHECK_SECONDS = 2
_MEMORY_MAX_BYTES = 2 * 1024**3
# More than an error shows of a value.
_SHOWN_MAX_CHARS = 4_096


class Checks(msgspec.Struct, frozen=True):
    """A text, a regular expression, and values by their JSON pointers."""

    contains: str | None = None
    matches: str | None = None
    json: dict[str, Any] = {}


class CheckFailure(msgspec.Struct, frozen=True):
    """The first check that failed. text: the value in the body, as JSON, or the reason why the body is not JSON."""

    what: Literal["contains", "matches", "no json", "absent", "unequal", "endless"]
    pointer: str = ""
    text: str = ""
    is_cut: bool = False


_failure = msgspec.json.Decoder(CheckFailure | None)


def check(wanted: Checks, body: str) -> CheckFailure | None:
    """Check in this process: for short bodies, and without a regular expression."""
    if wanted.contains is not None and wanted.contains not in body:
        return CheckFailure("contains")
    if wanted.matches is not None and re.search(wanted.matches, body) is None:
        return CheckFailure("matches")
    return _unequal(wanted.json, body) if wanted.json else None


def check_in_child(wanted: Checks, body: str) -> CheckFailure | None:
    """Check in a child process. Blocks, so call it in a thread."""
    request = msgspec.json.encode(wanted) + b"\n" + body.encode("utf-8", "surrogatepass")
    command = [sys.executable, "-I", "-S", str(Path(__file__)), str(Path(msgspec.__file__).parent.parent)]
    try:
        # Twice its own CPU limit, since the machine may be busy.
        process = subprocess.run(command, input=request, capture_output=True, timeout=2 * CHECK_SECONDS)  # noqa: S603
        return _failure.decode(process.stdout) if process.returncode == 0 else CheckFailure("endless")
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
    """Equality in JSON: true is not 1, but 1 is 1.0."""
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
    failure = check(msgspec.json.decode(wanted, type=Checks), body.decode("utf-8", "surrogatepass"))
    sys.stdout.buffer.write(msgspec.json.encode(failure))


if __name__ == "__main__":
    _main()
