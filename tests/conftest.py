"""What all folders of tests share: a real PostgreSQL, started for whoever asks for it first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from servers.postgres import shared_postgres


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """One server for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    with shared_postgres((folder if worker_id == "master" else folder.parent) / "postgres") as dsn:
        yield dsn
