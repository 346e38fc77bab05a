"""Brokers for the tests in this folder. A server per module; each test has queues and an app of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evertick.clock import system_clock
from servers.broker import Broker, nats_server, redis_server


@pytest.fixture(scope="module")
def redis() -> Iterator[Broker]:
    """A Redis that the tests leave running."""
    with redis_server(is_durable=False) as server:
        yield server


@pytest.fixture(scope="module")
def nats() -> Iterator[Broker]:
    with nats_server() as server:
        yield server


@pytest.fixture
def own() -> str:
    """A name that no other test has: of a queue, of an app."""
    return f"t{system_clock.new_token()[:8]}"
