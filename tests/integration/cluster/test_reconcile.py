"""The ledger compared with the cluster, difference by difference; for pods to be adopted see `test_adoption`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command

from allocations.cluster_health import cluster_state
from allocations.models import Allocation, AllocationDevice
from allocations.reconcile import run
from allocations.reconcile.leases import compare_leases
from allocations.reconcile.report import Found
from allocations.scheduling.binder import release_now
from kube.keys import CAPACITY_CHANGED, SHARED_HOLDER
from nodes.models import Device
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.fakes.late import Late
from tests.integration.cluster.conftest import NAMESPACE, World


def test_where_all_agree_nothing_is_corrected(world: World) -> None:
    world.node("n1")
    world.claim()
    world.place("train")
    world.reconcile()  # advertises
    world.reconcile()  # sees our own label on the node

    done = world.reconcile()

    assert done.quiet, done.lines
    assert world.used("n1") == [100, 100, 0, 0]
    assert sorted(world.leases()) == ["gpu-n1-0", "gpu-n1-1"]


def test_pod_gone_or_finished(world: World) -> None:
    """LEASE-4 what the watch missed is released by the next comparison: pod deleted, finished, or replaced under its
    name.
    """
    world.node("n1", gpus=8)
    world.claim()
    for name in ("deleted", "finished", "replaced", "stays"):
        world.place(name)
    world.remove("deleted")
    world.finish("finished", "Failed")
    world.remove("replaced")
    world.pod("replaced")

    done = world.reconcile()

    assert done.released == 3
    assert world.live() == 1
    assert world.states("stays") == ["bound"]
    assert len(world.leases()) == 2
    assert sum(world.used("n1")) == 200


def test_a_sharer_that_leaves_meanwhile_is_no_stranger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-6 Released after leases and pods were listed, before leases are judged; the other one keeps the lease."""
    world.node("n1", gpus=1)
    world.claim(count=1, core=50, memoryRatio=50)
    world.place("leaves")
    world.place("stays")
    world.reconcile()

    def overtaken(**known: Any) -> Found:
        world.remove("leaves")
        left = Allocation.objects.get(pod_name="leaves")
        assert release_now(allocation_id=left.pk, reason="the pod is gone", now=database_now(), actor="watch")
        return compare_leases(**known)

    monkeypatch.setattr(run, "compare_leases", overtaken)
    done = world.reconcile()
    assert (done.strangers_marked, done.leases_deleted) == (0, 0)
    assert Device.objects.get().stranger == ""
    assert (list(world.leases()), world.live(), world.used("n1")) == (["gpu-n1-0"], 1, [50])


def test_a_pod_being_deleted_still_holds(world: World) -> None:
    """LEASE-4 a deletionTimestamp alone frees nothing."""
    world.node("n1")
    world.claim()
    world.place("train")
    world.server.store.delete(world.server.store.kind_of("", "v1", "pods"), NAMESPACE, "train", {})
    assert "deletionTimestamp" in world.server.pods[NAMESPACE, "train"]["metadata"]

    world.reconcile()

    assert world.states("train") == ["bound"]


def test_holds(world: World) -> None:
    """LEASE-3 a hold goes with its pod, or with its attempt; not by a refusal that its filter saw, whatever time that
    bears.
    """
    world.node("n1", gpus=8)
    world.claim()
    now = database_now()
    for name in ("gone", "refused", "refused-before", "waits"):
        world.pod(name)
    world.refuse("refused-before", at=now + timedelta(seconds=5))
    for name in ("gone", "refused", "refused-before", "waits"):
        assert world.filter(name) == "n1"
    world.remove("gone")
    world.refuse("refused", at=now - timedelta(seconds=5))

    done = world.reconcile()

    assert done.holds_dropped == 2
    assert world.states("gone") == ["released"]
    assert world.states("refused") == ["failed"]
    assert world.states("refused-before") == ["held"]
    assert world.states("waits") == ["held"]


def test_api_server_away(world: World) -> None:
    """LEASE-6 an API server that does not answer changes nothing, and is shown as such."""
    world.node("n1")
    world.claim()
    world.place("train")
    world.reconcile()
    seen = cluster_state()
    assert seen is not None
    assert not seen.stale(database_now())
    world.remove("train")
    world.server.stop()

    done = world.reconcile()

    assert "does not answer" in done.problem
    assert world.states("train") == ["bound"]
    assert world.used("n1") == [100, 100, 0, 0]
    missed = cluster_state()
    assert missed is not None
    assert missed.stale(database_now())
    world.server.start()
    assert world.reconcile().released == 1


def test_a_list_that_breaks_off_changes_nothing(world: World) -> None:
    """LEASE-6 a cluster seen in part is not seen: leases without the pods' list free nobody."""
    world.node("n1")
    world.claim()
    world.place("train")
    world.remove("train")
    world.server.faults.append(Fault("GET", r"/api/v1/pods", status=500, times=50))

    done = world.reconcile()

    assert done.problem
    assert world.states("train") == ["bound"]


def test_lease_taken_again(world: World) -> None:
    """LEASE-6 a lease that somebody deleted is taken again for as long as its pod runs, a sharer's place too."""
    world.node("n1", gpus=3)
    world.claim()
    world.claim("half", count=1, core=50)
    world.place("train")
    world.place("share", claim="half")
    before = world.leases()
    for _, name in list(world.server.leases):
        world.server.store.delete(
            world.server.store.kind_of("coordination.k8s.io", "v1", "leases"), "gpuplane-system", name, {}
        )

    done = world.reconcile()

    assert done.leases_taken == 3
    assert world.leases() == before
    assert SHARED_HOLDER in before.values()


