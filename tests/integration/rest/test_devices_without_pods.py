"""CLAIM-10: a REST client without Kubernetes claims, renews and releases devices: the same ledger, the same rules."""

from datetime import datetime

import pytest

from access.actors import SYSTEM
from allocations import fleet
from allocations.models import Allocation, Lease
from audit.models import Event
from nodes.models import Device
from nodes.services import devices_health
from storage.clock import database_now
from tests.integration.rest.conftest import claim_manifest, inventory

pytestmark = pytest.mark.django_db
WANT = {"namespace": "team-a", "claim": "train"}


@pytest.fixture(autouse=True)
def _node(admin):
    fleet.forget()
    admin.put("nodes/n1/inventory/", inventory())
    yield
    fleet.forget()


def claim(api, *, ttl=None, **devices):
    manifest = claim_manifest(**devices)
    if ttl:
        manifest["spec"]["ttlSeconds"] = ttl
    assert api.post("claims/", manifest)[0] == 201


def used():
    return list(Device.objects.order_by("minor").values_list("core_used", "memory_used"))


def moment(text):
    return datetime.fromisoformat(text)


def test_devices_are_taken_shown_and_given_back(operator):
    """CLAIM-10 claim and release; the lease `gpu-<node>-<id>` is there in between."""
    claim(operator, count=2)
    status, taken = operator.post("allocations/", {**WANT, "holder": "rack-7"})
    assert status == 201, taken
    assert (taken["state"], taken["node"], taken["claim"]) == ("bound", "n1", "train")
    assert [grant["uuid"] for grant in taken["devices"]] == ["GPU-n1-0", "GPU-n1-1"]
    assert taken["holder"].startswith("team-a/rack-7/")
    assert used() == [(100, 80 << 30)] * 2
    leases = operator.get("leases/")[1]["results"]
    assert [(row["name"], row["holder_identity"]) for row in leases] == [
        ("gpu-n1-0", taken["holder"]),
        ("gpu-n1-1", taken["holder"]),
    ]
    _, shown = operator.get("claims/team-a/train/")
    assert (shown["status"]["phase"], shown["status"]["allocated"]) == ("Allocated", 1)
    assert shown["status"]["allocations"][0]["uid"] == taken["uid"]

    status, released = operator.delete(f"allocations/{taken['uid']}/")
    assert (status, released["state"]) == (200, "released")
    assert used() == [(0, 0)] * 2
    assert not Lease.objects.exists()
    assert operator.get("claims/team-a/train/")[1]["status"]["allocated"] == 0


def test_holders_of_sick_devices_are_marked(operator, admin):
    """A device that falls sick is told of with its holder, who keeps it; well again, or given back, it is told
    no more.
    """
    claim(operator, count=2)
    uid = operator.post("allocations/", WANT)[1]["uid"]
    health(**{"GPU-n1-1": "Xid 79: fallen off the bus"})
    _, shown = operator.get(f"allocations/{uid}/")
    assert shown["state"] == "bound"
    assert [grant["problem"] for grant in shown["devices"]] == ["", "Xid 79: fallen off the bus"]
    told = operator.get("claims/team-a/train/explain/")[1]["pods"][0]
    assert [grant["problem"] for grant in told["devices"]] == ["", "Xid 79: fallen off the bus"]
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    assert operator.get(f"allocations/{uid}/")[1]["devices"][1]["problem"] != ""
    admin.put("nodes/n1/inventory/", inventory())
    health(**{"GPU-n1-1": ""})
    assert [grant["problem"] for grant in operator.get(f"allocations/{uid}/")[1]["devices"]] == ["", ""]
    health(**{"GPU-n1-1": "Xid 79"})
    operator.delete(f"allocations/{uid}/")
    assert [grant["problem"] for grant in operator.get(f"allocations/{uid}/")[1]["devices"]] == ["", ""]


def health(**reasons):
    devices_health(node_name="n1", health=reasons, actor=SYSTEM, now=database_now())


def test_what_does_not_fit_is_refused_with_the_reason(operator):
    """CLAIM-10 the same rules: nothing is given twice."""
    claim(operator, count=2)
    assert operator.post("allocations/", WANT)[0] == 201
    status, problem = operator.post("allocations/", WANT)
    assert status == 409
    assert problem["detail"]
    assert Allocation.objects.count() == 1


def test_shares_come_from_one_device_until_it_is_full(operator):
    """CLAIM-10 shares, as for pods."""
    claim(operator, core=50, memoryRatio=50)
    taken = [operator.post("allocations/", WANT)[1]["devices"][0]["uuid"] for _ in range(4)]
    assert taken == ["GPU-n1-0", "GPU-n1-0", "GPU-n1-1", "GPU-n1-1"]
    assert operator.post("allocations/", WANT)[0] == 409
    assert used() == [(100, 80 << 30)] * 2


