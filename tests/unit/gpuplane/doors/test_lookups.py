"""How often strangers may have something looked up."""

from __future__ import annotations

from gpuplane.doors.lookups import (
    ALL_LOOKUPS_BURST,
    LOOKUPS_A_SECOND,
    LOOKUPS_BURST,
    MOST_ADDRESSES,
    Pace,
)


class Clock:
    """Seconds that go on when told."""

    now = 100.0

    def __call__(self):
        return self.now


def taken(pace, address, tries):
    return sum(pace.take(address) for _ in range(tries))


def test_an_address_has_its_burst_and_then_its_rate():
    clock = Clock()
    pace = Pace(clock=clock)
    assert taken(pace, "a", int(LOOKUPS_BURST) + 500) == LOOKUPS_BURST
    clock.now += 0.5
    assert taken(pace, "a", 1000) == LOOKUPS_A_SECOND / 2
    clock.now += 3600
    assert taken(pace, "a", int(LOOKUPS_BURST) + 500) == LOOKUPS_BURST


def test_one_address_takes_nothing_from_another():
    pace = Pace(clock=Clock())
    taken(pace, "a", 100_000)
    assert taken(pace, "b", 100) == 100


def test_many_addresses_have_no_more_than_all_together():
    pace = Pace(clock=Clock())
    assert sum(pace.take(f"10.0.{n >> 8}.{n & 255}") for n in range(20_000)) == ALL_LOOKUPS_BURST


def test_addresses_are_forgotten_in_the_order_in_which_they_last_asked():
    pace = Pace(clock=Clock())
    taken(pace, "busy", int(LOOKUPS_BURST))
    for n in range(2 * MOST_ADDRESSES):
        pace.take(str(n))
        if n % 1000 == 0:
            assert not pace.take("busy")
    assert len(pace._addresses) <= MOST_ADDRESSES
