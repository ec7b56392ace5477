"""GpuClaims in two places: REST and the API server, in step both ways."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import claims.services
from access.actors import SYSTEM
from access.errors import BadInput, Conflict, NotFound, Unavailable
from claims.errors import ManifestChanged, ManifestExists
from claims.kinds import CLAIM
from claims.mirror import VERSIONS_KEPT, mirror
from claims.models import GpuClaim
from claims.selectors import manifest_of
from claims.services import manifest_create, manifest_delete, manifest_patch, manifest_replace
from kube import crds
from kube.keys import CAPACITY_CHANGED
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World

TWO: dict[str, Any] = {"devices": {"count": 2}}


def manifest(spec: dict[str, Any] = TWO, name: str = "two", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": spec}


def create(**options: Any) -> GpuClaim:
    return manifest_create(CLAIM, manifest=manifest(**options), actor=SYSTEM, now=database_now())


def replace(body: dict[str, Any]) -> GpuClaim:
    return manifest_replace(CLAIM, namespace=NAMESPACE, name="two", manifest=body, actor=SYSTEM, now=database_now())


def edit(world: World, change: dict[str, Any], name: str = "two") -> None:
    """As kubectl does, behind our back."""
    kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
    world.server.store.patch(kind, NAMESPACE, name, change, content_type=MERGE)


def stored(world: World, name: str = "two") -> dict[str, Any]:
    return world.server.gpuclaims[NAMESPACE, name]


def test_rest_writes_through(world: World) -> None:
    """CLAIM-1 created, changed and deleted over REST: the API server has it, our row mirrors its answer at once."""
    claim = create(labels={"team": "a"})
    assert stored(world)["metadata"]["uid"] == str(claim.uid)
    assert stored(world)["spec"]["devices"]["policy"] == "none"  # the schema's default
    assert claim.spec == stored(world)["spec"]
    assert claim.resource_version == stored(world)["metadata"]["resourceVersion"]

    changed = replace(manifest({"devices": {"count": 4}}, labels={"team": "b"}))
    assert stored(world)["spec"]["devices"]["count"] == 4
    assert stored(world)["metadata"]["labels"] == {"team": "b"}
    assert (changed.generation, changed.labels) == (2, {"team": "b"})

    manifest_delete(CLAIM, namespace=NAMESPACE, name="two", actor=SYSTEM, now=database_now())
    assert not world.server.gpuclaims
    assert not GpuClaim.objects.exists()
    assert [len(world.told(f"claim.{verb}")) for verb in ("created", "changed", "deleted")] == [1, 1, 1]


def test_conflicts(world: World) -> None:
    """CLAIM-1 a write under a version that is no longer the object's is refused, and changes nothing."""
    create()
    read = manifest_of(GpuClaim.objects.get())
    edit(world, {"spec": {"devices": {"count": 8}}})
    with pytest.raises(ManifestChanged):
        replace({**read, "spec": {"devices": {"count": 1}}})
    assert stored(world)["spec"]["devices"]["count"] == 8
    with pytest.raises(ManifestExists):
        create()
    with pytest.raises(NotFound):
        manifest_delete(CLAIM, namespace=NAMESPACE, name="none", actor=SYSTEM, now=database_now())
    with pytest.raises(ManifestChanged):
        replace(manifest(uid="00000000-0000-0000-0000-000000000000"))


def test_our_status_is_nobodys_conflict(world: World) -> None:
    """CLAIM-1 status moves the resourceVersion; a writer who read before it has lost nothing and is not refused."""
    create()
    read = manifest_of(GpuClaim.objects.get())
    edit(world, {"metadata": {"annotations": None}})
    crds_status(world, {"phase": "Pending", "allocated": 0})
    assert stored(world)["metadata"]["resourceVersion"] != read["metadata"]["resourceVersion"]

    replace({**read, "spec": {"devices": {"count": 3}}})

    assert stored(world)["spec"]["devices"]["count"] == 3
    assert stored(world)["status"]["phase"] == "Pending"


