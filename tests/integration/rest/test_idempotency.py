import json
from datetime import timedelta

import pytest
from django.test import Client

from access import tokens
from access.choices import Role
from access.errors import TooManyUnderWay
from access.models import IdempotencyRecord, Profile
from access.tasks import KEPT, idempotency_prune
from audit.models import Event
from claims.models import GpuClaim
from gpuplane.rest.idempotency import ABANDONED
from tests.integration.rest.conftest import NOW, claim_manifest

pytestmark = pytest.mark.django_db
LONG = "pad=" + "x" * 1000 + "&"


def key(value="k-1"):
    return {"headers": {"Idempotency-Key": value}}


def test_the_same_request_twice_is_done_once(operator):
    """VIEW-5 a repeat under the same key gets the first answer, and nothing happens again."""
    first = operator.send("POST", "claims/", claim_manifest(), **key())
    again = operator.send("POST", "claims/", claim_manifest(), **key())
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again["Content-Type"] == first["Content-Type"]
    assert again["Idempotency-Replayed"] == "true"
    assert GpuClaim.objects.count() == 1
    assert Event.objects.filter(kind="claim.created").count() == 1


@pytest.mark.parametrize("written", ["Bearer\t{}", "bearer {}", " Bearer  {} "])
def test_a_repeat_is_known_however_its_token_is_written(operator, written):
    """VIEW-5 Idempotency keys read the header as authentication does."""
    headers = {"Idempotency-Key": "k-1", "Authorization": written.format(operator.token)}
    first = operator.send("POST", "claims/", claim_manifest(), headers=headers)
    again = operator.send("POST", "claims/", claim_manifest(), headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again["Idempotency-Replayed"] == "true"


def test_a_refusal_is_given_again_too(operator):
    """VIEW-5 also answers of 4xx are kept."""
    operator.post("claims/", claim_manifest())
    first = operator.send("POST", "claims/", claim_manifest(), **key())
    assert first.status_code == 409
    operator.delete("claims/team-a/train/")
    assert operator.send("POST", "claims/", claim_manifest(), **key()).content == first.content
    assert not GpuClaim.objects.exists()


def test_an_empty_answer_is_given_again(operator):
    """VIEW-5 a delete that is repeated stays a success."""
    operator.post("claims/", claim_manifest())
    assert operator.delete("claims/team-a/train/", **key()) == (204, None)
    assert operator.delete("claims/team-a/train/", **key()) == (204, None)
    assert operator.delete("claims/team-a/train/", **key("k-2"))[0] == 404


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda api: api.post("claims/", claim_manifest("other"), **key()), id="another body"),
        pytest.param(lambda api: api.put("claims/team-a/train/", claim_manifest(), **key()), id="another address"),
        pytest.param(lambda api: api.post(f"claims/?{LONG}b=2", claim_manifest(), **key()), id="another query"),
    ],
)
def test_a_key_belongs_to_one_request(operator, other):
    """VIEW-5 the same key with another request is refused."""
    operator.post("claims/", claim_manifest(), **key())
    status, problem = other(operator)
    assert (status, problem["rule"]) == (422, "key-reused")
    assert GpuClaim.objects.count() == 1


def test_addresses_are_compared_to_their_end(operator):
    """VIEW-5 a query that differs after more than a record keeps is another request."""
    assert operator.post(f"claims/?{LONG}b=1", claim_manifest(), **key())[0] == 201
    assert len(IdempotencyRecord.objects.get().path) == 1000
    assert operator.post(f"claims/?{LONG}b=1", claim_manifest(), **key())[0] == 201
    status, problem = operator.post(f"claims/?{LONG}b=2", claim_manifest(), **key())
    assert (status, problem["rule"]) == (422, "key-reused")


def test_keys_of_different_people_do_not_meet(operator, admin):
    """VIEW-5 a key is one user's own."""
    assert operator.post("claims/", claim_manifest(), **key())[0] == 201
    assert admin.post("claims/", claim_manifest("other"), **key())[0] == 201


