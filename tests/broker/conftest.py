"""Brokers and benches for the tests in this folder. One server for all; each test has queues and an app of its own."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from bench import Bench, bench_on

from evertick.clock import system_clock
from evertick.driver.queue import spec as queue_spec
from evertick.engine import report as report_module
from evertick.worker import worker as worker_module
from servers.broker import Broker, nats_server, redis_server


@pytest.fixture(scope="session")
def redis() -> Iterator[Broker]:
    """A Redis that the tests leave running."""
    with redis_server(is_durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Broker]:
    with nats_server() as server:
        yield server


@pytest.fixture
def own() -> str:
    """A name that no other test has: of a queue, of an app."""
    return f"t{system_clock.new_token()[:8]}"


@pytest.fixture(params=["list", "stream", "nats"])
async def bench(own: str, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A queue of each kind, with the node's side of it and its workers."""
    server = request.getfixturevalue("nats" if request.param == "nats" else "redis")
    async with bench_on(server, own, request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits: a stopping worker waits for its current fetch, and a node that checks whether a worker has a run
    waits for its current read."""
    monkeypatch.setattr(worker_module, "FETCH_SECONDS", 0.05)
    monkeypatch.setattr(report_module, "WAIT_SECONDS", 0.5)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host name that looks remote and leads to this machine; no warning about it was logged yet."""
    name, look_up = "broker.example", socket.getaddrinfo

    def found(host: Any, *args: Any, **more: Any) -> Any:
        return look_up("127.0.0.1" if host == name else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(queue_spec, "_warned", set())
    return name
