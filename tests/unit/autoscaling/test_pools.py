"""Pools and shapes from NodePools; whom their nodes take; how many may still be made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from access.errors import BadInput
from autoscaling.models import Pool
from autoscaling.pools import fields_of, most_of, verdict_of
from autoscaling.shapes import agrees, checked, gpus_of, model_of
from autoscaling.triggers import trigger_name
from kube.karpenter import NodePool, nominated_node_claim
from kube.objects import Condition, PodSpec
from kube.quantities import QuantityError, parse_milli

SAID = {"gpu.scheduling/model": "H100", "gpu.scheduling/gpus": "2", "gpu.scheduling/gpu-memory": "80Gi"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def node_pool(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any) -> NodePool:
    """A NodePool as the API server has it."""
    template = {"metadata": {"labels": labels or {}}, "spec": spec.pop("template", {})}
    body = {"metadata": {"name": "a", "annotations": annotations or {}}, "spec": {"template": template, **spec}}
    return msgspec.convert(body, NodePool)


def pool(made: NodePool) -> Pool:
    """Its row."""
    return Pool(name="a", changed_at=NOW, **fields_of(made))


@pytest.mark.parametrize(
    ("annotations", "labels", "want_model", "want_gpus"),
    [
        pytest.param(SAID, {}, "H100", 2, id="annotations"),
        pytest.param({}, SAID, "H100", 2, id="labels of the template"),
        pytest.param(
            {},
            {
                "nvidia.com/gpu.product": "A100",
                "karpenter.k8s.aws/instance-gpu-count": "8",
                "karpenter.k8s.aws/instance-gpu-memory": "40960",
            },
            "A100",
            8,
            id="labels of others",
        ),
        pytest.param({"gpu.scheduling/model": "B200"}, SAID, "B200", 2, id="annotations go before labels"),
    ],
)
def test_shapes_that_are_stated(
    annotations: dict[str, str], labels: dict[str, str], want_model: str, want_gpus: int
) -> None:
    row = pool(node_pool(annotations, labels))
    assert row.source == "nodepool"
    assert (model_of(row.shape or {}), gpus_of(row.shape or {})) == (want_model, want_gpus)


@pytest.mark.parametrize(
    ("change", "want_problem"),
    [
        pytest.param({"gpu.scheduling/gpus": "many"}, "gpu.scheduling/gpus is 'many'", id="no number"),
        pytest.param({"gpu.scheduling/gpus": "0"}, "gpu.scheduling/gpus is '0'", id="none"),
        pytest.param({"gpu.scheduling/gpu-memory": "80GiB"}, "gpu.scheduling/gpu-memory: ", id="no quantity"),
        pytest.param({"gpu.scheduling/links": "some"}, "gpu.scheduling/links is 'some'", id="links"),
        pytest.param({"gpu.scheduling/model": ""}, "gpu.scheduling/model not given", id="no model"),
    ],
)
def test_shapes_that_cannot_be_read(change: dict[str, str], want_problem: str) -> None:
    row = pool(node_pool(SAID | change))
    assert (row.shape, row.source) == (None, "")
    assert row.problem.startswith(want_problem)


def test_links_of_all() -> None:
    row = pool(node_pool({**SAID, "gpu.scheduling/links": "all"}))
    assert (row.shape or {})["links"] == [[0, 1, 18]]


def test_the_order_of_sources() -> None:
    """An inventory overrules what the NodePool says, until that changes; an operator comes last."""
    row = pool(node_pool(SAID))
    row.seen = checked({"devices": [{"minor": 0, "model": "H100", "memory": "80Gi"}]})
    row.given = checked({"devices": [{"minor": 0, "model": "L4", "memory": "24Gi"}]})
    assert gpus_of(row.shape or {}) == 2
    row.overruled = row.stated
    assert (row.source, gpus_of(row.shape or {})) == ("inventory", 1)
    row.seen = row.stated = None
    assert (row.source, model_of(row.shape or {})) == ("operator", "L4")


def test_an_inventory_agrees_but_for_rounding() -> None:
    stated = checked({"devices": [{"minor": 0, "model": "H100", "memory": "80Gi"}]})
    assert agrees(stated, checked({"devices": [{"minor": 0, "model": "H100", "memory": "79647Mi"}]}))
    assert not agrees(stated, checked({"devices": [{"minor": 0, "model": "H100", "memory": "40Gi"}]}))
    assert not agrees(stated, checked({"devices": [{"minor": 0, "model": "A100", "memory": "80Gi"}]}))


@pytest.mark.parametrize(
    "shape", [None, [], {"devices": []}, {"devices": [{}]}, {"name": "n", "devices": []}, {"x": 1}]
)
def test_shapes_that_are_refused(shape: object) -> None:
    with pytest.raises(BadInput):
        checked(shape)


def test_whom_the_nodes_take() -> None:
    """Fixed labels, choices of a requirement, labels that Karpenter knows, and taints."""
    requirements = [
        {"key": "zone", "operator": "In", "values": ["a", "b"]},
        {"key": "arch", "operator": "In", "values": ["amd64"]},
    ]
    taints = [{"key": "gpu", "effect": "NoSchedule"}]
    row = pool(node_pool(SAID, {"team": "x"}, template={"requirements": requirements, "taints": taints}))
    tolerated: Any = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}

    def asked(**selector: str) -> tuple[str, dict[str, str]]:
        return verdict_of(msgspec.convert({"nodeSelector": selector, **tolerated}, PodSpec), row)[:2]

    assert asked() == ("", {})
    assert asked(zone="b", team="x", arch="amd64") == ("", {"zone": "b"})
    assert asked(zone="c")[0]
    assert asked(rack="r")[0]
    assert verdict_of(PodSpec(), row).why.startswith("node has taint")


def zones(*terms: dict[str, tuple[str, list[str]]]) -> PodSpec:
    """A pod with a required node affinity: for each term, label → operator and values."""
    listed = [
        {"matchExpressions": [{"key": key, "operator": how, "values": values} for key, (how, values) in term.items()]}
        for term in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}
    return msgspec.convert({"affinity": {"nodeAffinity": required}}, PodSpec)


@pytest.mark.parametrize(
    ("spec", "want_taken", "want_picks"),
    [
        pytest.param(
            zones({"zone": ("In", ["a"]), "team": ("In", ["y"])}, {"zone": ("In", ["b"]), "team": ("In", ["x"])}),
            True,
            {"zone": "b"},
            id="the second term alone",
        ),
        pytest.param(
            zones({"zone": ("In", ["a"])}, {"rack": ("In", ["r"])}), True, {"zone": "a"}, id="the first term alone"
        ),
        pytest.param(zones({"zone": ("NotIn", ["a"])}), True, {"zone": "b"}, id="a value that is not excluded"),
        pytest.param(zones({"zone": ("NotIn", ["a", "b"])}), False, {}, id="every value is excluded"),
        pytest.param(zones({"size": ("Gt", ["1"])}), True, {"size": "2"}, id="a value above"),
        pytest.param(zones({"zone": ("Exists", [])}), True, {}, id="any value"),
        pytest.param(zones({"zone": ("NotIn", ["c"])}), True, {}, id="a value that no node of the pool has"),
        pytest.param(zones({"zone": ("DoesNotExist", [])}), False, {}, id="no value"),
        pytest.param(zones({"rack": ("NotIn", ["r"])}), True, {}, id="a label that no node of the pool has"),
    ],
)
def test_one_term_of_a_required_affinity_is_enough(spec: PodSpec, want_taken: bool, want_picks: dict[str, str]) -> None:
    """SCALE-1 requirements of a NodePool that allow several values: the pod's own rules select one that they take."""
    requirements = [
        {"key": "zone", "operator": "In", "values": ["a", "b"]},
        {"key": "size", "operator": "In", "values": ["1", "2"]},
    ]
    row = pool(node_pool(SAID, {"team": "x"}, template={"requirements": requirements}))
    why, picks, _ = verdict_of(spec, row)
    assert (not why, picks) == (want_taken, want_picks)


