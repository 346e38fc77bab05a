"""NATS as a node uses it, against a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats as nats_py
import pytest
from bench import bench_on
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from wire import envelope, no_secret, reports_until

from evertick.clock import system_clock
from evertick.driver.queue import nats_client
from evertick.driver.queue.contract import Kill, decode_dispatch, decode_kill
from evertick.driver.queue.nats_broker import NatsBroker
from evertick.driver.queue.nats_client import NatsNames, token_of
from evertick.driver.queue.spec import NatsConnection
from evertick.driver.secret import Secret
from evertick.errors import BrokerUnavailable
from servers.broker import Broker, nats_server

RUN = "0190a1b2-0000-7000-8000-000000000001"
NAMES = NatsNames("evertick")


@asynccontextmanager
async def broker_at(server: Broker, app: str, prefix: str = "evertick") -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(NatsConnection(url=server.url, prefix=prefix), app, system_clock, no_secret)
    try:
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def stream_of(server: Broker) -> AsyncIterator[JetStreamContext]:
    client = await nats_py.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def test_messages_arrive_in_their_order_and_a_second_sending_adds_none(nats: Broker, own: str) -> None:
    messages = [envelope(own, reply=None, fence=fence) for fence in range(600)]
    async with broker_at(nats, own) as broker, stream_of(nats) as stream:
        assert await broker.push(messages) == [None] * 600
        assert await broker.push(messages[:50]) == [None] * 50
        jobs = await stream.pull_subscribe(NAMES.jobs(own), durable=own, stream=NAMES.jobs_stream)
        found: list[int] = []
        while len(found) < 600:
            for message in await jobs.fetch(200, timeout=5):
                found.append(decode_dispatch(message.data).fence)
                await message.ack()
        assert found == list(range(600))
        with pytest.raises(TimeoutError):
            await jobs.fetch(1, timeout=0.1)


async def test_a_report_goes_to_one_reader_and_is_gone_when_it_was_acknowledged(nats: Broker, own: str) -> None:
    async with broker_at(nats, own) as one, broker_at(nats, own) as two, stream_of(nats) as stream:
        assert await one.read(10, 0.05) == []
        for number in range(3):
            await stream.publish(NAMES.reports(own), str(number).encode())
        first = await one.read(2, 1.0)
        second = await two.read(2, 1.0)
        assert [each.data for each in first + second] == [b"0", b"1", b"2"]
        await one.acknowledge(first)
        await two.acknowledge(second)
        while (await stream.stream_info(NAMES.reports_stream, subjects_filter=NAMES.reports(own))).state.subjects:
            await asyncio.sleep(0.01)


async def test_an_unacknowledged_report_is_delivered_again(
    nats: Broker, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_client, "ACK_SECONDS", 0.1)
    async with broker_at(nats, own) as dead, broker_at(nats, own) as living, stream_of(nats) as stream:
        await dead.read(1, 0.05)
        await stream.publish(NAMES.reports(own), b"report")
        assert [each.data for each in await dead.read(1, 1.0)] == [b"report"]
        again = await living.read(1, 5.0)
        assert [each.data for each in again] == [b"report"]
        await living.acknowledge(again)


async def test_a_message_that_its_worker_did_not_take_goes_to_another(
    nats: Broker, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_client, "ACK_SECONDS", 0.1)
    async with bench_on(nats, own, "nats") as bench:

        @bench.scheduler.task(name="work")
        async def work() -> None: ...

        dead = bench.session()
        await bench.dispatch(run=bench.run)
        assert len(await dead.fetch(1, 5.0)) == 1
        await dead.close()
        bench.worker()
        assert (await bench.ends())[-1].run == bench.run


async def test_a_kill_is_delivered_and_stored(nats: Broker, own: str) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: nats_py.aio.msg.Msg) -> None:
        heard.put_nowait(message.data)

    client = await nats_py.connect(nats.url)
    async with broker_at(nats, own) as broker:
        await client.subscribe(NAMES.all_kills, cb=hear)
        await client.flush()
        await broker.kill([Kill(run=own, fence=7)])
        assert decode_kill(await heard.get()) == Kill(run=own, fence=7)
        kept = await client.jetstream().get_last_msg(NAMES.marks_stream, NAMES.kill(own, 7))
        assert kept.data is not None
        assert decode_kill(kept.data).run == own
    await client.close()


async def test_streams_are_made_with_limits_and_those_that_are_there_are_left_as_they_are() -> None:
    with nats_server() as server:
        async with stream_of(server) as stream:
            own = StreamConfig(name="OTHER_JOBS", subjects=["other.jobs.*"], max_msgs=5)
            await stream.add_stream(own)
            async with broker_at(server, "shop", prefix="other") as broker:
                await broker.read(1, 0.05)
            assert (await stream.stream_info("OTHER_JOBS")).config.max_msgs == 5
            for name in ("OTHER_REPORTS", "OTHER_MARKS"):
                config = (await stream.stream_info(name)).config
                assert config.max_age
                assert config.max_msg_size
                assert 0 < config.max_msg_size < 1_000_000


async def test_deleted_streams_are_created_again(own: str) -> None:
    """The connection works all the time."""
    with nats_server() as server:
        async with broker_at(server, own) as broker, stream_of(server) as stream:
            assert await broker.push([envelope(own, reply=None)]) == [None]
            await stream.delete_stream(NAMES.jobs_stream)
            [error] = await broker.push([envelope(own, reply=None)])
            assert "the stream was deleted; the next attempt creates it again" in str(error)
            assert await broker.push([envelope(own, reply=None)]) == [None]
            await stream.delete_stream(NAMES.reports_stream)
            with pytest.raises(BrokerUnavailable, match="the stream was deleted"):
                await broker.read(1, 5.0)
            assert await broker.read(1, 0.05) == []
            await stream.publish(NAMES.reports(own), b"report")
            assert [each.data for each in await broker.read(1, 5.0)] == [b"report"]


async def test_a_full_queue_refuses_and_takes_more_when_there_is_room() -> None:
    with nats_server() as server:
        async with stream_of(server) as stream, broker_at(server, "shop") as broker:
            await broker.read(1, 0.05)
            config = (await stream.stream_info(NAMES.jobs_stream)).config
            config.max_msgs = 1
            await stream.update_stream(config)
            first, second = envelope("q", reply=None), envelope("q", reply=None)
            assert await broker.push([first]) == [None]
            [error] = await broker.push([second])
            assert "maximum messages" in str(error)
            await stream.purge_stream(NAMES.jobs_stream)
            assert await broker.push([second]) == [None]


async def test_an_unreachable_server_is_reported_and_used_again_when_it_is_back(own: str) -> None:
    with nats_server() as server:
        async with broker_at(server, own) as broker:
            assert await broker.push([envelope(own, reply=None)]) == [None]
            server.kill()
            [error] = await broker.push([envelope(own, reply=None)])
            assert isinstance(error, BrokerUnavailable)
            with pytest.raises(BrokerUnavailable, match=f"nats at nats://127.0.0.1:{server.port}: "):
                await broker.read(1, 0.1)
            server.start()
            assert await broker.push([envelope(own, reply=None)]) == [None]
            assert await broker.read(1, 0.05) == []


async def test_a_line_that_a_restart_of_the_server_has_broken_costs_no_try(own: str) -> None:
    with nats_server() as server:
        async with broker_at(server, own) as broker:
            assert await broker.push([envelope(own, reply=None)]) == [None]
            # No other task has run in between that could have noticed it.
            server.kill()
            server.start()
            assert await broker.push([envelope(own, reply=None)]) == [None]


async def test_a_line_that_broke_while_it_was_closed_leaves_no_socket_open(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library marks the connection as closed first, and leaves the socket open if its last write fails."""

    async def broken() -> None:
        raise ConnectionResetError("gone")

    with nats_server() as server:
        async with broker_at(server, own) as broker:
            assert await broker.push([envelope(own, reply=None)]) == [None]
            client = broker._session._client
            assert client is not None
            socket = client._transport._io_writer.transport
            monkeypatch.setattr(client._transport, "drain", broken)
            client._pending, client._pending_data_size = [b"PING\r\n"], 6
            with pytest.raises(ConnectionResetError):
                await client.close()
            assert await broker.push([envelope(own, reply=None)]) == [None]
            assert socket.is_closing()


