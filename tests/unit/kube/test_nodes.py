from __future__ import annotations

import pytest

from kube import nodes
from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.keys import CAPACITY_CHANGED, MODE_LABEL, MODEL_LABEL
from kube.objects import Condition, Taint
from kube.resources import NODES
from tests.fakes.apiserver import ApiServer, Fault


def test_what_we_read_of_a_node(server: ApiServer, cluster: Cluster) -> None:
    stored = server.add_node("n1", labels={MODE_LABEL: "exclusive"}, capacity={"cpu": "8", "memory": "1Gi"})
    spec = {"spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]}}
    cluster.patch(NODES.path(name="n1"), spec, nodes.Node)
    node = nodes.find(cluster, name="n1")
    assert node is not None
    assert (node.name, node.uid, node.labels) == ("n1", stored["metadata"]["uid"], {MODE_LABEL: "exclusive"})
    assert (node.ready, node.spec.unschedulable) == (True, True)
    assert node.spec.taints == [Taint(key="k", effect="NoSchedule")]
    assert node.status.capacity == node.status.allocatable == {"cpu": "8", "memory": "1Gi"}
    assert node.annotations == {}


def test_list_and_find(server: ApiServer, cluster: Cluster) -> None:
    server.add_node("n1")
    server.add_node("n2", ready=False)
    assert [(node.name, node.ready) for node in nodes.list_all(cluster).items] == [("n1", True), ("n2", False)]
    assert nodes.find(cluster, name="n3") is None
    with pytest.raises(NotFoundInCluster):
        nodes.annotate(cluster, name="n3", annotations={"a": "b"})


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        pytest.param(None, False, id="never told"),
        pytest.param([Condition(type="Ready", status="Unknown")], False, id="silent"),
        pytest.param([Condition(type="MemoryPressure", status="True")], False, id="another condition"),
        pytest.param([Condition(type="Ready", status="True")], True, id="ready"),
    ],
)
def test_ready(conditions: list[Condition] | None, want: bool) -> None:
    assert nodes.Node(status=nodes.NodeStatus(conditions=conditions)).ready is want


def test_advertised_amounts_leave_the_kubelets_alone(server: ApiServer, cluster: Cluster) -> None:
    """DEV-5 four GPUs are 400 under every name, in capacity and allocatable, beside what the kubelet reports."""
    server.add_node("n1", capacity={"cpu": "8"})
    nodes.advertise(
        cluster,
        name="n1",
        amounts={"kubernetes.io/gpu": 400, "koordinator.sh/gpu-memory": "320Gi", "nvidia.com/gpu": 4},
    )
    want = {"cpu": "8", "kubernetes.io/gpu": "400", "koordinator.sh/gpu-memory": "320Gi", "nvidia.com/gpu": "4"}
    status = server.nodes["n1"]["status"]
    assert status["capacity"] == status["allocatable"] == want
    assert status["conditions"]
    version = server.store.version
    nodes.advertise(cluster, name="n1", amounts={"kubernetes.io/gpu": 400})
    assert server.store.version == version  # the same again wakes nobody
    nodes.advertise(cluster, name="n1", amounts={"nvidia.com/gpu": None})
    assert "nvidia.com/gpu" not in server.nodes["n1"]["status"]["capacity"]


def test_labels_and_annotations_are_ours_alone(server: ApiServer, cluster: Cluster) -> None:
    """DEV-5 model labels; a lost answer of a merge patch is simply sent again."""
    server.add_node("n1", labels={"zone": "a"})
    server.faults.append(Fault("PATCH", "nodes", drop="after"))
    assert nodes.label(cluster, name="n1", labels={MODEL_LABEL: "H100"}).labels == {"zone": "a", MODEL_LABEL: "H100"}
    assert nodes.annotate(cluster, name="n1", annotations={CAPACITY_CHANGED: "1"}).annotations == {
        CAPACITY_CHANGED: "1"
    }
    nodes.label(cluster, name="n1", labels={MODEL_LABEL: None})
    assert server.nodes["n1"]["metadata"]["labels"] == {"zone": "a"}
