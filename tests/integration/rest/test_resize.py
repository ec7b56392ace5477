"""A share is resized over REST: who may, what is refused and how, and once a key."""

import pytest

from allocations import fleet
from allocations.backends import current_backends
from allocations.models import AllocationDevice
from allocations.scheduling.resizing import resize_claims
from audit.models import Event
from nodes.models import Device
from storage.clock import database_now
from tests.integration.rest.conftest import claim_manifest, inventory

pytestmark = pytest.mark.django_db
GI = 1 << 30


@pytest.fixture(autouse=True)
def _node(admin):
    fleet.forget()
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    yield
    fleet.forget()


def taken(api, name="train", *, resize=None, **devices):
    """An allocation through such a claim; its uid."""
    manifest = claim_manifest(name, **devices)
    if resize is not None:
        manifest["spec"]["resize"] = resize
    assert api.post("claims/", manifest)[0] == 201
    status, found = api.post("allocations/", {"namespace": "team-a", "claim": name})
    assert status == 201, found
    return found["uid"]


def used():
    return list(Device.objects.values_list("core_used", "memory_used"))


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param({"core": 70}, (70, 20 * GI), id="core"),
        pytest.param({"memory": "30Gi"}, (40, 30 * GI), id="memory"),
        pytest.param({"memory": 5 * GI}, (40, 5 * GI), id="bytes"),
        pytest.param({"core": 0, "memory": "1Gi"}, (0, GI), id="memory alone"),
        pytest.param({"core": 100, "memory": "80Gi"}, (100, 80 * GI), id="all of it, still a share"),
        pytest.param({"core": 40}, (40, 20 * GI), id="the same"),
    ],
)
def test_a_share_gets_other_amounts(operator, body, want):
    """SHARE-6b CLAIM-10 the answer is the allocation with its new amounts, and the ledger has them."""
    uid = taken(operator, core=40, memory="20Gi")
    status, shown = operator.post(f"allocations/{uid}/resize/", body)
    assert status == 200, shown
    assert [(one["core"], one["memory"], one["whole"]) for one in shown["devices"]] == [(*want, False)]
    assert used() == [want]
    assert operator.get(f"allocations/{uid}/")[1] == shown


@pytest.mark.parametrize(
    ("body", "status", "want"),
    [
        pytest.param({}, 400, "give core, memory or both", id="nothing"),
        pytest.param({"core": 101}, 400, "core", id="too much core"),
        pytest.param({"core": -1}, 400, "core", id="less than none"),
        pytest.param({"core": "much"}, 400, "core", id="a word"),
        pytest.param({"memory": "much"}, 400, "memory", id="no quantity"),
        pytest.param({"memory": 0}, 400, "memory must be more than 0", id="no memory"),
        pytest.param({"memory": True}, 400, "memory", id="a flag"),
        pytest.param({"memory": ["1Gi"]}, 400, "memory", id="a list"),
        pytest.param({"memory": "81Gi"}, 409, "has 85899345920 bytes of memory", id="more than a device has"),
        pytest.param({"core": 61}, 409, "gpu 0 has 20 core and 50Gi free; the share needs 21 core", id="no room"),
    ],
)
def test_what_is_refused(operator, body, status, want):
    """SHARE-6b VIEW-5 a problem document with the reason, and nothing changes."""
    uid = taken(operator, core=40, memory="20Gi")
    taken(operator, "other", core=40, memory="10Gi")
    found, problem = operator.post(f"allocations/{uid}/resize/", body)
    assert (found, problem["status"]) == (status, status)
    assert want in problem["detail"]
    assert used() == [(80, 30 * GI)]


def test_whole_devices(operator):
    """SHARE-6b whole devices stay whole."""
    uid = taken(operator)
    status, problem = operator.post(f"allocations/{uid}/resize/", {"core": 50})
    assert (status, problem["detail"]) == (409, "it holds whole devices, which cannot be resized")


def test_an_ended_allocation(operator):
    """SHARE-6b what was given back has no amounts any more."""
    uid = taken(operator, core=40, memory="20Gi")
    operator.delete(f"allocations/{uid}/")
    status, problem = operator.post(f"allocations/{uid}/resize/", {"core": 50})
    assert (status, problem["detail"]) == (409, "only the share of a bound allocation can be resized")
    assert used() == [(0, 0)]


def test_who_may(admin, operator, viewer, outsider, anonymous):
    """VIEW-6 SHARE-6b as for a release: operators of the namespace's team, and admins."""
    uid = taken(operator, core=40, memory="20Gi")
    path = f"allocations/{uid}/resize/"
    answers = [api.post(path, {"core": 50})[0] for api in (anonymous, viewer, outsider)]
    assert answers == [401, 403, 404]
    assert used() == [(40, 20 * GI)]
    assert [api.post(path, {"core": 50})[0] for api in (operator, admin)] == [200, 200]
    assert used() == [(50, 20 * GI)]


def test_once_a_key(operator):
    """VIEW-5 SHARE-6b a repeat under the same key changes nothing, even where the share was resized since."""
    uid = taken(operator, core=40, memory="20Gi")
    path = f"allocations/{uid}/resize/"
    headers = {"headers": {"Idempotency-Key": "k"}}
    first = operator.post(path, {"core": 50}, **headers)
    operator.post(path, {"core": 30})
    assert operator.post(path, {"core": 50}, **headers) == first
    assert used() == [(30, 20 * GI)]
    assert Event.objects.filter(kind="allocation.resized").count() == 2


def test_a_claim_that_resizes(operator):
    """SHARE-6b such a share follows its claim alone."""
    uid = taken(operator, resize=True, core=40, memory="20Gi")
    status, problem = operator.post(f"allocations/{uid}/resize/", {"core": 50})
    assert status == 409
    assert "edit the claim" in problem["detail"]
    assert AllocationDevice.objects.get().core_percent == 40


def test_an_edited_claim_without_kubernetes(operator):
    """SHARE-6b CLAIM-10 the shares of REST clients follow their claim too, and its manifest says where they cannot."""
    taken(operator, resize=True, core=40, memory="20Gi")
    taken(operator, "other", core=40, memory="10Gi")
    world, path = current_backends(), "claims/team-a/train/"
    assert operator.patch(path, {"spec": {"devices": {"core": 60}}})[0] == 200
    assert resize_claims(backends=world, now=database_now()) == 1
    assert used() == [(100, 30 * GI)]
    assert operator.patch(path, {"spec": {"devices": {"core": 70}}})[0] == 200
    assert resize_claims(backends=world, now=database_now()) == 0
    (said,) = [one for one in operator.get(path)[1]["status"]["conditions"] if one["type"] == "Resized"]
    assert (said["status"], said["reason"]) == ("False", "Refused")
    assert "gpu 0 has 0 core and 50Gi free; the share needs 10 core" in said["message"]
    assert used() == [(100, 30 * GI)]
    assert operator.patch(path, {"spec": {"devices": {"core": 50}}})[0] == 200
    assert resize_claims(backends=world, now=database_now()) == 1
    (said,) = [one for one in operator.get(path)[1]["status"]["conditions"] if one["type"] == "Resized"]
    assert (said["status"], said["reason"]) == ("True", "AsClaimed")
