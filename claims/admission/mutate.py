"""The patch that makes a container see its devices and no others (CLAIM-7, DEV-7), and the pod one that kube-scheduler counts.

Called by the view of `/webhooks/pods/mutate`. Kept true: a pod that asks for no devices is never touched;
the same pod twice gives no second patch; a user's own CUDA_/NVIDIA_VISIBLE_DEVICES never survives.

A pod is created before it is scheduled and env is immutable, so the value is a downward-API reference to
`gpu.scheduling/visible-devices`, which the Binding carries. NVIDIA's runtime goes by NVIDIA_VISIBLE_DEVICES alone: without it a container
gets no GPU, or all of them, as its image says. It renumbers the devices inside the container, so the annotation holds UUIDs (`DeviceRequest.uuids`).
A pod's env comes after that of the kubelet's device plugin and wins, so pods meant for nodes where that one chooses get none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from claims.admission.counted import counted_patch
from claims.admission.recognise import is_for_another, is_pod_create, looks_ours
from claims.admission.trust import Trust
from claims.dialects.own_keys import container_key
from claims.dialects.parse import containers_apart, dialect_of, may_leave_to_kubelet
from claims.dialects.read_back import parse_allocated
from claims.dialects.read_running import CONFIG_MIRROR
from claims.dialects.request import Dialect, Refusal
from kube.admission import AdmissionRequest, AdmissionResponse, ObjectInvalid, allowed, decode_object, invalid
from kube.keys import (
    ALLOCATED,
    MODE_DEVICE_PLUGIN,
    MODE_EXCLUSIVE,
    MODE_LABEL,
    SCHEDULER_NAME,
    VISIBLE_DEVICES,
)
from kube.objects import Container, EnvVar, Pod

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
_DEVICES: Final = (CUDA, NVIDIA)

_LITERAL: Final = re.compile(r"[A-Za-z0-9._:,-]{0,65536}")
_INDICES: Final = re.compile(r"[0-9]+(?:,[0-9]+)*")


class _Env(msgspec.Struct, frozen=True):
    """One env entry as it must be: a literal, or the reference to annotation `key` where `literal` is None."""

    name: str
    literal: str | None = None
    key: str = VISIBLE_DEVICES

    def matches(self, entry: EnvVar) -> bool:
        """Whether the entry says the same already, defaults filled in by the API server or not."""
        if self.literal is not None:
            return entry.value == self.literal and not entry.value_from
        reference = (entry.value_from or {}).get("fieldRef")
        return (
            not entry.value
            and len(entry.value_from or {}) == 1
            and isinstance(reference, dict)
            and reference.get("fieldPath") == field_path(self.key)
        )

    def manifest(self) -> dict[str, Any]:
        """The entry in manifest shape."""
        if self.literal is not None:
            return {"name": self.name, "value": self.literal}
        return {"name": self.name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field_path(self.key)}}}


def field_path(key: str) -> str:
    """Where the downward API finds an annotation."""
    return f"metadata.annotations['{key}']"


def mutate_pod(
    request: AdmissionRequest,
    *,
    trust: Trust,
    takeover: bool = False,
    count_native: bool = False,
    native_mode: str = MODE_EXCLUSIVE,
    scheduler_name: str = SCHEDULER_NAME,
) -> AdmissionResponse:
    """The verdict on a pod being created.

    `takeover`: the namespace is
    labelled for takeover, so `schedulerName` is rewritten too, to `scheduler_name`, but that of pods which others may place. `count_native`: pods by `nvidia.com/gpu` are counted
    among the others (setting GPUPLANE_COUNT_NATIVE). `native_mode`: the mode of the nodes for which pods by `nvidia.com/gpu` are meant that
    select none themselves (setting GPUPLANE_NATIVE_MODE). Pods that break a rule of their dialect pass
    with nothing but that name: refusing them is the validating webhook's part. So do pods that another dialect's own scheduler serves.
    """
    if not is_pod_create(request):
        return allowed(request)
    try:
        pod = decode_object(request.object, Pod)
    except ObjectInvalid as error:
        return invalid(request, f"the pod is malformed: {error}") if looks_ours(request.object) else allowed(request)
    dialect = dialect_of(pod)
    if dialect is None or not pod.spec.containers:
        return allowed(request)
    renamed = _scheduler_patch(pod, scheduler_name) if takeover and _may_be_taken(pod, trust, request) else []
    if isinstance(dialect, Refusal):
        return allowed(request, patch=renamed)
    if not takeover and is_for_another(pod, scheduler_name=scheduler_name):
        return allowed(request)
    literal = None
    if ALLOCATED in pod.annotations and trust.is_own(request.user_info.username):
        literal = _literal_value(pod)
        if literal is None:
            return invalid(request, f"annotation {ALLOCATED} is not <node>:<minor>,<minor>")
    to_kubelet = literal is None and is_for_kubelets(pod, dialect, native_mode)
    apart = containers_apart(pod, dialect) if literal is None else frozenset()

    def wanted(container: Container) -> tuple[_Env, ...]:
        if to_kubelet:
            return ()  # neither ours nor any of their own
        return _entries(literal, container_key(container.name) if container.name in apart else VISIBLE_DEVICES)

    patch = [
        *_env_patch(pod, wanted),
        *_selector_patch(pod, to_kubelet=to_kubelet),
        *counted_patch(pod, counted=count_native or dialect is not Dialect.NATIVE),
        *renamed,
    ]
    return allowed(request, patch=patch)


def _scheduler_patch(pod: Pod, scheduler_name: str) -> list[dict[str, Any]]:
    if pod.spec.scheduler_name == scheduler_name:
        return []
    return [{"op": "add", "path": "/spec/schedulerName", "value": scheduler_name}]


def _may_be_taken(pod: Pod, trust: Trust, request: AdmissionRequest) -> bool:
    """Whether the pod is to name our scheduler: all but those that others may place, by hand or from a file.

    One that a user places on a node goes along, so that the guard, which in its first step looks at our pods alone, sees it and refuses it.
    """
    return not pod.spec.node_name or not (
        CONFIG_MIRROR in pod.annotations or trust.may_place(request.user_info.username)
    )


def _literal_value(pod: Pod) -> str | None:
    """The env value of a pod whose devices are known already, None where its annotations are malformed."""
    parsed = parse_allocated(pod.annotations[ALLOCATED])
    if parsed is None:
        return None
    stated = pod.annotations.get(VISIBLE_DEVICES)
    if stated is None:
        return ",".join(str(minor) for minor in parsed[1])
    return stated if _LITERAL.fullmatch(stated) else None


@lru_cache(maxsize=64)
def _entries(literal: str | None, key: str) -> tuple[_Env, ...]:
    """What a container gets, by the annotation `key` where no `literal` is known yet."""
    if literal is not None and _INDICES.fullmatch(literal):
        # Host indices hold only where nothing renumbers: CUDA_VISIBLE_DEVICES stands alone. CUDA's own order is not the order of minors.
        return _Env(CUDA, literal), _Env(ORDER, "PCI_BUS_ID")
    return _Env(CUDA, literal, key), _Env(NVIDIA, literal, key)


def is_for_kubelets(pod: Pod, dialect: Dialect, native_mode: str) -> bool:
    """Whether a kubelet is to choose the devices: whole GPUs by `nvidia.com/gpu`, any, on nodes in mode device-plugin."""
    selected = (pod.spec.node_selector or {}).get(MODE_LABEL, native_mode)
    return dialect is Dialect.NATIVE and selected == MODE_DEVICE_PLUGIN and may_leave_to_kubelet(pod)


def _selector_patch(pod: Pod, *, to_kubelet: bool) -> Iterator[dict[str, Any]]:
    """Without our env it must not come to a node where nobody else confines it."""
    if not to_kubelet:
        return
    if pod.spec.node_selector is None:
        yield {"op": "add", "path": "/spec/nodeSelector", "value": {MODE_LABEL: MODE_DEVICE_PLUGIN}}
    elif MODE_LABEL not in pod.spec.node_selector:
        escaped = MODE_LABEL.replace("/", "~1")
        yield {"op": "add", "path": f"/spec/nodeSelector/{escaped}", "value": MODE_DEVICE_PLUGIN}


def _env_patch(pod: Pod, wanted: Callable[[Container], tuple[_Env, ...]]) -> Iterator[dict[str, Any]]:
    for part, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers or ()):
            path = f"/spec/{part}/{index}/env"
            entries = wanted(container)
            if container.env is not None:
                yield from _container_patch(container.env, path, {entry.name: entry for entry in entries})
            elif entries:
                yield {"op": "add", "path": path, "value": [entry.manifest() for entry in entries]}


def _container_patch(env: list[EnvVar], path: str, wanted: dict[str, _Env]) -> Iterator[dict[str, Any]]:
    """Replace what is wrong, remove what is double (the last of a name wins) or a variable of devices that is not wanted, then add what is missing."""
    seen = set()
    surplus = []
    for index, entry in enumerate(env):
        if entry.name in seen or (entry.name in _DEVICES and entry.name not in wanted):
            surplus.append(index)
        elif entry.name in wanted:
            seen.add(entry.name)
            if not wanted[entry.name].matches(entry):
                yield {"op": "replace", "path": f"{path}/{index}", "value": wanted[entry.name].manifest()}
    for index in reversed(surplus):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for name, missing in wanted.items():
        if name not in seen:
            yield {"op": "add", "path": f"{path}/-", "value": missing.manifest()}
