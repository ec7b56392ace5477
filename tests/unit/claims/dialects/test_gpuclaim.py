from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claims.dialects.claim_manifest import (
    ClaimDevices,
    ClaimSpec,
    parse_claim_manifest,
    parse_claim_spec,
    stored_claim,
)
from claims.dialects.gpuclaim import claim_request
from claims.dialects.request import DeviceAsk, Dialect, Policy, Refusal
from claims.manifest_metadata import ManifestInvalid

GI = 1024**3


def manifest(devices: Any, **spec: Any) -> Any:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"devices": devices, **spec},
    }


def test_the_sources_claim():
    """CLAIM-1 the manifest of the source document is read."""
    metadata, spec = parse_claim_manifest(
        {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": "my-gpu-request", "creationTimestamp": None, "managedFields": [{}]},
            "spec": {"devices": {"count": 2, "policy": "contiguous"}},
        }
    )
    assert metadata.name == "my-gpu-request"
    assert spec == ClaimSpec(devices=ClaimDevices(count=2, policy=Policy.CONTIGUOUS))


def spec_manifest(spec: ClaimSpec) -> dict[str, Any]:
    """The spec as a manifest has it, defaults left out."""
    devices = msgspec.to_builtins(spec.devices)
    names = {"memory_bytes": "memory", "memory_ratio": "memoryRatio", "policy_strict": "policyStrict"}
    written = {"devices": {names.get(key, key): value for key, value in devices.items()}}
    return written | {
        name: value for name, value in (("gangRef", spec.gang_ref), ("ttlSeconds", spec.ttl_seconds)) if value
    }


@pytest.mark.parametrize(
    ("devices", "want"),
    [
        pytest.param({"count": 2}, DeviceAsk(type="gpu", count=2), id="whole"),
        pytest.param(
            {"count": 1, "core": 100, "memoryRatio": 100}, DeviceAsk(type="gpu", count=1), id="all of both is whole"
        ),
        pytest.param(
            {"count": 1, "core": 100}, DeviceAsk(type="gpu", count=1, core_percent=100), id="all the core is a share"
        ),
        pytest.param({"count": 1, "core": 30}, DeviceAsk(type="gpu", count=1, core_percent=30), id="core alone"),
        pytest.param(
            {"count": 1, "memory": "16Gi"},
            DeviceAsk(type="gpu", count=1, core_percent=0, memory_bytes=16 * GI),
            id="memory takes core 0",
        ),
        pytest.param(
            {"count": 1, "memoryRatio": 100},
            DeviceAsk(type="gpu", count=1, core_percent=0, memory_ratio=100),
            id="all the memory is a share",
        ),
        pytest.param(
            {"count": 2, "model": ["H100 MIG 1g.10gb+me", "A100 mig 1g.10gb+me"]},
            DeviceAsk(type="mig-1g.10gb.me", count=2, models=("H100 MIG 1g.10gb+me", "A100 mig 1g.10gb+me")),
            id="MIG instances",
        ),
        pytest.param(
            {"count": 3, "core": 50, "memory": 1024, "model": ["H100", "A100"]},
            DeviceAsk(type="gpu", count=3, core_percent=50, memory_bytes=1024, models=("H100", "A100")),
            id="shares of three",
        ),
        pytest.param(
            {"count": 1, "type": "rdma", "core": 50}, DeviceAsk(type="rdma", count=1, core_percent=50), id="half a NIC"
        ),
        pytest.param(
            {
                "count": 1,
                "type": None,
                "model": None,
                "core": None,
                "memory": None,
                "memoryRatio": None,
                "policy": None,
                "policyStrict": None,
            },
            DeviceAsk(type="gpu", count=1),
            id="null is not given",
        ),
    ],
)
def test_what_a_claim_asks_for(devices, want):
    """CLAIM-2 amounts are per device; a claim without core and memory means whole devices, all else is a share."""
    spec = parse_claim_manifest(manifest(devices))[1]
    assert claim_request(spec, name="train").asks == (want,)
    assert parse_claim_spec(spec_manifest(spec)) == spec


def test_a_claim_without_pods():
    """CLAIM-10 the same spec makes a request for a REST client."""
    request = claim_request(
        ClaimSpec(devices=ClaimDevices(count=1), ttl_seconds=60), name="train", dialect=Dialect.REST
    )
    assert (request.dialect, request.ttl_seconds, request.claim) == (Dialect.REST, 60, "train")


