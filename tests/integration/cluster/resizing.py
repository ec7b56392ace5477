"""Shares of running pods that are resized, as the tests of resizes ask for them and look at them."""

from __future__ import annotations

import json
from typing import Any

from allocations.engine.resize import Amounts
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling.resizing import resize_share
from nodes.models import Device
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE, World

GI = 1 << 30
AMOUNTS = "gpu.scheduling/amounts"


def place(world: World, name: str, limits: dict[str, str] | None = None, **annotations: str) -> Allocation:
    """A pod that runs with a share."""
    world.server.add_pod(name, namespace=NAMESPACE, limits=limits or {}, annotations=annotations)
    node = world.filter(name)
    assert node is not None
    assert world.bind(name, node) == ""
    return Allocation.objects.get(pod_name=name, state="bound")


def half(world: World, name: str) -> Allocation:
    return place(world, name, None, **{"gpu-fraction": "0.5"})


def give(world: World, allocation: Allocation, **amounts: Any) -> bool:
    return resize_share(allocation.pk, Amounts(**amounts), backends=world.backends, now=database_now(), actor="jane")


def used() -> list[tuple[int, int]]:
    return list(Device.objects.order_by("pk").values_list("core_used", "memory_used"))


def granted(name: str) -> list[tuple[int, int]]:
    rows = AllocationDevice.objects.filter(allocation__pod_name=name, live=True).order_by("minor")
    return list(rows.values_list("core_percent", "memory_bytes"))


def annotations_of(world: World, name: str) -> dict[str, str]:
    found: dict[str, str] = world.server.pods[NAMESPACE, name]["metadata"]["annotations"]
    return found


def told(world: World, name: str) -> list[tuple[int, int]]:
    """(core, bytes) of each device, as the pod's annotation has them exactly."""
    devices = json.loads(annotations_of(world, name)[AMOUNTS])["gpu"]
    return [
        (int(one["resources"]["kubernetes.io/gpu-core"]), _bytes(one["resources"]["kubernetes.io/gpu-memory"]))
        for one in devices
    ]


def _bytes(text: str) -> int:
    for suffix, power in (("Gi", 3), ("Mi", 2), ("Ki", 1)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) << (10 * power)
    return int(text)
