"""gpuplane's annotations whose values reach the containers of a pod by the downward API: the visible devices, and what
keeps shares to their amounts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kube.keys import ISOLATION_MEMORY, ISOLATION_THREADS, VISIBLE_DEVICES
from kube.objects import EnvVar, Pod

CONTAINER_KEYS: Final = f"{VISIBLE_DEVICES}."
CONTAINER_STARTS: Final = (CONTAINER_KEYS, f"{ISOLATION_THREADS}.", f"{ISOLATION_MEMORY}.")
_LONGEST: Final = 63
"""Most characters of an annotation's name after its prefix."""


class Isolation(StrEnum):
    """What keeps the containers of a share to its amounts."""

    NONE = "none"
    MPS = "mps"
    HAMI_CORE = "hami-core"


MPS_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
HAMI_THREADS: Final = "CUDA_DEVICE_SM_LIMIT"
_ISOLATED_BY: Final = {MPS_THREADS: Isolation.MPS, HAMI_THREADS: Isolation.HAMI_CORE}


def field_path(key: str) -> str:
    """The downward API's path of an annotation."""
    return f"metadata.annotations['{key}']"


def container_key(container: str, *, of: str = VISIBLE_DEVICES) -> str:
    """The container's annotation; that of the pod (`of`) if the container's name is too long for one."""
    key = f"{of}.{container}"
    return key if container and len(key.partition("/")[2]) <= _LONGEST else of


def sees_uuids(pod: Pod) -> bool:
    """Whether a container gets NVIDIA_VISIBLE_DEVICES from our annotation, which then has to hold UUIDs."""
    return any(
        entry.name == "NVIDIA_VISIBLE_DEVICES" and _refers(entry, VISIBLE_DEVICES)
        for container in pod.all_containers
        for entry in container.env or ()
    )


def isolation_of(pod: Pod) -> str:
    """How a container is kept to its amounts by references to our annotations, empty for none: env does not change,
    while the pod's own annotation and the setting may.
    """
    for container in pod.all_containers:
        for entry in container.env or ():
            if entry.name in _ISOLATED_BY and _refers(entry, ISOLATION_THREADS):
                return _ISOLATED_BY[entry.name]
    return ""


def _refers(entry: EnvVar, key: str) -> bool:
    """Whether the entry refers to the annotation, or to that of a container."""
    if entry.value_from is None:
        return False
    reference = entry.value_from.get("fieldRef")
    path = reference.get("fieldPath") if isinstance(reference, dict) else None
    return isinstance(path, str) and path.startswith((field_path(key), f"metadata.annotations['{key}."))
