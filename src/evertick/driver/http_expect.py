"""What the answer of a server must be for its job to have succeeded."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from evertick.driver.faults import Faults
from evertick.driver.function import Threads
from evertick.errors import InvalidSetting

__all__ = ["HttpExpect", "check_expect", "statuses_of", "unmet"]

_TEXT_MAX_CHARS = 1_000
_CHECKS_MAX = 50
_SHOWN = 100
_RANGE = re.compile(r"([1-5]\d\d)-([1-5]\d\d)")
_CLASS = re.compile(r"([1-5])[xX]{2}")
# A search may take time that doubles with every letter, and nothing stops it within a process: it holds the lock that
# every thread needs, the one that beats included. So it is a process of its own, which ends itself.
_SEARCH_SECONDS = 2
_SEARCH = f"""
import re, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, ({_SEARCH_SECONDS}, {_SEARCH_SECONDS}))
except (ImportError, ValueError, OSError):
    pass
pattern, _, text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").partition("\\0")
sys.exit(0 if re.search(pattern, text) else 3)
"""
_FOUND, _NOT_FOUND = 0, 3


class HttpExpect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer must be; all of it must hold.

    status: codes, classes and ranges: 200, "2xx", "200-204". contains: a text in the body.
    matches: a regular expression that is found in the body. json: values by their JSON pointers: {"/state": "ok"}.
    """

    status: int | str | tuple[int | str, ...] = ("2xx",)
    contains: str | None = None
    matches: str | None = None
    json: dict[str, Any] = {}


def check_expect(expect: HttpExpect, what: str, faults: Faults) -> None:
    with faults.of("expect"):
        statuses_of(expect.status, f"{what}: status")
    for name, text in (("contains", expect.contains), ("matches", expect.matches)):
        with faults.of("expect"):
            if text is not None and not 1 <= len(text) <= _TEXT_MAX_CHARS:
                raise InvalidSetting(f"{what}: {name}: a text of 1 to {_TEXT_MAX_CHARS} characters is looked for")
    with faults.of("expect"):
        _check_pattern(expect.matches, f"{what}: matches")
    with faults.of("expect"):
        if len(expect.json) > _CHECKS_MAX:
            raise InvalidSetting(f"{what}: json: {len(expect.json)} checks are more than {_CHECKS_MAX}; keep the best")
    for pointer in expect.json:
        with faults.of("expect"):
            if pointer and not pointer.startswith("/"):
                raise InvalidSetting(
                    f"{what}: json: {pointer!r:.60} is no JSON pointer; write it like '/{pointer:.60}'"
                )


def _check_pattern(pattern: str | None, what: str) -> None:
    if pattern is None:
        return
    if "\0" in pattern:
        raise InvalidSetting(f"{what}: a zero is not looked for; leave it out")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidSetting(f"{what}: {pattern[:_SHOWN]!r} is no regular expression: {error}") from None


def statuses_of(given: int | str | tuple[int | str, ...], what: str) -> frozenset[int]:
    """All codes that are meant."""
    several = given if isinstance(given, tuple) else (given,)
    if not several:
        raise InvalidSetting(f"{what}: no status at all is no answer; write ['2xx']")
    found: set[int] = set()
    for each in several:
        found |= _codes(each, what)
    return frozenset(found)


def _codes(given: int | str, what: str) -> set[int]:
    text = str(given).strip()
    if re.fullmatch(r"[1-5]\d\d", text) and not isinstance(given, bool):
        return {int(text)}
    if found := _CLASS.fullmatch(text):
        return set(range(int(found[1]) * 100, int(found[1]) * 100 + 100))
    if (found := _RANGE.fullmatch(text)) and int(found[1]) <= int(found[2]):
        return set(range(int(found[1]), int(found[2]) + 1))
    raise InvalidSetting(f"{what}: {given!r:.60} is no status; write 204, '2xx' or '200-204'")


async def unmet(expect: HttpExpect, body: str, threads: Threads, beginning: Callable[[str, int], str]) -> str | None:
    """Why the body is not what is expected; None when it is. beginning: so much of a text as may be shown."""
    if expect.contains is not None and expect.contains not in body:
        return f"its body does not contain {expect.contains[:_SHOWN]!r}"
    if expect.matches is not None:
        pattern = expect.matches
        wrong = await threads.call(lambda: _search(pattern, body))
        if wrong is not None:
            return str(wrong)
    return _unequal(expect.json, body, beginning) if expect.json else None


def _search(pattern: str, text: str) -> str | None:
    said = f"{pattern}\0{text}".encode("utf-8", "surrogatepass")
    try:
        # Twice the time of its own: a machine may be busy.
        done = subprocess.run(  # noqa: S603 - this interpreter, and a program of ours
            [sys.executable, "-I", "-S", "-c", _SEARCH], input=said, capture_output=True, timeout=2 * _SEARCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        return _endless(pattern)
    if done.returncode == _FOUND:
        return None
    if done.returncode == _NOT_FOUND:
        return f"its body does not match {pattern[:_SHOWN]!r}"
    return _endless(pattern)


def _endless(pattern: str) -> str:
    return (
        f"whether its body matches {pattern[:_SHOWN]!r} was not found out within {_SEARCH_SECONDS} s; write a simpler "
        "expression, without repeats within repeats"
    )


def _unequal(wanted: dict[str, Any], body: str, beginning: Callable[[str, int], str]) -> str | None:
    try:
        document = msgspec.json.decode(body.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        return f"its body is no JSON: {error}"
    for pointer, value in wanted.items():
        try:
            found = _at(document, pointer)
        except LookupError:
            return f"its body has nothing at {pointer!r}"
        if not _is_same(found, value):
            shown = beginning(msgspec.json.encode(found).decode(), _SHOWN)
            return f"its body has {shown} at {pointer!r}, not {msgspec.json.encode(value).decode()[:_SHOWN]}"
    return None


def _at(document: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) names."""
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
