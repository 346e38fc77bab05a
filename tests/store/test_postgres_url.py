"""The URL of a PostgreSQL store says where it is and how it is used; what cannot be is refused by name, and no password
is ever shown."""

from __future__ import annotations

import ssl
import subprocess
import sys

import pytest

from evertick.clock import system_clock
from evertick.errors import InvalidSetting
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.location import Location, location_of
from evertick.store.url import open_store

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://", Location()),
        ("postgres://h/db", Location(hosts=(("h", 5432),), database="db")),
        ("postgresql://u:p%40ss@h:6000/my%20db",
            Location(hosts=(("h", 6000),), user="u", password="p@ss", database="my db")),
        ("postgresql://a:1,b:2/db", Location(hosts=(("a", 1), ("b", 2)), database="db")),
        ("postgresql://[::1]:7000/db", Location(hosts=(("::1", 7000),), database="db")),
        ("postgresql:///db?host=/run/pg&port=6000", Location(hosts=(("/run/pg", 6000),), database="db")),
        ("postgresql:///db?schema=Jobs_2", Location(database="db", schema="Jobs_2")),
        ("postgresql:///db?pooler=transaction&listen=postgresql://h2/db",
            Location(database="db", is_pooled=True, listen="postgresql://h2/db")),
        ("postgresql:///db?listen=off", Location(database="db", listen="off")),
        ("postgresql:///db?timeout=5s&connect_timeout=250ms&pool_size=3",
            Location(database="db", timeout=5.0, connect_timeout=0.25, pool_size=3)),
    ],
)  # fmt: skip
def test_a_url_says_where_the_store_is_and_how_to_use_it(url: str, expected: Location) -> None:
    assert location_of(url) == expected


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("?color=red", "'color'"),
        ("?schema=a b", "'a b'"),
        ('?schema=a"b', "is invalid"),
        ("?schema=" + "x" * 64, "63 bytes"),
        ("?schema=", "is invalid"),
        ("?schema=pg_jobs", "PostgreSQL's own"),
        ("?schema=a&schema=b", "more than once"),
        ("?timeout=1000d", "write a day at most"),
        ("?timeout=1us", "a millisecond"),
        ("?sslmode=maybe", "'maybe'"),
        ("?pooler=session", "'session'"),
        ("?timeout=soon", "'soon'"),
        ("?timeout=0s", "is too short; write a millisecond"),
        ("?pool_size=0", "'0'"),
        ("?key=/k", "without its cert"),
        ("?ca=", "ca is empty"),
        ("?listen=sqlite://", "no URL of a PostgreSQL store"),
    ],
)
def test_an_invalid_url_is_refused_with_the_offending_part_and_without_the_password(rest: str, said: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        PostgresStore(f"postgresql://u:{SECRET}@h/db{rest}", clock=system_clock)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_port_is_that_of_a_host_which_may_be_named_after_it() -> None:
    assert location_of("postgresql:///db?port=6000&host=/run/pg").hosts == (("/run/pg", 6000),)
    with pytest.raises(InvalidSetting, match="a port without a host; add host="):
        location_of("postgresql:///db?port=6000")


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="'99999'"):
        location_of("postgresql://h:99999/db")


def test_a_store_describes_itself_without_its_password() -> None:
    store = PostgresStore(f"postgresql://u:{SECRET}@h:6000/db?schema=jobs", clock=system_clock)
    assert store.description == "PostgreSQL database db at h:6000, schema jobs"
    assert SECRET not in repr(store)
    assert SECRET not in repr(location_of(f"postgresql://u:{SECRET}@h:6000/db?listen=postgresql://u:{SECRET}@h/db"))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_the_scheme_finds_the_store(scheme: str) -> None:
    assert isinstance(open_store(f"{scheme}://h/db", clock=system_clock), PostgresStore)


def test_a_simulation_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="sqlite"):
        open_store("postgresql://h/db", clock=system_clock, is_inline=True)


def test_tls_is_verified_where_a_certificate_authority_is_given(tmp_path: object) -> None:
    assert location_of("postgresql://h/db").tls() == "prefer"
    assert location_of("postgresql://h/db?sslmode=disable").tls() is False
    assert location_of("postgresql://h/db?sslmode=require").tls() == "require"
    verified = location_of("postgresql://h/db?sslmode=verify-full").tls()
    assert isinstance(verified, ssl.SSLContext)
    assert verified.check_hostname
    assert verified.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(InvalidSetting, match="cannot be read"):
        location_of("postgresql://h/db?ca=/no/such/file").tls()


def test_sqlite_does_not_load_the_driver_of_postgresql() -> None:
    program = "import sys, evertick; evertick.Scheduler('sqlite://'); print('asyncpg' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.strip() == "False", answer.stderr


def test_without_its_driver_the_store_is_refused_with_the_fix() -> None:
    program = f"""
import sys
sys.modules["asyncpg"] = None
from evertick.clock import system_clock
from evertick.errors import InvalidSetting
from evertick.store.url import open_store
try:
    open_store("postgresql://u:{SECRET}@h/db", clock=system_clock)
except InvalidSetting as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert "pip install 'evertick[postgres]'" in said
    assert SECRET not in said


@pytest.mark.parametrize(("character", "code"), [("/", "%2F"), ("?", "%3F"), ("#", "%23")])
@pytest.mark.parametrize("rest", ["h:5877/db", "h/db?schema=s", "h/db?listen=postgresql://u:p@h2/db"])
def test_a_password_that_ends_the_address_too_soon_is_refused_with_the_way_to_write_it(
    character: str, code: str, rest: str
) -> None:
    for password in (f"xyz{character}{SECRET}", f"{SECRET}{character}xyz", f"x@z{character}y"):
        with pytest.raises(InvalidSetting, match=f"write it as {code}") as refused:
            location_of(f"postgresql://u:{password}@{rest}")
        assert not any(part in str(refused.value) for part in (SECRET, "xyz", "x@z"))
    assert location_of(f"postgresql://u:xyz{code}@{rest}").password == f"xyz{character}"


@pytest.mark.parametrize("password", ["a[b", "[a]b", "℀", "a b", "100%"])
def test_a_password_may_have_characters_that_other_parsers_refuse(password: str) -> None:
    where = location_of(f"postgresql://u:{password}@h:6000/db")
    assert (where.password, where.hosts) == (password, (("h", 6000),))


def test_a_password_without_a_host_is_not_shown_as_a_port() -> None:
    with pytest.raises(InvalidSetting, match="no number as its port") as refused:
        location_of(f"postgresql://u:{SECRET}/db")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("sslrootcert=/x", "called ca here"),
        ("pool_sise=3", "called pool_size here"),
        ("user=ann", "put it into the address"),
        ("color=red", "known parameters are schema, host"),
    ],
)
def test_a_parameter_under_another_name_is_refused_with_the_name_it_has_here(parameter: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        location_of(f"postgresql://h/db?{parameter}")


@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresql+psycopg2", "postgres+psycopg"])
def test_a_scheme_that_names_a_driver_is_refused_with_the_one_to_write(scheme: str) -> None:
    with pytest.raises(InvalidSetting, match=r"write postgresql://") as refused:
        open_store(f"{scheme}://u:{SECRET}@h/db", clock=system_clock)
    assert SECRET not in str(refused.value)