def test_values_that_a_trigger_pod_excludes() -> None:
    """SCALE-2 of the values that a pool leaves open those that the pod does not take; Karpenter chooses of the rest."""
    requirements = [
        {"key": "zone", "operator": "In", "values": ["a", "b", "c"]},
        {"key": "size", "operator": "In", "values": ["1", "2", "3"]},
    ]
    row = pool(node_pool(SAID, template={"requirements": requirements}))
    spec = zones({"zone": ("NotIn", ["a", "z"]), "size": ("Gt", ["1"]), "kubernetes.io/arch": ("NotIn", ["arm64"])})
    assert verdict_of(spec, row) == ("", {}, {"zone": ["a"], "size": ["1"], "kubernetes.io/arch": ["arm64"]})
    assert verdict_of(zones({"zone": ("NotIn", ["a", "b"])}), row).excluded == {}, "it picks the one that is left"


@pytest.mark.parametrize(
    ("requirements", "want_taken"),
    [
        pytest.param([("NotIn", ["a"])], ["b", "c"], id="excluded values"),
        pytest.param([("NotIn", ["a"]), ("NotIn", ["b"])], ["c"], id="values excluded by two requirements"),
        pytest.param([("In", ["a", "b"]), ("NotIn", ["a"])], ["b"], id="one value is left"),
        pytest.param([("In", ["a", "b"]), ("In", ["b", "c"])], ["b"], id="what two requirements allow"),
        pytest.param([("Exists", [])], ["a", "b", "c"], id="any value"),
    ],
)
def test_values_that_a_node_pool_excludes(requirements: list[tuple[str, list[str]]], want_taken: list[str]) -> None:
    """SCALE-1 requirements are honoured: no trigger pod is made for a label that Karpenter gives to no node."""
    listed = [{"key": "zone", "operator": how, "values": values} for how, values in requirements]
    row = pool(node_pool(SAID, template={"requirements": listed}))
    specs = {value: msgspec.convert({"nodeSelector": {"zone": value}}, PodSpec) for value in ("a", "b", "c")}
    assert [value for value, spec in specs.items() if not verdict_of(spec, row).why] == want_taken


