"""The zone of this machine by its name, which a crontab means without saying so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from evertick.errors import InvalidWhen
from evertick.when.zone import zone_named

__all__ = ["local_zone"]

_ZONES = "zoneinfo/"


def local_zone(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str | None:
    """Its name, or None where the machine does not tell: by TZ, by what localtime is linked to, by /etc/timezone."""
    return next((name for name in _told(root, environ) if _is_zone(name)), None)


def _told(root: Path, environ: Mapping[str, str]) -> list[str]:
    told = [environ.get("TZ", "").removeprefix(":")]
    with contextlib.suppress(OSError):  # a copy, or none at all
        told.append(os.readlink(root / "etc/localtime").rpartition(_ZONES)[2])
    with contextlib.suppress(OSError, UnicodeDecodeError):
        told.append((root / "etc/timezone").read_text()[:200].strip())
    return told


def _is_zone(name: str) -> bool:
    try:
        zone_named(name)
    except InvalidWhen:
        return False
    return bool(name)
