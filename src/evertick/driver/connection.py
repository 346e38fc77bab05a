"""How to reach what drivers talk to, checked where it is written. Each kind knows its own settings."""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from evertick.errors import InvalidSetting

__all__ = ["connection_to", "fields_for"]

T = TypeVar("T", bound=msgspec.Struct)

# Imported when one is needed.
_CHECKED_BY = {
    "redis": ("evertick.driver.queue.redis_spec", "redis_connection"),
    "nats": ("evertick.driver.queue.nats_spec", "nats_connection"),
}


def connection_to(driver: str, where: object) -> object:
    """Settings or a URL, checked. Of a driver from elsewhere it is passed on as it is."""
    if not isinstance(driver, str):
        raise InvalidSetting(f"driver: {driver!r} is no name of one; write it like connect('redis', 'redis://host')")
    if driver not in _CHECKED_BY:
        return where
    module, function = _CHECKED_BY[driver]
    checked: object = getattr(import_module(module), function)(where)
    return checked


def fields_for(kind: type[T], given: object) -> dict[str, Any] | None:
    """What settings of another kind, as those of a file, have for this one; None: they are none."""
    if not isinstance(given, msgspec.Struct) or not hasattr(given, "url"):
        return None
    found = {name: getattr(given, name) for name in kind.__struct_fields__ if getattr(given, name, None) is not None}
    return {name: str(value) if isinstance(value, PurePath) else value for name, value in found.items()}
