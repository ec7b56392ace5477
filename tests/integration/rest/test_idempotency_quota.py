"""What is kept for one account's keys is bounded, and nothing is ever done twice for it."""

from datetime import timedelta

import pytest

from access.models import IdempotencyRecord
from access.tasks import KEPT
from claims.models import GpuClaim
from gpuplane.rest import idempotency
from storage.clock import database_now
from tests.integration.rest.conftest import claim_manifest, inventory

pytestmark = pytest.mark.django_db


def key(value):
    return {"headers": {"Idempotency-Key": value}}


def create(api, number):
    return api.send("POST", "claims/", claim_manifest(f"c-{number}"), **key(f"k-{number}"))


def aged(by, *keys):
    IdempotencyRecord.objects.filter(key__in=keys).update(created_at=database_now() - by)


def kept():
    return set(IdempotencyRecord.objects.values_list("key", flat=True))


OLD = idempotency.KEPT_AT_LEAST + timedelta(seconds=5)


def test_a_flood_of_keys_is_refused_before_anything_is_done(operator, outsider, monkeypatch):
    """VIEW-5 with as many fresh keys as an account may have, a further one is told to come later, and others are
    served.
    """
    monkeypatch.setattr(idempotency, "KEYS_A_USER", 3)
    for number in range(3):
        assert create(operator, number).status_code == 201
    refused = create(operator, 3)
    assert (refused.status_code, refused.json()["rule"], refused["Retry-After"]) == (429, "keys-of-user", "60")
    assert not GpuClaim.objects.filter(name="c-3").exists()
    assert create(operator, 1)["Idempotency-Replayed"] == "true"
    assert operator.post("claims/", claim_manifest("without-a-key"))[0] == 201
    assert outsider.send("POST", "claims/", claim_manifest("theirs", "team-b"), **key("k-0")).status_code == 201


def test_the_oldest_answers_make_room(operator, monkeypatch):
    """VIEW-5 nobody repeats after so long; what still runs stays, however old."""
    monkeypatch.setattr(idempotency, "KEYS_A_USER", 3)
    for number in range(3):
        create(operator, number)
    IdempotencyRecord.objects.filter(key="k-0").update(status=None)
    aged(OLD + timedelta(seconds=2), "k-0")
    aged(OLD + timedelta(seconds=1), "k-2")
    aged(OLD, "k-1")
    assert create(operator, 3).status_code == 201
    assert kept() == {"k-0", "k-1", "k-3"}


def test_bytes_are_bounded_too(operator, monkeypatch):
    """VIEW-5 by as many answers as it takes."""
    monkeypatch.setattr(idempotency, "BYTES_A_USER", 1_000)
    for number in range(6):
        assert create(operator, number).status_code == (201 if number < 5 else 429)
        sizes = [len(body) for body in IdempotencyRecord.objects.values_list("body", flat=True)]
        assert sum(sizes) <= 1_000 + max(sizes)
        if number == 2:
            aged(OLD, "k-0", "k-1")
    assert "k-0" not in kept()


def test_of_a_long_answer_the_fact_is_kept(admin, monkeypatch):
    """VIEW-5 a repeat is not done again: it is told that it was done, and where to look."""
    monkeypatch.setattr(idempotency, "LONGEST_ANSWER", 500)
    first = admin.send("PUT", "nodes/n1/inventory/", inventory(gpus=4), **key("k"))
    assert first.status_code == 201
    admin.put("nodes/n1/inventory/", inventory(gpus=2))
    again = admin.send("PUT", "nodes/n1/inventory/", inventory(gpus=4), **key("k"))
    assert (again.status_code, again.json()["rule"]) == (409, "answer-not-kept")
    assert "with status 201" in again.json()["detail"]
    assert "/api/v1/nodes/n1/inventory/" in again.json()["detail"]
    assert len(admin.get("nodes/n1/")[1]["inventory"]) == 2, "it was not done again"
    assert bytes(IdempotencyRecord.objects.get().body) == b""


def test_what_changes_nothing_may_be_asked_again(operator, monkeypatch):
    """VIEW-5 a simulation whose answer is too long to keep is made again."""
    monkeypatch.setattr(idempotency, "LONGEST_ANSWER", 10)
    for _ in range(2):
        assert operator.send("POST", "simulations/", {"nodes": []}, **key("k")).status_code == 200
    assert kept() == set()


def test_a_day_is_still_the_rule():
    assert idempotency.KEPT_AT_LEAST < KEPT
    assert idempotency.ABANDONED < idempotency.KEPT_AT_LEAST
