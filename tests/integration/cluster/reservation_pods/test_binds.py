"""Shares on nodes whose kubelet chooses GPUs: a reservation pod for each GPU shared, and the very GPU that it got."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections
from pytest_django import Settings

from allocations.models import Allocation, GpuGroup
from kube.keys import KAI_GPU_GROUP_LABEL
from tests.factories import NodeFactory
from tests.fakes.apikinds import ACCOUNTS, NAMESPACES, ROLE_BINDINGS, ROLES
from tests.fakes.apiserver import Fault
from tests.fakes.kubelet import RESERVATIONS
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.reservation_pods.conftest import Shares

NO_ACCOUNT = (
    'pods "gpu-reservation-n1-1" is forbidden: error looking up service account '
    'gpuplane-reservation/gpuplane-reservation: serviceaccount "gpuplane-reservation" not found'
)
"""As an API server says it."""


def release_connection_after(function: Callable[[str], str]) -> Callable[[str], str]:
    def closing(name: str) -> str:
        try:
            return function(name)
        finally:
            connections.close_all()

    return closing


def test_a_share_gets_the_gpu_that_the_kubelet_chose(shares: Shares) -> None:
    """SHARE-3 SHARE-5 SHARE-6 one pod reserves a GPU; ledger, annotation, Lease and labels name the one it got."""
    shares.kubelets.choose("GPU-n1-2")
    assert shares.place("train") == ""
    assert shares.holds("train") == shares.sees("train") == shares.grouped() == ["GPU-n1-2"]
    assert shares.world.leases() == {"gpu-n1-2": "gpuplane/shares"}
    assert shares.world.used("n1") == [0, 0, 50, 0]
    assert Allocation.objects.get(pod_name="train").summary == "n1: gpu 2 (the kubelet's choice)"
    (group,) = GpuGroup.objects.all()
    assert (group.state, group.uuids, shares.label("train")) == ("ready", ["GPU-n1-2"], group.name)
    ((name, pod),) = shares.kubelets.reservations().items()
    assert (name, pod["spec"]["nodeName"]) == (group.pod_name, "n1")
    assert pod["metadata"]["labels"][KAI_GPU_GROUP_LABEL] == group.name


def test_two_halves_share_one_gpu_and_a_third_gets_another(shares: Shares) -> None:
    """SHARE-2b who fits joins the group that there is; nobody else's GPU is reserved."""
    for name in ("one", "two", "three"):
        assert shares.place(name) == ""
    assert shares.holds("one") == shares.holds("two") != shares.holds("three")
    assert shares.groups() == [("ready", 1), ("ready", 1)]
    assert len(shares.pods()) == 2


def test_whole_gpus_are_one_group(shares: Shares) -> None:
    """SHARE-3 whole GPUs by a claim: one reservation pod asks for all, so the plugin may choose a linked set."""
    shares.world.claim("three", count=3)
    shares.world.pod("train", claim="three")
    shares.kubelets.choose("GPU-n1-3", "GPU-n1-1", "GPU-n1-0")
    assert shares.bind("train") == ""
    assert shares.holds("train") == ["GPU-n1-0", "GPU-n1-1", "GPU-n1-3"]
    assert (shares.groups(), shares.world.used("n1")) == ([("ready", 3)], [100, 100, 0, 100])
    ((_, pod),) = shares.kubelets.reservations().items()
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "3"


def test_the_last_sharer_takes_the_reservation_pod_along(shares: Shares) -> None:
    """SHARE-7 the GPU is free again once the last sharer and the reservation pod are gone."""
    for name in ("one", "two"):
        shares.place(name)
    shares.world.remove("one")
    shares.world.reconcile()
    assert (shares.groups(), len(shares.pods())) == ([("ready", 1)], 1)
    shares.world.remove("two")
    shares.world.reconcile()
    assert (shares.groups(), shares.pods(), shares.grouped()) == ([], [], [])
    assert shares.world.used("n1") == [0, 0, 0, 0]


