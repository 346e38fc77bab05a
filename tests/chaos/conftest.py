"""Stores for processes that are killed."""

from __future__ import annotations

import pytest


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """A killed process may leave a statement behind, which writes after the test: so no other test gets its schema."""
    return empty_postgres_url
