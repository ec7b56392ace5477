from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claims.dialects.claim_manifest import ClaimDevices, ClaimSpec
from claims.dialects.parse import (
    asks_device_plugin,
    asks_for_devices,
    dialect_of,
    foreign_dialect,
    may_run_with_devices,
    parse_pod,
)
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Policy, Refusal
from kube.keys import CLAIM, VISIBLE_DEVICES
from kube.objects import Pod

GI = 1024**3


def container(requests: Any = None, limits: Any = None, **more: Any) -> Any:
    return {"resources": {"requests": requests, "limits": limits}, **more}


def pod(*containers: Any, init: Any = (), annotations: Any = None, namespace: Any = "team") -> Any:
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": namespace, "annotations": annotations},
            "spec": {"containers": list(containers), "initContainers": list(init)},
        },
        Pod,
    )


def parse(asked: Any, claims: Any = None) -> Any:
    return parse_pod(asked, find_claim=lambda namespace, name: (claims or {}).get((namespace, name)))


def sidecar(requests: Any) -> Any:
    return container(requests, restartPolicy="Always")


def gpu(amount: Any) -> Any:
    return {"kubernetes.io/gpu": amount}


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(
            pod(container({"nvidia.com/gpu": "2", "cpu": "4"})), DeviceAsk(type="gpu", count=2), id="nvidia.com/gpu: 2"
        ),
        pytest.param(
            pod(container({"nvidia.com/mig-1g.10gb": "2"})), DeviceAsk(type="mig-1g.10gb", count=2), id="MIG instances"
        ),
        pytest.param(
            pod(container({"kubernetes.io/gpu": "50", "memory": "8Gi"})),
            DeviceAsk(type="gpu", count=1, core_percent=50, memory_ratio=50),
            id="kubernetes.io/gpu: 50",
        ),
        pytest.param(
            pod(container({"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "60"})),
            DeviceAsk(type="gpu", count=1, core_percent=50, memory_ratio=60),
            id="core 50, ratio 60",
        ),
        pytest.param(
            pod(container({"kubernetes.io/gpu-core": "60", "kubernetes.io/gpu-memory": "4Gi"})),
            DeviceAsk(type="gpu", count=1, core_percent=60, memory_bytes=4 * GI),
            id="core 60, memory 4Gi",
        ),
        pytest.param(pod(container({"kubernetes.io/rdma": "100"})), DeviceAsk(type="rdma", count=1), id="rdma: 100"),
    ],
)
def test_the_sources_examples(asked, want):
    """DEV-2 the translations of the source: two whole GPUs are core 200 and ratio 200, and so on."""
    assert parse(asked).asks == (want,)


@pytest.mark.parametrize(
    ("asked", "want_count"),
    [
        pytest.param(pod(container(gpu("100")), container(gpu("200"))), 3, id="containers add up"),
        pytest.param(pod(container(gpu("100")), init=[container(gpu("400"))]), 4, id="a larger init container counts"),
        pytest.param(pod(container(gpu("300")), init=[container(gpu("200"))]), 3, id="a smaller one does not"),
        pytest.param(
            pod(container(gpu("100")), init=[container(gpu("200")), container(gpu("300"))]),
            3,
            id="init containers follow each other",
        ),
        pytest.param(
            pod(container(gpu("100")), init=[sidecar(gpu("100"))]), 2, id="a sidecar runs beside the containers"
        ),
        pytest.param(
            pod(container(gpu("100")), init=[sidecar(gpu("100")), container(gpu("300"))]),
            4,
            id="and beside later init containers",
        ),
        pytest.param(
            pod(container(gpu("100")), init=[container(gpu("300")), sidecar(gpu("100"))]),
            3,
            id="but not beside earlier ones",
        ),
        pytest.param(pod(container(), init=[container(gpu("200"))]), 2, id="init container alone"),
        pytest.param(pod(container(limits=gpu("200"))), 2, id="limits alone"),
        pytest.param(pod(container(gpu("200"), gpu("200"))), 2, id="requests and limits the same"),
        pytest.param(pod(container(gpu("200"), gpu("2e2"))), 2, id="the same in another spelling"),
        pytest.param(
            pod(container({}, gpu("100")), container(gpu("100"), {})), 2, id="each container states its own way"
        ),
        pytest.param(pod(container(gpu(100)), container(gpu(100.0))), 2, id="numbers instead of text"),
    ],
)
def test_a_pods_amounts(asked, want_count):
    """DEV-2 the sum over containers and sidecars, or the largest init container where that is more."""
    assert parse(asked).asks == (DeviceAsk(type="gpu", count=want_count),)


def test_parts_of_several_containers_are_summed_before_the_rules():
    """DEV-2 the rules look at the pod's sums: core in one container and memory in another are one share."""
    asked = pod(container({"koordinator.sh/gpu-core": "50"}), container({"koordinator.sh/gpu-memory": "8Gi"}))
    assert parse(asked).asks == (DeviceAsk(type="gpu", count=1, core_percent=50, memory_bytes=8 * GI),)
    assert parse(pod(container(gpu("60")), container(gpu("60")))).rule == "multiple-of-100"


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(pod(container(gpu("50"), gpu("100"))), id="half requested"),
        pytest.param(pod(container(gpu("100"), gpu("0"))), id="limit 0"),
    ],
)
def test_requests_that_differ_from_limits_are_refused(asked):
    """DEV-3 devices cannot be overcommitted."""
    assert parse(asked).rule == "requests-differ"


