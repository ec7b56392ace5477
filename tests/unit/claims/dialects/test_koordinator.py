"""Every mix of GPU resources, checked against a listing by hand from DEV-3 and Koordinator's own rules."""

import itertools
from typing import Any

import msgspec
import pytest

from claims.dialects.definition import RESOURCE_NAMES
from claims.dialects.parse import parse_pod
from claims.dialects.registry import REQUEST_RESOURCES
from claims.dialects.request import DeviceAsk, Dialect, Refusal
from kube.device_types import DeviceType
from kube.objects import Pod

GI = 1024**3
WHOLE = (None, None, None)

VALUES = {
    "nvidia.com/gpu": ("1", "2"),
    "gpu": ("50", "100", "150", "200"),
    "gpu.shared": ("2", "3"),
    "gpu-core": ("50", "100", "150", "200"),
    "gpu-memory": ("16Gi", "30Gi"),
    "gpu-memory-ratio": ("50", "100", "150", "200"),
}

# (what is asked) → (count, (core, memory bytes, ratio)), one line a valid mix. All else must be refused.
VALID = {
    ("nvidia.com/gpu=1",): (1, WHOLE),
    ("nvidia.com/gpu=2",): (2, WHOLE),
    ("gpu=50",): (1, (50, None, 50)),
    ("gpu=100",): (1, WHOLE),
    ("gpu=200",): (2, WHOLE),
    ("gpu-memory=16Gi",): (1, (0, 16 * GI, None)),
    ("gpu-memory=30Gi",): (1, (0, 30 * GI, None)),
    ("gpu-memory-ratio=50",): (1, (0, None, 50)),
    ("gpu-memory-ratio=100",): (1, (0, None, 100)),
    ("gpu-memory-ratio=200",): (2, (0, None, 100)),
    ("gpu-core=50", "gpu-memory=16Gi"): (1, (50, 16 * GI, None)),
    ("gpu-core=50", "gpu-memory=30Gi"): (1, (50, 30 * GI, None)),
    ("gpu-core=100", "gpu-memory=16Gi"): (1, (100, 16 * GI, None)),
    ("gpu-core=100", "gpu-memory=30Gi"): (1, (100, 30 * GI, None)),
    ("gpu-core=200", "gpu-memory=16Gi"): (2, (100, 8 * GI, None)),
    ("gpu-core=200", "gpu-memory=30Gi"): (2, (100, 15 * GI, None)),
    ("gpu-core=50", "gpu-memory-ratio=50"): (1, (50, None, 50)),
    ("gpu-core=50", "gpu-memory-ratio=100"): (1, (50, None, 100)),
    ("gpu-core=100", "gpu-memory-ratio=50"): (1, (100, None, 50)),
    ("gpu-core=100", "gpu-memory-ratio=100"): (1, WHOLE),
    ("gpu-core=50", "gpu-memory-ratio=200"): (2, (25, None, 100)),
    ("gpu-core=100", "gpu-memory-ratio=200"): (2, (50, None, 100)),
    ("gpu-core=200", "gpu-memory-ratio=200"): (2, WHOLE),
    ("gpu.shared=2", "gpu-memory=16Gi"): (2, (0, 8 * GI, None)),
    ("gpu.shared=2", "gpu-memory=30Gi"): (2, (0, 15 * GI, None)),
    ("gpu.shared=3", "gpu-memory=16Gi"): (3, (0, 5726623061, None)),
    ("gpu.shared=3", "gpu-memory=30Gi"): (3, (0, 10 * GI, None)),
    ("gpu.shared=2", "gpu-memory-ratio=50"): (2, (0, None, 25)),
    ("gpu.shared=2", "gpu-memory-ratio=100"): (2, (0, None, 50)),
    ("gpu.shared=2", "gpu-memory-ratio=150"): (2, (0, None, 75)),
    ("gpu.shared=2", "gpu-memory-ratio=200"): (2, (0, None, 100)),
    ("gpu.shared=3", "gpu-memory-ratio=150"): (3, (0, None, 50)),
    ("gpu.shared=2", "gpu-core=50", "gpu-memory=16Gi"): (2, (25, 8 * GI, None)),
    ("gpu.shared=2", "gpu-core=50", "gpu-memory=30Gi"): (2, (25, 15 * GI, None)),
    ("gpu.shared=2", "gpu-core=100", "gpu-memory=16Gi"): (2, (50, 8 * GI, None)),
    ("gpu.shared=2", "gpu-core=100", "gpu-memory=30Gi"): (2, (50, 15 * GI, None)),
    ("gpu.shared=2", "gpu-core=150", "gpu-memory=16Gi"): (2, (75, 8 * GI, None)),
    ("gpu.shared=2", "gpu-core=150", "gpu-memory=30Gi"): (2, (75, 15 * GI, None)),
    ("gpu.shared=2", "gpu-core=200", "gpu-memory=16Gi"): (2, (100, 8 * GI, None)),
    ("gpu.shared=2", "gpu-core=200", "gpu-memory=30Gi"): (2, (100, 15 * GI, None)),
    ("gpu.shared=3", "gpu-core=150", "gpu-memory=16Gi"): (3, (50, 5726623061, None)),
    ("gpu.shared=3", "gpu-core=150", "gpu-memory=30Gi"): (3, (50, 10 * GI, None)),
    ("gpu.shared=2", "gpu-core=50", "gpu-memory-ratio=50"): (2, (25, None, 25)),
    ("gpu.shared=2", "gpu-core=50", "gpu-memory-ratio=100"): (2, (25, None, 50)),
    ("gpu.shared=2", "gpu-core=50", "gpu-memory-ratio=150"): (2, (25, None, 75)),
    ("gpu.shared=2", "gpu-core=50", "gpu-memory-ratio=200"): (2, (25, None, 100)),
    ("gpu.shared=2", "gpu-core=100", "gpu-memory-ratio=50"): (2, (50, None, 25)),
    ("gpu.shared=2", "gpu-core=100", "gpu-memory-ratio=100"): (2, (50, None, 50)),
    ("gpu.shared=2", "gpu-core=100", "gpu-memory-ratio=150"): (2, (50, None, 75)),
    ("gpu.shared=2", "gpu-core=100", "gpu-memory-ratio=200"): (2, (50, None, 100)),
    ("gpu.shared=2", "gpu-core=150", "gpu-memory-ratio=50"): (2, (75, None, 25)),
    ("gpu.shared=2", "gpu-core=150", "gpu-memory-ratio=100"): (2, (75, None, 50)),
    ("gpu.shared=2", "gpu-core=150", "gpu-memory-ratio=150"): (2, (75, None, 75)),
    ("gpu.shared=2", "gpu-core=150", "gpu-memory-ratio=200"): (2, (75, None, 100)),
    ("gpu.shared=2", "gpu-core=200", "gpu-memory-ratio=50"): (2, (100, None, 25)),
    ("gpu.shared=2", "gpu-core=200", "gpu-memory-ratio=100"): (2, (100, None, 50)),
    ("gpu.shared=2", "gpu-core=200", "gpu-memory-ratio=150"): (2, (100, None, 75)),
    ("gpu.shared=2", "gpu-core=200", "gpu-memory-ratio=200"): (2, WHOLE),
    ("gpu.shared=3", "gpu-core=150", "gpu-memory-ratio=150"): (3, (50, None, 50)),
}


