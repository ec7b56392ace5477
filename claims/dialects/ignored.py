"""Annotations, labels and resources of other schedulers that gpuplane ignores.

`claims.dialects.parse` adds those of a pod to its request; admission warns of them, and explain shows them. Invariants:
the table has no name that a dialect reads; a sentence has at most 120 characters and all together 4,096, the limits of
Kubernetes for warnings. Sources: Koordinator `apis/extension`, HAMi `pkg/device/nvidia` and `pkg/util`, KAI
`pkg/common/constants` and its pod grouper, Volcano `pkg/scheduler/api/devices` and its scheduling API, the scheduler
plugins of Kubernetes (coscheduling).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from kube.objects import Pod


class Place(StrEnum):
    """The part of a pod that holds the name."""

    ANNOTATION = "annotation"
    LABEL = "label"
    RESOURCE = "resource"


class Ignored(msgspec.Struct, frozen=True):
    """A name, or with `*` at the end a prefix. `meaning`: what happens instead, as the end of a sentence."""

    place: Place
    name: str
    meaning: str

    @property
    def sentence(self) -> str:
        """The warning."""
        return f"{self.place} {self.name} is ignored: {self.meaning}"


_ONE_BY_ONE: Final = "pods are placed one by one"
_NO_QUEUE: Final = "no such queue holds here"
_PRIORITY: Final = "priority decides who is evicted"
_NO_MODE: Final = "it does not choose how GPUs are shared"
_NO_VGPU: Final = "it brings no GPU; ask by nvidia.com/gpumem"
_NO_NUMA: Final = "NUMA nodes are not aligned"
_NO_TOPOLOGY: Final = "nodes are not grouped"

_MEANINGS: Final = {
    Place.ANNOTATION: {
        # Koordinator
        "scheduling.koordinator.sh/device-allocate-hint": "any device that fits is taken",
        "scheduling.koordinator.sh/gpu-partition-spec": "the best linked GPUs are taken",
        "scheduling.koordinator.sh/numa-topology-spec": _NO_NUMA,
        "scheduling.koordinator.sh/resource-spec": "CPUs are not bound",
        "scheduling.koordinator.sh/reservation-affinity": "no Reservation is used",
        "gang.scheduling.koordinator.sh/name": _ONE_BY_ONE,
        "gang.scheduling.koordinator.sh/min-available": _ONE_BY_ONE,
        "gang.scheduling.koordinator.sh/groups": _ONE_BY_ONE,
        "gang.scheduling.koordinator.sh/network-topology-spec": _NO_TOPOLOGY,
        # HAMi
        "nvidia.com/vgpu-mode": _NO_MODE,
        "nvidia.com/mig-profile-preference": "no MIG profile is chosen by it",
        "hami.io/device-scoring-weights": "devices are ranked by memory, then core",
        "hami.io/numa-alignment": _NO_NUMA,
        # KAI
        "nvidia.com/container.*": "ask by gpu-fraction or gpu-memory",
        "pod-group-name": _ONE_BY_ONE,
        "kai.scheduler/topology": _NO_TOPOLOGY,
        "kai.scheduler/topology-required-placement": _NO_TOPOLOGY,
        "kai.scheduler/topology-preferred-placement": _NO_TOPOLOGY,
        # Volcano
        "volcano.sh/vgpu-mode": _NO_MODE,
        "volcano.sh/numa-topology-policy": _NO_NUMA,
        "volcano.sh/preemptable": _PRIORITY,
        "scheduling.k8s.io/group-name": _ONE_BY_ONE,
        "scheduling.volcano.sh/group-name": _ONE_BY_ONE,
        "scheduling.volcano.sh/queue-name": _NO_QUEUE,
    },
    Place.LABEL: {
        # Koordinator
        "koordinator.sh/gpu-isolation-provider": "gpu.scheduling/isolation limits shares",
        "quota.scheduling.koordinator.sh/name": "no such quota holds here",
        # Koordinator and Kubernetes' coscheduling
        "pod-group.scheduling.sigs.k8s.io": _ONE_BY_ONE,
        "pod-group.scheduling.sigs.k8s.io/name": _ONE_BY_ONE,
        "scheduling.x-k8s.io/pod-group": _ONE_BY_ONE,
        # KAI
        "kai.scheduler/node-pool": "nodes of every pool may be taken",
        "kai.scheduler/subgroup-name": _ONE_BY_ONE,
    },
    Place.RESOURCE: {
        # HAMi
        "nvidia.com/priority": "processes on a GPU have no order",
        # Volcano
        "volcano.sh/vgpu-number": _NO_VGPU,
        "volcano.sh/vgpu-memory": _NO_VGPU,
        "volcano.sh/vgpu-memory-percentage": _NO_VGPU,
        "volcano.sh/vgpu-cores": _NO_VGPU,
        "volcano.sh/gpu-memory": _NO_VGPU,
        "volcano.sh/gpu-number": _NO_VGPU,
    },
}
IGNORED: Final = tuple(
    Ignored(place, name, meaning) for place, named in _MEANINGS.items() for name, meaning in named.items()
)

_SENTENCES: Final = {f"{row.place}:{row.name}": row.sentence for row in IGNORED}


def _names(place: Place) -> frozenset[str]:
    return frozenset(row.name for row in IGNORED if row.place is place and not row.name.endswith("*"))


_ANNOTATIONS, _LABELS, _RESOURCES = (_names(place) for place in Place)
_BEGINNINGS: Final = tuple(row.name.removesuffix("*") for row in IGNORED if row.name.endswith("*"))
"""Prefixes; all are of annotations."""


def ignored_by(pod: Pod) -> tuple[str, ...]:
    """The rows of the table that apply to the pod, as `place:name`, sorted.

    Filter calls it for every pod, and nearly all have none: sets are compared first.
    """
    found: set[str] = set()
    annotations, labels = pod.metadata.annotations, pod.metadata.labels
    if annotations:
        if not _ANNOTATIONS.isdisjoint(annotations):
            found.update(f"{Place.ANNOTATION}:{name}" for name in _ANNOTATIONS.intersection(annotations))
        for name in annotations:
            if name.startswith(_BEGINNINGS):
                found.update(f"{Place.ANNOTATION}:{start}*" for start in _BEGINNINGS if name.startswith(start))
    if labels and not _LABELS.isdisjoint(labels):
        found.update(f"{Place.LABEL}:{name}" for name in _LABELS.intersection(labels))
    for container in pod.all_containers:
        if container.resources is not None:
            for amounts in (container.resources.limits, container.resources.requests):
                if amounts and not _RESOURCES.isdisjoint(amounts):
                    found.update(f"{Place.RESOURCE}:{name}" for name in _RESOURCES.intersection(amounts))
    return tuple(sorted(found)) if found else ()


def sentences(found: Iterable[str]) -> list[str]:
    """The sentences of these rows; rows that are no longer in the table are skipped."""
    return [_SENTENCES[row] for row in found if row in _SENTENCES]
