"""Where requests may go: what a server names must not lead into a network that the server itself is not in."""

import ipaddress
from collections.abc import Iterable
from enum import IntEnum
from urllib.parse import urlsplit

_SITE = ipaddress.IPv6Network("fec0::/10")
"""What `fc00::/7` has replaced, and the standard library takes for public."""
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_OWN = [
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "169.254.0.0/16", "fe80::/10")
]
"""Private (RFC 1918, RFC 4193) and link-local (RFC 3927, RFC 4291) networks."""
_OF_THE_CLOUD = ipaddress.ip_address("169.254.169.254")
"""Where the metadata service of a cloud answers, in every network of its machines."""


class NetworkScope(IntEnum):
    """Networks, from the public one to that of this machine alone."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


def on_this_machine(url: str) -> bool:
    """Whether the host of an address can be nothing but the machine that asks: what goes there leaves it on no wire.

    Loopback addresses (RFC 1122, 3.2.1.3; RFC 4291, 2.5.3), `localhost` and names below it (RFC 6761, 6.3). Not
    0.0.0.0, which is no destination, nor an IPv6 address by which a relay is asked for an IPv4 one, nor what is no
    address at all.
    """
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return False
    try:
        return _unmapped(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def in_own_network(address: str) -> bool:
    """Whether an IP address is of a private or link-local network, or of this machine.

    The shared addresses of providers (RFC 6598) and those of documentation and tests (RFC 5737) are not one's own.
    """
    plain = _unmapped(address)
    return plain.is_loopback or (plain != _OF_THE_CLOUD and any(plain in network for network in _OWN))


def scope_of(address: str) -> NetworkScope | None:
    """Which network an IP address belongs to; None where no server can be meant: link-local, multicast, reserved."""
    parsed = _plain(_parsed(address))
    if parsed.is_loopback:
        return NetworkScope.LOOPBACK
    if parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified or parsed.is_reserved:
        return None
    return NetworkScope.PUBLIC if parsed.is_global and parsed not in _SITE else NetworkScope.PRIVATE


def scope_of_all(addresses: Iterable[str]) -> NetworkScope | None:
    """The network of a server with several addresses: the one that reaches least."""
    return min((reach for reach in map(scope_of, addresses) if reach is not None), default=None)


def may_contact(server: NetworkScope, address: str) -> bool:
    """Whether a server in one network may have us ask an address: its own network, or a more public one."""
    reach = scope_of(address)
    return reach is not None and reach <= server


def _unmapped(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IP address, an IPv4 one where it is written as one of IPv6; ValueError where it is none."""
    parsed = _parsed(address)
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IP address without its zone, which only one of IPv6 has (RFC 6874): `127.0.0.1%00.example` is a name."""
    return ipaddress.ip_address(address.partition("%")[0] if ":" in address else address)


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that is written as, or reached through, an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)
