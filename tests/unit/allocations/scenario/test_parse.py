"""Scenarios: what is taken, and what is refused by field and rule."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.errors import BadInput, TooLarge
from allocations.scenario import Limits, parse_scenario, run_scenario
from claims.dialects.gpuclaim import ClaimSpec
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


KEYS = ["nodes", "claims", "pods", "gangs", "options", "metadata", "spec", "name", "devices", "share", "annotations"]
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
