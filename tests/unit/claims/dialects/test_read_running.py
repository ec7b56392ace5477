"""Devices of pods that run without a result annotation."""

from typing import Any, NamedTuple

import msgspec
import pytest

from claims.dialects.adopted import AdoptedDevice, Adoption, Unreadable
from claims.dialects.device_names import Names
from claims.dialects.read_running import CHECKPOINT, ENV, kubelet_uid, read_checkpoint, read_env
from kube.objects import Pod


class Device(NamedTuple):
    uuid: str
    minor: int = 0
    parent: str = ""
    type: str = "gpu"


class Given(NamedTuple):
    resource: str
    devices: tuple[str, ...]


def pod(*containers: Any, init: Any = (), **metadata: Any) -> Pod:
    spec = {"nodeName": "n1", "containers": list(containers), "initContainers": list(init)}
    return msgspec.convert({"metadata": {"name": "p", "uid": "u-1", **metadata}, "spec": spec}, Pod)


def container(value: Any = None, *, name: str = ENV, **more: Any) -> Any:
    return {"name": "main", "env": [{"name": "A", "value": "b"}, {"name": name, "value": value}], **more}


def gpus(*words: str | int) -> tuple[AdoptedDevice, ...]:
    return tuple(
        AdoptedDevice(type="gpu", minor=word) if isinstance(word, int) else AdoptedDevice(type="gpu", uuid=word)
        for word in words
    )


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param([], (), id="nothing"),
        pytest.param([Given("nvidia.com/gpu", ("GPU-b", "GPU-a"))], ("GPU-a", "GPU-b"), id="GPUs"),
        pytest.param(
            [Given("nvidia.com/gpu", ("GPU-a",)), Given("nvidia.com/gpu", ("GPU-a",))],
            ("GPU-a",),
            id="one in two containers",
        ),
        pytest.param([Given("nvidia.com/gpu", ("GPU-z",))], ("GPU-z",), id="a GPU that we do not know"),
        pytest.param([Given("nvidia.com/mig-1g.10gb", ("MIG-1",))], ("MIG-1",), id="a part of a GPU"),
        pytest.param([Given("nvidia.com/gpu", ("vgpu-7",))], ("vgpu-7",), id="a GPU by any name"),
        pytest.param(
            [Given("volcano.sh/vgpu-number", ("GPU-a-1",))], ("GPU-a-1",), id="a part of one, by another resource"
        ),
        pytest.param([Given("nvidia.com/hostdev", ("0000:3b:00.2",))], (), id="a NIC of the same vendor"),
        pytest.param([Given("rdma/hca", ("hca-3",))], (), id="something else"),
        pytest.param([Given("rdma/hca", ("hca-3", "NIC-0"))], ("NIC-0",), id="something else that we know"),
    ],
)
def test_what_a_kubelet_gave(given: list[Given], want: tuple[str, ...]) -> None:
    """DEV-9 GPUs in any case, other devices where the inventory has them."""
    known = Names([Device("GPU-a"), Device("GPU-b"), Device("NIC-0", type="rdma")])
    found = read_checkpoint(pod(), grants=given, names=known)
    assert found == (Adoption(node="n1", devices=gpus(*want), source=CHECKPOINT) if want else None)


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(pod(container("0")), gpus(0), id="an index"),
        pytest.param(pod(container("0,2"), container("2, 3")), gpus(0, 2, 3), id="several containers"),
        pytest.param(pod(container("GPU-aa,GPU-bb")), gpus("GPU-aa", "GPU-bb"), id="UUIDs"),
        pytest.param(pod({}, init=[container("1", restartPolicy="Always")]), gpus(1), id="a sidecar"),
        pytest.param(pod(container("1"), init=[container("0")]), gpus(1), id="not what is over"),
        pytest.param(pod(container("all")), None, id="all"),
        pytest.param(pod(container("none"), container("void"), container("")), None, id="none"),
        pytest.param(pod(container("1", name="CUDA_VISIBLE_DEVICES")), None, id="renumbered"),
        pytest.param(
            pod({"env": [{"name": ENV, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}), None, id="a reference"
        ),
        pytest.param(pod({}), None, id="no env"),
        pytest.param(pod(container("MIG-1")), gpus("MIG-1"), id="a part of a GPU"),
        pytest.param(pod(container("0:1")), gpus("0:1"), id="another way of naming parts"),
        pytest.param(pod(container("nvidia0")), gpus("nvidia0"), id="a device file"),
        pytest.param(pod(container("first")), "unreadable", id="no name of a GPU"),
        pytest.param(pod(container("GPU-../x")), "unreadable", id="no UUID"),
        pytest.param(pod(container(",".join(str(number) for number in range(1001)))), "unreadable", id="too many"),
    ],
)
def test_what_env_names(asked: Pod, want: Any) -> None:
    """DEV-9 GPUs by index, UUID or device file; all of them is what monitoring sees, and holds none."""
    found = read_env(asked)
    if want == "unreadable":
        assert found == Unreadable(problem="NVIDIA_VISIBLE_DEVICES does not list GPUs by index, UUID or device file")
    else:
        assert found == (None if want is None else Adoption(node="n1", devices=want, source=ENV))


def test_pods_from_files() -> None:
    """DEV-9 the kubelet knows a pod that it runs from a file by another UID than the API server knows its image."""
    assert kubelet_uid(pod()) == "u-1"
    image = {"kubernetes.io/config.hash": "abc", "kubernetes.io/config.mirror": "abc"}
    assert kubelet_uid(pod(annotations=image)) == "abc"
    for planted in ({"kubernetes.io/config.hash": "abc"}, {**image, "kubernetes.io/config.hash": "another"}):
        assert kubelet_uid(pod(annotations=planted)) == "u-1"