def test_sums_that_overflow_are_refused():
    """DEV-1 amounts stay within what can be counted."""
    most = {"koordinator.sh/gpu-memory": str(2**63 - 1)}
    assert parse(pod(container(most), container(most))).rule == "quantity"


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(pod(), id="no containers"),
        pytest.param(pod(container({"cpu": "1", "memory": "1Gi"})), id="no devices"),
        pytest.param(
            pod(container({"nvidia.com/gpu": "0", "koordinator.sh/gpu": 0, "nvidia.com/gpumem": "0"})), id="zeros"
        ),
        pytest.param(
            pod(container({"koordinator.sh/batch-cpu": "1000", "amd.com/gpu": "1"})), id="resources of others"
        ),
        pytest.param(
            pod(annotations={"gpu.scheduling/allocated": "n:0", "note": "gpu-memory"}), id="results are no request"
        ),
    ],
)
def test_pods_that_ask_for_nothing(asked):
    """DEV-3 a resource of quantity 0 counts as not asked; other people's pods are not ours."""
    assert parse(asked) is None
    assert not asks_for_devices(asked)
    assert dialect_of(asked) is None


CLAIMED = {CLAIM: "train"}
NATIVE = {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(NATIVE, (True, True, True), id="whole GPUs"),
        pytest.param({"nvidia.com/gpu.shared": "1"}, (False, True, True), id="GPUs that the plugin shares"),
        pytest.param({"nvidia.com/gpu.shared": "0"}, (False, False, False), id="none of them"),
        pytest.param(gpu("50"), (True, True, False), id="koordinator"),
        pytest.param({"cpu": "1"}, (False, False, False), id="no GPUs"),
    ],
)
def test_who_may_run_with_devices(asked, want):
    """DEV-3 DEV-8 a pod past gpuplane may have GPUs that no dialect asks for."""
    one = pod(container(asked))
    assert (asks_for_devices(one), may_run_with_devices(one), asks_device_plugin(one)) == want


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(pod(container(NATIVE), annotations=CLAIMED), id="claim and nvidia.com/gpu"),
        pytest.param(pod(container(gpu("50")), annotations=CLAIMED), id="claim and koordinator"),
        pytest.param(pod(container({"koordinator.sh/rdma": "50"}), annotations=CLAIMED), id="claim and RDMA"),
        pytest.param(pod(container(NATIVE | {"koordinator.sh/gpu-core": "50"})), id="native and koordinator"),
        pytest.param(pod(container(NATIVE), container(gpu("50"))), id="in two containers"),
        pytest.param(pod(container(NATIVE), annotations={"gpu-fraction": "0.5"}), id="native and KAI"),
        pytest.param(pod(container(), annotations=CLAIMED | {"gpu-memory": "2000"}), id="claim and KAI"),
        pytest.param(pod(container(NATIVE | {"nvidia.com/gpumem": "1000"}), annotations=CLAIMED), id="claim and HAMi"),
        pytest.param(pod(container(gpu("50") | {"nvidia.com/gpucores": "10"})), id="koordinator and HAMi"),
    ],
)
def test_two_dialects_are_refused(asked):
    """DEV-3 a pod speaks one dialect."""
    assert parse(asked, {("team", "train"): ClaimSpec(devices=ClaimDevices(count=1))}).rule == "two-dialects"
    assert asks_for_devices(asked)
    refusal: Any = dialect_of(asked)
    assert refusal.rule == "two-dialects"
    assert foreign_dialect(asked) is None


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(pod(container(NATIVE | {"nvidia.com/gpumem": "1000"})), "hami", id="HAMi"),
        pytest.param(pod(container(), annotations={"gpu-fraction": "0.5"}), "kai", id="KAI"),
        pytest.param(pod(container(), annotations={"gpu-fraction": "much"}), "kai", id="KAI, malformed"),
        pytest.param(pod(container(NATIVE)), None, id="native"),
        pytest.param(pod(container(gpu("50"))), None, id="Koordinator"),
        pytest.param(pod(container(), annotations=CLAIMED), None, id="GpuClaim"),
        pytest.param(pod(container({"nvidia.com/gpumem": "much"})), None, id="an amount that is none"),
    ],
)
def test_dialects_with_a_scheduler_of_their_own(asked, want):
    """DEV-11 pods that another scheduler in the same cluster may be serving are known as such."""
    assert foreign_dialect(asked) == want


