"""Where requests may go: what a server names must not lead into a network that the server itself is not in."""

import ipaddress
from collections.abc import Iterable
from enum import IntEnum

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


class Reach(IntEnum):
    """Networks, from the one that is everybody's to the one that is this machine's alone."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


def reach_of(address: str) -> Reach | None:
    """Which network an IP address belongs to; None where no server can be meant: link-local, multicast, reserved."""
    found = _plain(ipaddress.ip_address(address.partition("%")[0]))
    if found.is_loopback:
        return Reach.LOOPBACK
    if found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved:
        return None
    return Reach.PUBLIC if found.is_global else Reach.PRIVATE


def reach_of_all(addresses: Iterable[str]) -> Reach | None:
    """The network of a server with several addresses: the one that reaches least."""
    return min((reach for reach in map(reach_of, addresses) if reach is not None), default=None)


def allows(server: Reach, address: str) -> bool:
    """Whether a server in one network may have us ask an address: its own network, or a more public one."""
    found = reach_of(address)
    return found is not None and found <= server


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that is written as, or reached through, an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)
