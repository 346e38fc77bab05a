"""The ends of runs on NATS: all of them, in order, and continued after the last one."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import nats as nats_py
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from evertick import InvalidSetting, NatsConnection, Run, Scheduler, State, Verdict
from evertick.driver.queue import nats_events
from evertick.driver.queue.nats_client import NatsNames, NatsSession
from evertick.driver.queue.spec import EVENT_KINDS
from servers.broker import Broker, nats_server

NAMES = NatsNames("evertick")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_events, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(nats_events, "_RETRY_SECONDS", 0.05)


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in caplog.text:
            await asyncio.sleep(0.01)


def node_at(server: Broker, url: str, app: str, events: bool | list[str] = True) -> Scheduler:
    node = Scheduler(url, app=app, feed="1h", poll_interval="200ms")
    node.connect("nats", NatsConnection(url=server.url, events=events))

    @node.task
    async def works() -> None: ...

    @node.task
    async def fails() -> None:
        raise ValueError("no")

    return node


async def do(node: Scheduler, *tasks: str) -> list[Run]:
    runs = []
    for name in tasks:
        run = await node.runtime.tasks[name].enqueue()
        while (run := await node.get_run(run.id)).state is not State.DONE:
            await asyncio.sleep(0.01)
        runs.append(run)
    return runs


async def _in_stream(stream: JetStreamContext, subject: str) -> int:
    try:
        state = (await stream.stream_info(NAMES.events_stream, subjects_filter=subject)).state
    except NotFoundError:  # it does not exist yet
        return 0
    return sum((state.subjects or {}).values())


async def published(server: Broker, app: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """All events in the stream of this app, when this number is reached."""
    client = await nats_py.connect(server.url)
    subject = f"evertick.{app}.runs.*"
    try:
        while await _in_stream(client.jetstream(), subject) < count:
            await asyncio.sleep(0.01)
        events = await client.jetstream().subscribe(subject, stream=NAMES.events_stream, ordered_consumer=True)
        found = [await events.next_msg(5) for _ in range(count)]
        return [(each.subject, msgspec.json.decode(each.data)) for each in found]
    finally:
        await client.close()


async def test_every_end_of_a_run_is_published_by_its_verdict(nats: Broker, own: str, tmp_path: Path) -> None:
    node = node_at(nats, f"sqlite:///{tmp_path}/ledger.db", own)
    async with node:
        runs = await do(node, "works", "fails", "works")
        events = await published(nats, own, 3)
    assert [subject for subject, _ in events] == [
        f"evertick.{own}.runs.succeeded",
        f"evertick.{own}.runs.failed",
        f"evertick.{own}.runs.succeeded",
    ]
    assert [(event["v"], event["run_id"], event["task"]) for _, event in events] == [
        (1, run.id, run.task) for run in runs
    ]


async def test_the_kinds_that_are_named_are_published_each_on_its_subject(
    nats: Broker, own: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with node_at(nats, url, own, ["run.recorded", "run.started", "run.finished"]) as first:
        [failed] = await do(first, "fails")
        await published(nats, own, 3)
    async with node_at(nats, url, own, ["run.started"]) as second:
        [worked] = await do(second, "works")
        await published(nats, own, 4)
    async with node_at(nats, url, own) as third:
        [last] = await do(third, "works")
        events = await published(nats, own, 6)
    assert [(subject.rpartition(".")[2], event["kind"], event["run_id"]) for subject, event in events] == [
        ("recorded", "run.recorded", failed.id),
        ("started", "run.started", failed.id),
        ("failed", "run.finished", failed.id),
        ("started", "run.started", worked.id),
        ("succeeded", "run.finished", worked.id),
        ("succeeded", "run.finished", last.id),
    ]


def test_no_kind_of_event_is_called_like_a_verdict() -> None:
    assert {kind.removeprefix("run.") for kind in EVENT_KINDS} & set(Verdict) == set()


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (["run.finishd"], "nats: events: 'run.finishd' is not an event of a run; it is called 'run.finished'"),
        (["gap.recorded"], "nats: events: 'gap.recorded' is not an event of a run; "),
        ("run.finished", "nats: events: 'run.finished' must be true, false, or a list of kinds"),
    ],
)
def test_an_unknown_event_of_a_run_is_refused(events: Any, words: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(words)):
        Scheduler("sqlite://").connect("nats", NatsConnection(events=events))


async def test_after_a_stop_it_goes_on_behind_the_last_one(nats: Broker, own: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with node_at(nats, url, own) as first:
        runs = await do(first, "works")
        await published(nats, own, 1)
    quiet = Scheduler(url, app=own)

    @quiet.task
    async def works() -> None: ...

    async with quiet:
        runs += await do(quiet, "works")  # while no node publishes
    async with node_at(nats, url, own) as second:
        runs += await do(second, "fails")
        events = await published(nats, own, 3)
    assert [event["run_id"] for _, event in events] == [run.id for run in runs]


async def test_a_bus_that_is_away_delays_events_and_loses_none(
    own: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evertick.nats")
    with nats_server() as server:
        node = node_at(server, f"sqlite:///{tmp_path}/ledger.db", own)
        async with node:
            runs = await do(node, "works")
            await published(server, own, 1)
            server.kill()
            runs += await do(node, "fails", "works")
            await until_logged(caplog, "run events are not published")
            server.start()
            events = await published(server, own, 3)
            await until_logged(caplog, "run events are published on NATS again")
    assert [event["run_id"] for _, event in events] == [run.id for run in runs]


async def test_publishing_keeps_a_feed_and_leaves_a_longer_one_as_it_is(nats: Broker, own: str, tmp_path: Path) -> None:
    for kept, expected in (("30d", 30), (None, 1)):
        node = Scheduler(f"sqlite:///{tmp_path}/{expected}.db", app=own)
        if kept is not None:
            await node.keep_feed(kept)
        elsewhere = Scheduler(f"sqlite:///{tmp_path}/{expected}.db", app=own, concurrency=0)
        for each in (elsewhere, node):
            each.connect("nats", NatsConnection(url=nats.url, events=True))
        async with elsewhere:
            state = await (await elsewhere.runtime.store()).feed_state(own)
            assert (state is None) == (kept is None), "without events no feed is needed"
        async with node:
            state = await (await node.runtime.store()).feed_state(own)
        assert state is not None
        assert timedelta(microseconds=state.kept) == timedelta(days=expected)


async def test_an_app_without_a_feed_logs_how_to_turn_it_on(
    nats: Broker, own: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Scheduler(f"sqlite:///{tmp_path}/ledger.db", app=own, feed="off")
    node.connect("nats", NatsConnection(url=nats.url, events=True))
    async with node:
        await until_logged(caplog, "keeps no feed; turn it on")
    [told] = [record for record in caplog.records if "keeps no feed" in record.getMessage()]
    assert told.levelno >= logging.WARNING, "it is logged once, at a visible level"


async def test_without_events_their_stream_is_not_made(nats: Broker) -> None:
    names = NatsNames("quiet")

    for events, expected in ((False, set()), (True, {names.events_stream})):
        session = NatsSession(NatsConnection(url=nats.url, prefix="quiet", events=events), str)
        streams = await (await session.opened()).streams_info()
        await session.close()
        found = {each.config.name for each in streams if each.config.name in vars(names).values()}
        assert found == {names.jobs_stream, names.reports_stream, names.marks_stream, *expected}
