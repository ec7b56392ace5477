from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube import crds
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster, Invalid, NotFoundInCluster, OutcomeUnknown
from kube.resources import GPU_CLAIMS, Resource
from kube.watch import Stop
from tests.fakes.apiserver import ApiServer, Fault

NAMES = {
    "devices.scheduling.koordinator.sh",
    "gpuclaims.gpu.scheduling",
    "gpugangs.gpu.scheduling",
    "gpunodestatuses.gpu.scheduling",
    "gpuqueues.gpu.scheduling",
}
WHERE: dict[str, Any] = {"namespace": "default", "name": "c"}
GPU_GANGS = Resource(group="gpu.scheduling", plural="gpugangs", kind="GpuGang")


def _create(cluster: Cluster, spec: dict[str, Any], labels: dict[str, str] | None = None) -> crds.CustomObject:
    return crds.create(cluster, GPU_CLAIMS, **WHERE, spec=spec, labels=labels or {}, annotations={})


def _replace(cluster: Cluster, spec: dict[str, Any], *, at: crds.CustomObject) -> crds.CustomObject:
    version, labels = at.metadata.resource_version, at.labels
    return crds.spec_replace(
        cluster, GPU_CLAIMS, **WHERE, spec=spec, labels=labels, annotations=at.annotations, resource_version=version
    )


@pytest.fixture
def bare(tmp_path: Path, cluster_of: Callable[..., Cluster]) -> Iterator[tuple[ApiServer, Cluster]]:
    """An API server that has never heard of us."""
    with ApiServer(with_crds=False) as server:
        yield server, cluster_of(server.kubeconfig(tmp_path / "bare"))


def test_missing_definitions_are_made_once(bare: tuple[ApiServer, Cluster]) -> None:
    """CLAIM-1 the definitions are installed where they are missing and left alone where they are not."""
    server, cluster = bare
    with pytest.raises(NotFoundInCluster) as caught:
        crds.get(cluster, GPU_CLAIMS, **WHERE)
    assert caught.value.details.kind == ""  # the kind itself is unknown
    server.faults.append(Fault("POST", "customresourcedefinitions", drop="after"))
    assert (
        set(crds.apply_missing(cluster, definitions=crds.manifests())) <= NAMES
    )  # the one whose answer was lost is not counted
    assert set(server.crds) == NAMES
    before = server.store.version
    assert crds.apply_missing(cluster, definitions=crds.manifests()) == []
    assert server.store.version == before
    assert crds.wait_established(cluster, names=NAMES, seconds=5) == set()
    assert cluster.list(GPU_CLAIMS.path(), crds.CustomObject).items == []


def test_waiting_ends_with_the_event(bare: tuple[ApiServer, Cluster]) -> None:
    server, cluster = bare
    server.store.auto_establish = False
    crds.apply_missing(cluster, definitions=crds.manifests())
    left: list[set[str]] = []
    waiter = threading.Thread(target=lambda: left.append(crds.wait_established(cluster, names=NAMES, seconds=60)))
    waiter.start()
    for name in NAMES:
        server.store.establish(name)
    waiter.join()
    assert left == [set()]


def test_waiting_ends_with_the_deadline_or_a_stop(bare: tuple[ApiServer, Cluster]) -> None:
    server, cluster = bare
    server.store.auto_establish = False
    crds.apply_missing(cluster, definitions=crds.manifests())
    assert crds.wait_established(cluster, names=NAMES, seconds=0.05) == NAMES
    stop = Stop()
    stop.set()
    assert crds.wait_established(cluster, names=NAMES, seconds=60, stop=stop) == NAMES
    assert crds.wait_established(cluster, names=(), seconds=60) == set()


