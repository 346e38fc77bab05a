"""The map of the architecture names real places."""

from __future__ import annotations

import re

from pages import ROOT, text_of

_PATH = re.compile(r"`((?:src|tests|docs|benchmarks)/[\w./*-]+)`")


def test_every_path_in_the_architecture_exists() -> None:
    paths = _PATH.findall(text_of(ROOT / "ARCHITECTURE.md"))
    assert len(paths) >= 20, "the map of the architecture names hardly any path"
    missing = [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]
    assert not missing, f"ARCHITECTURE.md names what is not there: {missing}"