def pod(resources: Any, **more: Any) -> Any:
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "team"},
            "spec": {"containers": [{"resources": {"requests": resources}}]},
        }
        | more,
        Pod,
    )


def parse(resources: Any, **more: Any) -> Any:
    return parse_pod(pod(resources), find_claim=lambda namespace, name: None, **more)


def mixes() -> Any:
    for chosen in itertools.product(*[(None, *values) for values in VALUES.values()]):
        yield tuple((name, value) for name, value in zip(VALUES, chosen, strict=True) if value is not None)


@pytest.mark.parametrize("prefix", ["kubernetes.io", "koordinator.sh"])
def test_every_mix_of_gpu_resources(prefix):
    """DEV-3 of all mixes of the six names at typical values, exactly the listed ones are accepted, and as listed."""
    seen = set()
    for mix in mixes():
        asked = {name if "/" in name else f"{prefix}/{name}": value for name, value in mix}
        parsed = parse(asked)
        key = tuple(f"{name}={value}" for name, value in mix)
        if not mix:
            assert parsed is None
        elif key in VALID:
            seen.add(key)
            count, (core, memory, ratio) = VALID[key]
            want = DeviceAsk(type="gpu", count=count, core_percent=core, memory_bytes=memory, memory_ratio=ratio)
            assert parsed.asks == (want,), key
        else:
            assert isinstance(parsed, Refusal), key
            assert parsed.rule, key
            assert parsed.reason, key
    assert seen == set(VALID)


