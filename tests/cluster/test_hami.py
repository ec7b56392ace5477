"""HAMi's words on a real cluster, with nodes that advertise ten `nvidia.com/gpu` for each GPU, as HAMi's own do."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.stack import Stack
from tests.cluster.waiting import bound, count_bound, minors, pods_of, said, unschedulable

NVIDIA = "nvidia.com/"


@pytest.fixture(scope="module")
def module_stack(plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane told how many pods HAMi lets on a GPU."""
    made = Stack(plane, plane.folder)
    try:
        made.install()
        made.start_gpuplane(vendor="sqlite", settings={"GPUPLANE_GPU_SPLIT": "10"})
        made.start_scheduler()
        yield made
    finally:
        made.close()


def watching(stack: Stack, namespace: str) -> Observer:
    """An observer of the namespace's pods."""
    return Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods")


def hami(**amounts: int) -> dict[str, Any]:
    return {"resources": {f"{NVIDIA}{name.replace('_', '-')}": amount for name, amount in amounts.items()}}


def test_halves_fill_the_cards(stack: Stack, namespace: str) -> None:
    """DEV-2 DEV-5 16 halves are two on each of 8 GPUs, the 17th waits with a reason; whole pods are one a GPU, though
    nodes advertise ten.
    """
    stack.add_nodes(["hami-halves"])
    with watching(stack, namespace).watching() as seen:
        words = hami(gpu=1, gpumem_percentage=50, gpucores=50)
        stack.add_pods([pod(f"half-{number}", namespace, **words) for number in range(16)])
        seen.until(count_bound(16), seconds=30, what="16 pods bound")
        assert Counter(minors(one)[0] for one in seen.now.values()) == dict.fromkeys(range(8), 2)
        stack.add_pods([pod("late", namespace, **words), pod("whole", namespace, resources={f"{NVIDIA}gpu": 1})])
        seen.until(unschedulable("late", "whole"), seconds=10, what="no room for two more")
        assert "1 no device with 50 core free" in said(pods_of(seen)["late"])
        assert "1 no whole gpu device free" in said(pods_of(seen)["whole"])


def test_each_container_has_its_own_device(stack: Stack, namespace: str) -> None:
    """CLAIM-7 DEV-7 two containers are planned one by one; each refers to an annotation of its own, which the Binding
    carried.
    """
    (name,) = stack.add_nodes(["hami-two"], gpus=2, memory="40Gi")
    two = pod("two", namespace, **hami(gpumem=30000))
    two["spec"]["containers"].append(
        {
            "name": "embed",
            "image": two["spec"]["containers"][0]["image"],
            "resources": {"limits": {f"{NVIDIA}gpumem": "20000", f"{NVIDIA}gpucores": "30"}},
        }
    )
    two["metadata"].setdefault("annotations", {})["hami.io/gpu-scheduler-policy"] = "spread"
    with watching(stack, namespace).watching() as seen:
        stack.api.apply(two)
        seen.until(bound("two"), seconds=10, what="the pod bound")
        stored = pods_of(seen)["two"]
    told = stored["metadata"]["annotations"]
    assert told["hami.io/vgpu-node"] == name
    first, second, _ = told["hami.io/vgpu-devices-allocated"].split(";")
    assert first.split(",")[1:] == ["NVIDIA", "30000", "0:"]
    assert second.split(",")[1:] == ["NVIDIA", "20000", "30:"]
    own = [seen_by(container, told) for container in stored["spec"]["containers"]]
    assert own == [first.split(",")[0], second.split(",")[0]]
    assert len(set(own)) == 2


def seen_by(container: Json, annotations: Json) -> str:
    """What the kubelet will put into the container's NVIDIA_VISIBLE_DEVICES."""
    (path,) = [
        entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container["env"]
        if entry["name"] == "NVIDIA_VISIBLE_DEVICES"
    ]
    return str(annotations[path.removeprefix("metadata.annotations['").removesuffix("']")])
