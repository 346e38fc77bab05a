"""The addresses that an HTTP job may connect to: protection against server-side request forgery (SSRF).

A host name is resolved once. Its addresses are checked, and the caller connects to one of them and never to the name,
because a second lookup could return another address. An IPv6 address that embeds an IPv4 address is checked as that
IPv4 address, which receives the packets.

By default only public addresses are allowed. A node allows private, shared and loopback addresses by a setting, and a
task by a name or network in its list. All others (link-local, multicast, reserved, the metadata services of clouds,
which hand out credentials) need a network in a list.
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
from evertick.text.values import shown

__all__ = [
    "ADDRESSES_MAX",
    "Address",
    "AllowedAddresses",
    "Resolver",
    "address_literal",
    "allowed_addresses",
    "is_own_name",
    "parse_allowed",
    "system_resolver",
]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
# Resolves a name; raises OSError if it has no address.
Resolver = Callable[[str], Awaitable[Sequence[str]]]

# Addresses of one name; more are not tried.
ADDRESSES_MAX = 8
_ALLOWED_MAX = 100
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")

# Metadata services of clouds, which hand out credentials. 168.63.129.16 is in a public network.
_METADATA = frozenset(
    ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
        *("fd00:ec2::254", "fd20:ce::254"),
    )
)


def _networks(by_words: dict[str, tuple[str, ...]]) -> tuple[tuple[Network, str], ...]:
    return tuple((ip_network(text), words) for words, texts in by_words.items() for text in texts)


_PRIVATE = _networks(
    {
        "a loopback address": ("127.0.0.0/8", "::1/128"),
        "a private address": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        "a shared address of a provider": ("100.64.0.0/10",),
    }
)
_CLOSED = _networks(
    {
        "an address of this host itself": ("0.0.0.0/8",),
        "a link-local address": ("169.254.0.0/16", "fe80::/10"),
        "a reserved address": ("192.0.0.0/24", "240.0.0.0/4"),
        "a documentation address": (
            "192.0.2.0/24",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "2001:db8::/32",
            "3fff::/20",
        ),
        "a 6to4 relay": ("192.88.99.0/24",),
        "a benchmark address": ("198.18.0.0/15",),
        "a multicast address": ("224.0.0.0/4", "ff00::/8"),
        "a tunnel address": ("2001::/23",),
        "a 6to4 address": ("2002::/16",),
    }
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")
# The well-known prefix of NAT64: the last four bytes are the IPv4 address of the receiver.
_NAT64 = IPv6Network("64:ff9b::/96")

_Kind = Literal["public", "private", "closed"]


class AllowedAddresses(msgspec.Struct, frozen=True):
    """Addresses that are allowed besides the public ones."""

    is_private: bool = False
    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()

    def __or__(self, other: AllowedAddresses) -> AllowedAddresses:
        return AllowedAddresses(
            self.is_private or other.is_private, self.networks + other.networks, self.names | other.names
        )

    def admits(self, host: str, address: Address) -> bool:
        forms = (address, _receiver(address))
        if any(form in network for form in forms for network in self.networks if form.version == network.version):
            return True
        kind, _ = _classify(address)
        return kind == "public" or (kind == "private" and (self.is_private or _normalized(host) in self.names))


def parse_allowed(texts: Any, what: str, *, is_private: bool = False) -> AllowedAddresses:
    """Parse a list of networks, addresses and host names. Raises InvalidSetting for an invalid entry."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidSetting(
            f"{what}: {shown(texts)} is not a list",
            setting="allow",
            value=shown(texts),
            fix="write it like ['10.0.0.0/8', 'localhost']",
        )
    if len(texts) > _ALLOWED_MAX:
        raise InvalidSetting(
            f"{what}: {len(texts)} entries are more than {_ALLOWED_MAX}",
            setting="allow",
            fix="write fewer, larger networks",
        )
    networks, names = [], set()
    for text in texts:
        entry = _network_or_name(text, what)
        if isinstance(entry, str):
            names.add(entry)
        else:
            networks.append(entry)
    return AllowedAddresses(is_private, tuple(networks), frozenset(names))


def allowed_addresses(host: str, addresses: Sequence[str], allowed: AllowedAddresses) -> tuple[Address, ...]:
    """The allowed addresses, in their order. Raises Refused if there is none."""
    candidates = [_unmapped(ip_address(text)) for text in dict.fromkeys(addresses)]
    admitted = tuple(address for address in candidates if allowed.admits(host, address))
    if admitted:
        return admitted[:ADDRESSES_MAX]
    if not candidates:
        raise Refused(f"{host!r} has no address")
    first = candidates[0]
    kind, words = _classify(first)
    subject = f"{first} ({words})" if _normalized(host) == str(first) else f"{host!r} ({first}, {words})"
    fix, setting = f"to allow it, set allow = ['{first}'] in the task", "allow"
    if kind == "private":
        fix, setting = f"{fix}, or allow_private in the node", "allow_private"
    raise Refused(f"connections to {subject} are not allowed", setting=setting, value=str(first), fix=fix)


def system_resolver(threads: Threads) -> Resolver:
    """The resolver of the operating system, in a thread, because the call blocks and cannot be interrupted."""

    def resolve(host: str) -> list[str]:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [str(each[4][0]) for each in entries]

    async def look_up(host: str) -> Sequence[str]:
        literal = address_literal(host)
        return [literal] if literal is not None else await threads.call(lambda: resolve(host))

    return look_up


def is_own_name(host: str) -> bool:
    """Whether the name always means this machine (RFC 6761)."""
    name = host.rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def address_literal(host: str) -> str | None:
    """The address if the host is an IP address. Other notations of an address, like 0x7f.1, are resolved as names."""
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        return None


def _normalized(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _network_or_name(text: Any, what: str) -> Network | str:
    if not isinstance(text, str):
        raise InvalidSetting(
            f"{what}: {shown(text)} is not text",
            setting="allow",
            value=shown(text),
            fix="write a network like '10.0.0.0/8' or a host name",
        )
    try:
        return ip_network(text)
    except ValueError:
        pass
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        network = None
    if network is not None:
        raise InvalidSetting(
            f"{what}: {text!r} is an address within a network",
            setting="allow",
            value=repr(text),
            fix=f"write '{network}', or the address without its mask",
        )
    name = _normalized(text)
    # Only digits and dots: a mistyped address, which a resolver would read as another one.
    if not _NAME.fullmatch(name) or not re.search("[a-z]", name):
        raise InvalidSetting(
            f"{what}: {shown(text)} is not a network, an address or a host name",
            setting="allow",
            value=shown(text),
            fix="write it like '10.0.0.0/8', '10.0.0.7' or 'db.example.org'",
        )
    return name


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _receiver(address: Address) -> Address:
    """The address that receives packets sent to this one."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return _unmapped(address)


def _classify(address: Address) -> tuple[_Kind, str]:
    receiver = _receiver(address)
    if address in _METADATA or receiver in _METADATA:
        return "closed", "a cloud metadata service"
    for kind, table in (("private", _PRIVATE), ("closed", _CLOSED)):
        for network, words in table:
            if receiver.version == network.version and receiver in network:
                return kind, words  # type: ignore[return-value]
    if isinstance(receiver, IPv6Address) and receiver not in _PUBLIC_IPV6:
        return "closed", "not a public address"
    return "public", "a public address"
