"""Why what was asked for cannot be done."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):
    """Nothing was done; the text names the value, and what to do instead. The program ends with it, in one line."""
