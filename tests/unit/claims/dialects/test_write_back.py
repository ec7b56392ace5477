import json
from typing import Any

import msgspec
import pytest

from claims.dialects.adopted import AdoptedDevice, Adoption
from claims.dialects.read_back import read_allocation
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from claims.dialects.write_back import VisibleDevices, binding_annotations
from kube.objects import Pod

GI = 1024**3
INDEX, UUID = VisibleDevices.INDEX, VisibleDevices.UUID


class Granted(msgspec.Struct, frozen=True):
    type: str
    minor: int
    uuid: str
    core_percent: int = 100
    memory_bytes: int | None = 80 * GI
    whole: bool = True


def gpu(minor: Any, **more: Any) -> Any:
    return Granted("gpu", minor, f"GPU-{minor}", **more)


def share(minor: Any, core: Any, memory_bytes: Any) -> Any:
    return gpu(minor, core_percent=core, memory_bytes=memory_bytes, whole=False)


def rdma(minor: Any, core: Any = 100) -> Any:
    return Granted("rdma", minor, f"NIC-{minor}", core_percent=core, memory_bytes=None, whole=core == 100)


def request(dialect: Any = Dialect.GPUCLAIM, *asks: Any, **more: Any) -> Any:
    return DeviceRequest(asks=asks or (DeviceAsk(type="gpu", count=1),), dialect=dialect, **more)


def write(asked: Any, *grants: Any, visible: Any = INDEX) -> Any:
    return binding_annotations(
        request=asked,
        node="node-a",
        grants=grants,
        visible=visible,
        memory_total={("gpu", n): 80 * GI for n in range(8)}.get,
    )


def read(annotations: Any, node: Any = "node-a", asked: Any = None) -> Any:
    pod = msgspec.convert({"metadata": {"annotations": annotations}, "spec": {"nodeName": node}}, Pod)
    return read_allocation(pod, request=asked)


def test_a_claims_result():
    """CLAIM-6 the pod carries its node and minors, ascending, and the env value."""
    assert write(request(), gpu(1), gpu(0)) == {
        "gpu.scheduling/allocated": "node-a:0,1",
        "gpu.scheduling/visible-devices": "0,1",
    }
    assert write(request(), gpu(10), gpu(9), visible=UUID) == {
        "gpu.scheduling/allocated": "node-a:9,10",
        "gpu.scheduling/visible-devices": "GPU-9,GPU-10",
    }
    assert write(request(uuids=True), gpu(1))["gpu.scheduling/visible-devices"] == "GPU-1"


def test_the_result_of_kais_pods():
    """DEV-7 exact amounts in our own annotation, and UUIDs, since the devices are renumbered in the container."""
    annotations = write(request(Dialect.KAI), share(4, 0, 2000 * 1024**2))
    assert annotations == {
        "gpu.scheduling/allocated": "node-a:4",
        "gpu.scheduling/visible-devices": "GPU-4",
        "gpu.scheduling/amounts": json.dumps(
            {
                "gpu": [
                    {
                        "minor": 4,
                        "resources": {
                            "kubernetes.io/gpu-core": "0",
                            "kubernetes.io/gpu-memory": "2000Mi",
                            "kubernetes.io/gpu-memory-ratio": "2",
                        },
                    }
                ]
            },
            separators=(",", ":"),
        ),
    }
    assert read(annotations).devices == (
        AdoptedDevice(type="gpu", minor=4, core_percent=0, memory_bytes=2000 * 1024**2),
    )


@pytest.mark.parametrize(
    ("dialect", "prefix"),
    [
        (Dialect.KOORDINATOR, "kubernetes.io"),
        (Dialect.KOORDINATOR, "koordinator.sh"),
        (Dialect.NATIVE, "koordinator.sh"),
    ],
)
def test_koordinators_result(dialect, prefix):
    """DEV-7 the allocation is JSON in the source's shape: strings, under the pod's own prefix, ids; the env value is
    UUIDs.
    """
    annotations = write(request(dialect, key_prefix=prefix), rdma(3, 50), gpu(1), share(0, 50, 30 * GI))
    assert annotations["gpu.scheduling/allocated"] == "node-a:0,1"
    assert annotations["gpu.scheduling/visible-devices"] == "GPU-0,GPU-1"
    assert json.loads(annotations["scheduling.koordinator.sh/device-allocated"]) == {
        "gpu": [
            {
                "minor": 0,
                "id": "GPU-0",
                "resources": {
                    f"{prefix}/gpu-core": "50",
                    f"{prefix}/gpu-memory": "30Gi",
                    f"{prefix}/gpu-memory-ratio": "37",
                },
            },
            {
                "minor": 1,
                "id": "GPU-1",
                "resources": {
                    f"{prefix}/gpu-core": "100",
                    f"{prefix}/gpu-memory": "80Gi",
                    f"{prefix}/gpu-memory-ratio": "100",
                },
            },
        ],
        "rdma": [{"minor": 3, "id": "NIC-3", "resources": {f"{prefix}/rdma": "50"}}],
    }


