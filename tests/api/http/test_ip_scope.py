"""What a server names must not lead into a network that it is not in itself."""

import pytest

from rolloutlab.api.http.ip_scope import (
    NetworkScope,
    in_own_network,
    may_contact,
    on_this_machine,
    scope_of,
    scope_of_all,
)
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.api.http.transport import proxy_of
from rolloutlab.errors import InputError


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("me.localhost", True),
        ("[::1]", True),
        ("[::ffff:127.0.0.1]", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("[2002:7f00:1::]", False),
        ("[64:ff9b::7f00:1]", False),
        ("10.0.0.5", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("mylocalhost", False),
    ],
)
def test_keys_and_proxies_agree_on_what_this_machine_is(monkeypatch, host, here):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    url = f"http://{host}:8000/v1"
    assert on_this_machine(url) is here
    assert (proxy_of(url) is None) is here
    if here:
        Unencrypted().check(url)
    else:
        with pytest.raises(InputError, match="is not encrypted"):
            Unencrypted().check(url)


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("10.0.0.5", True),
        ("172.16.0.1", True),
        ("172.31.255.255", True),
        ("192.168.1.1", True),
        ("fd00::1", True),
        ("fe80::1%eth0", True),
        ("169.254.3.4", True),
        ("::ffff:10.0.0.5", True),
        ("127.0.0.2", True),
        ("100.64.0.1", False),
        ("172.32.0.1", False),
        ("192.0.2.7", False),
        ("198.51.100.7", False),
        ("203.0.113.7", False),
        ("198.18.0.1", False),
        ("192.0.0.8", False),
        ("240.0.0.1", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("2001:db8::1", False),
        ("2002:a00:5::", False),
        ("64:ff9b::a00:5", False),
        ("fec0::1", False),
        ("2001:4860:4860::8888", False),
    ],
)
def test_a_network_of_ones_own_is_private_or_link_local(address, own):
    assert in_own_network(address) is own


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("93.184.216.34", NetworkScope.PUBLIC),
        ("2606:2800:220:1::1", NetworkScope.PUBLIC),
        ("10.1.2.3", NetworkScope.PRIVATE),
        ("192.168.0.1", NetworkScope.PRIVATE),
        ("100.64.0.1", NetworkScope.PRIVATE),
        ("fd00::1", NetworkScope.PRIVATE),
        ("fec0::1", NetworkScope.PRIVATE),
        ("feff::1", NetworkScope.PRIVATE),
        ("127.0.0.1", NetworkScope.LOOPBACK),
        ("127.9.9.9", NetworkScope.LOOPBACK),
        ("::1", NetworkScope.LOOPBACK),
        ("::ffff:127.0.0.1", NetworkScope.LOOPBACK),
        ("::ffff:10.0.0.1", NetworkScope.PRIVATE),
        ("64:ff9b::7f00:1", NetworkScope.LOOPBACK),
        ("2002:0a00:0001::1", NetworkScope.PRIVATE),
        ("169.254.169.254", None),
        ("::ffff:169.254.169.254", None),
        ("fe80::1%eth0", None),
        ("0.0.0.0", None),
        ("224.0.0.1", None),
        ("240.0.0.1", None),
    ],
)
def test_every_address_is_in_one_network_or_in_none_that_may_be_asked(address, reach):
    assert scope_of(address) == reach


def test_a_public_server_leads_nowhere_private():
    assert may_contact(NetworkScope.PUBLIC, "93.184.216.34")
    assert not any(
        may_contact(NetworkScope.PUBLIC, address) for address in ("10.0.0.1", "127.0.0.1", "169.254.169.254")
    )


def test_a_private_server_leads_to_private_and_public_ones_but_not_to_this_machine():
    assert may_contact(NetworkScope.PRIVATE, "10.0.0.1")
    assert may_contact(NetworkScope.PRIVATE, "93.184.216.34")
    assert not may_contact(NetworkScope.PRIVATE, "127.0.0.1")


def test_nobody_leads_to_link_local_addresses():
    assert not any(may_contact(reach, "169.254.169.254") for reach in NetworkScope)


def test_a_server_with_addresses_in_two_networks_is_held_to_be_the_more_public_one():
    assert scope_of_all(["127.0.0.1", "93.184.216.34"]) == NetworkScope.PUBLIC
    assert scope_of_all(["169.254.1.1"]) is None


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1%00.evil.example", "http://localhost%2f.evil.example", "https://[", "x"]
)
def test_what_is_no_address_of_this_machine_is_elsewhere(url):
    assert on_this_machine(url) is False
