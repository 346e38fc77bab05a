"""A folder for daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.end()