def test_a_nic_is_named_by_its_address():
    """DEV-7 `id` is what Koordinator's node agent looks device files up by: a NIC's PCI address where it is known, else
    its UUID; a GPU's UUID.
    """
    annotations = binding_annotations(
        request=request(Dialect.KOORDINATOR, key_prefix="koordinator.sh"),
        node="node-a",
        grants=[gpu(0), rdma(0), rdma(1), Granted("fpga", 0, "FPGA-0", memory_bytes=None)],
        visible=INDEX,
        bus_id={("gpu", 0): "0000:3b:00.0", ("rdma", 0): "0000:3c:00.0", ("fpga", 0): "0000:3d:00.0"}.get,
    )
    told = json.loads(annotations["scheduling.koordinator.sh/device-allocated"])
    assert {kind: [one["id"] for one in listed] for kind, listed in told.items()} == {
        "gpu": ["GPU-0"],
        "rdma": ["0000:3c:00.0", "NIC-1"],
        "fpga": ["FPGA-0"],
    }


MIB = 1024**2
HAMI = "hami.io/vgpu-devices-allocated"


def hami_ask(container: Any, **more: Any) -> Any:
    return DeviceAsk(type="gpu", count=more.pop("count", 1), container=container, **more)


def test_the_result_of_hamis_pods():
    """DEV-7 in HAMi's words: node, then UUID, type, MiB and cores of each device, container by container."""
    asked = request(Dialect.HAMI, hami_ask("b", core_percent=30, memory_bytes=3000 * MIB), containers=("a", "b", "c"))
    annotations = write(asked, share(4, 30, 3000 * MIB))
    assert annotations.pop("gpu.scheduling/amounts")
    assert annotations == {
        "gpu.scheduling/allocated": "node-a:4",
        "gpu.scheduling/visible-devices": "GPU-4",
        "hami.io/vgpu-node": "node-a",
        HAMI: ";GPU-4,NVIDIA,3000,30:;;",
    }
    whole = write(request(Dialect.HAMI, hami_ask("a", count=2), containers=("a",)), gpu(1), gpu(0))
    assert whole[HAMI] == "GPU-0,NVIDIA,81920,100:GPU-1,NVIDIA,81920,100:;"
    assert "gpu.scheduling/amounts" not in whole


def test_containers_planned_one_by_one_are_distinguished():
    """DEV-7 what several containers have of one device is told for each of them, and together it is what was
    granted.
    """
    asked = request(
        Dialect.HAMI,
        hami_ask("a", core_percent=10, memory_bytes=1000 * MIB, given=(1,)),
        hami_ask("b", core_percent=20, memory_ratio=50, given=(1, 2), count=2),
        hami_ask("d", given=(0,)),
        containers=("a", "b", "c", "d"),
    )
    granted = share(1, 30, 1000 * MIB + 40 * GI), share(2, 20, 40 * GI), gpu(0)
    annotations = write(asked, *granted)
    assert (
        annotations[HAMI]
        == "GPU-1,NVIDIA,1000,10:;GPU-1,NVIDIA,40960,20:GPU-2,NVIDIA,40960,20:;;GPU-0,NVIDIA,81920,100:;"
    )
    assert {key: value for key, value in annotations.items() if key.startswith("gpu.scheduling/visible")} == {
        "gpu.scheduling/visible-devices": "GPU-0,GPU-1,GPU-2",
        "gpu.scheduling/visible-devices.a": "GPU-1",
        "gpu.scheduling/visible-devices.b": "GPU-1,GPU-2",
        "gpu.scheduling/visible-devices.d": "GPU-0",
    }
    exact = read(annotations).devices
    assert exact == (
        AdoptedDevice(type="gpu", minor=0),
        AdoptedDevice(type="gpu", minor=1, core_percent=30, memory_bytes=1000 * MIB + 40 * GI),
        AdoptedDevice(type="gpu", minor=2, core_percent=20, memory_bytes=40 * GI),
    )
    theirs = read({name: annotations[name] for name in (HAMI, "hami.io/vgpu-node")}).devices
    assert [(one.core_percent, one.memory_bytes) for one in theirs] == [
        (30, 1000 * MIB + 40 * GI),
        (20, 40 * GI),
        (None, None),
    ]


def test_a_pod_without_gpus():
    """CLAIM-6 where no GPU is asked for, the devices asked for are named, and no GPU is visible."""
    annotations = write(request(Dialect.GPUCLAIM, DeviceAsk(type="rdma", count=2)), rdma(1), rdma(0))
    assert annotations["gpu.scheduling/allocated"] == "node-a:0,1"
    assert annotations["gpu.scheduling/visible-devices"] == ""


def adopted(minor: Any, core: Any = None, memory_bytes: Any = None, **more: Any) -> Any:
    return AdoptedDevice(
        type=more.pop("type", "gpu"), minor=minor, core_percent=core, memory_bytes=memory_bytes, **more
    )