def test_our_status_seen_before_the_write_arrives(world: World) -> None:
    """CLAIM-1 status written and mirrored between a reader's GET and PUT is nobody's conflict either; a change that was
    undone is one.
    """
    read = manifest_of(create())
    for allocated in range(3):
        crds_status(world, {"phase": "Pending", "allocated": allocated})
        mirror_two(world)
    assert GpuClaim.objects.get().resource_version != read["metadata"]["resourceVersion"]
    changed = manifest_of(replace({**read, "spec": {"devices": {"count": 3}}}))
    assert stored(world)["spec"]["devices"]["count"] == 3

    with pytest.raises(ManifestChanged):
        replace({**read, "spec": {"devices": {"count": 4}}})
    for label in ("x", None):
        edit(world, {"metadata": {"labels": {"undone": label}}})
        mirror_two(world)
    with pytest.raises(ManifestChanged):
        replace({**changed, "spec": {"devices": {"count": 4}}})
    assert stored(world)["spec"]["devices"]["count"] == 3


def test_versions_remembered_are_bounded(world: World) -> None:
    """CLAIM-1 a claim whose status is written for ever keeps the last versions only, and says so to who read an older
    one.
    """
    read = manifest_of(create())
    for allocated in range(VERSIONS_KEPT):
        crds_status(world, {"phase": "Pending", "allocated": allocated})
        mirror_two(world)
    assert len(GpuClaim.objects.get().unchanged_versions) == VERSIONS_KEPT
    with pytest.raises(ManifestChanged, match="read it again"):
        replace({**read, "spec": {"devices": {"count": 4}}})


def mirror_two(world: World) -> None:
    """As the watch does."""
    cluster = world.backends.cluster
    assert cluster is not None
    mirror(CLAIM, stored=crds.get(cluster, CLAIM.resource, namespace=NAMESPACE, name="two"), now=database_now())


def crds_status(world: World, status: dict[str, Any]) -> None:
    cluster = world.backends.cluster
    assert cluster is not None
    crds.status_replace(cluster, CLAIM.resource, namespace=NAMESPACE, name="two", status=status)


def test_a_write_between_reading_and_writing(world: World) -> None:
    """CLAIM-1 without a resourceVersion the last writer wins, whatever came in between."""
    create()
    world.server.faults.append(Fault("PATCH", "/gpuclaims/two$", status=409, reason="Conflict"))
    assert replace(manifest({"devices": {"count": 5}})).spec["devices"]["count"] == 5
    patch({"spec": {"ttlSeconds": 60}})
    assert stored(world)["spec"]["ttlSeconds"] == 60