@pytest.mark.parametrize(
    ("body", "want_field", "want_rule"),
    [
        pytest.param(None, "", "type", id="null"),
        pytest.param([], "", "type", id="a list"),
        pytest.param({}, "metadata", "required", id="empty"),
        pytest.param(manifest({"count": 1}) | {"kind": "GpuGang"}, "kind", "constant", id="another kind"),
        pytest.param(
            manifest({"count": 1}) | {"apiVersion": "gpu.scheduling/v2"}, "apiVersion", "constant", id="another version"
        ),
        pytest.param(manifest({"count": 1}) | {"spce": {}}, "spce", "unknown-field", id="misspelt spec"),
        pytest.param(manifest({"count": 1}) | {"spec": None}, "spec", "required", id="no spec"),
        pytest.param(manifest({"count": 1}) | {"spec": []}, "spec", "type", id="spec is a list"),
        pytest.param(
            manifest({"count": 1}) | {"metadata": {"name": "A"}}, "metadata.name", "dns-subdomain", id="bad name"
        ),
        pytest.param(manifest({"count": 1}) | {"metadata": {}}, "metadata.name", "dns-subdomain", id="no name"),
        pytest.param(manifest({"count": 1}) | {"metadata": {"name": 5}}, "metadata", "type", id="name is a number"),
        pytest.param(
            manifest({"count": 1}) | {"metadata": {"name": "a", "namespace": "a.b"}},
            "metadata.namespace",
            "dns-label",
            id="bad namespace",
        ),
        pytest.param(
            manifest({"count": 1}) | {"metadata": {"name": "a", "labels": {"a": 1}}},
            "metadata",
            "type",
            id="label is a number",
        ),
        pytest.param(manifest(None), "spec.devices", "required", id="no devices"),
        pytest.param(manifest([]), "spec.devices", "type", id="devices is a list"),
        pytest.param(manifest({}), "spec.devices.count", "required", id="no count"),
        pytest.param(manifest({"count": 0}), "spec.devices.count", "range", id="0 devices"),
        pytest.param(manifest({"count": -1}), "spec.devices.count", "range", id="negative"),
        pytest.param(manifest({"count": 1001}), "spec.devices.count", "range", id="too many"),
        pytest.param(manifest({"count": 10**5000}), "spec.devices.count", "range", id="a number too long to print"),
        pytest.param(manifest({"count": "2"}), "spec.devices.count", "type", id="count is text"),
        pytest.param(manifest({"count": True}), "spec.devices.count", "type", id="count is true"),
        pytest.param(manifest({"count": 1.5}), "spec.devices.count", "type", id="count is a fraction"),
        pytest.param(manifest({"count": float("nan")}), "spec.devices.count", "type", id="count is NaN"),
        pytest.param(manifest({"count": 1, "core": 0}), "spec.devices.core", "range", id="core 0"),
        pytest.param(manifest({"count": 1, "core": 101}), "spec.devices.core", "range", id="core 101"),
        pytest.param(manifest({"count": 1, "memoryRatio": 0}), "spec.devices.memoryRatio", "range", id="ratio 0"),
        pytest.param(manifest({"count": 1, "memoryRatio": 101}), "spec.devices.memoryRatio", "range", id="ratio 101"),
        pytest.param(manifest({"count": 1, "memory": "0"}), "spec.devices.memory", "range", id="memory 0"),
        pytest.param(manifest({"count": 1, "memory": "16GB"}), "spec.devices.memory", "quantity", id="GB"),
        pytest.param(manifest({"count": 1, "memory": -1}), "spec.devices.memory", "quantity", id="negative memory"),
        pytest.param(manifest({"count": 1, "memory": {}}), "spec.devices.memory", "quantity", id="memory is an object"),
        pytest.param(
            manifest({"count": 1, "memory": "1Gi", "memoryRatio": 5}),
            "spec.devices.memoryRatio",
            "memory-and-ratio",
            id="both memories",
        ),
        pytest.param(
            manifest({"count": 1, "memoryratio": 5}), "spec.devices.memoryratio", "unknown-field", id="misspelt ratio"
        ),
        pytest.param(manifest({"count": 1, 5: 5}), "spec.devices.5", "unknown-field", id="key is a number"),
        pytest.param(manifest({"count": 1, "type": "GPU"}), "spec.devices.type", "dns-label", id="bad type"),
        pytest.param(manifest({"count": 1, "type": ""}), "spec.devices.type", "dns-label", id="empty type"),
        pytest.param(manifest({"count": 1, "model": "H100"}), "spec.devices.model", "type", id="model is text"),
        pytest.param(
            manifest({"count": 1, "model": ["H100", "H100 MIG 1g.10gb"]}),
            "spec.devices.model",
            "mig-mixed",
            id="GPUs and parts",
        ),
        pytest.param(
            manifest({"count": 1, "model": ["A MIG 1g.5gb", "A MIG 2g.10gb"]}),
            "spec.devices.model",
            "mig-mixed",
            id="profiles",
        ),
        pytest.param(
            manifest({"count": 1, "core": 50, "model": ["A MIG 1g.5gb"]}),
            "spec.devices.core",
            "mig-share",
            id="half a part",
        ),
        pytest.param(
            manifest({"count": 2, "model": ["A MIG 1g.5gb"], "policy": "contiguous", "policyStrict": True}),
            "spec.devices.policyStrict",
            "mig-island",
            id="parts on one island",
        ),
        pytest.param(manifest({"count": 1, "model": [5]}), "spec.devices.model", "model-name", id="model is a number"),
        pytest.param(manifest({"count": 1, "model": [" "]}), "spec.devices.model", "model-name", id="model is blank"),
        pytest.param(manifest({"count": 1, "model": ["a"] * 65}), "spec.devices.model", "type", id="too many models"),
        pytest.param(manifest({"count": 1, "policy": "best"}), "spec.devices.policy", "choice", id="unknown policy"),
        pytest.param(manifest({"count": 1, "policy": 1}), "spec.devices.policy", "choice", id="policy is a number"),
        pytest.param(
            manifest({"count": 1, "policyStrict": "yes"}), "spec.devices.policyStrict", "type", id="strict is text"
        ),
        pytest.param(manifest({"count": 1}, ttlSeconds=0), "spec.ttlSeconds", "range", id="ttl 0"),
        pytest.param(manifest({"count": 1}, ttlSeconds=10**12), "spec.ttlSeconds", "range", id="ttl for ever"),
        pytest.param(manifest({"count": 1}, resize="yes"), "spec.resize", "type", id="resize is a word"),
        pytest.param(manifest({"count": 1}, ttlSeconds=1.0), "spec.ttlSeconds", "type", id="ttl is a float"),
        pytest.param(manifest({"count": 1}, gangRef="A/b"), "spec.gangRef", "dns-subdomain", id="bad gang"),
        pytest.param(manifest({"count": 1}, gangRef=5), "spec.gangRef", "dns-subdomain", id="gang is a number"),
        pytest.param(manifest({"count": 1}, ttlseconds=5), "spec.ttlseconds", "unknown-field", id="misspelt ttl"),
    ],
)
def test_malformed_claims_are_refused_with_field_and_rule(body, want_field, want_rule):
    """CLAIM-3 a malformed claim is refused; the error names the field and the rule."""
    with pytest.raises(ManifestInvalid) as caught:
        parse_claim_manifest(body)
    assert (caught.value.field, caught.value.rule) == (want_field, want_rule)
    assert caught.value.message == str(caught.value)
    stored: Any = stored_claim("train", body) if body is not None else Refusal(rule="claim-malformed", reason="")
    assert stored.rule == "claim-malformed"


