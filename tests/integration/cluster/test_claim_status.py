"""What the status of a GpuClaim says, and when it is written."""

from __future__ import annotations

from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.publish import claim_status
from allocations.publish.claim_status import FAILING_MOST, Publisher
from claims.kinds import CLAIM
from claims.models import GpuClaim
from claims.services import manifest_create
from kube.errors import TemporaryKubeError
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


ELSEWHERE = [f"other-{number}" for number in range(FAILING_MOST + 2)]


def claims_elsewhere(world: World) -> None:
    """A claim in each of several namespaces."""
    for namespace in ELSEWHERE:
        world.server.add_namespace(namespace)
        body = {"metadata": {"name": "train", "namespace": namespace}, "spec": {"devices": {"count": 1}}}
        manifest_create(CLAIM, manifest=body, actor=SYSTEM, now=database_now())


def written(world: World) -> list[str]:
    """The namespaces whose claim has a status."""
    return [namespace for namespace in ELSEWHERE if world.server.gpuclaims[namespace, "train"].get("status")]


@pytest.mark.parametrize("runs_before", [pytest.param(1, id="by events"), pytest.param(0, id="all are compared")])
def test_an_outage_of_the_api_server_delays_statuses_and_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch, runs_before: int
) -> None:
    """CLAIM-2 every status that an outage kept back is written in the first run after it."""
    cluster = world.backends.cluster
    assert cluster is not None
    monkeypatch.setattr(claim_status, "OVERLAP", 0)  # the outage is longer than events are read again
    world.node("n1")
    world.claim()
    world.place("train")
    publisher = Publisher()
    for _ in range(runs_before):
        publisher.publish(cluster=cluster, now=database_now())
    claims_elsewhere(world)
    world.server.stop()
    with pytest.raises(TemporaryKubeError):
        publisher.publish(cluster=cluster, now=database_now())
    world.server.start()
    publisher.publish(cluster=cluster, now=database_now())
    assert written(world) == ELSEWHERE
    assert publisher.publish(cluster=cluster, now=database_now()) == 0


def test_namespaces_that_keep_failing_delay_no_other_for_long(world: World) -> None:
    """CLAIM-2 however many fail, the others are tried before them in the next run."""
    cluster = world.backends.cluster
    assert cluster is not None
    claims_elsewhere(world)
    world.claim("mine")
    world.node("n1")
    world.place("train", claim="mine")
    world.server.faults.append(Fault("PATCH", r"/namespaces/other-[0-9]+/gpuclaims/", status=503, times=1_000))
    publisher = Publisher()
    for _ in range(2):
        try:
            publisher.publish(cluster=cluster, now=database_now())
        except TemporaryKubeError:
            continue
    assert stored(world, "mine")["status"]["allocated"] == 1
    assert written(world) == []