def test_a_patch_rests_on_what_the_claim_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-1 a patch that names no version is applied to what the API server has, seen by our watch or not; one that
    names it is refused.
    """
    read = manifest_of(create())
    edit(world, {"metadata": {"labels": {"by": "kubectl"}}})
    patch({"spec": {"ttlSeconds": 60}})
    assert stored(world)["metadata"]["labels"] == {"by": "kubectl"}

    applied = claims.services.manifest_replace
    writes = iter([5, 3])

    def overtaken(*kind: Any, **given: Any) -> Any:
        for count in islice(writes, 1):
            edit(world, {"spec": {"devices": {"count": count}}})
        return applied(*kind, **given)

    monkeypatch.setattr(claims.services, "manifest_replace", overtaken)
    patch({"spec": {"ttlSeconds": 90}})
    assert stored(world)["spec"]["ttlSeconds"] == 90
    assert stored(world)["spec"]["devices"]["count"] == 3
    with pytest.raises(ManifestChanged):
        patch({"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}, "spec": {"ttlSeconds": 1}})


@pytest.mark.parametrize("gone", [{"resourceVersion": None}, {"resourceVersion": ""}], ids=["null", "empty"])
def test_a_patch_that_takes_the_version_away(world: World, monkeypatch: pytest.MonkeyPatch, gone: Any) -> None:
    """CLAIM-1 it still rests on what was read: what another wrote in between stays."""
    create()
    applied = claims.services.manifest_replace
    writes = iter([8])

    def overtaken(*kind: Any, **given: Any) -> Any:
        for count in writes:
            edit(world, {"spec": {"devices": {"count": count}}})
        return applied(*kind, **given)

    monkeypatch.setattr(claims.services, "manifest_replace", overtaken)
    patch({"metadata": gone, "spec": {"ttlSeconds": 90}})
    assert stored(world)["spec"]["ttlSeconds"] == 90
    assert stored(world)["spec"]["devices"]["count"] == 8


def test_a_patch_that_is_refused_leaves_the_mirror(world: World) -> None:
    """CLAIM-1 what the watch knows is not set back, nor made anew, by a patch that comes to nothing."""
    create()
    edit(world, {"spec": {"devices": {"count": 8}}})
    with pytest.raises(BadInput):
        patch({"spec": {"devices": {"count": 0}}})
    assert GpuClaim.objects.get().spec["devices"]["count"] == 2  # the watch has not brought it yet
    GpuClaim.objects.all().delete()
    with pytest.raises(BadInput):
        patch({"spec": {"devices": {"count": 0}}})
    assert not GpuClaim.objects.exists()


def patch(change: dict[str, Any]) -> GpuClaim:
    return manifest_patch(CLAIM, namespace=NAMESPACE, name="two", patch=change, actor=SYSTEM, now=database_now())


@pytest.mark.parametrize("drop", ["after", "before"])
def test_lost_answers(world: World, drop: Any) -> None:
    """CLAIM-1 a create whose answer was lost is read: it is there, or the caller is told to try again."""
    world.server.faults.append(Fault("POST", "/gpuclaims$", drop=drop))
    if drop == "after":
        assert create().spec == stored(world)["spec"]
        return
    with pytest.raises(Unavailable):
        create()
    assert not GpuClaim.objects.exists()


def test_api_server_away(world: World) -> None:
    """CLAIM-1 with the API server down a write is refused as unavailable, and the row stays."""
    create()
    world.server.stop()
    with pytest.raises(Unavailable):
        replace(manifest({"devices": {"count": 5}}))
    with pytest.raises(Unavailable):
        create(name="other")
    world.server.start()
    assert GpuClaim.objects.get().spec == stored(world)["spec"]


def test_what_the_api_server_refuses(world: World) -> None:
    """CLAIM-1 422 names the field; a namespace that is missing too."""
    world.server.faults.append(Fault("POST", "/gpuclaims$", status=422, reason="Invalid", message="too many"))
    with pytest.raises(BadInput, match="too many"):
        create()
    body = {"metadata": {"name": "two", "namespace": "nowhere"}, "spec": TWO}
    with pytest.raises(BadInput) as missing:
        manifest_create(CLAIM, manifest=body, actor=SYSTEM, now=database_now())
    assert missing.value.field == "metadata.namespace"


def test_read_through(world: World) -> None:
    """CLAIM-2 a pod that names a claim made a moment ago is served before the watch has brought the claim."""
    world.node("n1")
    world.claim()
    world.pod("train")
    assert not GpuClaim.objects.exists()
    assert world.filter("train") == "n1"
    assert GpuClaim.objects.get().name == "two"


def test_a_claim_that_cannot_be_read(world: World) -> None:
    """CLAIM-3 with the API server away nobody is told that the claim does not exist."""
    world.node("n1")
    world.pod("train", claim="none")
    assert world.filter("train") is None
    assert "does not exist" in world.told("pod.refused")[0]
    world.server.faults.append(Fault("GET", "/gpuclaims/none", status=503, times=10))
    assert world.filter("train") is None
    assert "cannot be read" in world.told("pod.refused")[1]


def test_what_only_we_refuse(world: World) -> None:
    """CLAIM-3 a spec that passes the schema and breaks a rule of ours is Invalid, with the reason, and never served."""
    cluster = world.backends.cluster
    assert cluster is not None
    world.node("n1")
    create()
    bad = crds.get(cluster, CLAIM.resource, namespace=NAMESPACE, name="two")
    bad.spec = {"devices": {"count": 1, "memory": "1Gi", "memoryRatio": 50}}
    bad.metadata.resource_version = "999999"
    claim = mirror(CLAIM, stored=bad, now=database_now())
    assert claim.phase == "Invalid"
    assert "not both" in claim.conditions[0]["message"]
    world.pod("train")
    assert world.filter("train") is None


def test_a_claim_is_announced(world: World) -> None:
    """CLAIM-3 a claim that appears wakes the pods that waited for it: an annotation of ours on a node."""
    world.node("n1")
    world.claim()
    world.pod("train")
    world.filter("train")
    assert world.settled()
    first = world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED]
    create(name="other")
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] != first


def test_conflict_is_a_conflict() -> None:
    """REST answers 409 for both."""
    assert issubclass(ManifestChanged, Conflict)
