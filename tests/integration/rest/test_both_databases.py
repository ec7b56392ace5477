"""The REST plane with real commits, on SQLite and PostgreSQL, and twins that race."""

import pytest

from access.choices import Role
from access.models import IdempotencyRecord
from allocations import fleet
from allocations.models import Allocation
from audit.models import Event
from claims.models import GpuClaim
from nodes.models import Device
from tests.integration.rest.conftest import claim_manifest, inventory, person


@pytest.fixture
def ada(ledger_db):
    fleet.forget()
    yield person("ada", Role.ADMIN)
    fleet.forget()


def test_the_whole_round(ada):
    """CLAIM-10 VIEW-5 node, claim, devices, lists, explanation, release, on both databases."""
    assert ada.put("nodes/n1/inventory/", inventory())[0] == 201
    assert ada.post("claims/", claim_manifest())[0] == 201
    assert ada.patch("claims/team-a/train/", {"spec": {"ttlSeconds": 60}})[0] == 200
    status, taken = ada.post("allocations/", {"namespace": "team-a", "claim": "train"})
    assert status == 201
    for path in ("nodes/", "devices/?held=true", "claims/", "allocations/?live=true", "leases/", "events/?kind=claim."):
        status, page = ada.get(path)
        assert (status, bool(page["results"])) == (200, True), path
    for path in ("nodes/n1/", "claims/team-a/train/explain/", "fleet/summary/", f"allocations/{taken['uid']}/"):
        assert ada.get(path)[0] == 200, path
    assert ada.get("claims/team-a/train/")[1]["status"]["allocated"] == 1
    assert ada.delete(f"allocations/{taken['uid']}/")[0] == 200
    assert ada.delete("claims/team-a/train/")[0] == 204
    assert ada.delete("nodes/n1/")[0] == 204
    assert not Allocation.objects.exclude(state="released").exists()
    walked, path = [], "events/?page_size=3"
    while path:
        _, page = ada.get(path)
        walked += [int(row["uid"]) for row in page["results"]]
        path = page["next"]
    assert walked == list(Event.objects.order_by("-id").values_list("id", flat=True))


def test_of_twins_under_one_key_one_is_done(ada, ledger_db):
    """VIEW-5 a concurrent duplicate is told to wait, or gets the first answer; never a second effect."""
    ada.put("nodes/n1/inventory/", inventory(gpus=8))
    ada.post("claims/", claim_manifest())
    body = {"namespace": "team-a", "claim": "train"}
    answers = ledger_db.race([lambda: ada.post("allocations/", body, headers={"Idempotency-Key": "k"})] * 6)
    statuses = {status for status, _ in answers}
    assert 201 in statuses
    assert statuses <= {201, 409}
    assert len({answer["uid"] for status, answer in answers if status == 201}) == 1
    assert (Allocation.objects.count(), IdempotencyRecord.objects.count()) == (1, 1)
    assert Device.objects.filter(core_used=100).count() == 1


def test_of_writers_under_one_version_one_wins(ada, ledger_db):
    """CLAIM-1 optimistic locking holds when writers race."""
    _, made = ada.post("claims/", claim_manifest())
    bodies = [{**made, "spec": {"devices": {"count": count}}} for count in range(2, 8)]
    answers = ledger_db.race([lambda body=body: ada.put("claims/team-a/train/", body) for body in bodies])
    assert sorted(status for status, _ in answers) == [200] + [409] * 5
    [won] = [answer for status, answer in answers if status == 200]
    claim = GpuClaim.objects.get()
    assert (claim.spec, claim.generation, claim.resource_version) == (won["spec"], 2, "2")


def test_of_creators_of_one_name_one_wins(ada, ledger_db):
    """CLAIM-1 one claim of a name."""
    answers = ledger_db.race([lambda: ada.post("claims/", claim_manifest())] * 6)
    assert sorted(status for status, _ in answers) == [201] + [409] * 5
    assert (GpuClaim.objects.count(), Event.objects.filter(kind="claim.created").count()) == (1, 1)
