"""bind without a cluster: the hold becomes leases, or the pod is refused with a reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from pytest_django import Settings

from allocations.choices import State
from allocations.extender import bind, reasons, views
from allocations.models import Allocation, Lease
from allocations.scheduling.expired_holds import expire_holds
from nodes.models import Device
from tests.extender import bound, filtered, pod_manifest
from tests.factories import LONG_AGO, GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems


@pytest.fixture
def world(db: None) -> None:
    NodeFactory(name="n1", gpus=2)
    NodeFactory(name="n2", gpus=1)
    GpuClaimFactory(name="one")


def answered(**members: object) -> str:
    told: str = json.loads(views.bind(json.dumps(members).encode()))["Error"]
    return told


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param({"PodUID": ""}, "PodName, PodNamespace, PodUID and Node must all be given", id="no uid"),
        pytest.param({"Node": ""}, "PodName, PodNamespace, PodUID and Node must all be given", id="no node"),
        pytest.param({"Node": "A b"}, "Node must be a DNS-1123 subdomain", id="impossible node"),
        pytest.param({"PodName": "../x"}, "the pod's name must be", id="a path"),
        pytest.param({"PodNamespace": "a\x00"}, "the pod's namespace must be", id="NUL"),
        pytest.param({"PodUID": "a/b"}, "the pod's uid must be", id="slash"),
        pytest.param({"PodName": 5}, "the request cannot be read", id="a number"),
        pytest.param({}, bind.NO_HOLD, id="nobody filtered it"),
        pytest.param({"Node": "n9"}, bind.NO_HOLD, id="unknown node"),
    ],
)
@pytest.mark.usefixtures("world")
def test_refusals(changes: dict[str, object], want: str) -> None:
    """LEASE-3 nothing is taken by a bind that is refused."""
    told = answered(**{"PodName": "p", "PodNamespace": "research", "PodUID": "u", "Node": "n1", **changes})
    assert told.startswith(want)
    assert not Allocation.objects.exists()
    assert not Lease.objects.exists()


@pytest.mark.usefixtures("world")
def test_twice_is_once() -> None:
    """LEASE-1 CLAIM-2 the same bind again is a success that changes nothing; elsewhere it is refused."""
    pod = pod_manifest("p", claim="one")
    assert bound(pod, filtered(pod, ["n1"])) == ""
    before = list(Allocation.objects.values()), list(Lease.objects.values())
    assert bound(pod, "n1") == ""
    assert bound(pod, "n2") == "the pod already has devices on n1"
    assert (list(Allocation.objects.values()), list(Lease.objects.values())) == before


@pytest.mark.usefixtures("world")
def test_on_another_node_than_held() -> None:
    """LEASE-3 kube-scheduler may choose otherwise: the hold moves to the node named, or the bind is refused."""
    pod, other = pod_manifest("p", claim="one"), pod_manifest("q", claim="one")
    assert filtered(pod, ["n1"]) == "n1"
    assert bound(pod, "n2") == ""
    assert Allocation.objects.get(state=State.BOUND).node.name == "n2"
    assert filtered(other, ["n1"]) == "n1"
    assert bound(other, "n2") == "no whole gpu device free"
    assert bound(other, "n9") == "no devices of the node are registered with gpuplane"
    assert Allocation.objects.get(pod_name="q").state == State.HELD
    assert problems() == []


@pytest.mark.usefixtures("world")
def test_a_hold_that_expired_is_planned_again() -> None:
    """LEASE-3 on the node named, by what the pod asked for."""
    pod = pod_manifest("p", claim="one")
    assert filtered(pod, ["n2"]) == "n2"
    expire_holds(datetime.now(UTC) + timedelta(minutes=1))
    assert bound(pod, "n2") == ""
    assert Device.objects.get(node__name="n2").core_used == 100


@pytest.mark.usefixtures("world")
def test_a_hold_that_expired_and_was_taken() -> None:
    """LEASE-2 LEASE-3 the quicker one keeps the device."""
    pod, other = pod_manifest("p", claim="one"), pod_manifest("q", claim="one")
    assert filtered(pod, ["n2"]) == "n2"
    expire_holds(datetime.now(UTC) + timedelta(minutes=1))
    assert filtered(other, ["n2"]) == "n2"
    assert bound(pod, "n2") == "no whole gpu device free"
    assert bound(other, "n2") == ""
    assert problems() == []


@pytest.mark.usefixtures("world")
def test_a_external_holders_lease_makes_bind_choose_again() -> None:
    """LEASE-1 already exists and not ours: taken; another device of the same node, else refused with nothing left."""
    Lease.objects.create(
        name="gpu-n1-0", holder_identity="stranger/p/u", node="n1", device_uuid="GPU-n1-0", acquired_at=LONG_AGO
    )
    pods = [pod_manifest(name, claim="one") for name in ("p", "q")]
    assert filtered(pods[0], ["n1"]) == "n1"
    assert bound(pods[0], "n1") == ""
    assert [grant.minor for grant in Allocation.objects.get(state=State.BOUND).devices.all()] == [1]
    assert Device.objects.get(uuid="GPU-n1-0").stranger == "stranger/p/u"
    assert filtered(pods[1], ["n1"]) is None
    assert sorted(Lease.objects.values_list("name", flat=True)) == ["gpu-n1-0", "gpu-n1-1"]
    assert problems() == []


@pytest.mark.usefixtures("world")
def test_advisory_bind_plans_by_what_filter_saw(settings: Settings) -> None:
    """LEASE-2 nothing was held; the second to come is told."""
    settings.GPUPLANE_EXTENDER_MODE = "advisory"
    pods = [pod_manifest(name, claim="one") for name in ("p", "q")]
    for pod in pods:
        assert filtered(pod, ["n2"]) == "n2"
    assert [bound(pod, "n2") for pod in pods] == ["", "no whole gpu device free"]
    assert problems() == []


@pytest.mark.usefixtures("world")
def test_without_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 the pod is told, and comes again."""
    from django.db import OperationalError

    def away(*_: object, **__: object) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr("allocations.ledger.read_pod_live", away)
    told = answered(PodName="p", PodNamespace="research", PodUID="u", Node="n1")
    assert told == reasons.LEDGER_AWAY.text