@pytest.mark.parametrize(
    ("requirements", "want_taken"),
    [
        pytest.param([("Gt", ["3"])], ["4", "5"], id="above"),
        pytest.param([("Lt", ["5"])], ["3", "4"], id="below"),
        pytest.param([("Gte", ["4"])], ["4", "5"], id="at least"),
        pytest.param([("Lte", ["4"])], ["3", "4"], id="at most"),
        pytest.param([("Gt", ["2"]), ("Gt", ["3"]), ("Lt", ["5"])], ["4"], id="between"),
        pytest.param([("Gt", ["3"]), ("NotIn", ["4"])], ["5"], id="above, and not an excluded one"),
        pytest.param([("In", ["3", "4", "5", "any"]), ("Gte", ["4"])], ["4", "5"], id="of those that are listed"),
    ],
)
def test_bounds_of_a_node_pool_are_honoured(requirements: list[tuple[str, list[str]]], want_taken: list[str]) -> None:
    """SCALE-1 no trigger pod is made for a value that is out of a NodePool's bounds: Karpenter makes no such node."""
    listed = [{"key": "generation", "operator": how, "values": values} for how, values in requirements]
    row = pool(node_pool(SAID, template={"requirements": listed}))
    specs = {
        value: msgspec.convert({"nodeSelector": {"generation": value}}, PodSpec) for value in ("3", "4", "5", "any")
    }
    assert [value for value, spec in specs.items() if not verdict_of(spec, row).why] == want_taken


@pytest.mark.parametrize(
    ("limits", "used", "coming", "want_most"),
    [
        pytest.param({}, {}, 0, None, id="no limit"),
        pytest.param({"cpu": "10"}, {}, 0, None, id="limits of others are Karpenter's"),
        pytest.param({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "2"}, 1, 2, id="GPUs"),
        pytest.param({"nodes": "3", "nvidia.com/gpu": "80"}, {"nodes": "1"}, 0, 2, id="nodes"),
        pytest.param({"nodes": "1"}, {"nodes": "2"}, 0, 0, id="never below none"),
    ],
)
def test_limits(limits: dict[str, str], used: dict[str, str], coming: int, want_most: int | None) -> None:
    row = pool(node_pool(SAID, limits=limits))
    row.used = used
    assert most_of(row, coming=coming) == want_most


