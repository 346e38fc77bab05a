"""Credentials files, with a NATS server that requires them."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bench import Bench, bench_on
from wire import envelope, no_secret

from evertick import Nats, NatsConnection, Scheduler, State, Verdict
from evertick.clock import system_clock
from evertick.driver.queue.nats_broker import NatsBroker
from evertick.errors import BrokerUnavailable
from servers.broker import Broker, nats_server
from servers.nats_operator import Operator

PAGE = Path(__file__).parents[2] / "docs/how-to/dispatch-jobs-to-a-queue.md"


@pytest.fixture(scope="module")
def operator() -> Operator:
    return Operator()


@pytest.fixture(scope="module")
def guarded(operator: Operator) -> Iterator[Broker]:
    """A server that takes the users of the operator alone."""
    with nats_server(conf=operator.conf()) as server:
        yield server


@pytest.fixture
def creds(operator: Operator, tmp_path: Path) -> Path:
    return operator.give(tmp_path / "worker.creds")


@asynccontextmanager
async def broker_at(server: Broker, file: Path | None, app: str) -> AsyncIterator[NatsBroker]:
    connection = NatsConnection(url=server.url, credentials=None if file is None else str(file))
    broker = NatsBroker(connection, app, system_clock, no_secret)
    try:
        yield broker
    finally:
        await broker.close()


async def refusal(server: Broker, file: Path | None, own: str) -> str:
    async with broker_at(server, file, own) as broker:
        [error] = await broker.push([envelope(own, reply=None)])
    assert isinstance(error, BrokerUnavailable)
    return str(error)


async def test_a_job_goes_from_a_node_to_a_worker_and_back_by_credentials(
    guarded: Broker, operator: Operator, own: str, tmp_path: Path
) -> None:
    """The driver on one side, `evertick worker` on the other; with no more rights than the page asks for."""
    subjects = re.findall(r"`([^`]+\.>)`", PAGE.read_text())
    assert subjects == ["evertick.>", "$JS.>", "_INBOX.>"]
    creds = operator.give(tmp_path / "worker.creds", subjects=subjects)
    node = Scheduler(f"sqlite:///{tmp_path}/ledger.db", app=own, drivers=["function", "nats"], poll_interval="200ms")
    node.connect("nats", NatsConnection(url=guarded.url, credentials=str(creds)))
    job = node.job("build", Nats(own))
    options = ("--nats", guarded.url, "--credentials", str(creds), "--driver", own)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evertick", "worker", *options, "--", "echo", "built"), stderr=asyncio.subprocess.PIPE
    )
    try:
        async with node:
            run = await job.enqueue()
            while run.state is not State.DONE:
                run = await node.get_run(run.id)
                await asyncio.sleep(0.01)
            lines = [line.text for line in await node.log(run.id)]
    finally:
        process.terminate()
        _, said = await process.communicate()
    assert run.verdict is Verdict.SUCCEEDED, said
    assert "built" in lines


async def test_a_worker_reads_its_credentials_from_the_configuration(
    guarded: Broker, creds: Path, own: str, tmp_path: Path
) -> None:
    (tmp_path / "evertick.toml").write_text(f"[nats]\nurl = '{guarded.url}'\ncredentials = '{creds.name}'\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evertick", "worker", "--driver", own, "--", "true"), cwd=tmp_path
    )
    try:
        async with bench_with(guarded, creds, own) as bench:
            await bench.dispatch()
            assert (await bench.ends())[-1].kind == "finish"
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def bench_with(server: Broker, file: Path, own: str) -> AsyncIterator[Bench]:
    """A bench whose node has credentials."""
    async with bench_on(server, own, "nats") as bench, broker_at(server, file, own) as broker:
        bench.broker = broker
        yield bench


async def test_without_credentials_the_server_refuses(guarded: Broker, own: str) -> None:
    assert "Authorization" in await refusal(guarded, None, own)


async def test_credentials_of_another_operator_are_reported_with_their_file_and_the_fix(
    guarded: Broker, own: str, tmp_path: Path
) -> None:
    file = Operator().give(tmp_path / "stranger.creds")
    said = await refusal(guarded, file, own)
    assert f"credentials: {file} was rejected by the server: " in said
    assert "Authorization" in said


async def test_expired_credentials_are_reported_with_their_file(
    guarded: Broker, operator: Operator, own: str, tmp_path: Path
) -> None:
    file = operator.give(tmp_path / "old.creds", until=time.time() - 60)
    assert f"credentials: {file} was rejected by the server: " in await refusal(guarded, file, own)


async def test_an_account_without_jetstream_is_reported_with_the_fix(own: str, tmp_path: Path) -> None:
    operator = Operator(has_jetstream=False)
    with nats_server(conf=operator.conf()) as server:
        said = await refusal(server, operator.give(tmp_path / "worker.creds"), own)
    assert said.endswith(
        "JetStream is not enabled; start the server with -js, or ask its operator to enable JetStream for the account"
    )


async def test_a_file_that_was_exchanged_counts_from_the_next_line_on(
    guarded: Broker, operator: Operator, own: str, tmp_path: Path
) -> None:
    file = tmp_path / "worker.creds"
    async with broker_at(guarded, file, own) as broker:
        [error] = await broker.push([envelope(own, reply=None)])
        assert str(error) == (
            f"nats at {guarded.url}: credentials: {file} cannot be read: No such file or directory; make it, or "
            "correct the path"
        )
        operator.give(file)
        assert await broker.push([envelope(own, reply=None)]) == [None]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a NATS credentials file: it has no user JWT"),
        ("-----BEGIN NATS USER JWT-----\n", "is not a NATS credentials file: it has no user JWT"),
        ("no key", "has a user JWT without its key; use the complete file"),
        ("damaged key", "has a damaged key; copy the file from its operator again"),
    ],
)
async def test_an_invalid_file_is_reported_with_the_problem(
    guarded: Broker, creds: Path, own: str, text: str, told: str
) -> None:
    whole = creds.read_text()
    jwt, _, rest = whole.partition("\n****")
    seed = rest.partition("SEED-----\n")[2].partition("\n")[0]
    files = {"no key": jwt, "damaged key": whole.replace(seed, seed[:-4])}
    creds.write_text(files.get(text, text))
    said = await refusal(guarded, creds, own)
    assert said.startswith(f"nats at {guarded.url}: credentials: {creds} {told}")
    assert seed not in said


async def test_a_file_with_the_line_ends_of_windows_is_read(guarded: Broker, creds: Path, own: str) -> None:
    creds.write_bytes(creds.read_bytes().replace(b"\n", b"\r\n"))
    async with broker_at(guarded, creds, own) as broker:
        assert await broker.push([envelope(own, reply=None)]) == [None]


async def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    guarded: Broker, creds: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    told = "needs the package nkeys; pip install 'evertick[nats]'"
    assert await refusal(guarded, creds, own) == f"nats at {guarded.url}: credentials: {creds} {told}"
