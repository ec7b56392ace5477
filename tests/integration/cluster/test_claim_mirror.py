"""Rows of claims beside the API server's objects: answers and events that come late, or of another claim."""

from __future__ import annotations

from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.publish.claim_status import status_publish
from claims.kinds import CLAIM
from claims.models import GpuClaim
from claims.services import manifest_delete
from claims.watching import handle
from kube import crds
from kube.watch import Changed, Relisted
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.test_claims import create, manifest, replace


def test_mirror_is_never_set_back(world: World) -> None:
    """CLAIM-1 an event that comes late changes nothing, and one of a claim that is gone makes none."""
    cluster = world.backends.cluster
    assert cluster is not None
    create()
    old = crds.get(cluster, CLAIM.resource, namespace=NAMESPACE, name="two")
    replace(manifest({"devices": {"count": 4}}))
    late: Changed[crds.CustomObject] = Changed("MODIFIED", (NAMESPACE, "two"), old)
    handle(CLAIM, late, cluster=cluster, now=database_now())
    assert GpuClaim.objects.get().spec["devices"]["count"] == 4
    manifest_delete(CLAIM, namespace=NAMESPACE, name="two", actor=SYSTEM, now=database_now())
    handle(CLAIM, late, cluster=cluster, now=database_now())
    assert not GpuClaim.objects.exists()


def test_created_again(world: World) -> None:
    """CLAIM-1 deleted and created again under its name is another claim; a late end of the first one leaves it
    alone.
    """
    cluster = world.backends.cluster
    assert cluster is not None
    first = create()
    old = crds.get(cluster, CLAIM.resource, namespace=NAMESPACE, name="two")
    kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
    world.server.store.delete(kind, NAMESPACE, "two", {})
    world.claim("two", count=7)
    handle(
        CLAIM,
        Changed("ADDED", (NAMESPACE, "two"), crds.get(cluster, CLAIM.resource, namespace=NAMESPACE, name="two")),
        cluster=cluster,
        now=database_now(),
    )
    handle(CLAIM, Changed("DELETED", (NAMESPACE, "two"), old), cluster=cluster, now=database_now())
    again = GpuClaim.objects.get()
    assert again.uid != first.uid
    assert again.spec["devices"]["count"] == 7


def deleted_after(world: World, monkeypatch: pytest.MonkeyPatch, request: str) -> None:
    """Right after the first such request of ours the claim is deleted, and the watch has said so."""
    cluster = world.backends.cluster
    assert cluster is not None
    asked, times = getattr(crds, request), iter([1])

    def overtaken(*target: Any, **given: Any) -> crds.CustomObject:
        answer: crds.CustomObject = asked(*target, **given)
        for _ in times:
            kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
            world.server.store.delete(kind, NAMESPACE, "two", {})
            handle(CLAIM, Changed("DELETED", (NAMESPACE, "two"), answer), cluster=cluster, now=database_now())
        return answer

    monkeypatch.setattr(crds, request, overtaken)


@pytest.mark.parametrize("request_", ["create", "spec_replace", "status_replace", "get"])
def test_deleted_before_an_answer_is_mirrored(world: World, monkeypatch: pytest.MonkeyPatch, request_: str) -> None:
    """CLAIM-1 no row is left of a claim whose end the watch has brought before an answer that shows it."""
    world.node("n1")
    cluster = world.backends.cluster
    assert cluster is not None
    if request_ == "get":
        world.claim()
        world.pod("train")
        deleted_after(world, monkeypatch, request_)
        assert world.filter("train") is None
    elif request_ == "create":
        deleted_after(world, monkeypatch, request_)
        create()
    else:
        row = create()
        deleted_after(world, monkeypatch, request_)
        if request_ == "spec_replace":
            replace(manifest({"devices": {"count": 4}}))
        else:
            assert not status_publish(
                CLAIM, cluster=cluster, row=row, status={"phase": "Allocated"}, now=database_now()
            )
    assert not GpuClaim.objects.exists()


def test_an_answer_that_cannot_be_confirmed(world: World) -> None:
    """CLAIM-1 the API server is away once it has created the claim: that is told as it is, and the row stays."""
    world.server.faults.append(Fault("GET", "/gpuclaims/two", status=503, times=10))
    assert GpuClaim.objects.get(pk=create().pk).name == "two"


def test_a_cluster_that_was_set_back(world: World) -> None:
    """CLAIM-1 after a restore of etcd versions are smaller than those we know: what is listed and confirmed counts."""
    cluster = world.backends.cluster
    assert cluster is not None
    create()
    GpuClaim.objects.update(resource_version="999999", spec={"devices": {"count": 9}})
    now = crds.get(cluster, CLAIM.resource, namespace=NAMESPACE, name="two")
    handle(CLAIM, Relisted({(NAMESPACE, "two"): now}, "5"), cluster=cluster, now=database_now())
    assert GpuClaim.objects.get().spec["devices"]["count"] == 2
