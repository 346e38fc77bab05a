"""Redis as a node uses it, against a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from wire import envelope, no_secret

from evertick.clock import system_clock
from evertick.driver.queue import redis_broker
from evertick.driver.queue.contract import Kill, WorkerReport, decode_dispatch, decode_kill, encode
from evertick.driver.queue.driver import IncomingReport
from evertick.driver.queue.redis_broker import FIELD, KILL_CHANNEL, RedisBroker, kill_key, reports_key
from evertick.driver.queue.spec import RedisConnection
from evertick.errors import BrokerUnavailable
from servers.broker import Broker, redis_server, system_redis

RUN = "0190a1b2-0000-7000-8000-000000000001"


@asynccontextmanager
async def broker_at(server: Broker, app: str, **settings: str) -> AsyncIterator[RedisBroker]:
    connection = RedisConnection(url=server.url, **settings)
    broker = RedisBroker(connection, app, system_clock, no_secret)
    try:
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def client_of(server: Broker) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture(params=["wheel", pytest.param("system", marks=pytest.mark.more_servers)])
def any_redis(request: pytest.FixtureRequest) -> Iterator[Broker]:
    binary = system_redis() if request.param == "system" else None
    if request.param == "system" and binary is None:
        pytest.skip("the system has no Redis installed")
    with redis_server(is_durable=False, binary=binary) as server:
        yield server


async def test_messages_go_into_the_list_in_their_order(any_redis: Broker, own: str) -> None:
    async with broker_at(any_redis, own) as broker, client_of(any_redis) as client:
        messages = [envelope(f"builds_{own}", reply=None, fence=fence) for fence in range(2_500)]
        assert await broker.push(messages) == [None] * 2_500
        popped = await client.rpop(f"builds_{own}", 3_000)
        assert [decode_dispatch(each).fence for each in popped] == list(range(2_500))


async def test_messages_go_into_a_stream(any_redis: Broker, own: str) -> None:
    async with broker_at(any_redis, own) as broker, client_of(any_redis) as client:
        messages = [envelope(own, reply=None, fence=fence, kind="stream") for fence in range(10)]
        assert await broker.push(messages) == [None] * 10
        entries = await client.xrange(own)
        assert [decode_dispatch(fields[FIELD.encode()]).fence for _, fields in entries] == list(range(10))


async def test_the_time_to_take_it_counts_from_the_push(redis: Broker, own: str) -> None:
    message = envelope(own, reply=None, take_within=60.0, timeout=5.0)
    async with broker_at(redis, own) as broker, client_of(redis) as client:
        before = datetime.now(UTC)
        await broker.push([message])
        dispatched = decode_dispatch(await client.rpop(own))
    assert dispatched.take_by is not None
    assert dispatched.deadline is not None
    take_by, deadline = datetime.fromisoformat(dispatched.take_by), datetime.fromisoformat(dispatched.deadline)
    assert timedelta(seconds=60) <= take_by - before < timedelta(seconds=90)
    assert deadline - take_by == timedelta(seconds=5)


async def test_a_queue_whose_key_is_something_else_spoils_only_its_own_messages(redis: Broker, own: str) -> None:
    async with broker_at(redis, own) as broker, client_of(redis) as client:
        await client.set(f"{own}-wrong", "no list")
        good, bad = envelope(own, reply=None), envelope(f"{own}-wrong", reply=None)
        first, second, third = await broker.push([good, bad, good])
        assert first is third is None
        assert isinstance(second, BrokerUnavailable)
        assert "WRONGTYPE" in str(second)
        assert await client.llen(own) == 2


async def test_a_report_goes_to_one_reader_and_is_gone_when_it_was_acknowledged(any_redis: Broker, own: str) -> None:
    key = reports_key("evertick", own)
    async with broker_at(any_redis, own) as one, broker_at(any_redis, own) as two, client_of(any_redis) as client:
        assert await one.read(10, 0.01) == []  # makes the group
        for fence in range(3):
            report = WorkerReport(v=1, run=RUN, fence=fence, kind="taken")
            await client.xadd(key, {FIELD: encode(report)})
        first = await one.read(2, 1.0)
        second = await two.read(2, 1.0)
        assert [len(first), len(second)] == [2, 1]
        await one.acknowledge(first)
        await two.acknowledge(second)
        assert await client.xlen(key) == 0


async def test_a_report_that_came_before_any_reader_is_read(redis: Broker, own: str) -> None:
    async with broker_at(redis, own) as broker, client_of(redis) as client:
        await client.xadd(reports_key("evertick", own), {FIELD: b"early"})
        assert [each.data for each in await broker.read(10, 1.0)] == [b"early"]


async def test_an_unacknowledged_report_goes_to_another_reader(
    redis: Broker, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_broker, "UNACKNOWLEDGED_MS", 0)
    async with broker_at(redis, own) as dead, broker_at(redis, own) as living, client_of(redis) as client:
        await dead.read(10, 0.01)
        await client.xadd(reports_key("evertick", own), {FIELD: b"report"})
        assert len(await dead.read(10, 1.0)) == 1
        found = await living.read(10, 1.0)
        assert [each.data for each in found] == [b"report"]
        await living.acknowledge(found)
        assert await living.read(10, 0.01) == []


async def test_an_entry_that_is_no_report_is_read_as_nothing_and_can_be_acknowledged(redis: Broker, own: str) -> None:
    async with broker_at(redis, own) as broker, client_of(redis) as client:
        await broker.read(10, 0.01)
        await client.xadd(reports_key("evertick", own), {"other": "field"})
        [incoming] = await broker.read(10, 1.0)
        assert incoming == IncomingReport(incoming.token, b"")
        await broker.acknowledge([incoming])


async def test_a_kill_is_published_and_stored(redis: Broker, own: str) -> None:
    async with broker_at(redis, own) as broker, client_of(redis) as client:
        async with client.pubsub(ignore_subscribe_messages=True) as said:
            await said.subscribe(KILL_CHANNEL)
            await said.get_message(timeout=5)  # that it is subscribed
            await broker.kill([Kill(run=RUN, fence=7)])
            while (message := await said.get_message(timeout=5)) is None:
                pass
        assert decode_kill(message["data"]) == Kill(run=RUN, fence=7)
        assert await client.ttl(kill_key(RUN, 7)) > 80_000


async def test_an_unreachable_server_is_reported_without_its_password(own: str) -> None:
    with redis_server("--requirepass", "hunter2", is_durable=False) as server:
        server.kill()
        async with broker_at(server, own) as broker:
            [error] = await broker.push([envelope(own, reply=None)])
            with pytest.raises(BrokerUnavailable):
                await broker.read(1, 0.01)
    assert "hunter2" not in f"{error} {error!r} {broker.shown} {broker._connection!r}"
    assert "127.0.0.1" in str(error)


async def test_it_is_used_again_after_the_server_came_back_empty(own: str) -> None:
    with redis_server(is_durable=False) as server:
        async with broker_at(server, own) as broker, client_of(server) as client:
            await broker.read(10, 0.01)
            server.kill()
            assert isinstance((await broker.push([envelope(own, reply=None)]))[0], BrokerUnavailable)
            server.start()
            assert await broker.push([envelope(own, reply=None)]) == [None]
            await broker.read(10, 0.01)
            await client.xadd(reports_key("evertick", own), {FIELD: b"report"})
            assert len(await broker.read(10, 1.0)) == 1


async def test_lines_that_a_restart_of_the_server_has_broken_cost_no_try(own: str) -> None:
    with redis_server(is_durable=False) as server:
        async with broker_at(server, own) as broker:
            # Two connections: one reads while the other pushes.
            reading = asyncio.create_task(broker.read(10, 0.5))
            while await broker.push([envelope(own, reply=None)]) == [None] and not reading.done():
                await asyncio.sleep(0.01)
            server.kill()
            server.start()
            again = asyncio.create_task(broker.read(10, 0.5))
            await asyncio.sleep(0)
            assert await broker.push([envelope(own, reply=None)]) == [None]
            await broker.kill([Kill(run=RUN, fence=1)])
            assert await again == []


async def test_a_password_comes_from_a_secret_and_a_wrong_one_is_reported(own: str) -> None:
    from evertick.driver.secret import Secret

    with redis_server("--requirepass", "hunter2", is_durable=False) as server:
        bare = f"redis://127.0.0.1:{server.port}/0"
        right = RedisBroker(RedisConnection(url=bare, password=Secret("PW")), own, system_clock, lambda _: "hunter2")
        wrong = RedisBroker(RedisConnection(url=bare, password="guessed"), own, system_clock, no_secret)
        try:
            assert await right.push([envelope(own, reply=None)]) == [None]
            [error] = await wrong.push([envelope(own, reply=None)])
        finally:
            await right.close()
            await wrong.close()
    assert isinstance(error, BrokerUnavailable)
    assert "guessed" not in str(error)


async def test_a_password_in_plain_text_to_elsewhere_is_warned_of_once(
    own: str, elsewhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server("--requirepass", "hunter2", is_durable=False) as server:
        for host in ("127.0.0.1", "localhost", elsewhere, elsewhere):
            connection = RedisConnection(url=f"redis://{host}:{server.port}/0", password="hunter2")
            broker = RedisBroker(connection, own, system_clock, no_secret)
            assert await broker.push([envelope(own, reply=None)]) == [None]
            await broker.close()
    said = f"redis at {elsewhere} is not encrypted: the network can read its password; use rediss://"
    told = [each for each in caplog.record_tuples if "encrypted" in each[2]]
    assert told == [("evertick.redis", logging.WARNING, said)]


async def test_a_cancelled_read_leaves_the_line_in_order(redis: Broker, own: str) -> None:
    async with broker_at(redis, own) as broker, client_of(redis) as client:
        await broker.read(1, 0.01)
        reading = asyncio.create_task(broker.read(1, 10.0))
        while not (await client.info("clients"))["blocked_clients"]:
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        assert await broker.push([envelope(own, reply=None)]) == [None]


async def test_a_waiting_read_ends_when_the_broker_closes_and_does_not_reconnect(redis: Broker, own: str) -> None:
    async with broker_at(redis, own) as broker:
        await broker.read(1, 0.01)
        assert broker._client is not None
        pool = broker._client.connection_pool
        reading = asyncio.create_task(broker.read(1, 10.0))
        while not pool._in_use_connections:
            await asyncio.sleep(0.01)
        await broker.close()
        with pytest.raises(BrokerUnavailable):
            await reading
    assert not any(each.is_connected for each in pool._available_connections)
    assert not pool._in_use_connections