@pytest.mark.parametrize("share", ["gpupack", "gpuspread"])
def test_the_next_sharer_takes_the_spare_group(shares: Shares, settings: Settings, share: str) -> None:
    """SHARE-7 a group that is kept warm is taken before a new one is begun, wherever its GPU stands among the free."""
    settings.GPUPLANE_SPARE_GROUPS = 1
    settings.GPUPLANE_SHARE = share
    shares.kubelets.choose("GPU-n1-2")
    shares.place("first")
    shares.world.remove("first")
    shares.world.reconcile()
    assert (shares.groups(), shares.grouped()) == ([("ready", 1)], ["GPU-n1-2"])
    kept = shares.pods()
    assert shares.place("next") == ""
    assert (shares.holds("next"), shares.pods()) == (["GPU-n1-2"], kept)


@pytest.mark.parametrize(
    ("told", "want_reason"),
    [
        pytest.param("GPU-n1-9", "which is not known on n1", id="a GPU that no node has"),
        pytest.param("GPU-n2-0", "which is of another node", id="a GPU of another node"),
        pytest.param("GPU-n1-0,GPU-n1-1", "reported 2 GPUs, 1 were asked for", id="more GPUs than were asked for"),
        pytest.param("", "reported no GPU within 1 s", id="nothing"),
    ],
)
def test_without_a_gpu_the_bind_fails_and_all_is_given_back(
    shares: Shares, settings: Settings, told: str, want_reason: str
) -> None:
    """SHARE-5 without a GPU of this node in time the pod is removed, everything is given back, and the node waits."""
    settings.GPUPLANE_RESERVATION_SECONDS = 1
    NodeFactory(name="n2", gpus=1)
    shares.kubelets.silent = True
    shares.pod("train")
    with ThreadPoolExecutor(1) as threads:
        bind = threads.submit(release_connection_after(shares.bind), "train")
        name = shares.kubelets.next_reservation()
        if told:
            shares.kubelets.tell(name, told)
        error = bind.result(20)
    assert want_reason in error
    assert (shares.pods(), shares.groups(), shares.grouped()) == ([], [], [])
    assert (shares.world.states("train"), shares.world.used("n1")) == (["failed"], [0, 0, 0, 0])
    assert shares.world.leases() == {}
    shares.pod("next")
    assert shares.world.filter("next") is None, "the node begins no new group for a while"
    shares.world.server.add_pod("plain", namespace=NAMESPACE, limits={"nvidia.com/gpu": "1"})
    assert shares.world.filter("plain") == "n1", "pods by nvidia.com/gpu need no group"


@pytest.mark.parametrize("missing", ["namespace", "account"])
def test_what_reservation_pods_need_is_made(shares: Shares, missing: str) -> None:
    """SHARE-3 namespace, ServiceAccount and Role are made where they are missing; the account too where somebody else,
    or another bind a moment ago, has made the namespace alone.
    """
    server = shares.world.server
    if missing == "namespace":
        server.store.delete(NAMESPACES, "", RESERVATIONS, {})
    else:
        path = f"/namespaces/{RESERVATIONS}/pods"
        server.faults.append(Fault("POST", path, status=403, reason="Forbidden", message=NO_ACCOUNT))
    assert shares.place("train") == ""
    assert shares.groups() == [("ready", 1)]
    for kind in (ACCOUNTS, ROLES, ROLE_BINDINGS):
        assert server.store.get(kind, RESERVATIONS, "gpuplane-reservation")


@pytest.mark.parametrize(
    ("limits", "want_node"),
    [
        pytest.param({"nvidia.com/gpumem": "3000", "nvidia.com/gpu": "1"}, None, id="past the webhook"),
        pytest.param({"nvidia.com/gpumem": "3000", "gpu.scheduling/vgpu": "1"}, "n1", id="as the webhook leaves it"),
        pytest.param({"nvidia.com/gpumem": "3000"}, "n1", id="memory alone"),
        pytest.param(
            {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, "n1", id="Koordinator"
        ),
    ],
)
def test_pods_of_other_dialects(shares: Shares, limits: dict[str, str], want_node: str | None) -> None:
    """SHARE-3 DEV-3 shares of every dialect, unless the pod would have its kubelet give it a GPU besides."""
    shares.world.server.add_pod("other", namespace=NAMESPACE, limits=limits)
    assert shares.world.filter("other") == want_node
    if want_node is not None:
        shares.kubelets.choose("GPU-n1-3")
        assert shares.world.bind("other", want_node) == ""
        assert shares.holds("other") == shares.sees("other") == ["GPU-n1-3"]
