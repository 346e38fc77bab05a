"""What the answer of a server must be for its job to have succeeded."""

from __future__ import annotations

import re
from typing import Any, Protocol, assert_never

import msgspec

from evertick.driver.faults import Faults
from evertick.driver.http.body_check import CHECK_SECONDS, Checks, Missed, check, check_apart
from evertick.driver.python.function import Threads
from evertick.errors import InvalidSetting

__all__ = ["HttpExpect", "check_expect", "statuses_of", "unmet"]

_TEXT_MAX_CHARS = 1_000
_CHECKS_MAX = 50
_SHOWN = 100
_RANGE = re.compile(r"([1-5]\d\d)-([1-5]\d\d)")
_CLASS = re.compile(r"([1-5])[xX]{2}")
# A longer body is looked through by a process of its own.
_LOOKED_THROUGH_HERE = 128 * 1024
_NOTHING = Checks()


class Beginning(Protocol):
    """So much of a text as may be shown."""

    def __call__(self, text: str, most: int, *, is_cut: bool = False) -> str: ...


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


async def unmet(expect: HttpExpect, body: str, threads: Threads, beginning: Beginning) -> str | None:
    """Why the body is not what is expected; None when it is."""
    wanted = Checks(expect.contains, expect.matches, expect.json)
    if wanted == _NOTHING:
        return None
    if expect.matches is None and len(body) <= _LOOKED_THROUGH_HERE:
        missed = check(wanted, body)
    else:
        missed = await threads.call(lambda: check_apart(wanted, body))
    return None if missed is None else _words(missed, expect, beginning)


def _words(missed: Missed, expect: HttpExpect, beginning: Beginning) -> str:
    match missed.what:
        case "contains":
            return f"its body does not contain {(expect.contains or '')[:_SHOWN]!r}"
        case "matches":
            return f"its body does not match {(expect.matches or '')[:_SHOWN]!r}"
        case "no json":
            return f"its body is no JSON: {missed.text}"
        case "absent":
            return f"its body has nothing at {missed.pointer!r}"
        case "unequal":
            shown = beginning(missed.text, _SHOWN, is_cut=missed.is_cut)
            wanted = msgspec.json.encode(expect.json[missed.pointer]).decode()[:_SHOWN]
            return f"its body has {shown} at {missed.pointer!r}, not {wanted}"
        case "endless" if expect.matches is not None:
            return (
                f"whether its body matches {expect.matches[:_SHOWN]!r} was not found out within {CHECK_SECONDS} s; "
                "write a simpler expression, without repeats within repeats"
            )
        case "endless":
            return (
                f"whether its body is what is expected was not found out within {CHECK_SECONDS} s; lower read_limit, "
                "or have the server send less"
            )
        case _:
            assert_never(missed.what)
