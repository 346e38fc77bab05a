"""Durations for people."""

from __future__ import annotations

from datetime import timedelta

__all__ = ["span"]

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
# The smaller unit is shown only below this many of the larger one.
_FEW = 10


def span(duration: timedelta) -> str:
    """The duration in its largest units: "3 d 4 h", "12 min", "1.2 s", "8 ms"."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole, _MINUTE, "min", 1, "s")
    return _two(whole, _HOUR, "h", _MINUTE, "min") if whole < _DAY else _two(whole, _DAY, "d", _HOUR, "h")


def _two(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    count, rest = divmod(seconds, large)
    fraction = rest // small
    return f"{count} {large_unit} {fraction} {small_unit}" if fraction and count < _FEW else f"{count} {large_unit}"
