"""gpuplane's annotations that name the visible devices of a pod or of one of its containers."""

from __future__ import annotations

from typing import Final

from kube.keys import VISIBLE_DEVICES
from kube.objects import Pod

CONTAINER_KEYS: Final = f"{VISIBLE_DEVICES}."
_LONGEST: Final = 63
"""Most characters of an annotation's name after its prefix."""


def container_key(container: str) -> str:
    """The container's annotation; that of the pod if the container's name is too long for one."""
    key = CONTAINER_KEYS + container
    return key if container and len(key.partition("/")[2]) <= _LONGEST else VISIBLE_DEVICES


def sees_uuids(pod: Pod) -> bool:
    """Whether a container gets NVIDIA_VISIBLE_DEVICES from our annotation, which then has to hold UUIDs."""
    reference = f"metadata.annotations['{VISIBLE_DEVICES}']"
    return any(
        entry.name == "NVIDIA_VISIBLE_DEVICES" and reference in str(entry.value_from)
        for container in pod.all_containers
        for entry in container.env or ()
        if entry.value_from is not None
    )
