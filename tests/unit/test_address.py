"""The addresses that HTTP jobs may call."""

from __future__ import annotations

import socket

import pytest

from evertick import InvalidSetting, Refused
from evertick.driver.http.address import (
    ADDRESSES_MAX,
    AllowedAddresses,
    allowed_addresses,
    parse_allowed,
    system_resolver,
)
from evertick.driver.python.function import Threads

NOTHING = AllowedAddresses()
PRIVATE = AllowedAddresses(is_private=True)


def error_of(host: str, *addresses: str, allowed: AllowedAddresses = NOTHING) -> str:
    with pytest.raises(Refused) as refused:
        allowed_addresses(host, addresses, allowed)
    return str(refused.value)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "2001:4860:4860::8888"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert list(map(str, allowed_addresses("example.org", [address], NOTHING))) == [address]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1", "a loopback address"),
        ("127.8.8.8", "a loopback address"),
        ("::1", "a loopback address"),
        ("10.1.2.3", "a private address"),
        ("172.31.255.255", "a private address"),
        ("192.168.0.1", "a private address"),
        ("100.64.0.1", "a shared address of a provider"),
        ("fd12::1", "a private address"),
    ],
)
def test_private_addresses_are_allowed_by_the_node_setting_a_network_or_a_name(address: str, words: str) -> None:
    assert error_of("inside.test", address) == (
        f"connections to 'inside.test' ({address}, {words}) are not allowed; to allow it, set allow = "
        f"['{address}'] in the task, or allow_private in the node"
    )
    for allowed in (PRIVATE, parse_allowed([address], "allow"), parse_allowed(["Inside.TEST."], "allow")):
        assert list(map(str, allowed_addresses("inside.test", [address], allowed))) == [address]
    error_of("inside.test", address, allowed=parse_allowed(["other.test", "8.8.8.0/24", "2001:db8::/32"], "allow"))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("169.254.169.254", "a cloud metadata service"),
        ("168.63.129.16", "a cloud metadata service"),
        ("100.100.100.200", "a cloud metadata service"),
        ("fd00:ec2::254", "a cloud metadata service"),
        ("169.254.1.1", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "an address of this host itself"),
        ("255.255.255.255", "a reserved address"),
        ("192.0.2.1", "a documentation address"),
        ("198.18.0.1", "a benchmark address"),
        ("2002:7f00:1::", "a 6to4 address"),
        ("2001:0:53aa:64c::1", "a tunnel address"),
        ("64:ff9b:1::1", "not a public address"),
        ("::", "not a public address"),
        ("::127.0.0.1", "not a public address"),
    ],
)
def test_special_purpose_addresses_are_allowed_only_by_their_own_network(address: str, words: str) -> None:
    for allowed in (NOTHING, PRIVATE, parse_allowed(["inside.test", "10.0.0.0/8"], "allow")):
        assert f", {words}) are not allowed" in error_of("inside.test", address, allowed=allowed)
    assert "allow_private" not in error_of("inside.test", address)
    assert allowed_addresses("inside.test", [address], parse_allowed([address], "allow"))


@pytest.mark.parametrize(
    ("carrier", "carried"),
    [("::ffff:127.0.0.1", "127.0.0.1"), ("::ffff:a9fe:a9fe", "169.254.169.254"), ("64:ff9b::a00:1", "10.0.0.1")],
)
def test_an_address_with_an_embedded_address_is_checked_by_the_embedded_one(carrier: str, carried: str) -> None:
    error_of("x.test", carrier)
    assert allowed_addresses("x.test", [carrier], parse_allowed([f"{carried}/32"], "allow"))


def test_an_address_with_an_embedded_public_address_is_allowed() -> None:
    assert list(map(str, allowed_addresses("x.test", ["::ffff:8.8.8.8"], NOTHING))) == ["8.8.8.8"]
    assert list(map(str, allowed_addresses("x.test", ["64:ff9b::808:808"], NOTHING))) == ["64:ff9b::808:808"]


def test_only_the_allowed_ones_of_several_addresses_are_used() -> None:
    found = allowed_addresses("x.test", ["10.0.0.1", "8.8.8.8", "8.8.8.8", "::1", "9.9.9.9"], NOTHING)
    assert list(map(str, found)) == ["8.8.8.8", "9.9.9.9"]
    many = [f"8.8.8.{number}" for number in range(50)]
    assert len(allowed_addresses("x.test", many, NOTHING)) == ADDRESSES_MAX


def test_a_name_without_an_address_is_refused() -> None:
    assert error_of("x.test") == "'x.test' has no address"


def test_an_address_used_as_host_name_is_shown_once_in_the_error() -> None:
    assert error_of("10.0.0.1", "10.0.0.1").startswith("connections to 10.0.0.1 (a private address) are not allowed")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("10.0.0.0/8", "allow: '10.0.0.0/8' is not a list; write it like"),
        ([5], "allow: 5 is not text; write a network like '10.0.0.0/8'"),
        (["10.0.0.1/8"], "allow: '10.0.0.1/8' is an address within a network; write '10.0.0.0/8', or the address "),
        (["10.0.0"], "allow: '10.0.0' is not a network, an address or a host name"),
        (["*.example.org"], "allow: '*.example.org' is not a network"),
        (["http://x"], "allow: 'http://x' is not a network"),
        (["x.test"] * 101, "allow: 101 entries are more than 100"),
    ],
)
def test_an_invalid_list_of_networks_is_refused_with_the_wrong_entry(given: object, words: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_allowed(given, "allow")
    assert str(refused.value).startswith(words)


async def test_an_address_in_an_unusual_spelling_is_resolved_before_it_is_checked() -> None:
    look_up = system_resolver(threads := Threads())
    try:
        for odd in ("127.1", "0x7f000001", "2130706433"):
            assert "a loopback address" in error_of(odd, *await look_up(odd))
        assert await look_up("[::1]") == ["::1"]
        assert {*await look_up("localhost")} <= {"127.0.0.1", "::1"}
        with pytest.raises(socket.gaierror):
            await look_up("no-such-host.invalid")
    finally:
        threads.close()
