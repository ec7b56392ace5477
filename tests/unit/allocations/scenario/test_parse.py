"""Scenarios: what is taken, and what is refused by field and rule."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.errors import BadInput, TooLarge
from allocations.scenario import Limits, parse_scenario, run_scenario
from claims.dialects.claim_manifest import ClaimSpec
from claims.dialects.request import Refusal

GPU = {"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}
NODE = {"name": "n1", "devices": [GPU]}
POD = {"metadata": {"name": "p"}}


def test_the_empty_scenario():
    result = run_scenario(parse_scenario({}))
    assert (result.decisions, result.fleet, result.problems) == ((), {}, ())


def test_claims_are_found_by_namespace_and_name():
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"count": 1}}}
    elsewhere = {"metadata": {"name": "c", "namespace": "team"}, "spec": {"devices": {"count": 2}}}
    scenario = parse_scenario({"claims": [claim, elsewhere]})
    assert {key: claim.devices.count for key, claim in scenario.claims.items() if isinstance(claim, ClaimSpec)} == {
        ("default", "c"): 1,
        ("team", "c"): 2,
    }


def test_a_malformed_claim_refuses_its_pods_and_is_reported():
    """CLAIM-3 a claim for 0 devices is refused, its pod held with a reason, others go on."""
    scenario = parse_scenario(
        {
            "nodes": [NODE],
            "claims": [
                {"metadata": {"name": "zero"}, "spec": {"devices": {"count": 0}}},
                {"metadata": {"name": "one"}, "spec": {"devices": {"count": 1}}},
            ],
            "pods": [
                {"metadata": {"name": "a", "annotations": {"gpu.scheduling/claim": "zero"}}},
                {"metadata": {"name": "b", "annotations": {"gpu.scheduling/claim": "one"}}},
                {"metadata": {"name": "c", "annotations": {"gpu.scheduling/claim": "missing"}}},
            ],
        }
    )
    assert isinstance(scenario.claims[("default", "zero")], Refusal)
    assert scenario.problems == ("claims[0]: spec.devices.count must be 1 to 1000",)
    first, second, third = run_scenario(scenario).decisions
    assert (first.node, second.node, third.node) == (None, "n1", None)
    assert first.reasons["n1"].startswith("GpuClaim zero is malformed")
    assert "does not exist" in third.summary


@pytest.mark.parametrize(
    ("value", "want_field", "want_rule"),
    [
        pytest.param([], "", "type", id="not an object"),
        pytest.param({"node": []}, "node", "unknown-field", id="a slip of the pen"),
        pytest.param({"nodes": {}}, "nodes", "type", id="nodes not a list"),
        pytest.param({"nodes": [{"name": "-"}]}, "nodes[0].name", "dns-subdomain", id="node name"),
        pytest.param({"nodes": [NODE, {"name": "n1"}]}, "nodes[1].name", "duplicate", id="node twice"),
        pytest.param(
            {"nodes": [NODE, {"name": "n2", "devices": [GPU]}]},
            "nodes[1].devices[0].uuid",
            "duplicate",
            id="uuid twice",
        ),
        pytest.param({"claims": [{"spec": {}}]}, "claims[0].metadata", "type", id="claim without metadata"),
        pytest.param({"claims": [{"metadata": {}}]}, "claims[0].metadata.name", "required", id="claim without name"),
        pytest.param({"pods": [1]}, "pods[0]", "type", id="pod not an object"),
        pytest.param({"pods": [{}]}, "pods[0].metadata.name", "required", id="pod without name"),
        pytest.param({"pods": [{"kind": "Job", **POD}]}, "pods[0].kind", "choice", id="not a pod"),
        pytest.param({"pods": [POD, POD]}, "pods[1].metadata.name", "duplicate", id="pod twice"),
        pytest.param(
            {"pods": [{**POD, "spec": {"containers": [{"name": 1}]}}]},
            "pods[0].spec.containers[0].name",
            "type",
            id="a pod's own field",
        ),
        pytest.param(
            {"pods": [{**POD, "spec": {"nodeName": "../x"}}]}, "pods[0].spec.nodeName", "dns-subdomain", id="node name"
        ),
        pytest.param({"options": {"share": "most"}}, "options.share", "choice", id="unknown option value"),
        pytest.param({"options": {"shares": "gpupack"}}, "options.shares", "unknown-field", id="unknown option"),
        pytest.param({"gangs": ["x"]}, "gangs[0]", "type", id="gang not an object"),
        pytest.param({"lines": []}, "lines", "unknown-field", id="unknown at the top"),
        pytest.param({"nodes": [{**NODE, "rack": 1}]}, "nodes[0].rack", "unknown-field", id="unknown in a node"),
        pytest.param(
            {"nodes": [{"name": "n1", "devices": [{**GPU, "slot": 1}]}]},
            "nodes[0].devices[0].slot",
            "unknown-field",
            id="unknown in a device",
        ),
        pytest.param({"options": {"seed": 1}}, "options.seed", "unknown-field", id="unknown in the options"),
        pytest.param({"nodes": [{**NODE, "taints": {}}]}, "nodes[0].taints", "type", id="taints not a list"),
        pytest.param(
            {"nodes": [{**NODE, "taints": [{"effect": "NoSchedule"}]}]},
            "nodes[0].taints[0].key",
            "required",
            id="a taint without key",
        ),
        pytest.param(
            {"nodes": [{**NODE, "taints": [{"key": "a", "effect": "Never"}]}]},
            "nodes[0].taints[0].effect",
            "choice",
            id="a taint of no such effect",
        ),
        pytest.param(
            {"nodes": [{**NODE, "taints": [{"key": "a"}]}]}, "nodes[0].taints[0].effect", "required", id="no effect"
        ),
        pytest.param(
            {"nodes": [{**NODE, "unschedulable": 1}]}, "nodes[0].unschedulable", "type", id="a cordon is a flag"
        ),
        pytest.param(
            {"pods": [{**POD, "spec": {"tolerations": {}}}]}, "pods[0].spec.tolerations", "type", id="tolerations"
        ),
    ],
)
def test_refused(value, want_field, want_rule):
    with pytest.raises(BadInput) as caught:
        parse_scenario(value)
    assert (caught.value.field, caught.value.rule) == (want_field, want_rule)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(nodes=1), id="nodes"),
        pytest.param(Limits(devices=1), id="devices"),
        pytest.param(Limits(pods=1), id="pods"),
        pytest.param(Limits(questions=3), id="pods times nodes"),
    ],
)
def test_limits(limits):
    nodes = [NODE, {"name": "n2", "devices": [{**GPU, "uuid": "GPU-1"}]}]
    pods = [{"metadata": {"name": name}} for name in ("a", "b")]
    parse_scenario({"nodes": nodes, "pods": pods})
    with pytest.raises(TooLarge):
        parse_scenario({"nodes": nodes, "pods": pods}, limits=limits)


def test_rules_that_would_take_too_long():
    """Each different set of rules is held against each node once; a template's pods share theirs."""
    selected = [
        {"metadata": {"name": f"p{at}"}, "spec": {"nodeSelector": {f"k{at % 2}": "v", "l": "v"}}} for at in range(10)
    ]
    parse_scenario({"nodes": [NODE], "pods": selected}, limits=Limits(rules=10))
    other = [{**pod, "spec": {"nodeSelector": {f"k{at}": "v", "l": "v"}}} for at, pod in enumerate(selected)]
    with pytest.raises(TooLarge, match="rules"):
        parse_scenario({"nodes": [NODE], "pods": other}, limits=Limits(rules=10))


