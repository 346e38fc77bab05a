"""The addresses that a job may talk to: protection against requests forged by a name server or a redirect.

A name is looked up once. Its addresses are judged, and the caller connects to one of them, never to the name: a second
look-up could answer something else. An IPv6 address that carries an IPv4 address is judged by that one, where a packet
ends up.

Without permission only public addresses pass. Private, shared and loopback addresses open for a node by its setting,
for a task by a name or a network in its list. All others (link-local, multicast, reserved, the metadata services of
clouds, which give out credentials) open only by a network in a list.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Literal

import msgspec

from evertick.driver.python.function import Threads
from evertick.errors import InvalidSetting, Refused

__all__ = [
    "ADDRESSES_MAX",
    "Address",
    "AllowedAddresses",
    "LookUp",
    "allowed_of",
    "is_own_name",
    "literal_of",
    "look_up_in",
    "permitted",
]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
# The addresses of a name; raises OSError when there are none.
LookUp = Callable[[str], Awaitable[Sequence[str]]]

# Of one name; more are not tried.
ADDRESSES_MAX = 8
_ALLOWED_MAX = 100
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")

# Metadata services, which give out credentials; one of them looks like any public address.
_METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
    )
)

_PRIVATE: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), words)
    for text, words in (
        ("127.0.0.0/8", "a loopback address"),
        ("::1/128", "a loopback address"),
        ("10.0.0.0/8", "a private address"),
        ("172.16.0.0/12", "a private address"),
        ("192.168.0.0/16", "a private address"),
        ("100.64.0.0/10", "a shared address of a provider"),
        ("fc00::/7", "a private address"),
    )
)

_CLOSED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), words)
    for text, words in (
        ("0.0.0.0/8", "an address of this host itself"),
        ("169.254.0.0/16", "a link-local address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.88.99.0/24", "a relay of 6to4"),
        ("198.18.0.0/15", "an address for benchmarks"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("fe80::/10", "a link-local address"),
        ("ff00::/8", "a multicast address"),
        ("2001::/23", "an address of a tunnel"),
        ("2001:db8::/32", "an address for documentation"),
        ("2002::/16", "an address of 6to4"),
        ("3fff::/20", "an address for documentation"),
    )
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")
# The well-known prefix: the last four bytes are the IPv4 address that the translator sends to.
_NAT64 = IPv6Network("64:ff9b::/96")

_Kind = Literal["public", "private", "closed"]


class AllowedAddresses(msgspec.Struct, frozen=True):
    """Addresses that are open besides the public ones."""

    is_private: bool = False
    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()

    def __or__(self, other: AllowedAddresses) -> AllowedAddresses:
        return AllowedAddresses(
            self.is_private or other.is_private, self.networks + other.networks, self.names | other.names
        )

    def admits(self, host: str, address: Address) -> bool:
        ends = (address, _carried(address))
        if any(end in network for end in ends for network in self.networks if end.version == network.version):
            return True
        kind, _ = _judged(address)
        return kind == "public" or (kind == "private" and (self.is_private or _plain(host) in self.names))


def allowed_of(texts: Any, what: str, *, is_private: bool = False) -> AllowedAddresses:
    """A list of networks, addresses and names of hosts. Raises InvalidSetting with the offending text."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidSetting(f"{what}: {texts!r:.60} is no list; write it like ['10.0.0.0/8', 'localhost']")
    if len(texts) > _ALLOWED_MAX:
        raise InvalidSetting(f"{what}: {len(texts)} entries are more than {_ALLOWED_MAX}; name larger networks")
    networks, names = [], set()
    for text in texts:
        found = _network_or_name(text, what)
        if isinstance(found, str):
            names.add(found)
        else:
            networks.append(found)
    return AllowedAddresses(is_private, tuple(networks), frozenset(names))


def permitted(host: str, addresses: Sequence[str], allowed: AllowedAddresses) -> tuple[Address, ...]:
    """The addresses that are open, in their order. Raises Refused when there is none."""
    judged = [_unmapped(ip_address(text)) for text in dict.fromkeys(addresses)]
    open_ = tuple(address for address in judged if allowed.admits(host, address))
    if open_:
        return open_[:ADDRESSES_MAX]
    if not judged:
        raise Refused(f"{host!r} has no address")
    first = judged[0]
    kind, words = _judged(first)
    what = f"{first} ({words})" if _plain(host) == str(first) else f"{host!r}, which is {first} ({words}),"
    fix, setting = f"if it is meant, allow it: allow = ['{first}'] of the task", "allow"
    if kind == "private":
        fix, setting = f"{fix} or allow_private of the node", "allow_private"
    raise Refused(f"{what} may not be called", setting=setting, value=str(first), fix=fix)


def look_up_in(threads: Threads) -> LookUp:
    """The look-up of the operating system, in a thread: it cannot be interrupted, and must not hold a program up."""

    def ask(host: str) -> list[str]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [str(each[4][0]) for each in found]

    async def look_up(host: str) -> Sequence[str]:
        literal = literal_of(host)
        return [literal] if literal is not None else await threads.call(lambda: ask(host))

    return look_up


def is_own_name(host: str) -> bool:
    """Whether the name stands for this machine and nothing else (RFC 6761)."""
    plain = host.rstrip(".")
    return plain == "localhost" or plain.endswith(".localhost")


def literal_of(host: str) -> str | None:
    """The address, if it is written in place of a name. What else looks like one, like 0x7f.1, is looked up."""
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        return None


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _network_or_name(text: Any, what: str) -> Network | str:
    if not isinstance(text, str):
        raise InvalidSetting(f"{what}: {text!r:.60} is not text; write a network like '10.0.0.0/8' or a name of a host")
    try:
        return ip_network(text)
    except ValueError:
        pass
    try:
        meant = ip_network(text, strict=False)
    except ValueError:
        meant = None
    if meant is not None:
        raise InvalidSetting(f"{what}: {text!r} is an address within a network; write '{meant}' or the address alone")
    name = _plain(text)
    # Digits and dots alone are a mistyped address, which a look-up would make something else of.
    if not _NAME.fullmatch(name) or not re.search("[a-z]", name):
        raise InvalidSetting(
            f"{what}: {text!r:.60} is neither a network like '10.0.0.0/8', an address, nor the name of a host"
        )
    return name


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _carried(address: Address) -> Address:
    """The address that packets to this one end up at."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return _unmapped(address)


def _judged(address: Address) -> tuple[_Kind, str]:
    end = _carried(address)
    if address in _METADATA or end in _METADATA:
        return "closed", "where a cloud gives out credentials"
    for kind, table in (("private", _PRIVATE), ("closed", _CLOSED)):
        for network, words in table:
            if end.version == network.version and end in network:
                return kind, words  # type: ignore[return-value]
    if isinstance(end, IPv6Address) and end not in _PUBLIC_IPV6:
        return "closed", "no public address"
    return "public", "a public address"
