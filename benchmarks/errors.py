"""Errors that end the program with one line instead of a traceback."""

from __future__ import annotations

__all__ = ["NotDurable", "UsageError"]


class UsageError(Exception):
    """The request cannot be carried out. The text names the value and the fix."""


class NotDurable(Exception):
    """Commits do not reach the disk, so nothing is measured. The text gives the reason."""
