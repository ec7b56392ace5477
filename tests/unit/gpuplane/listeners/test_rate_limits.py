"""How often callers without a credential may have something looked up."""

from __future__ import annotations

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
    assert taken(limit, "a", int(LOOKUPS.burst) + 500) == LOOKUPS.burst
    clock.now += 0.5
    assert taken(limit, "a", 1000) == LOOKUPS.a_second / 2
    clock.now += 3600
    assert taken(limit, "a", int(LOOKUPS.burst) + 500) == LOOKUPS.burst


def test_one_address_takes_nothing_from_another():
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    taken(limit, "a", 100_000)
    assert taken(limit, "b", 100) == 100


def test_many_addresses_have_no_more_than_all_together():
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    assert sum(limit.take(f"10.0.{n >> 8}.{n & 255}") for n in range(20_000)) == ALL_LOOKUPS.burst


def test_addresses_are_forgotten_in_the_order_in_which_they_last_asked():
    limit = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=Clock())
    taken(limit, "busy", int(LOOKUPS.burst))
    for n in range(2 * MOST_ADDRESSES):
        limit.take(str(n))
        if n % 1000 == 0:
            assert not limit.take("busy")
    assert len(limit._each._buckets) <= MOST_ADDRESSES
