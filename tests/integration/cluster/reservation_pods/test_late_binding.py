"""A Binding of a share that is applied late, while its reservation pod is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from allocations.models import GpuGroup
from tests.fakes.apiserver import Fault
from tests.fakes.kubelet import RESERVATIONS
from tests.fakes.late import Late
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.reservation_pods.conftest import Shares

BINDING = r"/pods/train/binding$"


@pytest.mark.parametrize("lost", [False, True], ids=["the reservation pod runs", "the reservation pod is lost"])
def test_a_late_binding_of_a_share(shares: Shares, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """LEASE-2 SHARE-5 the pod keeps the GPU, or is never bound: nobody else is given what it may run on."""
    world, late = shares.world, Late()
    monkeypatch.setattr("allocations.scheduling.limits.BIND_DEADLINE", timedelta(seconds=0.5))
    monkeypatch.setattr("allocations.scheduling.limits.reservation_seconds", lambda: 2)
    shares.pod("train")
    node = world.filter("train")
    world.server.faults += [
        Fault("POST", BINDING, late=late, drop="before"),
        Fault("POST", BINDING, drop="before", times=500),
    ]
    try:
        assert world.bind("train", str(node)) != ""
        late.wait_held()
        world.server.faults.clear()
        assert (world.states("train"), [state for state, _ in shares.groups()]) == (["reserved"], ["ready"])
        if lost:
            shares.kubelets.silent = True
            (name,) = shares.pods()
            world.server.remove_pod(name, namespace=RESERVATIONS)
            world.reconcile()
            assert GpuGroup.objects.exclude(state="gone").get().state == "unprotected"
        world.collect_garbage(later=60)
        shares.kubelets.silent = False
        shares.place("other", fraction="0.7")
    finally:
        late.release()
    bound = bool(world.server.pods[NAMESPACE, "train"]["spec"].get("nodeName"))
    assert bound == (world.states("train") in (["bound"], ["reserved"]))
    assert not bound or shares.sees("train") != shares.sees("other")
