"""The kinds of values that a key may have: how each is written in a file, and in the environment or a flag as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.problem import toml_words
from evertick.errors import InvalidSetting
from evertick.text.byte_size import size_bytes
from evertick.when.duration import duration_us

__all__ = [
    "DURATION",
    "DURATION_OR_OFF",
    "PATH",
    "SIZE",
    "TEXT",
    "TEXTS",
    "WHOLE",
    "YES_NO",
    "YES_NO_OR_TEXTS",
    "Kind",
    "choice",
]

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_TEXT_LONGEST = 4_096
_TEXTS_MOST = 1_000


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """`read` checks a value as a file has it; `of_text` makes such a value of text, or answers the text itself."""

    # For the documentation, and for what is said of a wrong value: "is no <words>; write <fix>".
    words: str
    fix: str
    read: Callable[[Any, Path], Any]
    of_text: Callable[[str], Any] = lambda text: text


def _refused(value: Any, words: str, fix: str) -> InvalidSetting:
    return InvalidSetting(f"{toml_words(value):.100} is no {words}; write {fix}")


def _make(words: str, fix: str, is_right: Callable[[Any], bool], of_text: Callable[[str], Any]) -> Kind:
    def read(value: Any, folder: Path) -> Any:
        if not is_right(value):
            raise _refused(value, words, fix)
        return value

    return Kind(words=words, fix=fix, read=read, of_text=of_text)


def _same(text: str) -> Any:
    return text


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _TEXT_LONGEST and "\0" not in value


def _whole_of(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _yes_or_no(text: str) -> Any:
    plain = text.strip().lower()
    return True if plain in _YES else False if plain in _NO else text


def _texts_of(text: str) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_texts(value: Any, folder: Path) -> Any:
    if not isinstance(value, list):
        raise _refused(value, TEXTS.words, TEXTS.fix)
    if len(value) > _TEXTS_MOST:
        raise InvalidSetting(f"{len(value)} texts are more than {_TEXTS_MOST}; keep fewer")
    if "" in value:
        raise InvalidSetting("'' in it is empty; write something between the quotes, or take them away")
    for each in value:
        if not _is_text(each):
            raise InvalidSetting(f"{toml_words(each):.100} in it is no {TEXT.words}; write {TEXT.fix}")
    return value


def _read_yes_no_or_texts(value: Any, folder: Path) -> Any:
    if type(value) is bool:
        return value
    if not isinstance(value, list):
        raise InvalidSetting(f"{toml_words(value):.100} cannot be; write {YES_NO_OR_TEXTS.fix}")
    return _read_texts(value, folder)


def _yes_no_or_texts_of(text: str) -> Any:
    value = _yes_or_no(text)
    return value if type(value) is bool else _texts_of(text)


def _read_duration(value: Any, folder: Path) -> Any:
    duration_us(value)
    return value


def _read_path(value: Any, folder: Path) -> Path:
    if not _is_text(value):
        raise _refused(value, PATH.words, PATH.fix)
    return (folder / Path(value).expanduser()).absolute()


TEXT = _make("text", 'it in quotes, like "value"', _is_text, _same)
WHOLE = _make("whole number", "digits without quotes, like 50", lambda value: type(value) is int, _whole_of)
YES_NO = _make("true or false", "true or false, without quotes", lambda value: type(value) is bool, _yes_or_no)
TEXTS = Kind(words="list of texts", fix='a list in brackets, like ["one", "two"]', read=_read_texts, of_text=_texts_of)
YES_NO_OR_TEXTS = Kind(
    words="true, false or a list of texts",
    fix=f"{YES_NO.fix}, or {TEXTS.fix}",
    read=_read_yes_no_or_texts,
    of_text=_yes_no_or_texts_of,
)
DURATION = Kind(words="duration", fix='a number with its unit, like "90s" or "1h30m"', read=_read_duration)
DURATION_OR_OFF = Kind(
    words='duration or "off"',
    fix=f'{DURATION.fix}, or "off"',
    read=lambda value, folder: value if value == "off" else _read_duration(value, folder),
)
SIZE = Kind(
    words="size",
    fix='a number with its unit, like "64KiB"',
    read=lambda value, _: size_bytes(value),
    of_text=_whole_of,
)
PATH = Kind(words="path", fix='it in quotes, like "/var/lib/evertick"', read=_read_path)


def choice(*allowed: str) -> Kind:
    """One of these words."""
    words = ", ".join(f'"{each}"' for each in allowed)

    def read(value: Any, folder: Path) -> Any:
        if value not in allowed:
            raise InvalidSetting(
                f"{toml_words(value):.100} cannot be; write {'one of ' if len(allowed) > 1 else ''}{words}"
            )
        return value

    return Kind(words=f"one of {words}" if len(allowed) > 1 else words, fix=words, read=read)
