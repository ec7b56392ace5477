"""Whether a pod will see only its own devices (CLAIM-7). Pods that the mutating webhook missed run unconfined."""

from __future__ import annotations

from claims.admission.mutate import CUDA, NO_GPU, NVIDIA
from claims.dialects.own_keys import container_key, field_path
from kube.keys import VISIBLE_DEVICES
from kube.objects import Container, EnvVar, Pod


def is_confined(pod: Pod) -> bool:
    """Whether every container's device variables are ours: our reference, or the literal value of the annotation.

    NVIDIA_VISIBLE_DEVICES is required: with CUDA_VISIBLE_DEVICES alone NVIDIA's runtime may show a container every GPU
    of its node.
    """
    stated = pod.annotations.get(VISIBLE_DEVICES)
    containers = pod.all_containers
    return bool(containers) and all(_is_confined(one, stated) for one in containers)


def _is_confined(container: Container, stated: str | None) -> bool:
    last = {entry.name: entry for entry in container.env or ()}  # of a repeated name the last counts
    nvidia, cuda = last.get(NVIDIA), last.get(CUDA)
    if nvidia is not None and nvidia.value == NO_GPU:
        return True
    return (
        nvidia is not None
        and _ours(nvidia, stated, container.name)
        and (cuda is None or _ours(cuda, stated, container.name))
    )


def _ours(entry: EnvVar, stated: str | None, container: str) -> bool:
    if entry.value_from is not None:
        reference = entry.value_from.get("fieldRef")
        paths = field_path(VISIBLE_DEVICES), field_path(container_key(container))
        return isinstance(reference, dict) and reference.get("fieldPath") in paths
    return stated is not None and entry.value == stated
