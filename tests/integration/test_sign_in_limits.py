"""Guessing passwords at the sign-in page: what is counted, who waits, what is told, and that nobody else is
kept out.
"""

import threading
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client
from django.utils import timezone

from access import attempts, backends
from access.models import SignInCount
from access.tasks import close_sign_in_counts
from audit.choices import EventKind
from audit.models import Event
from tests.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.usefixtures("ledger_db")

TYPED_AS_V0 = [
    pytest.param("v0", id="as it is"),
    pytest.param("v0 ", id="a space after"),
    pytest.param("\tv0\n", id="white space around"),
    pytest.param("\u3000v0\u3000", id="ideographic spaces"),
    pytest.param("v\uff10", id="a full-width digit"),
    pytest.param("\uff56\uff10", id="full-width throughout"),
    pytest.param("\u2003v\u2070", id="a superscript digit"),
]


def attempt(name="v0", password="wrong", address="192.0.2.1", **headers):
    return Client().post("/sign-in/", {"username": name, "password": password}, REMOTE_ADDR=address, headers=headers)


def status(*args, **kwargs):
    return attempt(*args, **kwargs).status_code


def told():
    return list(Event.objects.filter(kind=EventKind.SIGN_IN_FAILED).order_by("id").values_list("name", "data__count"))


def later(**by):
    """Let time pass for everything that is counted."""
    SignInCount.objects.update(since=F("since") - timedelta(**by))


@pytest.mark.parametrize("typed", TYPED_AS_V0)
def test_a_name_is_counted_as_django_reads_it(typed):
    """VIEW-6 however a name is typed, it has one count: that of the account that it opens."""
    UserFactory(username="v0")
    assert status(typed, PASSWORD) == 302, "Django reads it as v0"
    for _ in range(attempts.PAIR_MOST):
        assert status("v0") == 401

    assert status(typed, PASSWORD) == 429


def test_names_that_differ_by_case_are_two_accounts():
    """Databases compare names with case, so guesses at one are none at the other."""
    UserFactory(username="v0")
    for _ in range(attempts.PAIR_MOST):
        status("V0")
    assert status("v0", PASSWORD) == 302


def test_a_wait_is_stated_and_no_password_is_checked(monkeypatch):
    UserFactory(username="v0")
    for _ in range(attempts.PAIR_MOST):
        status()
    monkeypatch.setattr(User, "check_password", None)  # whoever looks meets this

    answer = attempt(password=PASSWORD)

    assert answer.status_code == 429
    assert 290 <= int(answer["Retry-After"]) <= 300
    assert "Too many failed attempts" in answer.content.decode()


def test_waiting_ends_with_the_window():
    UserFactory(username="v0")
    for _ in range(attempts.PAIR_MOST):
        status()
    later(minutes=4)
    assert status(password=PASSWORD) == 429
    later(minutes=2)
    assert status(password=PASSWORD) == 302


def test_a_right_password_begins_anew():
    UserFactory(username="v0")
    for _ in range(3):
        for _ in range(attempts.PAIR_MOST - 1):
            assert status() == 401
        assert status(password=PASSWORD) == 302


def test_an_address_that_tries_many_names_waits():
    """Of any names, known or made up; right ones between do not help."""
    UserFactory(username="v0")
    for number in range(attempts.ADDRESS_MOST):
        assert status(f"name-{number}") == 401
        if number % 5 == 0:
            assert status("v0", PASSWORD) == 302
    assert status("v0", PASSWORD) == 429
    assert status("v0", PASSWORD, address="192.0.2.2") == 302


@pytest.mark.parametrize(
    ("addresses", "want"),
    [
        pytest.param([f"2001:db8:1:2::{number:x}" for number in range(9)], 429, id="one subscriber's IPv6 network"),
        pytest.param([f"2001:db8:1:{number:x}::1" for number in range(9)], 401, id="nine networks"),
        pytest.param(["192.0.2.1", "::ffff:192.0.2.1"] * 4 + ["192.0.2.1"], 429, id="IPv4 in both spellings"),
        pytest.param(["", "nonsense", "@"] * 3, 429, id="addresses that cannot be read are one"),
    ],
)
def test_what_one_address_is(addresses, want):
    seen = [status(address=address) for address in addresses]
    assert seen == [*[401] * 8, want]


def test_forged_addresses_change_nothing():
    """No proxy is named, so nobody's X-Forwarded-For counts."""
    for number in range(attempts.PAIR_MOST):
        assert status(**{"X-Forwarded-For": f"198.51.100.{number}", "X-Real-Ip": f"198.51.100.{number}"}) == 401
    assert status(**{"X-Forwarded-For": "198.51.100.200", "Forwarded": "for=198.51.100.200"}) == 429


def test_a_name_under_attack_from_everywhere_opens_for_its_owner():
    """The owner gets in from where they signed in before; who guesses from new addresses waits, however many
    there are.
    """
    UserFactory(username="v0")
    assert status(password=PASSWORD, address="203.0.113.7") == 302
    for number in range(attempts.NAME_MOST):
        assert status(address=f"198.51.100.{number}") == 401

    assert status(address="198.51.100.222") == 429
    assert status(password=PASSWORD, address="203.0.113.7") == 302
    assert status("v1", address="198.51.100.222") == 401, "other names are not concerned"


