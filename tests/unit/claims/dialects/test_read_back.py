import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claims.dialects.adopted import AdoptedDevice, Adoption, Unreadable
from claims.dialects.read_back import parse_allocated, read_allocation
from claims.dialects.request import DeviceAsk, DeviceRequest
from kube.objects import Pod

GI = 1024**3
MIB = 1024**2
ALLOCATED = "gpu.scheduling/allocated"
AMOUNTS = "gpu.scheduling/amounts"
KOORDINATOR = "scheduling.koordinator.sh/device-allocated"
HAMI = "hami.io/vgpu-devices-allocated"

SOURCE = {
    "gpu": [
        {
            "minor": minor,
            "resouurces": {
                "kubernetes.io/gpu-core": 100,
                "kubernetes.io/gpu-mem-ratio": 100,
                "kubernetes.io/gpu-mem": "16Gi",
            },
        }
        for minor in (0, 1)
    ]
}


def pod(annotations: Any, node: Any = "n1") -> Any:
    return msgspec.convert({"metadata": {"annotations": annotations}, "spec": {"nodeName": node}}, Pod)


def adopt(asked: Any, **more: Any) -> Any:
    return read_allocation(asked, **more)


def gpu(minor: Any = None, **more: Any) -> Any:
    return AdoptedDevice(type="gpu", minor=minor, **more)


def koordinator(**resources: Any) -> Any:
    return {
        KOORDINATOR: json.dumps(
            {
                "gpu": [
                    {
                        "minor": 0,
                        "resources": {
                            f"koordinator.sh/{key.replace('_', '-')}": value for key, value in resources.items()
                        },
                    }
                ]
            }
        )
    }


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({ALLOCATED: "n1:0,1"}, [gpu(0), gpu(1)], id="ours"),
        pytest.param({KOORDINATOR: json.dumps(SOURCE)}, [gpu(0), gpu(1)], id="the source's example, misspelt"),
        pytest.param(
            koordinator(gpu_core="50", gpu_memory="4Gi", gpu_memory_ratio="50"),
            [gpu(0, core_percent=50, memory_bytes=4 * GI)],
            id="share",
        ),
        pytest.param(
            koordinator(gpu_core="50", gpu_memory_ratio="50"),
            [gpu(0, core_percent=50, memory_ratio=50)],
            id="share by ratio",
        ),
        pytest.param(koordinator(gpu_memory="4Gi"), [gpu(0, core_percent=0, memory_bytes=4 * GI)], id="memory alone"),
        pytest.param(koordinator(gpu="50"), [gpu(0, core_percent=50, memory_ratio=50)], id="units"),
        pytest.param(koordinator(gpu="100"), [gpu(0)], id="all units"),
        pytest.param(
            {KOORDINATOR: '{"gpu":[{"minor":2}],"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"50"}}]}'},
            [gpu(2), AdoptedDevice(type="rdma", minor=1, core_percent=50)],
            id="no amounts is whole",
        ),
        pytest.param(
            {KOORDINATOR: '{"npu":[{"minor":2,"resources":{"x/npu":"100"}}]}'},
            [AdoptedDevice(type="npu", minor=2)],
            id="a type of others",
        ),
        pytest.param(
            {HAMI: "GPU-a,NVIDIA-A100,3000,30:;", "hami.io/vgpu-node": "n1"},
            [gpu(uuid="GPU-a", core_percent=30, memory_bytes=3000 * MIB)],
            id="HAMi",
        ),
        pytest.param(
            {HAMI: "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,81920,100:;GPU-a,NVIDIA,1000,20:;"},
            [gpu(uuid="GPU-a", core_percent=50, memory_bytes=4000 * MIB), gpu(uuid="GPU-b")],
            id="HAMi, two containers",
        ),
        pytest.param(
            {HAMI: "GPU-a[1-0],NVIDIA,1000,10:GPU-a[1-1],NVIDIA,500,5:;"},
            [gpu(uuid="GPU-a", core_percent=15, memory_bytes=1500 * 1024**2)],
            id="HAMi's own MIG instances are parts of their GPU",
        ),
        pytest.param({HAMI: "GPU-a,NVIDIA,0,0:;"}, [gpu(uuid="GPU-a", core_percent=0)], id="HAMi, nothing counted"),
    ],
)
def test_every_dialects_result_is_read(annotations, want):
    """LEASE-6 a running pod is adopted from whichever allocation annotation it carries."""
    adoption = adopt(pod(annotations))
    assert isinstance(adoption, Adoption), adoption
    assert (adoption.node, list(adoption.devices)) == ("n1", want)


def test_minors_alone_take_their_amounts_from_the_request():
    """LEASE-6 `gpu.scheduling/allocated` tells no amounts: they are the request's, or whole devices."""
    ask = DeviceAsk(type="gpu", count=1, core_percent=20, memory_ratio=10)
    adoption = adopt(pod({ALLOCATED: "n1:3"}), request=DeviceRequest(asks=(ask,)))
    assert adoption.devices == (gpu(3, core_percent=20, memory_ratio=10),)
    nic = DeviceRequest(asks=(DeviceAsk(type="rdma", count=1),))
    assert adopt(pod({ALLOCATED: "n1:3"}), request=nic).devices == (AdoptedDevice(type="rdma", minor=3),)


