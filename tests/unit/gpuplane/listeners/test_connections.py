from collections import Counter

import pytest
from structlog.testing import capture_logs

from gpuplane.listeners.connections import Connections
from gpuplane.listeners.limits import Limits
from tests.measured import growth

HERE, THERE = "192.0.2.1", "198.51.100.7"


class Clock:
    """Timers that go off when the test says so."""

    def __init__(self):
        self.due = []

    def call_later(self, _seconds, function):
        self.due.append(function)

    def tick(self):
        due, self.due = self.due, []
        for function in due:
            function()


class Listener:
    """Connections by name, and which of them were closed to make room."""

    def __init__(self, *, connections=10, per_address=3, loopback_trusted=True, trusted=()):
        self.clock = Clock()
        self.closed = []
        self.refused = []
        limits = Limits(connections, per_address, trusted=trusted, loopback_trusted=loopback_trusted)
        self.connections = Connections("main", limits, self.clock.call_later)
        self.places = {}

    def comes(self, name, host=HERE):
        place = self.connections.take(host)
        if place is None:
            self.refused.append(name)
            return
        self.places[name] = place
        place.end = lambda: self.closed.append(name)

    def __getitem__(self, name):
        return self.places[name]


def test_the_fourth_of_an_address_closes_its_connection_that_is_idle_longest():
    listener = Listener()
    for name in "abc":
        listener.comes(name)
    listener["a"].busy()
    listener["a"].idle()

    listener.comes("d")
    listener.comes("e", THERE)

    assert (listener.closed, listener.refused) == (["b"], [])


def test_nobody_whose_request_is_under_way_makes_room():
    listener = Listener()
    for name in "abc":
        listener.comes(name)
        listener[name].busy()

    listener.comes("d")
    listener.comes("elsewhere", THERE)

    assert (listener.closed, listener.refused) == ([], ["d"])


def test_who_was_closed_to_make_room_counts_no_more():
    listener = Listener()
    for number in range(20):
        listener.comes(str(number))

    assert listener.closed == [str(number) for number in range(17)]
    for number in range(20):
        listener[str(number)].release()
    for name in "abc":
        listener.comes(name)
    assert len(listener.closed) == 17


def test_a_full_listener_closes_the_connection_that_is_idle_longest_wherever_it_is_from():
    listener = Listener(connections=4)
    for number in range(4):
        listener.comes(str(number), f"192.0.2.{number}")
    listener["0"].busy()

    listener.comes("late", THERE)

    assert (listener.closed, listener.refused) == (["1"], [])


def test_a_full_listener_whose_requests_are_all_under_way_refuses():
    listener = Listener(connections=4)
    for number in range(4):
        listener.comes(str(number), f"192.0.2.{number}")
        listener[str(number)].busy()

    listener.comes("late", THERE)
    listener["2"].release()
    listener.comes("later", THERE)

    assert (listener.closed, listener.refused) == ([], ["late"])


def test_streams_leave_their_address_to_others_up_to_three_quarters():
    """Agents behind one NAT."""
    listener = Listener(connections=20, per_address=3)
    for number in range(15):
        name = str(number)
        listener.comes(name)
        listener[name].busy()
        listener[name].mark_stream()
        listener[name].mark_stream()

    listener.comes("one too many")
    listener.comes("elsewhere", THERE)

    assert (listener.closed, listener.refused) == ([], ["one too many"])
    listener["3"].release()
    listener.comes("again")
    assert listener.refused == ["one too many"]


@pytest.mark.parametrize(
    ("first", "second", "want_one_address"),
    [
        pytest.param("2001:db8::1", "2001:db8::ffff:1", True, id="one network of IPv6"),
        pytest.param("2001:db8::1", "2001:db8:0:1::1", False, id="two networks of IPv6"),
        pytest.param("::ffff:192.0.2.1", "192.0.2.1", True, id="IPv4 through a socket of IPv6"),
        pytest.param("fe80::1%eth0", "fe80::2%eth0", True, id="with a zone"),
        pytest.param("192.0.2.1", "192.0.2.2", False, id="neighbours of IPv4"),
    ],
)
def test_what_counts_as_one_address(first, second, want_one_address):
    listener = Listener(per_address=1)
    listener.comes("a", first)

    listener.comes("b", second)

    assert listener.closed == (["a"] if want_one_address else [])


@pytest.mark.parametrize(
    ("loopback_trusted", "want"), [pytest.param(True, 0, id="trusted"), pytest.param(False, 2, id="not trusted")]
)
def test_loopback(loopback_trusted, want):
    listener = Listener(loopback_trusted=loopback_trusted)
    for number in range(5):
        listener.comes(str(number), "127.0.0.1")

    assert len(listener.closed) == want


def test_refusals_are_counted_each_and_reported_once_a_second():
    listener = Listener(per_address=1)
    listener.comes("a")
    listener["a"].busy()
    refused = "gpuplane_connections_refused_total"
    with growth(refused) as grown, capture_logs() as logs:
        for _ in range(100):
            listener.comes("late")
        listener["a"].refused("silent")
        assert logs == []
        listener.clock.tick()

    assert grown == {(refused, "main", "address-full"): 100, (refused, "main", "silent"): 1}
    assert Counter(entry["event"] for entry in logs) == {"listener.refused": 1}
    assert logs[0]["address_full"] == 100
    assert "silent" not in logs[0]
    assert listener.clock.due == []


def test_nothing_is_kept_of_those_who_have_gone():
    listener = Listener(connections=1000)
    for number in range(500):
        listener.comes(str(number), f"10.0.{number // 250}.{number % 250}")
    for place in listener.places.values():
        place.release()
        place.release()

    assert listener.connections._addresses == {}
    assert listener.connections.idle == {}
    assert listener.connections._count == 0