def test_the_definition_is_what_the_requirements_say() -> None:
    """CLAIM-1 namespaced, status subresource, printer columns, short names, a structural schema."""
    by_name = {manifest["metadata"]["name"]: manifest["spec"] for manifest in crds.manifests()}
    assert set(by_name) == NAMES
    claim = by_name["gpuclaims.gpu.scheduling"]
    (version,) = claim["versions"]
    assert (claim["scope"], version["name"], version["subresources"]) == ("Namespaced", "v1", {"status": {}})
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        "Phase",
        "Count",
        "Allocated",
        "Policy",
        "Age",
    ]
    assert claim["names"]["shortNames"]
    gang = by_name["gpugangs.gpu.scheduling"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    least = {name: field.get("minimum") for name, field in gang["properties"].items()}
    assert least == {"minMember": 1, "timeoutSeconds": 1, "topology": None, "onMemberFailure": None}
    assert by_name["gpuqueues.gpu.scheduling"]["scope"] == "Cluster"


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param({"count": 1}, id="one whole device"),
        pytest.param({"count": 1000, "type": "rdma", "model": ["H100", "NVIDIA A100"]}, id="many of two models"),
        pytest.param(
            {"count": 1, "core": 100, "memory": "10Gi", "policy": "contiguous", "policyStrict": True},
            id="core and memory",
        ),
        pytest.param({"count": 1, "memory": 1024}, id="memory as a number of bytes"),
        pytest.param({"count": 1, "memory": ".5Gi"}, id="a fraction"),
        pytest.param({"count": 1, "memoryRatio": 100}, id="a ratio"),
    ],
)
def test_claims_that_the_schema_accepts(server: ApiServer, cluster: Cluster, devices: dict[str, Any]) -> None:
    claim = _create(cluster, {"devices": devices, "ttlSeconds": 1, "gangRef": "g", "resize": True})
    assert claim.spec["devices"] == {"type": "gpu", "policy": "none", "policyStrict": False} | devices
    assert claim.metadata.generation == 1


@pytest.mark.parametrize(
    ("spec", "want_field"),
    [
        pytest.param({}, "spec", id="no devices"),
        pytest.param({"devices": {}}, "spec.devices", id="no count"),
        pytest.param({"devices": {"count": 0}}, "spec.devices.count", id="none"),
        pytest.param({"devices": {"count": 1.5}}, "spec.devices.count", id="one and a half"),
        pytest.param({"devices": {"count": 1, "core": 101}}, "spec.devices.core", id="more core than a device has"),
        pytest.param({"devices": {"count": 1, "memoryRatio": 0}}, "spec.devices.memoryRatio", id="no ratio"),
        pytest.param({"devices": {"count": 1, "memory": "-1Gi"}}, "spec.devices.memory", id="negative memory"),
        pytest.param({"devices": {"count": 1, "memory": "lots"}}, "spec.devices.memory", id="not a quantity"),
        pytest.param(
            {"devices": {"count": 1, "memory": "1Gi", "memoryRatio": 5}}, "spec.devices", id="memory and ratio"
        ),
        pytest.param({"devices": {"count": 1, "type": "A100"}}, "spec.devices.type", id="a type that is no label"),
        pytest.param({"devices": {"count": 1, "policy": "best"}}, "spec.devices.policy", id="an unknown policy"),
        pytest.param({"devices": {"count": 1}, "ttlSeconds": 0}, "spec.ttlSeconds", id="ends at once"),
        pytest.param({"devices": {"count": 1}, "gangRef": "-g"}, "spec.gangRef", id="a gang with a bad name"),
    ],
)
def test_claims_that_the_schema_refuses(
    server: ApiServer, cluster: Cluster, spec: dict[str, Any], want_field: str
) -> None:
    """CLAIM-1 the schema refuses with the field."""
    with pytest.raises(Invalid) as caught:
        _create(cluster, spec)
    assert want_field in [cause.field for cause in caught.value.details.causes or ()]
    assert not server.gpuclaims


