"""What a server names must not lead into a network that it is not in itself."""

import pytest

from rolloutlab.reach import Reach, allows, reach_of, reach_of_all


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("93.184.216.34", Reach.PUBLIC),
        ("2606:2800:220:1::1", Reach.PUBLIC),
        ("10.1.2.3", Reach.PRIVATE),
        ("192.168.0.1", Reach.PRIVATE),
        ("100.64.0.1", Reach.PRIVATE),
        ("fd00::1", Reach.PRIVATE),
        ("127.0.0.1", Reach.LOOPBACK),
        ("127.9.9.9", Reach.LOOPBACK),
        ("::1", Reach.LOOPBACK),
        ("::ffff:127.0.0.1", Reach.LOOPBACK),
        ("::ffff:10.0.0.1", Reach.PRIVATE),
        ("64:ff9b::7f00:1", Reach.LOOPBACK),
        ("2002:0a00:0001::1", Reach.PRIVATE),
        ("169.254.169.254", None),
        ("::ffff:169.254.169.254", None),
        ("fe80::1%eth0", None),
        ("0.0.0.0", None),
        ("224.0.0.1", None),
        ("240.0.0.1", None),
    ],
)
def test_every_address_is_in_one_network_or_in_none_that_may_be_asked(address, reach):
    assert reach_of(address) == reach


def test_a_public_server_leads_nowhere_private():
    assert allows(Reach.PUBLIC, "93.184.216.34")
    assert not any(allows(Reach.PUBLIC, address) for address in ("10.0.0.1", "127.0.0.1", "169.254.169.254"))


def test_a_private_server_leads_to_private_and_public_ones_but_not_to_this_machine():
    assert allows(Reach.PRIVATE, "10.0.0.1")
    assert allows(Reach.PRIVATE, "93.184.216.34")
    assert not allows(Reach.PRIVATE, "127.0.0.1")


def test_nobody_leads_to_link_local_addresses():
    assert not any(allows(reach, "169.254.169.254") for reach in Reach)


def test_a_server_with_addresses_in_two_networks_is_held_to_be_the_more_public_one():
    assert reach_of_all(["127.0.0.1", "93.184.216.34"]) == Reach.PUBLIC
    assert reach_of_all(["169.254.1.1"]) is None
