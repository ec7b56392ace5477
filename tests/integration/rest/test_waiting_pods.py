"""Pods that wait over REST: the list, and explanations whose nodes come in pages."""

import pytest

from allocations.models import PodRefusal
from tests.extender import filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.integration.rest.conftest import NOW


@pytest.fixture
def waiting(db):
    """A pod of team-a that was refused on 120 nodes, and one of team-b that nobody asked about."""
    names = [f"n{number:03}" for number in range(120)]
    for name in names:
        NodeFactory(name=name, gpus=1)
    GpuClaimFactory(namespace="team-a", name="two", spec={"devices": {"count": 2}})
    assert filtered(pod_manifest("large", namespace="team-a", claim="two"), names) is None
    PodRefusal.objects.create(
        pod_uid="u-2", namespace="team-b", pod_name="never", summary="the pod is gated", rule="gated", count=0,
        scheduler_message="Scheduling is blocked", first_at=NOW, last_at=NOW, seen_at=NOW,
    )  # fmt: skip
    return names


def test_the_list(waiting, admin, operator):
    """VIEW-3 VIEW-6 who waits, why, what the scheduler says; only of namespaces that one sees."""
    status, page = admin.get("pods/")
    assert status == 200
    assert [(row["namespace"], row["pod"], row["rule"]) for row in page["results"]] == [
        ("team-b", "never", "gated"),
        ("team-a", "large", ""),
    ]
    assert page["results"][0]["scheduler"] == {
        "name": "default-scheduler",
        "message": "Scheduling is blocked",
        "refused": 0,
    }
    assert page["results"][1]["reasons"] == [{"reason": "fewer than 2 gpu devices", "nodes": 120}]
    assert [row["pod"] for row in operator.get("pods/")[1]["results"]] == ["large"]
    assert [row["pod"] for row in admin.get("pods/?namespace=team-b")[1]["results"]] == ["never"]
    assert admin.get("pods/?claim=two")[1]["results"][0]["pod"] == "large"


@pytest.mark.parametrize("path", ["pods/team-a/large/explain/", "claims/team-a/two/explain/"])
def test_nodes_come_in_pages(waiting, operator, path):
    """VIEW-3 VIEW-5 the address of the next page leads to the rest."""
    found, address = [], path
    while address:
        status, told = operator.get(address)
        assert status == 200
        told = told["pods"][0] if "pods" in told else told
        found += [node["node"] for node in told["nodes"]]
        assert all(node["devices"] for node in told["nodes"])
        address = told["nodes_next"]
    assert found == waiting
    assert told["nodes_previous"].endswith("nodes_after=")
    assert operator.get(told["nodes_previous"])[0] == 200
    assert operator.get(f"{path}?nodes_size=1000")[1].get("nodes_next") is None
    assert [operator.get(f"{path}?nodes_size={size}")[0] for size in ("0", "1001", "x")] == [400, 400, 400]


def test_pages_of_a_waiting_pod(waiting, client, django_user_model):
    """VIEW-3 both pages tell the devices of each node, and lead on."""
    boss = django_user_model.objects.create_superuser("boss", password="a long and quiet river")
    from access.choices import Role
    from access.models import Profile

    Profile.objects.update_or_create(user=boss, defaults={"role": Role.ADMIN})
    client.force_login(boss)
    for path in ("/pending/team-a/large/", "/claims/team-a/two/"):
        first = client.get(path).content.decode()
        assert "n099" in first
        assert "n100" not in first
        assert "nodes_after=n099" in first
        assert "could serve" in first
        second = client.get(f"{path}?nodes_after=n099").content.decode()
        assert "n119" in second
        assert "n099<" not in second
    assert "Scheduling is blocked" in client.get("/pending/").content.decode()
    gated = client.get("/pending/team-b/never/").content.decode()
    assert "the pod is gated" in gated
    assert "It has not asked gpuplane" in gated