def test_time_is_bounded_and_renewed(operator):
    """CLAIM-9 CLAIM-10 ttlSeconds counts from binding; renew lets it end later."""
    claim(operator, ttl=60)
    _, taken = operator.post("allocations/", WANT)
    assert 55 <= (moment(taken["expires_at"]) - moment(taken["bound_at"])).total_seconds() <= 60
    status, [renewed] = operator.post("claims/team-a/train/renew/", {"ttlSeconds": 3600})
    assert status == 200
    assert (renewed["uid"], renewed["ttl_seconds"]) == (taken["uid"], 3600)
    assert (moment(renewed["expires_at"]) - moment(taken["expires_at"])).total_seconds() > 3500
    status, [again] = operator.post("claims/team-a/train/renew/")
    assert (status, again["ttl_seconds"]) == (200, 3600)


@pytest.mark.parametrize("ttl", [0, -1, "x", 10**12, 1.5, True])
def test_a_renewal_out_of_bounds_is_refused(operator, ttl):
    claim(operator, ttl=60)
    operator.post("allocations/", WANT)
    before = list(Allocation.objects.values())
    status, problem = operator.post("claims/team-a/train/renew/", {"ttlSeconds": ttl})
    assert (status, problem["field"]) == (400, "ttlSeconds")
    assert list(Allocation.objects.values()) == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"namespace": "A b"}, "namespace"),
        ({"namespace": None}, "namespace"),
        ({"claim": "../x"}, "claim"),
        ({"claim": ""}, "claim"),
        ({"holder": "a/b"}, "holder"),
        ({"holder": "x" * 129}, "holder"),
        ({"holder": "a\x00"}, ""),
    ],
    ids=[
        "a namespace that is no name",
        "no namespace",
        "a claim that is a path",
        "an empty claim",
        "a holder with a slash",
        "a holder that is too long",
        "a holder with a NUL",
    ],
)
def test_bad_requests_are_refused_with_the_field(operator, changes, field):
    claim(operator)
    status, problem = operator.post("allocations/", {**WANT, **changes})
    assert (status, problem.get("field", "")) == (400, field)
    assert not Allocation.objects.exists()


def test_a_repeat_under_one_key_takes_devices_once(operator):
    """VIEW-5 CLAIM-10 the same key, the same devices."""
    claim(operator)
    key = {"Idempotency-Key": "boot-42"}
    _, first = operator.post("allocations/", WANT, headers=key)
    _, again = operator.post("allocations/", WANT, headers=key)
    assert first["uid"] == again["uid"]
    assert used() == [(100, 80 << 30), (0, 0)]


def test_the_claim_may_go_while_devices_are_held(operator):
    """CLAIM-2 deleting a claim takes nothing from its holders."""
    claim(operator)
    _, taken = operator.post("allocations/", WANT)
    assert operator.delete("claims/team-a/train/")[0] == 204
    _, shown = operator.get(f"allocations/{taken['uid']}/")
    assert (shown["state"], shown["claim"]) == ("bound", "train")
    assert operator.delete(f"allocations/{taken['uid']}/")[1]["state"] == "released"
    assert used() == [(0, 0)] * 2


def test_others_neither_see_nor_release_it(operator, outsider, viewer):
    """VIEW-6 allocations belong to their namespaces."""
    claim(operator)
    _, taken = operator.post("allocations/", WANT)
    path = f"allocations/{taken['uid']}/"
    assert (outsider.get(path)[0], outsider.delete(path)[0]) == (404, 404)
    assert (viewer.get(path)[0], viewer.delete(path)[0]) == (200, 403)
    assert outsider.get("allocations/")[1]["results"] == []
    assert used()[0] == (100, 80 << 30)


def test_a_claim_with_a_gang_is_for_pods(operator):
    """CLAIM-8 a gang is made of pods."""
    manifest = claim_manifest()
    manifest["spec"]["gangRef"] = "crew"
    operator.post("claims/", manifest)
    status, problem = operator.post("allocations/", WANT)
    assert (status, problem["detail"]) == (
        409,
        "GpuClaim train has a gangRef: a gang is made of pods, and this is none",
    )


def test_the_explanation_names_holders_and_events(operator):
    """VIEW-3 one answer to why."""
    claim(operator)
    _, taken = operator.post("allocations/", WANT)
    status, told = operator.get("claims/team-a/train/explain/")
    assert status == 200
    assert told["pods"][0]["devices"][0]["uuid"] == taken["devices"][0]["uuid"]
    assert Event.objects.filter(allocation_id=taken["uid"]).exists()


def test_what_if_over_rest_is_the_scenario_format(operator):
    """VIEW-4 a scenario in, decisions out, as JSON or YAML."""
    import yaml

    scenario = {
        "nodes": [inventory()],
        "claims": [claim_manifest(count=2)],
        "pods": [
            {
                "metadata": {
                    "name": name,
                    "namespace": "team-a",
                    "annotations": {"gpu.scheduling/claim": "train"},
                },
                "spec": {"containers": [{"name": "main"}]},
            }
            for name in ("first", "second")
        ],
    }
    status, result = operator.post("simulations/", scenario)
    assert status == 200
    assert [(row["pod"], row["node"]) for row in result["decisions"]] == [
        ("team-a/first", "n1"),
        ("team-a/second", None),
    ]
    text = yaml.safe_dump(scenario).encode()
    assert operator.post("simulations/", raw=text, content_type="application/yaml") == (200, result)
    status, problem = operator.post("simulations/", {**scenario, "options": {"share": "best"}})
    assert (status, problem["field"]) == (400, "options.share")
    assert used() == [(0, 0)] * 2
