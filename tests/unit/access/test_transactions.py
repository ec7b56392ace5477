import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction

from access.transactions import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, atomic_retry, pause_seconds


@pytest.fixture(autouse=True)
def _no_pauses(request, monkeypatch):
    """Nobody else wants the rows, so nothing is gained by waiting; real deadlocks need the real pauses."""
    if "ledger_db" not in request.fixturenames:
        monkeypatch.setattr("access.transactions.time.sleep", lambda _: None)


def failing(times, error):
    """Writes a group, then fails so many times."""
    calls: list[None] = []

    def work():
        calls.append(None)
        Group.objects.create(name=f"g{len(calls)}")
        if len(calls) <= times:
            raise error
        return len(calls)

    return work, calls


@pytest.mark.django_db(transaction=True)
def test_a_lost_transaction_is_run_again_and_leaves_nothing_of_the_first_try():
    work, _ = failing(2, OperationalError("database is locked"))
    assert atomic_retry(work)() == 3
    assert list(Group.objects.values_list("name", flat=True)) == ["g3"]


@pytest.mark.django_db(transaction=True)
def test_it_is_bounded():
    work, calls = failing(99, OperationalError("database is locked"))
    with pytest.raises(OperationalError):
        atomic_retry(attempts=4)(work)()
    assert len(calls) == 4
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [IntegrityError("x"), OperationalError("no such table"), ValueError("x")])
def test_other_errors_pass_at_once(error):
    work, calls = failing(1, error)
    with pytest.raises(type(error)):
        atomic_retry(work)()
    assert len(calls) == 1
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_inside_another_transaction_nothing_is_run_again():
    work, calls = failing(1, OperationalError("database is locked"))
    with pytest.raises(OperationalError), transaction.atomic():
        atomic_retry(work)()
    assert len(calls) == 1


def test_pauses_grow_to_a_bound():
    assert pause_seconds(1, 0) == FIRST_PAUSE_SECONDS
    assert pause_seconds(2, 1) > pause_seconds(1, 1)
    assert pause_seconds(50, 1) == LONGEST_PAUSE_SECONDS


def bump(name):
    @atomic_retry
    def work():
        one = Group.objects.get(name="counter")
        other = Group.objects.select_for_update().get(name=name)
        Group.objects.filter(pk=other.pk).update(name=name)
        third = Group.objects.select_for_update().get(name={"a": "b", "b": "a"}[name])
        Group.objects.filter(pk=third.pk).update(name=third.name)
        return one.name

    return work


def test_deadlocks_end_well_on_both_databases(ledger_db):
    """LEASE-2 (part) writers that lock in opposite orders both succeed."""
    for name in ("counter", "a", "b"):
        Group.objects.create(name=name)
    assert connection.vendor == ledger_db.vendor
    for _ in range(4):
        assert ledger_db.race([bump("a"), bump("b")]) == ["counter"] * 2
