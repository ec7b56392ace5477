"""How often callers without a credential may have something looked up."""

from __future__ import annotations

import pytest

from gpuplane.listeners.rate_limits import ALL_LOOKUPS, LOOKUPS, MOST_ADDRESSES, AddressRateLimit


class Clock:
    """Seconds that go on when told."""

    now = 100.0

    def __call__(self):
        return self.now


def taken(limit, address, tries):
    return sum(limit.take(address) for _ in range(tries))


def test_an_address_has_its_burst_and_then_its_rate():
    clock = Clock()
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=clock)
    assert taken(limit, "10.0.0.1", int(LOOKUPS.burst) + 500) == LOOKUPS.burst
    clock.now += 0.5
    assert taken(limit, "10.0.0.1", 1000) == LOOKUPS.a_second / 2
    clock.now += 3600
    assert taken(limit, "10.0.0.1", int(LOOKUPS.burst) + 500) == LOOKUPS.burst


def test_one_address_takes_nothing_from_another():
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    taken(limit, "10.0.0.1", 100_000)
    assert taken(limit, "10.0.0.2", 100) == 100


def test_many_addresses_have_no_more_than_all_together():
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    assert sum(limit.take(f"10.0.{n >> 8}.{n & 255}") for n in range(20_000)) == ALL_LOOKUPS.burst


def test_addresses_are_forgotten_in_the_order_in_which_they_last_asked():
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    taken(limit, "192.0.2.1", int(LOOKUPS.burst))
    for n in range(2 * MOST_ADDRESSES):
        limit.take(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
        if n % 1000 == 0:
            assert not limit.take("192.0.2.1")
    assert len(limit._each._buckets) <= MOST_ADDRESSES


@pytest.mark.parametrize(
    "address_of",
    [
        pytest.param(lambda n: f"2001:db8::{n + 1:x}", id="addresses of an IPv6 /64"),
        pytest.param(lambda n: f"fe80::1%{n}", id="zones of an IPv6 address"),
        pytest.param(lambda n: "10.0.0.1" if n % 2 else "::ffff:10.0.0.1", id="IPv4 address, also as IPv6"),
        pytest.param(lambda n: f"_hidden{n}", id="texts that are no address"),
    ],
)
def test_addresses_of_one_subscriber_have_one_rate(address_of):
    """VIEW-6 who may choose among addresses has the rate of one, and uses up nothing of others."""
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    assert sum(limit.take(address_of(n)) for n in range(int(ALL_LOOKUPS.burst))) == LOOKUPS.burst
    assert limit.take("2001:db8:ffff::1")
    limit.give_back(address_of(0))
    assert limit.take(address_of(1))