def test_a_twin_that_still_runs_has_to_wait(operator):
    """VIEW-5 of two requests at once one is done."""
    operator.post("claims/", claim_manifest(), **key())
    IdempotencyRecord.objects.update(status=None)
    assert operator.post("claims/", claim_manifest(), **key())[0] == 409
    record = IdempotencyRecord.objects.get()
    IdempotencyRecord.objects.update(created_at=record.created_at - ABANDONED - timedelta(seconds=1))
    status, problem = operator.post("claims/", claim_manifest(), **key())
    assert (status, problem["detail"]) == (409, "there is already a GpuClaim train in team-a")


def test_a_fault_is_not_kept(operator, monkeypatch):
    """VIEW-5 after a 5xx the client may try again."""
    monkeypatch.setattr("gpuplane.rest.manifests.manifest_create", lambda *_, **__: 1 / 0)
    assert operator.post("claims/", claim_manifest(), **key())[0] == 500
    monkeypatch.undo()
    assert operator.post("claims/", claim_manifest(), **key())[0] == 201


def test_a_refusal_that_did_nothing_is_not_kept(operator, monkeypatch):
    """VIEW-5 after a 429 the client may try again, as its Retry-After says."""

    def busy(*_, **__):
        raise TooManyUnderWay("a run of yours is under way", rule="runs-of-user", retry_after_seconds=1)

    monkeypatch.setattr("gpuplane.rest.simulations.what_if", busy)
    assert operator.post("simulations/", {}, **key())[0] == 429
    monkeypatch.setattr("gpuplane.rest.simulations.what_if", lambda *_, **__: b"{}")
    again = operator.send("POST", "simulations/", {}, **key())
    assert (again.status_code, "Idempotency-Replayed" in again) == (200, False)


def test_who_may_write_later_may_try_again(viewer):
    """VIEW-5 VIEW-6 a 403 is of the account's role at that time."""
    assert viewer.post("claims/", claim_manifest(), **key())[0] == 403
    assert not IdempotencyRecord.objects.exists()
    Profile.objects.filter(user=viewer.user).update(role=Role.OPERATOR)
    tokens.forget()
    assert viewer.post("claims/", claim_manifest(), **key())[0] == 201


def test_a_write_without_the_csrf_token_may_be_sent_again_with_it(operator):
    """VIEW-5 VIEW-6 the first was refused before anything was done."""
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(operator.user)
    body, sent = json.dumps(claim_manifest()), {"Idempotency-Key": "k-1"}
    first = browser.post("/api/v1/claims/", body, content_type="application/json", headers=sent)
    assert first.status_code == 403
    browser.get("/tokens/")
    sent["X-CSRFToken"] = browser.cookies["csrftoken"].value
    assert browser.post("/api/v1/claims/", body, content_type="application/json", headers=sent).status_code == 201


@pytest.mark.parametrize("value", ["", " ", "a b", "x" * 256, "ä"])
def test_a_malformed_key_is_refused(operator, value):
    status, problem = operator.post("claims/", claim_manifest(), **key(value))
    assert (status, problem["field"]) == (400, "Idempotency-Key")
    assert not GpuClaim.objects.exists()


def test_nobody_leaves_no_records(anonymous):
    assert anonymous.post("claims/", claim_manifest(), **key())[0] == 401
    assert not IdempotencyRecord.objects.exists()


def test_reads_ignore_the_key(operator):
    assert operator.call("GET", "claims/", **key())[0] == 200
    assert not IdempotencyRecord.objects.exists()


def test_old_answers_are_forgotten_in_batches(operator):
    for number in range(5):
        operator.post("claims/", claim_manifest(f"c-{number}"), **key(f"k-{number}"))
    IdempotencyRecord.objects.filter(key__in=["k-0", "k-1", "k-2"]).update(created_at=NOW - KEPT - timedelta(seconds=1))
    IdempotencyRecord.objects.exclude(key__in=["k-0", "k-1", "k-2"]).update(created_at=NOW - KEPT)
    assert idempotency_prune(now=NOW, batch=2, most_batches=1) == 2
    assert idempotency_prune(now=NOW, batch=2) == 1
    assert set(IdempotencyRecord.objects.values_list("key", flat=True)) == {"k-3", "k-4"}
