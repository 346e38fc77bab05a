"""Where a value comes from: the default, a place in a file, a variable of the environment, a flag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["DEFAULT", "Layer", "Origin"]

Layer = Literal["default", "file", "environment", "flag"]
# Each is stronger than those before it.
_ORDER: tuple[Layer, ...] = ("default", "file", "environment", "flag")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    layer: Layer
    # "evertick.toml:12", "EVERTICK_NODE_LEASE", "--pidfile".
    place: str = ""
    # What a relative path counts from: the folder of the file; elsewhere, the working directory.
    folder: Path = Path()

    @property
    def rank(self) -> int:
        return _ORDER.index(self.layer)

    def __str__(self) -> str:
        return self.place or self.layer


DEFAULT = Origin(layer="default")