@pytest.mark.parametrize(
    ("replicas", "conditions", "want_closed"),
    [
        pytest.param(None, None, "", id="Karpenter says nothing yet"),
        pytest.param(None, [("Ready", "True", "", "")], "", id="ready"),
        pytest.param(
            None,
            [("Ready", "False", "NodeClassNotReady", "no subnets")],
            "it is not Ready: NodeClassNotReady: no subnets",
            id="not ready",
        ),
        pytest.param(None, [("Ready", "Unknown", "", "")], "it is not Ready", id="it may not be ready"),
        pytest.param(None, [("NodeClassReady", "False", "", "")], "", id="another condition"),
        pytest.param(
            0,
            [("Ready", "True", "", "")],
            "it is static (spec.replicas): Karpenter makes none of its nodes for pods",
            id="static",
        ),
    ],
)
def test_pools_that_make_no_nodes_for_pods(
    replicas: int | None, conditions: list[tuple[str, str, str, str]] | None, want_closed: str
) -> None:
    """SCALE-1 Karpenter passes over a NodePool that is not Ready, and a static one: none of their nodes is planned."""
    made = node_pool(SAID, replicas=replicas)
    made.status.conditions = [Condition(*one) for one in conditions] if conditions else None
    row = pool(made)
    assert row.closed == want_closed
    assert most_of(row, coming=0) == (0 if want_closed else None)


@pytest.mark.parametrize(
    ("requirements", "want_closed"),
    [
        pytest.param([("In", ["1"]), ("NotIn", ["1"])], True, id="the only value is excluded"),
        pytest.param([("In", ["4"]), ("Gt", ["4"])], True, id="the only value is out of bounds"),
        pytest.param([("In", ["1", "2"]), ("In", ["3"])], True, id="two lists without a value in common"),
        pytest.param([("Gt", ["5"]), ("Lt", ["3"])], True, id="bounds without a value between"),
        pytest.param([("Gt", ["3"]), ("Lt", ["5"])], False, id="one value between"),
        pytest.param([("NotIn", ["1"])], False, id="any other value"),
    ],
)
def test_requirements_that_contradict_one_another(requirements: list[tuple[str, list[str]]], want_closed: bool) -> None:
    """SCALE-1 Karpenter makes no node of such a NodePool: it counted as one of any value, and triggers were made."""
    listed = [{"key": "size", "operator": how, "values": values} for how, values in requirements]
    row = pool(node_pool(SAID, template={"requirements": listed}))
    assert row.closed == ("its requirements leave no value of size" if want_closed else "")
    assert most_of(row, coming=0) == (0 if want_closed else None)


def test_names_of_trigger_pods() -> None:
    """SCALE-2 The same for the same request and ordinal; a DNS label whatever the model."""
    assert trigger_name("H100", 1, 0, scope="s") == trigger_name("H100", 1, 0, scope="s")
    assert len({trigger_name("H100", request, ordinal, scope="s") for request in (1, 2) for ordinal in (0, 1)}) == 4
    for model in ("NVIDIA H100 80GB HBM3", "", "Ä/ö", "x" * 200):
        name = trigger_name(model, 1, 0, scope="s")
        assert name.startswith("gpu-trigger-")
        assert len(name) <= 63
        assert all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in name)


@pytest.mark.parametrize(
    ("message", "want_claim"),
    [
        ("Pod should schedule on: nodeclaim/h100-abc", "h100-abc"),
        ("Pod should schedule on: nodeclaim/h100-abc, node/n1", "h100-abc"),
        ("Pod should schedule on: node/n1", ""),
    ],
)
def test_nominations(message: str, want_claim: str) -> None:
    """SCALE-3 As Karpenter writes them."""
    assert nominated_node_claim(message) == want_claim


def test_thousandths() -> None:
    assert [parse_milli(text) for text in ("100m", "0.5", 2, 0.25, "1Ki")] == [100, 500, 2000, 250, 1_024_000]
    for text in ("", "-1", "x"):
        with pytest.raises(QuantityError):
            parse_milli(text)
