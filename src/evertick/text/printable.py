"""Text of others, safe to be shown: a terminal obeys control characters, and marks of writing direction (as U+202E)
make a line read otherwise than it is."""

from __future__ import annotations

import re

__all__ = ["CONTROLS", "escaped", "printable"]

# For a class of a regular expression: control characters but tab and line break, what ends a line in Unicode, marks of
# direction, and other characters that are not seen. The joiners of scripts and emoji stay: they
# change nothing around them.
CONTROLS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff"
)
_CONTROLS = re.compile(f"[{CONTROLS}]")


def printable(text: str) -> str:
    """On one line, with a space in place of each character that is not printed as itself."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def escaped(text: str, *, is_toml: bool = False) -> str:
    """JSON or TOML that says the same, with what is not seen in it written out. Nothing of it stands outside quotes."""
    return _CONTROLS.sub(lambda found: _escape(found[0], is_toml), text)


def _escape(letter: str, is_toml: bool) -> str:
    number = ord(letter)
    if number < 0x10000:
        return f"\\u{number:04x}"
    if is_toml:
        return f"\\U{number:08x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
