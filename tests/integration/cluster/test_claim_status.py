"""What the status of a GpuClaim says, and when it is written."""

from __future__ import annotations

from typing import Any

from access.actors import SYSTEM
from allocations.publish.claim_status import Publisher
from claims.kinds import CLAIM
from claims.models import GpuClaim
from claims.services import manifest_create
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World


def stored(world: World, name: str = "two") -> dict[str, Any]:
    return world.server.gpuclaims[NAMESPACE, name]


def test_status(world: World) -> None:
    """CLAIM-2 status counts the pods and shows their devices; it is written when it changed, and not again."""
    cluster = world.backends.cluster
    assert cluster is not None
    world.node("n1")
    world.claim()
    publisher = Publisher()
    uid = world.place("train")
    world.place("other")

    assert publisher.publish(cluster=cluster, now=database_now()) == 1
    status = stored(world)["status"]
    assert (status["phase"], status["allocated"]) == ("Allocated", 2)
    mine = next(one for one in status["allocations"] if one["uid"] == uid)
    assert mine["node"] == "n1"
    assert [device["minor"] for device in mine["devices"]] == [0, 1]
    assert publisher.publish(cluster=cluster, now=database_now()) == 0
    assert Publisher().publish(cluster=cluster, now=database_now()) == 0

    world.remove("train")
    world.reconcile()
    assert publisher.publish(cluster=cluster, now=database_now()) == 1
    assert stored(world)["status"]["allocated"] == 1
    world.remove("other")
    world.reconcile()
    assert publisher.publish(cluster=cluster, now=database_now()) == 1
    assert stored(world)["status"]["phase"] == "Pending"
    assert GpuClaim.objects.get().resource_version == stored(world)["metadata"]["resourceVersion"]


def test_status_of_a_claim_that_is_gone(world: World) -> None:
    """CLAIM-2 publishing goes on past claims that were deleted, and comes back after an outage."""
    cluster = world.backends.cluster
    assert cluster is not None
    world.node("n1", gpus=8)
    for name in ("a", "b"):
        world.claim(name)
        world.place(f"pod-{name}", claim=name)
    kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
    world.server.store.delete(kind, NAMESPACE, "a", {})
    publisher = Publisher()
    publisher.publish(cluster=cluster, now=database_now())
    assert stored(world, "b")["status"]["allocated"] == 1


def test_a_namespace_whose_claims_cannot_be_written_keeps_nobody_waiting(world: World) -> None:
    """CLAIM-2 statuses of one namespace fail for the moment: those of others are written, and its own at a
    later turn.
    """
    cluster = world.backends.cluster
    assert cluster is not None
    world.node("n1")
    world.claim("first")
    world.place("train", claim="first")
    world.server.add_namespace("other")
    body = {"metadata": {"name": "second", "namespace": "other"}, "spec": {"devices": {"count": 1}}}
    manifest_create(CLAIM, manifest=body, actor=SYSTEM, now=database_now())
    world.server.faults.append(Fault("PATCH", rf"/namespaces/{NAMESPACE}/gpuclaims/", status=503, times=100))
    publisher = Publisher()
    assert publisher.publish(cluster=cluster, now=database_now()) == 1
    assert GpuClaim.objects.get(name="second").published_status
    world.server.faults.clear()
    assert publisher.publish(cluster=cluster, now=database_now()) == 1
    assert stored(world, "first")["status"]["allocated"] == 1
