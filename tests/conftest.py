"""What all folders of tests share: a real PostgreSQL, started for whoever asks for it first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from evertick.clock import system_clock
from servers.postgres import shared_postgres


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """One server for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    with shared_postgres((folder if worker_id == "master" else folder.parent) / "postgres") as dsn:
        yield dsn


@pytest.fixture
def postgres_url(postgres_dsn: str) -> Iterator[str]:
    """The URL of a store in a schema of the test's own, which is empty, and goes with the test."""
    schema = f"test_{system_clock.new_token()[:12]}"
    yield f"{postgres_dsn}{'&' if '?' in postgres_dsn else '?'}schema={schema}"
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