@pytest.mark.parametrize(
    ("asked", "want_rule", "want_text"),
    [
        pytest.param({"gpu-core": "50"}, "gpu-core-alone", "needs kubernetes.io/gpu-memory or", id="core alone"),
        pytest.param(
            {"gpu-memory": "1Gi", "gpu-memory-ratio": "5"}, "memory-and-ratio", "not for both", id="both memories"
        ),
        pytest.param(
            {"gpu-core": "5", "gpu-memory": "1Gi", "gpu-memory-ratio": "5"},
            "memory-and-ratio",
            "",
            id="all three parts",
        ),
        pytest.param(
            {"gpu": "50", "gpu-core": "50"}, "units-with-parts", "leave out kubernetes.io/gpu-core", id="gpu with core"
        ),
        pytest.param(
            {"gpu": "50", "gpu.shared": "2"}, "units-with-parts", "kubernetes.io/gpu.shared", id="gpu with shared"
        ),
        pytest.param({"gpu": "150"}, "multiple-of-100", "kubernetes.io/gpu over 100", id="one and a half"),
        pytest.param({"gpu-memory-ratio": "150"}, "multiple-of-100", "gpu-memory-ratio over 100", id="ratio of 150"),
        pytest.param(
            {"gpu-core": "150", "gpu-memory": "1Gi"}, "multiple-of-100", "gpu-core over 100", id="core of 150"
        ),
        pytest.param(
            {"gpu-core": "200", "gpu-memory-ratio": "100"}, "core-over-100", "at most 100", id="two cores, one memory"
        ),
        pytest.param(
            {"gpu-core": "300", "gpu-memory-ratio": "200"},
            "core-over-100",
            "at most 100",
            id="three cores, two memories",
        ),
        pytest.param({"gpu.shared": "2"}, "gpu.shared-alone", "add kubernetes.io/gpu-memory or", id="shared alone"),
        pytest.param({"gpu.shared": "2", "gpu-core": "50"}, "gpu-core-alone", "", id="shared with core alone"),
        pytest.param(
            {"gpu.shared": "2", "gpu-memory-ratio": "51"},
            "shared-multiple",
            "multiple of kubernetes.io/gpu.shared",
            id="odd ratio",
        ),
        pytest.param(
            {"gpu.shared": "2", "gpu-memory-ratio": "202"}, "shared-over-100", "at most 100", id="more than a device"
        ),
        pytest.param(
            {"gpu.shared": "2", "gpu-core": "300", "gpu-memory": "1Gi"},
            "shared-over-100",
            "gpu-core",
            id="core over a device",
        ),
        pytest.param(
            {"gpu.shared": "3", "gpu-memory": "2"}, "memory-too-small", "at least one byte", id="less than a byte each"
        ),
        pytest.param({"gpu": "100100"}, "too-many", "more than 1000 devices", id="too many"),
        pytest.param(
            {"gpu.shared": "1001", "gpu-memory": "1Ti"}, "too-many", "more than 1000 devices", id="too many shares"
        ),
        pytest.param({"rdma": "150"}, "multiple-of-100", "kubernetes.io/rdma", id="rdma of 150"),
        pytest.param({"gpu": "0.5"}, "quantity", "not a whole number", id="fraction of a percent"),
        pytest.param({"gpu-memory": "16GB"}, "quantity", "did you mean 16G or 16Gi?", id="GB"),
        pytest.param({"gpu-memory": "-1Gi"}, "quantity", "negative", id="negative"),
        pytest.param({"gpu": "NaN"}, "quantity", "is not a quantity", id="NaN"),
        pytest.param({"gpu": "1e400"}, "quantity", "out of range", id="huge"),
        pytest.param({"gpu": ""}, "quantity", "is not a quantity", id="empty"),
    ],
)
def test_refusals_name_the_rule(asked, want_rule, want_text):
    """DEV-3 each refusal names the rule that was broken and what to change."""
    refusal = parse({f"kubernetes.io/{name}": value for name, value in asked.items()})
    assert isinstance(refusal, Refusal)
    assert refusal.rule == want_rule
    assert want_text in refusal.reason
    assert refusal.field or want_rule in ("too-many", "memory-too-small")


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param({"kubernetes.io/rdma": "100"}, [("rdma", 1, None, None)], id="the source's RDMA"),
        pytest.param({"koordinator.sh/rdma": "50"}, [("rdma", 1, 50, None)], id="half an RDMA NIC has no memory"),
        pytest.param({"koordinator.sh/fpga": "200"}, [("fpga", 2, None, None)], id="two FPGAs"),
        pytest.param(
            {"koordinator.sh/rdma": "200", "koordinator.sh/gpu": "100", "koordinator.sh/fpga": "50"},
            [("gpu", 1, None, None), ("fpga", 1, 50, None), ("rdma", 2, None, None)],
            id="three types, GPU first",
        ),
        pytest.param(
            {"nvidia.com/gpu": "8", "koordinator.sh/rdma": "100"},
            [("gpu", 8, None, None), ("rdma", 1, None, None)],
            id="native GPUs beside RDMA",
        ),
        pytest.param(
            {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "60", "kubernetes.io/gpu": "0"},
            [("gpu", 1, 50, 60)],
            id="a resource of quantity 0 counts as not asked",
        ),
    ],
)
def test_types_are_combined(asked, want):
    """DEV-3 the rules hold within one type; GPU, RDMA and FPGA may be combined."""
    request = parse(asked)
    assert [(ask.type, ask.count, ask.core_percent, ask.memory_ratio) for ask in request.asks] == want
    assert request.dialect is Dialect.KOORDINATOR


