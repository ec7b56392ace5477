"""By which network the client of an address is counted."""

from __future__ import annotations

import pytest

from access.networks import UNKNOWN, network_of


@pytest.mark.parametrize(
    ("address", "want"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", id="IPv4"),
        pytest.param("::ffff:192.0.2.7", "192.0.2.7", id="IPv4 written as IPv6"),
        pytest.param("2001:db8:1:2:3::4", "2001:db8:1:2::/64", id="IPv6"),
        pytest.param("fe80::1%eth0", "fe80::/64", id="IPv6 with a zone"),
        pytest.param("", UNKNOWN, id="none"),
        pytest.param("a name", UNKNOWN, id="text"),
    ],
)
def test_networks_of_addresses(address: str, want: str) -> None:
    """VIEW-6 who has a network of IPv6 addresses counts as one."""
    assert network_of(address) == want