@pytest.mark.parametrize("visible", [INDEX, UUID])
@pytest.mark.parametrize("dialect", [Dialect.GPUCLAIM, Dialect.KOORDINATOR, Dialect.NATIVE])
@pytest.mark.parametrize(
    ("grants", "want"),
    [
        pytest.param([gpu(0), gpu(3)], [adopted(0), adopted(3)], id="whole"),
        pytest.param([share(0, 50, 10 * GI)], [adopted(0, 50, 10 * GI)], id="share"),
        pytest.param([share(0, 100, 80 * GI)], [adopted(0, 100, 80 * GI)], id="share of everything"),
        pytest.param([share(0, 100, 80 * GI - 1)], [adopted(0, 100, 80 * GI - 1)], id="share of nearly everything"),
        pytest.param([share(0, 0, 80 * GI)], [adopted(0, 0, 80 * GI)], id="share of all memory"),
        pytest.param([share(0, 30, 0)], [adopted(0, 30)], id="share of core alone"),
        pytest.param([share(0, 30, 12345)], [adopted(0, 30, 12345)], id="share of odd bytes"),
        pytest.param([rdma(2), rdma(1, 50)], [adopted(1, 50, type="rdma"), adopted(2, type="rdma")], id="NICs alone"),
        pytest.param(
            [rdma(2), gpu(5), share(1, 5, GI)], [adopted(1, 5, GI), adopted(5), adopted(2, type="rdma")], id="mixed"
        ),
    ],
)
def test_what_is_written_reads_back(visible, dialect, grants, want):
    """LEASE-6 the ledger can be rebuilt from the pods' annotations, amounts and all."""
    asks = [
        (
            DeviceAsk(one.type, 1)
            if one.whole
            else DeviceAsk(one.type, 1, core_percent=one.core_percent, memory_bytes=one.memory_bytes)
        )
        for one in grants
    ]
    asked = request(dialect, *asks, key_prefix="koordinator.sh")
    annotations = write(asked, *grants, visible=visible)
    adoption = read(annotations, asked=asked if dialect is not Dialect.GPUCLAIM else None)
    assert isinstance(adoption, Adoption), adoption
    assert adoption.node == "node-a"
    assert list(adoption.devices) == want


THREADS, MEMORY = "gpu.scheduling/isolation-threads", "gpu.scheduling/isolation-memory"


@pytest.mark.parametrize(
    ("how", "grants", "want"),
    [
        pytest.param("mps", [share(2, 50, 4 * GI)], {THREADS: "50", MEMORY: "0=4096M"}, id="MPS, by ordinal"),
        pytest.param(
            "mps",
            [share(5, 30, 2 * GI), share(1, 30, 4 * GI)],
            {THREADS: "30", MEMORY: "0=4096M,1=2048M"},
            id="MPS, ordinals by minor as the variables name the devices",
        ),
        pytest.param("mps", [share(0, 0, GI)], {THREADS: "100", MEMORY: "0=1024M"}, id="memory alone: all threads"),
        pytest.param("mps", [share(0, 30, 0)], {THREADS: "30", MEMORY: "0=81920M"}, id="core alone: all memory"),
        pytest.param("mps", [share(0, 30, 5)], {THREADS: "30", MEMORY: "0=1M"}, id="less than a MiB"),
        pytest.param("mps", [share(0, 30, GI - 1)], {THREADS: "30", MEMORY: "0=1023M"}, id="rounded down"),
        pytest.param("mps", [gpu(0)], {THREADS: "100", MEMORY: "0=81920M"}, id="a whole device of a claim"),
        pytest.param("mps", [rdma(0)], {THREADS: "100", MEMORY: ""}, id="no GPU to limit"),
        pytest.param("hami-core", [share(2, 50, 4 * GI)], {THREADS: "50", MEMORY: "4096m"}, id="HAMi-core"),
        pytest.param(
            "hami-core",
            [share(0, 50, 4 * GI), share(1, 50, 2 * GI)],
            {THREADS: "50", MEMORY: "2048m"},
            id="HAMi-core, the least of different devices",
        ),
        pytest.param("", [share(2, 50, 4 * GI)], {}, id="none"),
    ],
)
def test_what_keeps_a_share_to_its_amounts(how, grants, want):
    """SHARE-8 the Binding carries the values in the format of CUDA MPS or HAMi-core."""
    asked = request(Dialect.GPUCLAIM, DeviceAsk("gpu", len(grants), core_percent=1), isolation=how)
    annotations = write(asked, *grants)
    assert {key: value for key, value in annotations.items() if "isolation" in key} == want


def test_what_keeps_containers_to_their_amounts():
    """SHARE-8 a container that HAMi's dialect plans by itself has values of its own."""
    asked = request(
        Dialect.HAMI,
        hami_ask("a", core_percent=10, memory_bytes=1000 * MIB, given=(1,)),
        hami_ask("b", core_percent=0, memory_ratio=50, given=(1, 2), count=2),
        containers=("a", "b"),
        isolation="mps",
    )
    annotations = write(asked, share(1, 10, 1000 * MIB + 40 * GI), share(2, 0, 40 * GI))
    assert {key: value for key, value in annotations.items() if "isolation" in key and key[-2] == "."} == {
        f"{THREADS}.a": "10",
        f"{MEMORY}.a": "0=1000M",
        f"{THREADS}.b": "100",
        f"{MEMORY}.b": "0=40960M,1=40960M",
    }
