from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kube import pods
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster, NotFoundInCluster, OutcomeUnknown, Throttled
from kube.keys import ALLOCATED
from kube.objects import Pod
from tests.fakes.apiserver import ApiServer, Fault

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WHERE: dict[str, Any] = {"namespace": "a", "name": "train"}
KEY = ("a", "train")


def _uid(server: ApiServer) -> str:
    return str(
        server.add_pod("train", namespace="a", annotations={"own": "1"}, labels={"team": "x"})["metadata"]["uid"]
    )


def found(cluster: Cluster) -> Pod:
    pod = pods.find(cluster, **WHERE)
    assert pod is not None
    return pod


def test_one_write_binds_and_annotates(server: ApiServer, cluster: Cluster) -> None:
    """CLAIM-6 the annotation travels in the Binding: bound and annotated are one write."""
    uid = _uid(server)
    before = server.store.version
    cluster.run(pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n1", annotations={ALLOCATED: "n1:0,1"})))
    pod = found(cluster)
    assert (pod.spec.node_name, pod.annotations, pod.labels) == (
        "n1",
        {"own": "1", ALLOCATED: "n1:0,1"},
        {"team": "x"},
    )
    assert server.store.version == before + 1


def test_bind_is_refused_for_another_uid_a_bound_pod_and_one_that_goes(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-3 a pod that was replaced, bound or deleted in between is never bound by us."""
    uid = _uid(server)
    with pytest.raises(ConflictInCluster):
        cluster.run(
            pods.bind(cluster, pods.Binding(**WHERE, uid="another", node="n1", annotations={ALLOCATED: "n1:0"}))
        )
    assert ALLOCATED not in server.pods[KEY]["metadata"]["annotations"]
    cluster.run(pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n1")))
    with pytest.raises(ConflictInCluster, match="n1"):
        cluster.run(pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n2")))
    server.remove_pod("train", namespace="a")
    with pytest.raises(NotFoundInCluster) as caught:
        cluster.run(pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n1")))
    assert caught.value.details.kind == "pods"


def test_a_binding_may_name_the_version_of_the_pod(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-3 a Binding that carries a resourceVersion fails once the pod has been written to."""
    uid = _uid(server)
    version = found(cluster).metadata.resource_version
    changed = cluster.run(pods.annotate(cluster, **WHERE, uid=uid, annotations={"note": "1"}))
    assert (changed.annotations, changed.metadata.uid) == ({"own": "1", "note": "1"}, uid)
    with pytest.raises(ConflictInCluster, match="ResourceVersion"):
        cluster.run(pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n1", version=version)))
    cluster.run(
        pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n1", version=changed.metadata.resource_version))
    )
    assert found(cluster).spec.node_name == "n1"


def test_annotations_of_another_pod_are_left_alone(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-3 the pod of that name is another one by now, or gone."""
    uid = _uid(server)
    with pytest.raises(ConflictInCluster):
        cluster.run(pods.annotate(cluster, **WHERE, uid="another", annotations={"note": "1"}))
    server.remove_pod("train", namespace="a")
    with pytest.raises(NotFoundInCluster):
        cluster.run(pods.annotate(cluster, **WHERE, uid=uid, annotations={"note": "1"}))


@pytest.mark.parametrize(("drop", "want_node"), [("before", ""), ("after", "n1")])
def test_a_lost_bind_is_unknown_and_sent_once(server: ApiServer, cluster: Cluster, drop: str, want_node: str) -> None:
    """LEASE-3 a Binding without an answer is told as unknown; a read says what became of it."""
    uid = _uid(server)
    server.faults.append(Fault("POST", "binding", drop=drop))  # type: ignore[arg-type]  # a table
    with pytest.raises(OutcomeUnknown):
        cluster.run(pods.bind(cluster, pods.Binding(**WHERE, uid=uid, node="n1")))
    assert found(cluster).spec.node_name == want_node
    assert len([seen for seen in server.requests if seen.path.endswith("/binding")]) == 1


def test_eviction_asks_the_disruption_budget(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    """CLAIM-9 eviction goes through the policy API; a budget that forbids it is told at once."""
    uid = str(server.add_pod("train", namespace="a", node="n1", phase="Running")["metadata"]["uid"])
    server.store.blocked_evictions.add(KEY)
    with pytest.raises(Throttled) as caught:
        pods.evict(cluster, **WHERE, uid=uid)
    assert (caught.value.by_disruption_budget, pauses) == (True, [])
    server.store.blocked_evictions.clear()
    with pytest.raises(ConflictInCluster):
        pods.evict(cluster, **WHERE, uid="another")
    assert pods.evict(cluster, **WHERE, uid=uid)
    assert found(cluster).metadata.deletion_timestamp is not None  # granted is not gone
    server.remove_pod("train", namespace="a")
    assert not pods.evict(cluster, **WHERE, uid=uid)


def test_list_by_node(server: ApiServer, cluster: Cluster) -> None:
    server.add_pod("one", namespace="a", node="n1")
    server.add_pod("two", namespace="b", node="n1")
    server.add_pod("three", namespace="b", node="n2")
    found = pods.list_all(cluster, field_selector="spec.nodeName=n1").items
    assert [pod.metadata.name for pod in found] == ["one", "two"]
    assert [pod.metadata.name for pod in pods.list_all(cluster).items] == ["one", "three", "two"]
    assert pods.find(cluster, namespace="a", name="none") is None


def test_an_event_is_reported_once(server: ApiServer, cluster: Cluster) -> None:
    """CLAIM-9 the holder gets an event."""
    uid = _uid(server)
    told = {"uid": uid, "reason": "ClaimEnded", "message": "m" * 5000, "now": NOW, "kind": "Warning"}
    pods.event_record(cluster, **WHERE, **told)  # type: ignore[arg-type]  # a table
    with pytest.raises(AlreadyExists):
        pods.event_record(cluster, **WHERE, **told)  # type: ignore[arg-type]  # a table
    (event,) = server.events.values()
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "train", "uid": uid}
    assert (event["reason"], event["type"], len(event["message"])) == ("ClaimEnded", "Warning", 1024)
    assert event["lastTimestamp"] == "2026-03-01T12:00:00Z"


def test_an_event_on_a_pod_with_the_longest_name_has_a_name_that_is_allowed(
    server: ApiServer, cluster: Cluster
) -> None:
    name = "n" * 250 + ".xy"
    pod = server.add_pod(name, namespace="a")
    pods.event_record(
        cluster, namespace="a", name=name, uid=pod["metadata"]["uid"], reason="Bound", message="", now=NOW
    )
    assert len(server.events) == 1
