"""A web process killed between any two steps of a bind, or of a release, that has a reservation pod: collection and
comparisons finish it or undo it, and nobody gets the GPU twice.
"""

from __future__ import annotations

import json
import signal

import pytest
from django.conf import settings

from allocations.choices import LIVE, State
from allocations.models import Allocation, GpuGroup
from allocations.scheduling.binder import release_now
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.deaths import Deaths, Died
from tests.integration.cluster.comparing import differences, given_twice
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.reservation_pods.conftest import Shares
from tests.servers import forked

BIND = (
    "held",
    "reserved",
    "group wanted",
    "reservation pod made",
    "its UID noted",
    "its GPU known",
    "the lease",
    "the Binding",
    "bound",
)
RELEASE = ("releasing", "lease gone", "released", "group releasing", "reservation pod deleted", "group gone")


def process(database: TestDatabase, shares: Shares, name: str, steps: int) -> forked.Process:
    """It filters and binds the pod, and dies after so many steps."""
    pod = shares.world.server.pods[NAMESPACE, name]
    environment = {
        **database.environment,
        "GPUPLANE_KUBECONFIG": settings.GPUPLANE_KUBECONFIG,
        "GPUPLANE_RESERVATION_SECONDS": "5",
    }
    return forked.start("tests.integration.cluster.killed", str(steps), json.dumps(pod), "n1", environment=environment)


def collected(shares: Shares) -> None:
    """Collection and comparisons have been there, until nothing is left to do."""
    for later in (120, 240, 360):
        shares.world.collect_garbage(later=later)
        shares.world.reconcile(later=later)


def nothing_is_left(shares: Shares) -> None:
    """Every pod goes: everything is free, no reservation pod stays."""
    for _, name in [key for key in shares.world.server.pods if key[0] == NAMESPACE]:
        shares.world.remove(name)
    shares.world.reconcile(later=400)
    shares.world.collect_garbage(later=500)
    shares.world.reconcile(later=600)
    assert not Allocation.objects.filter(state__in=LIVE).exists()
    assert not Device.objects.exclude(core_used=0, memory_used=0, gpu_group="").exists()
    assert (shares.groups(), shares.pods(), shares.world.leases()) == ([], [], {})


@pytest.mark.parametrize(
    "steps", [pytest.param(number, id=f"after {what}") for number, what in enumerate(BIND, start=1)]
)
def test_killed_in_a_bind(shares: Shares, ledger_db: TestDatabase, steps: int) -> None:
    """SHARE-5 LEASE-3 the pod is bound with the GPU of its reservation pod, or everything comes back."""
    shares.kubelets.choose("GPU-n1-2")
    shares.pod("killed")
    with process(ledger_db, shares, "killed", steps) as dying:
        assert dying.wait(60) == -signal.SIGKILL, dying.errors[-3000:]
    assert sum(map(bool, shares.world.used("n1"))) == 1, "what was decided is not given away meanwhile"
    assert given_twice(shares.world.server) == []
    collected(shares)
    assert differences(shares.world.server) == []
    bound = Allocation.objects.filter(state=State.BOUND).count()
    assert len(shares.pods()) == len(shares.groups()) == bound
    if bound:
        assert shares.holds("killed") == shares.sees("killed") == ["GPU-n1-2"]
    else:
        shares.world.server.remove_pod("killed", namespace=NAMESPACE)
    nothing_is_left(shares)


def test_a_bind_has_no_further_step(shares: Shares, ledger_db: TestDatabase) -> None:
    """The table above is whole: one step more, and the process ends by itself, its pod bound."""
    shares.pod("whole")
    with process(ledger_db, shares, "whole", len(BIND) + 1) as living:
        assert living.wait(60) == 0, living.errors[-3000:]
    assert shares.groups() == [("ready", 1)]


@pytest.mark.parametrize(
    "steps", [pytest.param(number, id=f"after {what}") for number, what in enumerate(RELEASE, start=1)]
)
def test_killed_in_a_release(shares: Shares, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """SHARE-7 LEASE-3 the last sharer's release goes on where it stopped; the GPU is used until its pod is gone."""
    assert shares.place("train") == ""
    allocation = Allocation.objects.get(pod_name="train")
    shares.world.remove("train")
    deaths = Deaths(monkeypatch)
    deaths.arm(steps)
    with pytest.raises(Died):
        release_now(allocation_id=allocation.pk, reason="the pod is gone", now=database_now(), actor="test")
    deaths.rise()
    if shares.pods():
        assert shares.grouped() == ["GPU-n1-0"]
        shares.world.claim("all", count=4)
        shares.world.pod("greedy", claim="all")
        assert shares.world.filter("greedy") is None, "the kubelet still counts the GPU as used"
    collected(shares)
    nothing_is_left(shares)
    assert not GpuGroup.objects.exclude(state="gone").exists()