def test_a_new_device_type_needs_data_not_code(monkeypatch: pytest.MonkeyPatch):
    """DEV-4 one more row in the table, and a pod may ask for the new type, alone or beside others."""
    assert parse({"koordinator.sh/npu": "100"}) is None
    npu = DeviceType("npu", units="npu", core="npu-core", memory="npu-memory")
    for dimension, name in npu.dimensions():
        monkeypatch.setitem(RESOURCE_NAMES, f"koordinator.sh/{name}", ("koordinator.sh", npu, dimension))
        monkeypatch.setitem(REQUEST_RESOURCES, f"koordinator.sh/{name}", dimension)
    request = parse({"koordinator.sh/npu-core": "200", "koordinator.sh/npu-memory": "32Gi", "koordinator.sh/gpu": "50"})
    assert request.asks == (
        DeviceAsk(type="gpu", count=1, core_percent=50, memory_ratio=50),
        DeviceAsk(type="npu", count=2, core_percent=100, memory_bytes=16 * GI),
    )
    assert parse({"koordinator.sh/npu": "150"}).rule == "multiple-of-100"
    assert parse({"koordinator.sh/npu-core": "50"}).rule == "npu-core-alone"


def test_the_prefix_is_kept_for_the_result():
    """DEV-1 both prefixes are understood, and the request remembers the pod's own."""
    assert parse({"kubernetes.io/gpu": "50"}).key_prefix == "kubernetes.io"
    assert parse({"koordinator.sh/gpu": "50"}).key_prefix == "koordinator.sh"
    mixed = parse({"kubernetes.io/gpu-core": "50", "koordinator.sh/gpu-memory": "1Gi"})
    assert mixed.rule == "mixed-prefixes"