TRAIN = ClaimSpec(
    devices=ClaimDevices(count=2, model=("H100",), policy=Policy.CONTIGUOUS, policy_strict=True), ttl_seconds=60
)


def test_a_claim_serves_every_pod_that_names_it():
    """CLAIM-2 each pod that names a claim asks for what the claim says."""
    want = DeviceRequest(
        asks=(DeviceAsk(type="gpu", count=2, models=("H100",)),),
        policy=Policy.CONTIGUOUS,
        policy_strict=True,
        dialect=Dialect.GPUCLAIM,
        claim="train",
        ttl_seconds=60,
    )
    claims = {("team", "train"): TRAIN, ("default", "train"): TRAIN}
    for asked in (
        pod(container(), annotations=CLAIMED),
        pod(annotations=CLAIMED),
        pod(annotations=CLAIMED, namespace=""),
    ):
        assert parse(asked, claims) == want


MALFORMED = Refusal(rule="claim-malformed", reason="GpuClaim train is malformed: spec.devices.count must be 1 to 1000")


@pytest.mark.parametrize(
    ("value", "claims", "want_rule", "want_text"),
    [
        pytest.param(
            "train",
            {},
            "claim-missing",
            "GpuClaim train does not exist in the namespace of the pod",
            id="does not exist",
        ),
        pytest.param(
            "train", {("other", "train"): TRAIN}, "claim-missing", "does not exist", id="in another namespace"
        ),
        pytest.param(
            "train", {("team", "train"): MALFORMED}, "claim-malformed", "count must be 1 to 1000", id="malformed"
        ),
        pytest.param(
            "other/train", {("other", "train"): TRAIN}, "claim-name", "another namespace", id="names a namespace"
        ),
        pytest.param(
            "team/train", {("team", "train"): TRAIN}, "claim-name", "write only the name", id="names its own namespace"
        ),
        pytest.param("", {}, "claim-name", "DNS-1123 subdomain", id="empty"),
        pytest.param("Train", {}, "claim-name", "DNS-1123 subdomain", id="capital"),
        pytest.param("a" * 300, {}, "claim-name", "DNS-1123 subdomain", id="too long"),
        pytest.param("..", {}, "claim-name", "DNS-1123 subdomain", id="dots"),
    ],
)
def test_claims_that_cannot_serve(value, claims, want_rule, want_text):
    """CLAIM-3 a missing, malformed or foreign claim is a refusal that a person can act on, never a crash."""
    refusal = parse(pod(container(), annotations={CLAIM: value}), claims)
    assert isinstance(refusal, Refusal)
    assert refusal.rule == want_rule
    assert want_text in refusal.reason