def test_parallel_attempts_get_no_more_tries(ledger_db, monkeypatch):
    """Each is counted before its password is looked at."""
    monkeypatch.setattr(backends, "_line", threading.BoundedSemaphore(100))
    monkeypatch.setattr(backends, "_turns", threading.BoundedSemaphore(100))
    UserFactory(username="v0")

    seen = ledger_db.race([status] * 16)

    assert sorted(seen) == [401] * attempts.PAIR_MOST + [429] * (16 - attempts.PAIR_MOST)


def test_few_passwords_are_hashed_at_once(ledger_db, monkeypatch):
    """Who finds the line full is asked to come back, and is not counted."""
    UserFactory(username="v0")
    inside, most, refused = [], [], []
    gate, lock = threading.Event(), threading.Lock()
    plain = User.check_password

    def slow(user, password):
        with lock:
            inside.append(1)
            most.append(len(inside))
        assert gate.wait(30)
        with lock:
            inside.pop()
        return plain(user, password)

    def one():
        seen = status(password=PASSWORD)
        if seen == 503:
            with lock:
                refused.append(seen)
                if len(refused) == 3:
                    gate.set()
        return seen

    monkeypatch.setattr(User, "check_password", slow)
    monkeypatch.setattr(backends, "TURN_SECONDS", 60)
    line = backends.CHECKS_MOST + backends.WAITING_MOST

    seen = ledger_db.race([one] * (line + 3))

    assert sorted(seen) == [302] * line + [503] * 3
    assert max(most) <= backends.CHECKS_MOST
    assert not SignInCount.objects.filter(tries__gt=0).exists()
    assert told() == []


def test_failures_are_reported_by_name_and_address_with_their_count():
    """VIEW-6 each failed sign-in is in the audit trail: the first at once, the rest of the window in one event."""
    for _ in range(3):
        status("ann", "not-to-be-seen")
    assert told() == [("ann", 1)]
    later(minutes=6)
    close_sign_in_counts()

    assert told() == [("ann", 1), ("ann", 2)]
    event = Event.objects.latest("id")
    assert (event.actor, event.data["address"]) == ("anonymous", "192.0.2.1")
    assert "not-to-be-seen" not in str(list(Event.objects.values()))
    assert not SignInCount.objects.exclude(scope="events").exists()


def test_a_name_that_has_to_wait_is_reported_once():
    for _ in range(attempts.PAIR_MOST + 20):
        status("ann")
    assert told() == [("ann", 1), ("ann", attempts.PAIR_MOST - 1)]
    assert "have to wait" in Event.objects.latest("id").message


def test_failures_before_a_right_password_are_reported():
    UserFactory(username="ann")
    for _ in range(3):
        status("ann")
    status("ann", PASSWORD)
    assert told() == [("ann", 1), ("ann", 2)]


def test_failures_of_a_window_that_is_over_are_reported_before_the_next():
    for _ in range(3):
        status("ann")
    later(minutes=6)
    status("ann")
    assert told() == [("ann", 1), ("ann", 2), ("ann", 1)]


def test_a_flood_of_failures_does_not_fill_the_audit_trail(monkeypatch):
    """Events are bounded a window; what is not told one by one is told in one event, with its number."""
    monkeypatch.setattr(attempts, "EVENTS_MOST", 10)
    for number in range(30):
        status(f"{number}-" + "x" * 140, address=f"198.51.100.{number}")
    assert len(told()) == 10
    later(minutes=6)
    close_sign_in_counts()

    assert len(told()) == 21
    rest = Event.objects.latest("id")
    assert rest.data == {"count": 10, "names": 10, "addresses": 10}
    assert rest.message == "10 more sign-ins refused, as 10 names from 10 addresses"


def test_counts_are_bounded(monkeypatch):
    """The oldest go."""
    monkeypatch.setattr(attempts, "ROWS_MOST", 15)
    for number in range(10):
        status(f"n{number}", address=f"198.51.100.{number}")
    close_sign_in_counts()
    assert 0 < SignInCount.objects.count() <= 15
    assert SignInCount.objects.filter(scope="pair", name="n9").exists()


def test_known_addresses_are_forgotten_in_time():
    UserFactory(username="v0")
    status(password=PASSWORD)
    later(days=91)
    close_sign_in_counts()
    assert not SignInCount.objects.filter(scope="known").exists()


def test_counts_outlive_a_restart_and_are_shared():
    """They are rows: nothing in the process needs keeping."""
    for _ in range(attempts.PAIR_MOST):
        status()
    assert SignInCount.objects.get(scope="pair").tries == attempts.PAIR_MOST
    assert attempts.attempt_wait(attempts.Attempt("v0", "192.0.2.1"), now=timezone.now()) is not None
