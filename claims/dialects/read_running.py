"""Devices of pods without a result annotation, from the kubelet's checkpoint or from their env (DEV-8, DEV-9).

Devices keep the names of the checkpoint or the env, which `claims.dialects.device_names` maps. Invariants: such a pod
holds its devices whole; a pod with `NVIDIA_VISIBLE_DEVICES=all`, such as monitoring, holds none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from claims.dialects.adopted import DEVICES_MOST, AdoptedDevice, Adoption, Unreadable
from claims.dialects.amounts import asks_any
from claims.dialects.device_names import Names
from kube.device_types import GPU, Dimension
from kube.keys import MIG_RESOURCES, NATIVE_GPU
from kube.objects import Container, Pod

ENV: Final = "NVIDIA_VISIBLE_DEVICES"
CHECKPOINT: Final = "the kubelet's checkpoint"
CONFIG_HASH: Final = "kubernetes.io/config.hash"
CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotations of the mirror of a static pod: the UID that the kubelet uses. The second is immutable, and the kubelet
deletes a mirror of a pod that it does not run.
"""

_NONE: Final = frozenset({"", "all", "none", "void"})
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_NAME: Final = re.compile(
    r"GPU-[A-Za-z0-9._-]{1,120}|MIG-[A-Za-z0-9._/-]{1,120}|(?:/dev/)?nvidia[0-9]{1,3}(?:/[a-z0-9/]{1,20})?|[0-9]{1,6}:[0-9]{1,2}"
)
_GPU_NAME: Final = re.compile(r"(?:GPU|MIG)-.+|(?:/dev/)?nvidia[0-9].*")
SHARED_GPU: Final = f"{NATIVE_GPU}.shared"
"""Of GPUs that NVIDIA's device plugin shares by time or by MPS (`renameByDefault`)."""
_GPU_RESOURCES: Final = frozenset({NATIVE_GPU, SHARED_GPU})
"""Resources of NVIDIA's device plugin, besides MIG instances. Others under `nvidia.com/` may be NICs."""


class CheckpointGrantView(Protocol):
    """An entry of a checkpoint; implemented by `nodes.checkpoints.CheckpointGrant`."""

    @property
    def resource(self) -> str:
        """Resource name."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Ids."""


def kubelet_uid(pod: Pod) -> str:
    """The pod's UID in the kubelet."""
    mirrored = pod.annotations.get(CONFIG_MIRROR)
    return mirrored if mirrored and mirrored == pod.annotations.get(CONFIG_HASH) else pod.metadata.uid


def asks_for_shared_gpus(pod: Pod) -> bool:
    """Whether the pod requests GPUs that the device plugin shares. No dialect does: gpuplane places no such pod."""
    return asks_any(pod, {SHARED_GPU: Dimension.UNITS})


def read_checkpoint(pod: Pod, *, grants: Iterable[CheckpointGrantView], names: Names) -> Adoption | None:
    """The devices that a kubelet gave to the pod, under their names in the checkpoint, or None.

    `names`: the node's devices. Devices that cannot be GPUs count only if the node has them.
    """
    words = {
        word for one in grants for word in one.devices if may_be_gpu(one.resource, word) or names.find(word) is not None
    }
    if not words:
        return None
    devices = tuple(AdoptedDevice(type=GPU, uuid=word) for word in sorted(words))
    return Adoption(node=pod.spec.node_name, devices=devices, source=CHECKPOINT)


def may_be_gpu(resource: str, word: str) -> bool:
    """Whether the device of a checkpoint may be a GPU or a part of one, by its resource and id."""
    return resource in _GPU_RESOURCES or resource.startswith(MIG_RESOURCES) or _GPU_NAME.fullmatch(word) is not None


def read_env(pod: Pod) -> Adoption | Unreadable | None:
    """The GPUs that the pod's containers name in their env, None for none or all."""
    named: dict[str, None] = {}
    for container in _running(pod):
        for entry in container.env or ():
            if entry.name == ENV and entry.value is not None and not entry.value_from:
                words = [word.strip() for word in entry.value.split(",")]
                named.update(dict.fromkeys(word for word in words if word.lower() not in _NONE))
    if not named:
        return None
    if len(named) > DEVICES_MOST or not all(_INDEX.fullmatch(word) or _NAME.fullmatch(word) for word in named):
        return Unreadable(problem=f"{ENV} does not list GPUs by index, UUID or device file")
    devices = tuple(
        AdoptedDevice(type=GPU, minor=int(word)) if _INDEX.fullmatch(word) else AdoptedDevice(type=GPU, uuid=word)
        for word in named
    )
    return Adoption(node=pod.spec.node_name, devices=devices, source=ENV)


def _running(pod: Pod) -> list[Container]:
    """Containers that run as long as the pod."""
    sidecars = [one for one in pod.spec.init_containers or () if one.is_sidecar]
    return [*sidecars, *(pod.spec.containers or ())]