def test_a_lease_that_came_late_for_a_pod_that_waits(world: World) -> None:
    """LEASE-3 LEASE-6 a Lease applied after its attempt was undone keeps its device from everybody, its own pod first:
    it goes, although the pod lives.
    """
    world.node("n1", gpus=1)
    world.claim(count=1)
    world.server.add_namespace("gpuplane-system")
    late = Late()
    world.server.faults += [
        Fault("POST", r"/leases$", late=late, drop="before"),
        Fault("POST", r"/leases$", status=403, reason="Forbidden", times=100),
    ]
    world.pod("waits")
    assert world.filter("waits") == "n1"
    assert world.bind("waits", "n1") != ""
    late.release()
    assert late.outcomes == [201]
    world.server.faults.clear()
    for later in (10, 120, 130):
        world.collect_garbage(later=later)
        world.reconcile(later=later)
    assert world.leases() == {}
    assert world.live() == 0
    assert world.filter("waits") == "n1"
    assert world.bind("waits", "n1") == ""


def test_orphan_leases(world: World) -> None:
    """LEASE-6 a lease of ours without an allocation is deleted, once it is older than the grace."""
    world.node("n1")
    world.claim()
    world.place("train")
    Allocation.objects.all().delete()
    Device.objects.update(core_used=0, memory_used=0)
    world.remove("train")

    assert world.reconcile(later=10).leases_deleted == 0
    assert len(world.leases()) == 2
    assert world.reconcile(later=90).leases_deleted == 2
    assert world.leases() == {}


def test_orphan_sharer(world: World) -> None:
    """LEASE-6 a sharer without an allocation leaves the shared lease, the others keep it."""
    world.node("n1", gpus=1)
    world.claim("half", count=1, core=50)
    world.place("stays", claim="half")
    gone = world.place("goes", claim="half")
    row = Allocation.objects.get(pod_uid=gone)
    AllocationDevice.objects.filter(allocation=row).delete()
    row.delete()
    Device.objects.update(core_used=50)
    world.remove("goes")

    world.reconcile(later=90)

    lease = world.server.leases["gpuplane-system", "gpu-n1-0"]
    assert gone not in lease["metadata"]["annotations"]["gpu.scheduling/sharers"]
    assert f"{NAMESPACE}/stays/" in lease["metadata"]["annotations"]["gpu.scheduling/sharers"]


@pytest.mark.parametrize("holder", ["somebody-else", ""])
def test_an_external_holder(world: World, holder: str) -> None:
    """LEASE-1 a stranger's lease, with a holder's name or without, takes the device out of use for as long as it is
    there; it is never touched.
    """
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.server.add_lease("gpu-n1-0", holder)

    assert world.reconcile().strangers_marked == 1
    world.pod("waits", claim="one")
    assert world.filter("waits") is None
    assert world.leases() == {"gpu-n1-0": holder}

    world.server.store.delete(
        world.server.store.kind_of("coordination.k8s.io", "v1", "leases"), "gpuplane-system", "gpu-n1-0", {}
    )
    assert world.reconcile().strangers_cleared == 1
    assert world.filter("waits") == "n1"


def test_node_gone_and_back(world: World) -> None:
    """LEASE-5 allocations of a node that is gone are collected with their leases; back again, it serves, and nothing is
    double-booked.
    """
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.place("train", claim="one")
    world.reconcile()
    world.server.remove_node("n1")

    world.reconcile()
    assert world.states("train") == ["bound"]  # its pod is still there
    world.remove("train")
    world.reconcile()
    assert world.states("train") == ["released"]
    assert world.leases() == {}
    world.server.add_node("n2")
    world.pod("next", claim="one")
    assert world.filter("next") is None

    world.server.add_node("n1")
    world.reconcile()
    assert world.filter("next") == "n1"


def test_node_not_ready(world: World) -> None:
    """LEASE-5 nothing new on a node that is not ready; holders keep their devices."""
    node = world.node("n1")
    world.claim()
    world.place("train")
    nodes = world.server.store.kind_of("", "v1", "nodes")

    def ready(status: str) -> None:
        body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        world.server.store.patch(
            nodes, "", "n1", body, content_type="application/merge-patch+json", subresource="status"
        )

    ready("Unknown")
    world.reconcile()
    node.refresh_from_db()
    assert (node.state, node.problem) == ("not-ready", "node is not ready")
    assert world.states("train") == ["bound"]
    world.pod("next")
    assert world.filter("next") is None
    ready("True")
    world.reconcile()
    assert world.filter("next") == "n1"


def test_ledger_bound_cluster_not(world: World) -> None:
    """LEASE-6 a cluster set back to before the Binding: the row goes, so that the pod can be placed anew."""
    world.node("n1")
    world.claim()
    world.place("train")
    pods = world.server.store.kind_of("", "v1", "pods")
    pod = dict(world.server.pods[NAMESPACE, "train"])
    pod["spec"] = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    world.server.store.objects[pods][NAMESPACE, "train"] = pod

    assert world.reconcile(later=10).released == 0
    assert world.reconcile(later=90).released == 1


def test_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """LEASE-6 `manage.py reconcile` says what it did, and fails when the cluster is away."""
    world.node("n1")
    world.claim()
    world.place("train")
    call_command("reconcile")  # advertises
    call_command("reconcile")  # sees our own label on the node
    capsys.readouterr()
    call_command("reconcile")
    assert capsys.readouterr().out == "ledger and cluster agree\n"
    world.remove("train")
    before = world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED]
    call_command("reconcile")
    assert f"released the devices of {NAMESPACE}/train on n1: the pod is gone" in capsys.readouterr().out
    # the command's process ends here, and with it whatever has not been told to pods that wait
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before
    world.server.stop()
    with pytest.raises(SystemExit):
        call_command("reconcile", format="json")
