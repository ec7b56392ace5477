"""From waiting pods to a node that serves them, step by step, and what goes wrong on the way."""

from __future__ import annotations

import json

import pytest
from pytest_django import Settings

from kube.karpenter import DO_NOT_DISRUPT
from tests.fakes.apikinds import NODES
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.growth.conftest import Growing


def test_from_zero_to_served(growing: Growing) -> None:
    """SCALE-1 SCALE-2 SCALE-3 SCALE-4 SCALE-5 sixteen halves: one request, one trigger for eight GPUs, one node."""
    growing.karpenter.pool()
    growing.pods(16)
    growing.round()
    (pod,) = growing.triggers
    assert pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert growing.states == ["created"]
    (request,) = growing.requests
    assert (request.state, request.wanted, request.pool, request.model) == ("triggered", 1, "h100", "H100")
    node = growing.to_ready()
    assert growing.triggers == [], "deleted as soon as the node is ready"
    assert growing.states == ["ready"]
    assert growing.server.store.get(NODES, "", node)["metadata"]["annotations"][DO_NOT_DISRUPT] == "true"
    assert growing.karpenter.is_in_use(node)
    growing.inventory(node)
    growing.round()
    (request,) = growing.requests
    assert (growing.states, request.state) == (["served"], "served")
    growing.round(3)
    assert len(growing.requests) == 1, "nobody is planned for twice"
    (claim,) = growing.claims
    assert None not in (claim.launched_at, claim.registered_at, claim.ready_at, claim.inventory_at)


def test_the_letter_of_the_trigger_pod(growing: Growing) -> None:
    """SCALE-2 Everything that the rules say of it."""
    growing.karpenter.pool(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    own = {
        "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
    }
    growing.pods(2, spec=own)
    growing.round()
    (pod,) = growing.triggers
    meta, spec = pod["metadata"], pod["spec"]
    assert meta["name"].startswith("gpu-trigger-h100-")
    assert (
        meta["labels"].items()
        >= {
            "gpu.scheduling/component": "trigger",
            "gpu.scheduling/gpu-model": "H100",
            "gpu.scheduling/pool": "h100",
            "gpu.scheduling/trigger-type": "gpu-scaling",
        }.items()
    )
    annotations = meta["annotations"]
    assert annotations["gpu.scheduling/created-by"] == "gpuplane"
    assert annotations["gpu.scheduling/purpose"] == "trigger-karpenter-scaling"
    assert annotations["gpu.scheduling/cleanup-after"] == "node-ready"
    assert json.loads(annotations["gpu.scheduling/original-request"])["pods"] == [
        f"{NAMESPACE}/p-0",
        f"{NAMESPACE}/p-1",
    ]
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Never", "default-scheduler")
    assert spec["activeDeadlineSeconds"] == 600
    assert spec["nodeSelector"] == {"karpenter.sh/nodepool": "h100"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"} in spec["tolerations"]
    (container,) = spec["containers"]
    amounts = {"nvidia.com/gpu": "1", "cpu": "1000m", "memory": "2Gi"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "gpu.scheduling/in-use", "operator": "NotIn", "values": ["true"]}]}]
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"


def test_labels_that_pods_exclude(growing: Growing) -> None:
    """SCALE-2 A node with a label that the pod excludes would not serve it, and another one would be made, again and
    again: the trigger pod excludes the label too, and shares no node with a pod that selects it.
    """
    growing.karpenter.pool()
    zone = "topology.kubernetes.io/zone"
    excluded = {"key": zone, "operator": "NotIn", "values": ["a"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [excluded]}]}
    required = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    container = {"containers": [{"name": "c"}]}
    growing.pods(1, "elsewhere", spec={**required, **container})
    growing.pods(1, "there", spec={"nodeSelector": {zone: "a"}, **container})
    growing.round()
    found = {}
    for pod in growing.triggers:
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = affinity["nodeSelectorTerms"]
        found[pod["spec"]["nodeSelector"].get(zone, "")] = [
            one for one in term["matchExpressions"] if one["key"] == zone
        ]
    assert found == {"a": [], "": [excluded]}


@pytest.mark.parametrize("requirements", [[("In", ["a", "b", "c"])], []], ids=["listed values", "an open label"])
def test_pods_that_exclude_different_values(growing: Growing, requirements: list[tuple[str, list[str]]]) -> None:
    """SCALE-2 They share no node: a trigger pod that excluded all their values left Karpenter none, and was made again
    and again. A pod that excludes fewer of the values, or none, shares the node of another.
    """
    zone = "topology.kubernetes.io/zone"
    listed = [{"key": zone, "operator": how, "values": values} for how, values in requirements]
    growing.karpenter.pool(requirements=listed)
    for name, values in {"x": ["a"], "y": ["b"], "z": ["c"], "some": ["z", "a"], "any": []}.items():
        excluded = [{"key": zone, "operator": "NotIn", "values": values}] if values else []
        terms = {"nodeSelectorTerms": [{"matchExpressions": excluded}]}
        required = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
        growing.pods(1, name, spec={**(required if values else {}), "containers": [{"name": "c"}]})
    growing.round(2)
    found = []
    for pod in growing.triggers:
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = affinity["nodeSelectorTerms"]
        found.append([one["values"] for one in term["matchExpressions"] if one["key"] == zone])
    assert sorted(found) == ([[["a"]], [["b"]], [["c"]]] if listed else [[["a", "z"]], [["b"]], [["c"]]])
    assert growing.states == ["created"] * 3


def test_a_value_picked_of_one_label_and_excluded_of_another(growing: Growing) -> None:
    """SCALE-1 A pod gets a node of the values that it picks, whatever its rules say of labels that stay open."""
    sizes = {"key": "size", "operator": "In", "values": ["1", "2", "3"]}
    growing.karpenter.pool(requirements=[{"key": "zone", "operator": "In", "values": ["a", "b"]}, sizes])
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["1"]}]}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    growing.pods(1, spec={"nodeSelector": {"zone": "b"}, "affinity": required, "containers": [{"name": "c"}]})
    growing.round()
    (pod,) = growing.triggers
    assert pod["spec"]["nodeSelector"]["zone"] == "b"
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert {"key": "size", "operator": "NotIn", "values": ["1"]} in term["matchExpressions"]


def test_a_node_that_karpenter_makes_by_itself_counts_as_coming(growing: Growing) -> None:
    """SCALE-5 Nobody is counted twice: halves wait for a node that comes for others, and has room."""
    growing.karpenter.pool()
    growing.watch()
    growing.server.store.create(
        growing.karpenter.claims,
        "",
        {"metadata": {"name": "theirs", "labels": {"karpenter.sh/nodepool": "h100"}}},
    )
    growing.wait(2)
    growing.pods(16)
    growing.round(2)
    assert growing.triggers == []
    growing.pods(2, "more")
    growing.round(2)
    (pod,) = growing.triggers
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(("setting", "want"), [(True, "true"), (False, None)], ids=["by default", "off"])
def test_bound_pods_keep_their_node(growing: Growing, settings: Settings, setting: bool, want: str | None) -> None:
    """SCALE-4 The Binding of a pod with GPUs carries do-not-disrupt, where the setting is on."""
    settings.GPUPLANE_DO_NOT_DISRUPT = setting
    growing.world.node("n1", gpus=8)
    growing.world.place("bound", claim="eight")
    pod = growing.server.pods[NAMESPACE, "bound"]
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["annotations"].get(DO_NOT_DISRUPT) == want
