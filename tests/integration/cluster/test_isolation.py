"""Isolation on the way through the mutating webhook, filter and bind: what the containers see when they start."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from pytest_django import Settings

from claims.admission import views
from simulator.jsonpatch import apply_patch
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import NAMESPACE, World

TOTAL = 80 << 30


def create(world: World, name: str, containers: list[dict[str, Any]], **annotations: str) -> dict[str, Any]:
    """Send the pod through the webhook as the API server does, and store what it makes of it."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"schedulerName": "gpu-scheduler", "containers": containers},
    }
    request = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "userInfo": {"username": "jane"},
        "object": pod,
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    answer = msgspec.json.decode(views.pods_mutate(body))["response"]
    steps = msgspec.json.decode(base64.b64decode(answer["patch"]))
    stored: dict[str, Any] = world.server.store.create(PODS, NAMESPACE, apply_patch(pod, steps))
    return stored


def started(world: World, name: str) -> list[dict[str, str]]:
    """The variables of each container as its kubelet resolves them: a missing annotation is an empty string."""
    pod = world.server.pods[NAMESPACE, name]
    annotations = pod["metadata"]["annotations"]
    found = []
    for container in pod["spec"]["containers"]:
        env = {}
        for entry in container["env"]:
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            env[entry["name"]] = annotations.get(path.split("'")[1], "") if path else entry["value"]
        found.append(env)
    return found


def bind(world: World, name: str) -> None:
    node = world.filter(name)
    assert node is not None
    assert world.bind(name, node) == ""


def container(name: str = "main", **limits: str) -> dict[str, Any]:
    return {"name": name, "image": "cuda", "resources": {"limits": limits, "requests": limits}}


CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
CORES, MIB = "nvidia.com/gpucores", "nvidia.com/gpumem"
MPS, HAMI = {"gpu.scheduling/isolation": "mps"}, {"gpu.scheduling/isolation": "hami-core"}


@pytest.mark.parametrize(
    ("containers", "annotations", "want"),
    [
        pytest.param([container()], {"gpu-fraction": "0.5"} | MPS, [("50", "0=40960M")], id="KAI's half, MPS"),
        pytest.param([container()], {"gpu-memory": "2000"} | MPS, [("100", "0=2000M")], id="KAI's memory, MPS"),
        pytest.param(
            [container(**{CORE: "60", MEMORY: "8Gi", "koordinator.sh/gpu.shared": "2"})],
            MPS,
            [("30", "0=4096M,1=4096M")],
            id="Koordinator's two shares, MPS",
        ),
        pytest.param([container()], {"gpu-fraction": "0.25"} | HAMI, [("25", "20480m")], id="KAI's quarter, HAMi-core"),
        pytest.param(
            [container("a", **{MIB: "1000", CORES: "20"}), container("b", **{MIB: "3000"})],
            HAMI,
            [("20", "1000m"), ("100", "3000m")],
            id="HAMi's containers, each its own",
        ),
        pytest.param([container()], {"gpu.scheduling/claim": "half"} | MPS, [("50", "0=8192M")], id="a claim's share"),
        pytest.param([container()], {"gpu.scheduling/claim": "all"} | MPS, [("100", "0=81920M")], id="a whole device"),
    ],
)
def test_what_containers_see(
    world: World, containers: list[Any], annotations: dict[str, str], want: list[tuple[str, str]]
) -> None:
    """SHARE-8 the variables that the webhook sets get their values by the Binding; none is empty."""
    world.node("n1")
    world.claim("half", count=1, core=50, memory="8Gi")
    world.claim("all", count=1)
    create(world, "p", containers, **annotations)
    world.server.add_pod("other", namespace=NAMESPACE, annotations={"gpu-fraction": "0.25"})  # shares the device
    bind(world, "other")
    bind(world, "p")
    mps = annotations["gpu.scheduling/isolation"] == "mps"
    names = (
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        if mps
        else ("CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT")
    )
    seen = started(world, "p")
    assert [tuple(env[name] for name in names) for env in seen] == want
    assert not [env for env in seen if "" in env.values()]
    assert not [key for key in world.server.pods[NAMESPACE, "other"]["metadata"]["annotations"] if "isolation" in key]


def test_the_setting_changes_between_creation_and_bind(world: World, settings: Settings) -> None:
    """SHARE-8 the Binding carries what the containers refer to, whatever the setting and the pod's annotation say by
    then.
    """
    world.node("n1")
    settings.GPUPLANE_ISOLATION = "mps"
    create(world, "first", [container()], **{"gpu-fraction": "0.5"})
    settings.GPUPLANE_ISOLATION = "none"
    create(world, "second", [container()], **{"gpu-fraction": "0.5"})
    settings.GPUPLANE_ISOLATION = "hami-core"
    world.annotate("first", **{"gpu.scheduling/isolation": "none"})
    bind(world, "first")
    bind(world, "second")
    assert started(world, "first")[0]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40960M"
    assert set(started(world, "second")[0]) == {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
