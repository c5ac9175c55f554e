"""SSRF rule: a URL supplied by a server may not resolve to a more private network than the server's own."""

import ipaddress
from collections.abc import Iterable
from enum import IntEnum
from urllib.parse import urlsplit

_SITE_LOCAL = ipaddress.IPv6Network("fec0::/10")  # deprecated by RFC 3879; the standard library counts it as public
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_OWN = [
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "169.254.0.0/16", "fe80::/10")
]
"""Private (RFC 1918, RFC 4193) and link-local (RFC 3927, RFC 4291) networks."""
_CLOUD_METADATA = ipaddress.ip_address("169.254.169.254")
"""The metadata service of clouds. It is in the link-local network, but is no host of the user's."""


class NetworkScope(IntEnum):
    """Networks, from public to private."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


def on_this_machine(url: str) -> bool:
    """Whether a URL's host is loopback, so that no request to it leaves this machine.

    True: loopback addresses (RFC 1122, 3.2.1.3; RFC 4291, 2.5.3), `localhost` and `NAME.localhost` (RFC 6761, 6.3).
    False: 0.0.0.0, which is no destination; IPv6 addresses that a relay translates to IPv4; invalid URLs.
    """
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return False
    try:
        return _parse_unmapped(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def in_own_network(address: str) -> bool:
    """Whether an IP address is private, link-local or loopback; shared (RFC 6598) and test ones (RFC 5737) are not."""
    plain = _parse_unmapped(address)
    return plain.is_loopback or (plain != _CLOUD_METADATA and any(plain in network for network in _OWN))


def scope_of(address: str) -> NetworkScope | None:
    """Find the scope of an IP address; None for link-local, multicast and reserved ones, which no server may name."""
    parsed = _unwrap(_parse(address))
    if parsed.is_loopback:
        return NetworkScope.LOOPBACK
    if parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified or parsed.is_reserved:
        return None
    return NetworkScope.PUBLIC if parsed.is_global and parsed not in _SITE_LOCAL else NetworkScope.PRIVATE


def scope_of_all(addresses: Iterable[str]) -> NetworkScope | None:
    """Find the scope of a server with several addresses: that of its most public address."""
    return min((scope for scope in map(scope_of, addresses) if scope is not None), default=None)


def may_contact(server: NetworkScope, address: str) -> bool:
    """Whether a server may have us send a request to an IP address: its scope is the server's own, or more public."""
    scope = scope_of(address)
    return scope is not None and scope <= server


def _parse_unmapped(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address, as IPv4 where it is IPv4-mapped; ValueError for anything else."""
    parsed = _parse(address)
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    # only IPv6 has a zone (RFC 6874): `127.0.0.1%00.example` is a name
    return ipaddress.ip_address(address.partition("%")[0] if ":" in address else address)


def _unwrap(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 one maps, translates or tunnels to; any other address unchanged."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)
