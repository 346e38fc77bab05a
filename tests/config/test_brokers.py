"""Drivers of brokers get their server settings from the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evertick.config.build import scheduler_from
from evertick.config.load import Configuration
from evertick.driver.queue.spec import NatsConnection, RedisConnection

Load = Callable[..., Configuration]


def test_the_redis_driver_gets_the_settings_of_the_file(authority: Path, load: Load) -> None:
    text = (
        "[redis]\naddress = 'r:6380'\nuser = 'u'\npassword = 'p/w'\nnumber = 2\nnamespace = 'mill'\nssl.ca = 'ca.pem'\n"
    )
    found = scheduler_from(load(text)).runtime.connections["redis"]
    assert found == RedisConnection(url="rediss://u:p%2Fw@r:6380/2", ca=str(authority), namespace="mill")
    assert isinstance(found, RedisConnection)
    found.check()


def test_the_nats_driver_gets_the_settings_of_the_file(folder: Path, load: Load) -> None:
    (folder / "c").touch()
    text = (
        "[nats]\naddress = 'a, b:4223'\ntoken = 't'\nprefix = 'mill'\nreplicas = 3\nevents = true\ncredentials = 'c'\n"
    )
    found = scheduler_from(load(text)).runtime.connections["nats"]
    assert found == NatsConnection(
        url="nats://a,nats://b:4223",
        token="t",
        prefix="mill",
        replicas=3,
        events=True,
        credentials=str(folder / "c"),
    )
    assert isinstance(found, NatsConnection)
    found.check()


def test_published_events_are_configured_by_the_file_or_the_environment(
    load: Load, problems: Callable[..., list[str]]
) -> None:
    def kinds(text: str, **environ: str) -> tuple[str, ...]:
        found = scheduler_from(load(f"[nats]\naddress = 'n'\n{text}", environ=environ)).runtime.connections["nats"]
        assert isinstance(found, NatsConnection)
        return found.event_kinds

    assert kinds("") == kinds("events = []") == kinds("events = true", EVERTICK_NATS_EVENTS="no") == ()
    assert kinds("events = true") == kinds("", EVERTICK_NATS_EVENTS="yes") == ("run.finished",)
    chosen = ("run.started", "run.finished")
    assert kinds("events = ['run.started', 'run.finished']") == chosen
    assert kinds("", EVERTICK_NATS_EVENTS="run.started, run.finished") == chosen
    assert problems("[nats]\naddress = 'n'\nevents = ['run.startd']\n") == [
        "evertick.toml:3: nats.events: 'run.startd' is not an event of a run; it is called 'run.started'"
    ]
    [wrong] = problems("[nats]\naddress = 'n'\nevents = 7\n")
    assert wrong.startswith("evertick.toml:3: nats.events: 7 cannot be; write true or false, without quotes, or a list")


def test_a_job_for_an_unconfigured_broker_is_reported_with_its_line(
    load: Load, problems: Callable[..., list[str]]
) -> None:
    job = "[jobs.a]\nevery = '1h'\n{driver} = 'docker'\n"
    for driver in ("redis", "nats"):
        message = f"no server is configured; set address or url under [{driver}]"
        assert problems(job.format(driver=driver)) == [f"evertick.toml:3: jobs.a.{driver}: {message}"]
    # A node that leaves such jobs to others needs no broker.
    assert len(load("[node]\ndrivers = ['shell']\n" + job.format(driver="redis")).jobs) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[nats]\naddress = 'a'\nreplicas = 99", "evertick.toml:3: nats.replicas: 99 must be a number from 1 to "),
        ("[nats]\naddress = 'a'\nprefix = 'A B'", "evertick.toml:3: nats.prefix: 'A B' is not a valid prefix"),
        ("[redis]\naddress = 'a'\nnamespace = 'A B'", "evertick.toml:3: redis.namespace: 'A B' is not a valid prefix"),
        ("[redis]\nurl = 'redis://a:port'", "evertick.toml:2: redis.url: 'redis://***' is not a Redis URL"),
    ],
)
def test_invalid_settings_of_a_broker_are_reported(problems: Callable[..., list[str]], text: str, line: str) -> None:
    [found] = problems(text)
    assert found.startswith(line)
