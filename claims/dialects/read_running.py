"""Devices of pods that run without any result annotation: by the kubelet's own record, or by what their env says (DEV-8, DEV-9).

Called by adoption, where `read_back` found nothing. Kept true: such a pod holds its devices whole, since nothing says otherwise; a pod that
is shown all devices of its node (`NVIDIA_VISIBLE_DEVICES=all`, as monitoring is) holds none. Devices are named as the kubelet or the env names them:
`claims.dialects.device_names` finds which of the node's they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from claims.dialects.device_names import Names
from claims.dialects.read_back import DEVICES_MOST, AdoptedDevice, Adoption, Unreadable
from kube.device_types import GPU
from kube.keys import MIG_RESOURCES, NATIVE_GPU
from kube.objects import Container, Pod

ENV: Final = "NVIDIA_VISIBLE_DEVICES"
CHECKPOINT: Final = "the kubelet's checkpoint"
CONFIG_HASH: Final = "kubernetes.io/config.hash"
CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
"""Both carried by the image in the API of a pod that the kubelet runs from a file: the UID by which the kubelet itself knows it. The second
cannot be changed once the pod is there, and the kubelet deletes an image of a pod that it does not run."""

_NONE: Final = frozenset({"", "all", "none", "void"})
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_NAME: Final = re.compile(
    r"GPU-[A-Za-z0-9._-]{1,120}|MIG-[A-Za-z0-9._/-]{1,120}|(?:/dev/)?nvidia[0-9]{1,3}(?:/[a-z0-9/]{1,20})?|[0-9]{1,6}:[0-9]{1,2}"
)
_GPU_NAME: Final = re.compile(r"(?:GPU|MIG)-.+|(?:/dev/)?nvidia[0-9].*")
_GPU_RESOURCES: Final = frozenset({NATIVE_GPU, f"{NATIVE_GPU}.shared"})
"""Resources of NVIDIA's device plugin, beside those of MIG instances. Others under `nvidia.com/` may be NICs."""


class GivenView(Protocol):
    """What is read of one entry of a checkpoint; `nodes.checkpoints.Given` has these."""

    @property
    def resource(self) -> str:
        """Resource name."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Ids."""


def kubelet_uid(pod: Pod) -> str:
    """The UID by which the kubelet knows the pod."""
    mirrored = pod.annotations.get(CONFIG_MIRROR)
    return mirrored if mirrored and mirrored == pod.annotations.get(CONFIG_HASH) else pod.metadata.uid


def read_given(pod: Pod, *, given: Iterable[GivenView], known: Names) -> Adoption | None:
    """The devices that a kubelet gave to the pod's containers, by its words for them, None for none that concern us.

    `known`: the node's devices. What may be a GPU counts in any case; devices of other resources only if they are known.
    """
    words = dict.fromkeys(
        word for one in given for word in one.devices if may_be_gpu(one.resource, word) or known.find(word) is not None
    )
    if not words:
        return None
    devices = tuple(AdoptedDevice(type=GPU, uuid=word) for word in sorted(words))
    return Adoption(node=pod.spec.node_name, devices=devices, source=CHECKPOINT)


def may_be_gpu(resource: str, word: str) -> bool:
    """Whether a device that a kubelet gave for the resource, by this id, may be a GPU or a part of one."""
    return resource in _GPU_RESOURCES or resource.startswith(MIG_RESOURCES) or _GPU_NAME.fullmatch(word) is not None


def read_env(pod: Pod) -> Adoption | Unreadable | None:
    """The GPUs that the pod's containers name in their env, None where they name none or all."""
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
    """Containers that run for as long as the pod does."""
    sidecars = [one for one in pod.spec.init_containers or () if one.restart_policy == "Always"]
    return [*sidecars, *(pod.spec.containers or ())]