async def test_a_worker_goes_on_when_its_server_is_back(own: str) -> None:
    with nats_server() as server:
        async with bench_on(server, own, "nats") as bench:

            @bench.scheduler.task(name="work")
            async def work() -> None: ...

            bench.worker()
            await bench.dispatch()
            await bench.ends()
            server.kill()
            server.start()
            message = envelope(bench.to, reply=bench.reply, run=bench.run)
            pushed = await bench.broker.push([message])
            if pushed != [None]:  # the connection broke unnoticed
                pushed = await bench.broker.push([message])
            assert pushed == [None]
            # A report acknowledged right before the kill may be delivered again, before the end.
            end = ("finish", bench.run)
            reports = await reports_until(bench.broker, lambda found: end in [(each.kind, each.run) for each in found])
            assert [each.kind for each in reports if each.run == bench.run][:2] == ["taken", "finish"]


async def test_no_password_is_shown(own: str) -> None:
    with nats_server("--user", "shop", "--pass", "hunter2") as server:
        url = f"nats://127.0.0.1:{server.port}"
        right = NatsConnection(url=url, user="shop", password=Secret("PW"))
        wrong = NatsConnection(url=f"nats://shop:guessed@127.0.0.1:{server.port}")
        broker = NatsBroker(right, own, system_clock, lambda _: "hunter2")
        assert await broker.push([envelope(own, reply=None)]) == [None]
        await broker.close()
        broker = NatsBroker(wrong, own, system_clock, no_secret)
        [error] = await broker.push([envelope(own, reply=None)])
        await broker.close()
    assert isinstance(error, BrokerUnavailable)
    assert "Authorization" in str(error)
    assert "guessed" not in f"{error} {broker.shown} {wrong!r}"


async def test_a_bus_in_plain_text_elsewhere_is_warned_of_once_when_it_is_opened(
    nats: Broker, own: str, elsewhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    for host in ("127.0.0.1", "localhost", elsewhere, elsewhere):
        broker = NatsBroker(NatsConnection(url=f"nats://{host}:{nats.port}"), own, system_clock, no_secret)
        assert await broker.push([envelope(own, reply=None)]) == [None]
        await broker.close()
    said = f"nats at {elsewhere} is not encrypted: the network can read arguments and results; use tls://"
    assert [each for each in caplog.record_tuples if "encrypted" in each[2]] == [
        ("evertick.nats", logging.WARNING, said)
    ]


@pytest.mark.parametrize(
    ("text", "token"), [("shop-1", "shop-1"), ("a.b", "a=2Eb"), ("ü >*", "=C3=BC=20=3E=2A"), ("r:1", "r=3A1")]
)
def test_any_name_is_one_word_of_a_subject(text: str, token: str) -> None:
    assert token_of(text) == token