def test_what_kubectl_writes_is_taken():
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "creationTimestamp": None, "managedFields": [{"manager": "x"}]},
        "spec": {"containers": [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {},
    }
    (pod,) = parse_scenario({"pods": [manifest]}).pods
    assert pod.metadata.name == "web-0"


def test_manifests_are_read_as_the_api_server_reads_them():
    """VIEW-4 unknown fields are passed over, those of gpuplane's own kinds with a word about it."""
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"count": 1, "memroy": "8Gi"}, "note": 1}, "extra": 1}
    gang = {"metadata": {"name": "g"}, "specs": {}, "spec": {"minMember": 2}}
    pod = {"metadata": {"name": "p"}, "spec": {"container": [], "containers": []}, "specs": 1}
    queue = {"metadata": {"name": "q", "labels": {}}, "spec": {"quotas": [{"deserve": 1}], "weight": 1}}
    scenario = parse_scenario({"claims": [claim], "gangs": [gang], "queues": [queue], "pods": [pod]})
    assert isinstance(scenario.claims["default", "c"], ClaimSpec)
    assert scenario.problems == (
        "claims[0].extra is not a field of GpuClaim and is passed over",
        "claims[0].spec.note is not a field of GpuClaim and is passed over",
        "claims[0].spec.devices.memroy is not a field of GpuClaim and is passed over",
        "gangs[0].specs is not a field of GpuGang and is passed over",
        "queues[0].spec.quotas[0].deserve is not a field of GpuQueue and is passed over",
        "queues[0].spec.weight is not a field of GpuQueue and is passed over",
    )


KEYS = [
    "taints",
    "unschedulable",
    "affinity",
    "tolerations",
    "nodes",
    "claims",
    "pods",
    "gangs",
    "options",
    "metadata",
    "spec",
    "name",
    "devices",
    "share",
    "annotations",
]
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=15,
)


@given(ODD)
def test_nothing_but_bad_input_is_raised(value):
    for attempt in (value, {"pods": [value]}, {"claims": [value]}, {"nodes": [NODE], "options": value}):
        with suppress(BadInput):
            run_scenario(parse_scenario(attempt))
