"""A node whose kubelet chooses GPUs, and what pods get there by reservation pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.models import Allocation, GpuGroup
from allocations.watching import Watching
from kube.objects import ObjectMeta, Pod
from kube.watch import Changed
from nodes.checkpoints import CheckpointGrant, checkpoint_put
from nodes.models import Device
from storage.clock import database_now
from tests.fakes.kubelet import RESERVATIONS, Kubelets
from tests.integration.cluster.conftest import NAMESPACE, World

PLUGIN = {"gpu.scheduling/mode": "device-plugin"}


class Shares:
    """n1 has four GPUs that its kubelet hands out."""

    def __init__(self, world: World, kubelets: Kubelets) -> None:
        self.world = world
        self.kubelets = kubelets

    def pod(self, name: str, *, fraction: str = "0.5", **annotations: str) -> str:
        """A pending pod by KAI's annotations; its UID."""
        given = {"gpu-fraction": fraction, **{key.replace("_", "-"): value for key, value in annotations.items()}}
        made = self.world.server.add_pod(name, namespace=NAMESPACE, annotations={k: v for k, v in given.items() if v})
        return str(made["metadata"]["uid"])

    def place(self, name: str, **options: Any) -> str:
        """Create, filter and bind a pod; the error of bind."""
        self.pod(name, **options)
        return self.bind(name)

    def bind(self, name: str) -> str:
        node = self.world.filter(name)
        assert node is not None
        return self.world.bind(name, node)

    def holds(self, name: str) -> list[str]:
        """UUIDs that the ledger says the pod has."""
        (row,) = Allocation.objects.filter(pod_name=name, state="bound")
        return sorted(grant.uuid for grant in row.devices.all() if grant.live)

    def sees(self, name: str) -> list[str]:
        """UUIDs that the pod's own annotation names."""
        annotations = self.world.server.pods[NAMESPACE, name]["metadata"]["annotations"]
        return str(annotations["gpu.scheduling/visible-devices"]).split(",")

    def groups(self) -> list[tuple[str, int]]:
        """State and GPUs of each group that is not gone."""
        return list(GpuGroup.objects.exclude(state="gone").order_by("created_at").values_list("state", "gpus"))

    def grouped(self) -> list[str]:
        """UUIDs of the GPUs that are in groups."""
        return list(Device.objects.exclude(gpu_group="").order_by("minor").values_list("uuid", flat=True))

    def pods(self) -> list[str]:
        """Names of the reservation pods."""
        return sorted(self.kubelets.reservations())

    def label(self, name: str) -> str:
        labels = self.world.server.pods[NAMESPACE, name]["metadata"].get("labels") or {}
        return str(labels.get("runai-gpu-group", ""))


@pytest.fixture
def kubelets_record() -> Callable[[str, Mapping[str, Sequence[str]]], None]:
    """Writes what the kubelet of a node gave: pod UID → UUIDs."""

    def write(node: str, given: Mapping[str, Sequence[str]]) -> None:
        said = [CheckpointGrant(uid, "main", "nvidia.com/gpu", tuple(uuids)) for uid, uuids in given.items()]
        checkpoint_put(node_name=node, entries=said, actor=SYSTEM, now=database_now())

    return write


@pytest.fixture
def handled_events(world: World) -> Callable[[], None]:
    """Handles the deletion of a reservation pod as the watch of pods does."""

    def handle() -> None:
        (group,) = GpuGroup.objects.exclude(state="gone")
        meta = ObjectMeta(
            name=group.pod_name,
            namespace=group.pod_namespace,
            uid=group.pod_uid,
            labels={"runai-gpu-group": group.name},
        )
        pod = Pod(metadata=meta)
        with ThreadPoolExecutor(1) as threads:
            watching = Watching(threads)
            watching.handle(Changed("DELETED", pod.key, pod))
            watching.settle()

    return handle


@pytest.fixture
def shares(world: World, settings: Any) -> Iterator[Shares]:
    settings.GPUPLANE_RESERVATION_IMAGE = "gpuplane-agent:test"
    settings.GPUPLANE_RESERVATION_SECONDS = 5
    world.server.add_namespace(RESERVATIONS)
    world.server.add_namespace("gpuplane-system")
    world.node("n1", gpus=4, labels=PLUGIN)
    world.reconcile()
    with Kubelets(world.server, {"n1": [f"GPU-n1-{minor}" for minor in range(4)]}) as kubelets:
        yield Shares(world, kubelets)
