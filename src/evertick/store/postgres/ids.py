"""Which texts are ids at all. What is none is the id of nothing; PostgreSQL would refuse the whole question."""

from __future__ import annotations

import re

__all__ = ["is_run_id"]

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """Runs and messages have ids of one kind."""
    return _ID.fullmatch(text) is not None