def test_spec_and_status_are_written_apart(server: ApiServer, cluster: Cluster) -> None:
    made = _create(cluster, {"devices": {"count": 1}}, {"team": "x"})
    status = {
        "phase": "Allocated",
        "allocated": 1,
        "allocations": [{"pod": "default/p", "uid": "u", "node": "n1", "devices": [{"minor": 0, "memory": None}]}],
    }
    told = crds.status_replace(cluster, GPU_CLAIMS, **WHERE, status=status)
    assert (told.status, told.spec, told.metadata.generation) == (status, made.spec, 1)
    told = crds.status_replace(cluster, GPU_CLAIMS, **WHERE, status={"phase": "Pending"})
    assert told.status == {"phase": "Pending"}  # replaced, not merged
    changed = _replace(cluster, {"devices": {"count": 2}}, at=told)
    assert (changed.spec["devices"]["count"], changed.status, changed.metadata.labels) == (
        2,
        {"phase": "Pending"},
        {"team": "x"},
    )
    assert changed.metadata.generation == 2


def test_a_stale_spec_is_refused(server: ApiServer, cluster: Cluster) -> None:
    """CLAIM-1 writes over REST go through under resourceVersion and get the API server's 409."""
    made = _create(cluster, {"devices": {"count": 1}})
    _replace(cluster, {"devices": {"count": 2}}, at=made)
    with pytest.raises(ConflictInCluster):
        _replace(cluster, {"devices": {"count": 3}}, at=made)
    assert (
        _replace(cluster, {"devices": {"count": 4}}, at=crds.get(cluster, GPU_CLAIMS, **WHERE)).spec["devices"]["count"]
        == 4
    )
    with pytest.raises(AlreadyExists):
        _create(cluster, {"devices": {"count": 1}})


def test_a_lost_spec_write_is_unknown(server: ApiServer, cluster: Cluster) -> None:
    made = _create(cluster, {"devices": {"count": 1}})
    server.faults.append(Fault("PATCH", "gpuclaims", drop="after"))
    with pytest.raises(OutcomeUnknown):
        _replace(cluster, {"devices": {"count": 2}}, at=made)
    assert crds.get(cluster, GPU_CLAIMS, **WHERE).spec["devices"]["count"] == 2


def test_delete_spares_a_successor(server: ApiServer, cluster: Cluster) -> None:
    made = _create(cluster, {"devices": {"count": 1}})
    with pytest.raises(ConflictInCluster):
        crds.delete(cluster, GPU_CLAIMS, **WHERE, uid="another")
    assert crds.delete(cluster, GPU_CLAIMS, **WHERE, uid=made.metadata.uid)
    assert not crds.delete(cluster, GPU_CLAIMS, **WHERE, uid=made.metadata.uid)


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        pytest.param("rack", True, id="a name"),
        pytest.param("topology.example.com/rack_1", True, id="with a prefix"),
        pytest.param("not a label!", False, id="spaces"),
        pytest.param("/rack", False, id="an empty prefix"),
        pytest.param("n" * 64, False, id="too long a name"),
    ],
)
def test_labels_of_a_gangs_topology(server: ApiServer, cluster: Cluster, key: str, accepted: bool) -> None:
    """QUEUE-4 the schema refuses what cannot be a node's label."""
    spec = {"minMember": 2, "topology": {"required": key}}
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuGang", "metadata": WHERE, "spec": spec}
    if accepted:
        assert cluster.create(GPU_GANGS.path(namespace="default"), body, crds.CustomObject).spec["topology"]
        return
    with pytest.raises(Invalid) as caught:
        cluster.create(GPU_GANGS.path(namespace="default"), body, crds.CustomObject)
    assert "spec.topology.required" in [cause.field for cause in caught.value.details.causes or ()]


def test_gangs_have_defaults(server: ApiServer, cluster: Cluster) -> None:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuGang", "metadata": WHERE, "spec": {"minMember": 2}}
    gang = cluster.create(GPU_GANGS.path(namespace="default"), body, crds.CustomObject)
    assert gang.spec == {"minMember": 2, "timeoutSeconds": 600, "onMemberFailure": "none"}
