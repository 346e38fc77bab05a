"""Makes foreign text safe to print: terminals obey control characters, and direction marks such as U+202E change how a
line reads."""

from __future__ import annotations

import re

__all__ = ["CONTROLS", "escaped", "printable"]

# For a class of a regular expression: control characters except tab and line feed, Unicode line ends, direction marks,
# and other invisible characters. The joiners of scripts and emoji are harmless and stay.
CONTROLS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff"
)
_CONTROLS = re.compile(f"[{CONTROLS}]")


def printable(text: str) -> str:
    """One line, with a space in place of each character that is not printable."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def escaped(text: str, *, is_toml: bool = False) -> str:
    """The same JSON or TOML with invisible characters escaped; they occur only inside quotes."""
    return _CONTROLS.sub(lambda found: _escape(found[0], is_toml), text)


def _escape(letter: str, is_toml: bool) -> str:
    number = ord(letter)
    if number < 0x10000:
        return f"\\u{number:04x}"
    if is_toml:
        return f"\\U{number:08x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
