"""Resizes of shares whose GPU a reservation pod keeps: as on other nodes, within the group's GPU."""

from __future__ import annotations

import pytest

from access.errors import Conflict
from allocations.models import Allocation, GpuGroup
from tests.fakes.kubelet import RESERVATIONS
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.reservation_pods.conftest import Shares
from tests.integration.cluster.resizing import GI, give, granted, told


def share(name: str) -> Allocation:
    return Allocation.objects.get(pod_name=name, state="bound")


def test_a_share_behind_a_reservation_pod(shares: Shares) -> None:
    """SHARE-6b the group, its pod and the labels stay; what is free of the GPU is for the next sharer."""
    shares.kubelets.choose("GPU-n1-2")
    assert shares.place("one") == ""
    assert shares.place("two", fraction="0.3") == ""
    label, pods = shares.label("one"), shares.pods()
    assert give(shares.world, share("one"), core_percent=70)
    assert granted("one") == told(shares.world, "one") == [(70, 40 * GI)]
    with pytest.raises(Conflict, match="gpu 2 has 0 core and"):
        give(shares.world, share("two"), core_percent=31)
    assert give(shares.world, share("one"), core_percent=20, memory_bytes=GI)
    assert shares.place("three") == ""
    assert shares.holds("three") == ["GPU-n1-2"]
    assert (shares.label("one"), shares.pods(), shares.groups()) == (label, pods, [("ready", 1)])
    assert shares.world.reconcile().corrected == 0


def test_an_unprotected_group(shares: Shares) -> None:
    """SHARE-6b SHARE-7 while the reservation pod is lost nobody takes more of the GPU; giving some back is possible."""
    assert shares.place("one") == ""
    shares.kubelets.silent = True
    (name,) = shares.pods()
    shares.world.server.remove_pod(name, namespace=RESERVATIONS)
    shares.world.reconcile()
    assert GpuGroup.objects.exclude(state="gone").get().state == "unprotected"
    with pytest.raises(Conflict, match="its reservation pod is lost"):
        give(shares.world, share("one"), core_percent=60)
    assert give(shares.world, share("one"), core_percent=10)
    assert told(shares.world, "one") == granted("one") == [(10, 40 * GI)]
    assert (NAMESPACE, "one") in shares.world.server.pods
