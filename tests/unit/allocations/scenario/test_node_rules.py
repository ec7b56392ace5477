"""Nodes that kube-scheduler would not ask about: cordons, taints, node selectors and required node affinity."""

import pytest

from allocations.scenario import parse_scenario, run_scenario


def node(name, *, gpus=1, **more):
    devices = [{"minor": at, "uuid": f"GPU-{name}-{at}", "model": "H100", "memory": "80Gi"} for at in range(gpus)]
    return {"name": name, "devices": devices, **more}


def asking(name="p", **spec):
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}], **spec},
    }


def required(*expressions, fields=()):
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions), "matchFields": list(fields)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
UNTOLERATED = "node has taint nvidia.com/gpu=present:NoSchedule, which the pod does not tolerate"
UNSELECTED = "node has not the labels of the pod's nodeSelector"
UNFIT = "node does not match the pod's required node affinity"


@pytest.mark.parametrize(
    ("nodes", "spec", "want", "reasons"),
    [
        pytest.param(
            [node("a"), node("b", labels={"zone": "1"})],
            {"nodeSelector": {"zone": "1"}},
            "b",
            {"a": UNSELECTED},
            id="nodeSelector",
        ),
        pytest.param(
            [node("a", labels={"zone": "2"})],
            {"nodeSelector": {"zone": "1"}},
            None,
            {"a": UNSELECTED},
            id="no node has the label",
        ),
        pytest.param(
            [node("a"), node("b", labels={"size": "8"})],
            {"affinity": required({"key": "size", "operator": "Gt", "values": ["4"]})},
            "b",
            {"a": UNFIT},
            id="required node affinity",
        ),
        pytest.param(
            [node("a"), node("b")],
            {"affinity": required(fields=[{"key": "metadata.name", "operator": "In", "values": ["b"]}])},
            "b",
            {"a": UNFIT},
            id="by the node's name",
        ),
        pytest.param(
            [node("a"), node("b")],
            {"nodeSelector": {"kubernetes.io/hostname": "b"}},
            "b",
            {"a": UNSELECTED},
            id="by the hostname, which kubelets label",
        ),
        pytest.param(
            [node("a", labels={"kubernetes.io/hostname": "x"})],
            {"nodeSelector": {"kubernetes.io/hostname": "a"}},
            None,
            {"a": UNSELECTED},
            id="a stated hostname counts",
        ),
        pytest.param(
            [node("a", mode="device-plugin"), node("b")],
            {"nodeSelector": {"gpu.scheduling/mode": "device-plugin"}},
            "a",
            {"b": UNSELECTED},
            id="by the mode",
        ),
        pytest.param(
            [node("a", gpus=0), node("b")],
            {"nodeSelector": {"gpu.scheduling/model": "H100"}},
            "b",
            {"a": UNSELECTED},
            id="by the model, which gpuplane labels",
        ),
        pytest.param([node("a", taints=[TAINT]), node("b")], {}, "b", {"a": UNTOLERATED}, id="a taint"),
        pytest.param(
            [node("a", taints=[TAINT])],
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            "a",
            {},
            id="a taint that is tolerated",
        ),
        pytest.param(
            [node("a", taints=[{**TAINT, "effect": "PreferNoSchedule"}])],
            {},
            "a",
            {},
            id="a taint that is a preference",
        ),
        pytest.param([node("a", unschedulable=True), node("b")], {}, "b", {"a": "node is cordoned"}, id="a cordon"),
        pytest.param(
            [node("a", labels={"zone": "1"}, gpus=0), node("b")],
            {"nodeSelector": {"zone": "1"}},
            None,
            {"a": "no gpu devices", "b": UNSELECTED},
            id="rules and devices together",
        ),
    ],
)
def test_where_kube_scheduler_would_not_go(nodes, spec, want, reasons):
    """VIEW-4 nodeSelector, required node affinity, taints and cordons refuse a node as kube-scheduler does, with the
    reason.
    """
    (decision,) = run_scenario(parse_scenario({"nodes": nodes, "pods": [asking(**spec)]})).decisions
    assert (decision.node, decision.reasons) == (want, reasons)


def test_a_summary_counts_rules_and_devices_together():
    """VIEW-4 the nodes that no scheduler would ask about are among those that are counted."""
    nodes = [node("a"), node("b", taints=[TAINT]), node("c", taints=[TAINT]), node("d", unschedulable=True)]
    first, second = run_scenario(parse_scenario({"nodes": nodes, "pods": [asking("x"), asking("y")]})).decisions
    assert first.node == "a"
    assert second.summary == f"2 of 4 nodes: {UNTOLERATED}; 1: no whole gpu device free; 1: node is cordoned"


def test_a_running_pod_is_where_it_is():
    """VIEW-4 LEASE-6 what runs already is not asked whether it may."""
    running = asking("r", nodeName="a")
    running["metadata"]["annotations"] = {"gpu.scheduling/allocated": "a:0"}
    running["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"] = (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory-ratio":"100"}}]}'
    )
    result = run_scenario(parse_scenario({"nodes": [node("a", taints=[TAINT])], "pods": [running]}))
    assert result.problems == ()
    assert result.fleet["a"][0].core_used == 100
