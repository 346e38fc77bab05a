"""An encrypted way to a real server: whom it trusts, what it shows, and what is said when one of them will not do.

The server of the wheel has no TLS, so this needs the one that the system has installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from evertick import Context, Scheduler, StoreRefused
from evertick.clock import system_clock
from evertick.errors import InvalidSetting
from evertick.store.postgres import PostgresStore
from servers.postgres import postgres_server, system_binaries
from servers.tls import Certificates, certificates

pytestmark = [
    pytest.mark.more_servers,
    pytest.mark.skipif(
        system_binaries() is None,
        reason="NO POSTGRESQL OF THE SYSTEM: nothing shows that TLS works; apt-get install postgresql",
    ),
]
SECRET = "hunter2"


@pytest.fixture(scope="module")
def authority() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


@pytest.fixture(scope="module")
def encrypted(authority: Certificates) -> Iterator[int]:
    """The port of a server that accepts every encrypted connection."""
    settings = authority.server_settings(asks_for_certificate=False)
    with postgres_server(binaries=system_binaries(), **settings) as dsn:
        yield port_of(dsn)


@pytest.fixture(scope="module")
def asking(authority: Certificates) -> Iterator[int]:
    """The port of a server that wants to see a certificate."""
    settings = authority.server_settings(asks_for_certificate=True)
    with postgres_server(binaries=system_binaries(), **settings) as dsn:
        yield port_of(dsn)


def port_of(dsn: str) -> int:
    return int(dsn.rpartition(":")[2].partition("/")[0])


def url_of(port: int, host: str = "localhost", **parameters: object) -> str:
    given = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"postgresql://postgres:{SECRET}@{host}:{port}/postgres?{given}"


async def opened(url: str) -> bool:
    store = PostgresStore(url, clock=system_clock)
    await store.open(migrate="auto")
    rows = await store.session().borrow(
        lambda connection: connection.fetch("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    )
    await store.close()
    return bool(rows[0]["ssl"])


async def refusal(url: str) -> str:
    with pytest.raises(StoreRefused) as refused:
        await opened(url)
    assert SECRET not in str(refused.value)
    return str(refused.value)


async def test_a_server_that_the_authority_vouches_for_is_trusted(encrypted: int, authority: Certificates) -> None:
    assert await opened(url_of(encrypted, ca=authority.ca))


@pytest.mark.parametrize("sslmode", ["prefer", "require"])
async def test_without_an_authority_it_is_encrypted_and_trusted_blindly(encrypted: int, sslmode: str) -> None:
    assert await opened(url_of(encrypted, sslmode=sslmode))


async def test_an_unencrypted_way_is_refused_by_such_a_server(encrypted: int) -> None:
    assert "pg_hba.conf" in await refusal(url_of(encrypted, sslmode="disable"))


async def test_a_certificate_for_another_host_name_is_refused(encrypted: int, authority: Certificates) -> None:
    said = await refusal(url_of(encrypted, host="127.0.0.1", ca=authority.ca))
    assert "127.0.0.1" in said
    assert "verify-ca" in said


async def test_with_verify_ca_the_host_name_does_not_matter(encrypted: int, authority: Certificates) -> None:
    assert await opened(url_of(encrypted, host="127.0.0.1", ca=authority.ca, sslmode="verify-ca"))


@pytest.mark.parametrize("sslmode", ["verify-ca", "verify-full"])
async def test_a_server_of_another_authority_is_refused(encrypted: int, authority: Certificates, sslmode: str) -> None:
    said = await refusal(url_of(encrypted, ca=authority.stranger, sslmode=sslmode))
    assert "check ca in the URL" in said


async def test_a_client_certificate_is_shown_where_it_is_asked_for(asking: int, authority: Certificates) -> None:
    shown = {"cert": authority.client, "key": authority.client_key}
    assert await opened(url_of(asking, ca=authority.ca, **shown))


async def test_a_missing_client_certificate_is_said_to_be_missing(asking: int, authority: Certificates) -> None:
    assert "cert" in await refusal(url_of(asking, ca=authority.ca))


async def test_a_file_that_cannot_be_read_is_named(encrypted: int, authority: Certificates) -> None:
    for wrong in ({"ca": "/no/such/ca.crt"}, {"cert": "/no/such/client.crt", "key": "/no/such/client.key"}):
        with pytest.raises(InvalidSetting, match="/no/such/") as refused:
            await opened(url_of(encrypted, **{"ca": authority.ca, **wrong}))
        assert SECRET not in str(refused.value)


async def test_files_that_do_not_belong_together_are_refused(asking: int, authority: Certificates) -> None:
    with pytest.raises(InvalidSetting, match="that belong together"):
        await opened(url_of(asking, ca=authority.ca, cert=authority.client, key=authority.folder / "server.key"))


async def test_a_plain_job_has_its_transaction_the_same_way(asking: int, authority: Certificates) -> None:
    """It has another driver, which must trust and show the same."""
    shown = {"cert": authority.client, "key": authority.client_key}
    scheduler = Scheduler(url_of(asking, ca=authority.ca, **shown), poll_interval="1s")
    seen: list[bool] = []

    @scheduler.task
    def look(ctx: Context) -> None:
        with ctx.transaction() as connection:
            seen.append(connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()[0])

    async with scheduler:
        run = await look.enqueue()
        async with asyncio.timeout(30):
            while (await scheduler.get_run(run.id)).verdict is None:
                await asyncio.sleep(0.02)
    assert seen == [True]