def test_minors_alone_of_a_binding_are_whole_gpus():
    """LEASE-6 a Binding names all amounts but those of whole GPUs: what the claim says by now changes nothing."""
    ask = DeviceAsk(type="gpu", count=1, core_percent=20, memory_ratio=10)
    bound = pod({ALLOCATED: "n1:3", "gpu.scheduling/attempt": "a/1"})
    assert adopt(bound, request=DeviceRequest(asks=(ask,))).devices == (gpu(3),)


def test_a_pod_without_results_is_not_adopted():
    assert adopt(pod(None)) is None
    assert adopt(pod({"gpu.scheduling/visible-devices": "0"})) is None


def test_the_node_may_come_from_the_annotation():
    assert adopt(pod({ALLOCATED: "n1:0"}, node="")).node == "n1"


@pytest.mark.parametrize(
    ("annotations", "want_text"),
    [
        pytest.param({ALLOCATED: ""}, "is not <node>:<minor>", id="empty"),
        pytest.param({ALLOCATED: "n1"}, "is not <node>:<minor>", id="no minors"),
        pytest.param({ALLOCATED: "n1:"}, "is not <node>:<minor>", id="empty minors"),
        pytest.param({ALLOCATED: "n1:0,"}, "is not <node>:<minor>", id="trailing comma"),
        pytest.param({ALLOCATED: "n1:-1"}, "is not <node>:<minor>", id="negative"),
        pytest.param({ALLOCATED: "n1:99999999"}, "is not <node>:<minor>", id="huge"),
        pytest.param({ALLOCATED: "n1:0,0"}, "twice", id="twice"),
        pytest.param({ALLOCATED: "N 1:0"}, "is not <node>:<minor>", id="bad node"),
        pytest.param({ALLOCATED: "n2:0"}, "another node", id="another node"),
        pytest.param({KOORDINATOR: "{"}, "not JSON", id="truncated JSON"),
        pytest.param({KOORDINATOR: "[" * 100_000}, "not JSON", id="deep JSON"),
        pytest.param({KOORDINATOR: "[]"}, "not an object", id="a list"),
        pytest.param({KOORDINATOR: "{}"}, "names no device", id="nothing in it"),
        pytest.param({KOORDINATOR: '{"gpu":{}}'}, "not a list", id="no list"),
        pytest.param({KOORDINATOR: '{"G/P":[]}'}, "not a DNS label", id="bad type"),
        pytest.param({KOORDINATOR: '{"gpu":[5]}'}, "without a minor", id="no device"),
        pytest.param({KOORDINATOR: '{"gpu":[{"minor":true}]}'}, "without a minor", id="minor is true"),
        pytest.param({KOORDINATOR: '{"gpu":[{"minor":-1}]}'}, "without a minor", id="minor is negative"),
        pytest.param({KOORDINATOR: '{"gpu":[{"minor":0,"resources":[1]}]}'}, "not an object", id="resources is a list"),
        pytest.param(koordinator(gpu_core="x"), "cannot be read", id="bad amount"),
        pytest.param(koordinator(gpu_core="200"), "more than 100 percent", id="too much"),
        pytest.param(
            {KOORDINATOR: json.dumps(SOURCE), ALLOCATED: "n1:0,2"}, "different devices", id="annotations disagree"
        ),
        pytest.param({AMOUNTS: "x", ALLOCATED: "n1:0"}, "not JSON", id="bad amounts of ours"),
        pytest.param({HAMI: ""}, "names no device", id="HAMi empty"),
        pytest.param({HAMI: "GPU-a"}, "is not UUID,type,memory,cores", id="HAMi short"),
        pytest.param({HAMI: "GPU a,x,1,1:"}, "is not UUID,type,memory,cores", id="HAMi bad uuid"),
        pytest.param({HAMI: "GPU-a,x,-1,1:"}, "is not UUID,type,memory,cores", id="HAMi negative"),
        pytest.param({HAMI: "GPU-a,x,1,101:"}, "more than one device has", id="HAMi too much"),
        pytest.param({HAMI: "GPU-a,x,9223372036854775807,1:"}, "more than one device has", id="HAMi too much memory"),
        pytest.param({HAMI: "GPU-a,x,1,1:", "hami.io/vgpu-node": "n2"}, "another node", id="HAMi on another node"),
    ],
)
def test_what_cannot_be_read_is_reported(annotations, want_text):
    """LEASE-6 an annotation that cannot be read is a problem with a text, and stops nobody."""
    unreadable = adopt(pod(annotations))
    assert isinstance(unreadable, Unreadable), unreadable
    assert want_text in unreadable.problem


def test_allocated_alone():
    """CLAIM-7 node and minors of the source's example."""
    assert parse_allocated("node-a:0,1") == ("node-a", (0, 1))
    assert parse_allocated("node-a") is None


VALUES = st.text(max_size=30) | st.sampled_from(["n1:0", "n1:0,1", json.dumps(SOURCE), "GPU-a,x,1,1:;"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["100", "1Gi"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpu", "rdma", "minor", "resources", "koordinator.sh/gpu-core", "x/gpu-memory", "rdma-x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
).map(json.dumps)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([ALLOCATED, AMOUNTS, KOORDINATOR, HAMI, "hami.io/vgpu-node"]), VALUES | JSON))
def test_nothing_raises(annotations):
    """LEASE-6 no annotation crashes adoption."""
    result = adopt(pod(annotations))
    if isinstance(result, Adoption):
        assert result.node == "n1"
        assert len(set(result.devices)) == len(result.devices) > 0
        for device in result.devices:
            assert device.whole or device.core_percent in range(101)
    elif result is not None:
        assert result.problem
