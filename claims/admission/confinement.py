"""Whether a pod as it is will see its own devices only (CLAIM-7).

Called by filter and adoption: a pod that the mutating webhook never saw runs, and is shown as unconfined.
"""

from __future__ import annotations

from claims.admission.mutate import CUDA, NVIDIA, field_path
from claims.dialects.own_keys import container_key
from kube.keys import VISIBLE_DEVICES
from kube.objects import EnvVar, Pod


def is_confined(pod: Pod) -> bool:
    """Whether every container has the variable: by our reference, or by the literal value that the pod carries."""
    stated = pod.annotations.get(VISIBLE_DEVICES)
    containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
    return bool(containers) and all(
        any(_ours(entry, stated, one.name) for entry in one.env or ()) for one in containers
    )


def _ours(entry: EnvVar, stated: str | None, container: str) -> bool:
    if entry.name not in {CUDA, NVIDIA}:
        return False
    if entry.value_from is not None:
        reference = entry.value_from.get("fieldRef")
        paths = field_path(VISIBLE_DEVICES), field_path(container_key(container))
        return isinstance(reference, dict) and reference.get("fieldPath") in paths
    return stated is not None and entry.value == stated