def test_a_misspelt_field_gets_advice():
    with pytest.raises(ManifestInvalid, match=r"did you mean memoryRatio\?"):
        parse_claim_manifest(manifest({"count": 1, "memoryratio": 5}))


def test_a_generated_name_is_a_name_only_where_that_is_allowed():
    body = manifest({"count": 1}) | {"metadata": {"generateName": "train-"}}
    assert parse_claim_manifest(body, generated_name=True)[0].generate_name == "train-"
    with pytest.raises(ManifestInvalid):
        parse_claim_manifest(body)
    with pytest.raises(ManifestInvalid):
        parse_claim_manifest(body | {"metadata": {"generateName": "Train-"}}, generated_name=True)


def test_gangs_are_accepted_in_a_claim():
    assert parse_claim_manifest(manifest({"count": 1}, gangRef="job"))[1].gang_ref == "job"
    assert parse_claim_manifest(manifest({"count": 1}, gangRef=""))[1].gang_ref == ""


def test_what_is_stored_is_found():
    assert stored_claim("train", None) is None
    assert stored_claim("train", manifest({"count": 1})) == ClaimSpec(devices=ClaimDevices(count=1))
    refusal: Any = stored_claim("train", manifest({"count": 0}))
    assert refusal.reason == "GpuClaim train is malformed: spec.devices.count must be 1 to 1000"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["count", "type", "model", "core", "memory", "memoryRatio", "policy", "policyStrict", "x"])
DEVICES = st.dictionaries(KEYS, JSON | st.sampled_from([1, 2, 50, "16Gi", "gpu", "spread", True, ["H100"]]), max_size=5)


@given(
    st.one_of(
        JSON,
        DEVICES.map(manifest),
        st.builds(lambda devices, ttl, gang: manifest(devices, ttlSeconds=ttl, gangRef=gang), DEVICES, JSON, JSON),
    )
)
def test_nothing_raises_anything_else(body):
    """CLAIM-3 arbitrary input is a claim that writes back to itself, or `ManifestInvalid`."""
    try:
        spec = parse_claim_manifest(body)[1]
    except ManifestInvalid as invalid:
        refused = (invalid.field, invalid.rule, invalid.message)
        assert all(isinstance(part, str) for part in refused)
        return
    assert parse_claim_spec(spec_manifest(spec)) == spec