def test_a_claim_pod_that_renumbers_its_devices_needs_uuids():
    """CLAIM-7 where NVIDIA_VISIBLE_DEVICES comes from our annotation, the request asks for UUIDs."""
    reference = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE_DEVICES}']"}}
    claims = {("team", "train"): TRAIN}
    for name, value_from, want in (
        ("NVIDIA_VISIBLE_DEVICES", reference, True),
        ("CUDA_VISIBLE_DEVICES", reference, False),
        ("NVIDIA_VISIBLE_DEVICES", {"fieldRef": {"fieldPath": "metadata.name"}}, False),
    ):
        asked = pod(container(env=[{"name": name, "valueFrom": value_from}]), annotations=CLAIMED)
        assert parse(asked, claims).uuids is want


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *(f"{prefix}/{name}" for prefix in ("kubernetes.io", "koordinator.sh")
          for name in ("gpu", "gpu.shared", "gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma", "fpga")),
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "cpu",
    ]
)  # fmt: skip
AMOUNTS = (
    st.sampled_from(["0", "1", "2", "50", "100", "150", "200", "1Gi", "16GB", "-1", "NaN", "1e400", "", "0.5"])
    | st.integers()
    | st.text(max_size=5)
    | st.floats()
)
RESOURCES = st.none() | st.dictionaries(NAMES, AMOUNTS | JSON, max_size=4)
CONTAINER = st.fixed_dictionaries(
    {},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"requests": RESOURCES, "limits": RESOURCES}) | JSON,
        "restartPolicy": st.sampled_from(["Always", None, "x"]),
        "env": st.none() | st.lists(JSON, max_size=2),
    },
)
ANNOTATIONS = st.none() | st.dictionaries(
    st.sampled_from([CLAIM, "gpu-fraction", "gpu-memory", "x"]),
    st.sampled_from(["train", "a/b", "", "0.5"]) | JSON,
    max_size=3,
)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={"annotations": ANNOTATIONS, "namespace": st.text(max_size=5) | JSON}
        )
        | JSON,
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(CONTAINER, max_size=3) | JSON,
                "initContainers": st.lists(CONTAINER, max_size=2) | JSON,
            },
        )
        | JSON,
    },
)


@settings(max_examples=400, deadline=None)
@given(PODS)
def test_no_pod_raises(raw):
    """CLAIM-3 whatever JSON calls itself a pod is a request, a refusal or nothing; a request is well formed."""
    try:
        asked = msgspec.convert(raw, Pod)
    except msgspec.ValidationError:
        return
    parsed = parse(asked, {("team", "train"): TRAIN})
    assert parsed == parse(asked, {("team", "train"): TRAIN})
    if parsed is None or isinstance(parsed, Refusal):
        assert parsed is None or (parsed.rule and parsed.reason)
        return
    assert asks_for_devices(asked)
    assert dialect_of(asked) is parsed.dialect
    types = [ask.type for ask in parsed.asks]
    assert types == sorted(set(types), key=lambda name: (name != "gpu", name))
    for ask in parsed.asks:
        assert 1 <= ask.count <= 1000
        assert ask.whole or 0 <= ask.core_percent <= 100
        assert ask.memory_bytes is None or ask.memory_ratio is None
        assert ask.memory_bytes is None or 0 < ask.memory_bytes < 2**63
        assert ask.memory_ratio is None or 1 <= ask.memory_ratio <= 100
