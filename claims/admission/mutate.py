"""The patch that confines containers to their devices (CLAIM-7, DEV-7) and has kube-scheduler count the pod.

Invariants: a pod that requests no devices is never changed; a patched pod gets no second patch; a user's own
CUDA_/NVIDIA_VISIBLE_DEVICES is replaced.

Env is immutable and written before scheduling, so the value is a downward-API reference to
`gpu.scheduling/visible-devices`, which the Binding sets. NVIDIA's runtime reads NVIDIA_VISIBLE_DEVICES: without it a
container gets no GPU, or all, depending on its image. It renumbers the devices inside the container, so the annotation
holds UUIDs (`DeviceRequest.uuids`). A pod's env overrides that of the kubelet's device plugin, so pods for nodes where
the plugin chooses get none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from claims.admission.counted import containers_by_path, counted_patch
from claims.admission.env import EnvEntry, env_patch
from claims.admission.isolation import (
    LIMITED_APART,
    NO_ISOLATION,
    IsolationRules,
    isolation_entries,
    isolation_wanted,
    mounts_patch,
)
from claims.admission.recognise import is_for_another, is_pod_create, looks_ours
from claims.admission.trust import Trust
from claims.dialects.amounts import container_amounts
from claims.dialects.own_keys import Isolation, container_key
from claims.dialects.parse import containers_apart, containers_without_devices, dialect_of, may_leave_to_kubelet
from claims.dialects.read_back import parse_allocated
from claims.dialects.read_running import CONFIG_MIRROR
from claims.dialects.request import Dialect, Refusal
from claims.membership import is_queued, membership_of
from claims.queues import StoredQueues
from kube.admission import AdmissionRequest, AdmissionResponse, ObjectInvalid, allowed, decode_object, invalid
from kube.device_types import Dimension
from kube.keys import (
    ALLOCATED,
    MODE_DEVICE_PLUGIN,
    MODE_EXCLUSIVE,
    MODE_LABEL,
    NATIVE_GPU,
    QUEUE_GATE,
    SCHEDULER_NAME,
    VGPU,
    VISIBLE_DEVICES,
)
from kube.objects import Container, Pod

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
_DEVICES: Final = frozenset((CUDA, NVIDIA))

NO_GPU: Final = "void"
"""NVIDIA's runtime mounts no GPU."""
NO_INDEX: Final = "-1"
"""CUDA finds no GPU. An empty value would be lost on the way through the API server."""
_NO_DEVICES: Final = (EnvEntry(CUDA, NO_INDEX), EnvEntry(NVIDIA, NO_GPU))

_LITERAL: Final = re.compile(r"[A-Za-z0-9._:,-]{0,65536}")
_BY_VGPU: Final = {VGPU: Dimension.UNITS}
_INDICES: Final = re.compile(r"[0-9]+(?:,[0-9]+)*")


def mutate_pod(
    request: AdmissionRequest,
    *,
    trust: Trust,
    takeover: bool = False,
    count_native: bool = False,
    native_mode: str = MODE_EXCLUSIVE,
    scheduler_name: str = SCHEDULER_NAME,
    queues: StoredQueues | None = None,
    gates: bool = True,
    isolation: IsolationRules = NO_ISOLATION,
) -> AdmissionResponse:
    """The verdict on a pod being created.

    `takeover`: the namespace is labelled for takeover, so `schedulerName` is set to `scheduler_name`. `count_native`:
    pods by `nvidia.com/gpu` get `gpu.scheduling/pods` too (GPUPLANE_COUNT_NATIVE). `native_mode`: the node mode of pods
    by `nvidia.com/gpu` that select none (GPUPLANE_NATIVE_MODE). Pods that break a rule of their dialect get only the
    scheduler's name, since the validating webhook refuses them; pods of another dialect's own scheduler get nothing.
    `queues`: as they were read last; `gates`: whether pods that they admit are gated. `isolation`: the settings.
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
    without = containers_without_devices(pod, dialect)

    how = isolation_wanted(pod, dialect, isolation) if literal is None else Isolation.NONE

    def entries_of(container: Container) -> tuple[EnvEntry, ...]:
        if to_kubelet:
            return ()
        if container.name in without:
            return _NO_DEVICES
        own = container.name in apart
        devices = _entries(literal, container_key(container.name) if own else VISIBLE_DEVICES)
        return devices + isolation_entries(container, how, isolation, apart=own) if how != Isolation.NONE else devices

    patch = [
        *env_patch(pod, entries_of, managed=_DEVICES | LIMITED_APART if how is Isolation.HAMI_CORE else _DEVICES),
        *mounts_patch(pod, how, isolation),
        *_selector_patch(pod, to_kubelet=to_kubelet),
        *(_vgpu_patch(pod) if literal is None and is_for_reservation_pods(pod, dialect, native_mode) else ()),
        *counted_patch(pod, counted=count_native or dialect != Dialect.NATIVE),
        *renamed,
        *([] if literal is not None or not gates else _gate_patch(pod, request.namespace, queues)),
    ]
    return allowed(request, patch=patch)


def _scheduler_patch(pod: Pod, scheduler_name: str) -> list[dict[str, Any]]:
    if pod.spec.scheduler_name == scheduler_name:
        return []
    return [{"op": "add", "path": "/spec/schedulerName", "value": scheduler_name}]


def _may_be_taken(pod: Pod, trust: Trust, request: AdmissionRequest) -> bool:
    """Whether our scheduler's name is set: on all pods but those placed by a trusted user or from a kubelet's file.

    Those that a user places on a node get it, so that the guard recognises and refuses them.
    """
    return not pod.spec.node_name or not (
        CONFIG_MIRROR in pod.annotations or trust.may_place(request.user_info.username)
    )


def _literal_value(pod: Pod) -> str | None:
    """The env value of a pod that carries its allocation, None for malformed annotations."""
    parsed = parse_allocated(pod.annotations[ALLOCATED])
    if parsed is None:
        return None
    stated = pod.annotations.get(VISIBLE_DEVICES)
    if stated is None:
        return ",".join(str(minor) for minor in parsed[1])
    return stated if _LITERAL.fullmatch(stated) else None


@lru_cache(maxsize=64)
def _entries(literal: str | None, key: str) -> tuple[EnvEntry, ...]:
    """The env entries of a container: the `literal`, or else references to the annotation `key`."""
    if literal is not None and _INDICES.fullmatch(literal):
        # Host indices need the order of minors, and no NVIDIA_VISIBLE_DEVICES, which renumbers.
        return EnvEntry(CUDA, literal), EnvEntry(ORDER, "PCI_BUS_ID")
    return EnvEntry(CUDA, literal, key), EnvEntry(NVIDIA, literal, key)


def is_for_kubelets(pod: Pod, dialect: str, native_mode: str) -> bool:
    """Whether a kubelet chooses the devices: any whole GPUs by `nvidia.com/gpu` on nodes in mode device-plugin."""
    selected = (pod.spec.node_selector or {}).get(MODE_LABEL, native_mode)
    return dialect == Dialect.NATIVE and selected == MODE_DEVICE_PLUGIN and may_leave_to_kubelet(pod)


def is_for_reservation_pods(pod: Pod, dialect: str, native_mode: str) -> bool:
    """Whether a reservation pod takes the GPUs of a pod by HAMi's names, on nodes in mode device-plugin."""
    selected = (pod.spec.node_selector or {}).get(MODE_LABEL, native_mode)
    return dialect == Dialect.HAMI and selected == MODE_DEVICE_PLUGIN


def _vgpu_patch(pod: Pod) -> Iterator[dict[str, Any]]:
    """Rename `nvidia.com/gpu`, for which the node's device plugin would give the pod GPUs of its own.

    A container that requests GPUs by the new name too keeps both, for which validation refuses it.
    """
    gpu, vgpu = (name.replace("/", "~1") for name in (NATIVE_GPU, VGPU))
    for path, container in containers_by_path(pod):
        if container_amounts(container, _BY_VGPU, path):
            continue
        for part in ("limits", "requests"):
            amounts = getattr(container.resources, part, None) or {}
            if NATIVE_GPU in amounts:
                yield {"op": "remove", "path": f"{path}/resources/{part}/{gpu}"}
                value = str(amounts[NATIVE_GPU])
                yield {"op": "add", "path": f"{path}/resources/{part}/{vgpu}", "value": value}


def _selector_patch(pod: Pod, *, to_kubelet: bool) -> Iterator[dict[str, Any]]:
    """Keep a pod without our env off nodes where no device plugin confines it."""
    if not to_kubelet:
        return
    if pod.spec.node_selector is None:
        yield {"op": "add", "path": "/spec/nodeSelector", "value": {MODE_LABEL: MODE_DEVICE_PLUGIN}}
    elif MODE_LABEL not in pod.spec.node_selector:
        escaped = MODE_LABEL.replace("/", "~1")
        yield {"op": "add", "path": f"/spec/nodeSelector/{escaped}", "value": MODE_DEVICE_PLUGIN}


def _gate_patch(pod: Pod, namespace: str, queues: StoredQueues | None) -> Iterator[dict[str, Any]]:
    """Gate a pod that queues admit, so that it costs kube-scheduler nothing while it waits."""
    membership = membership_of(pod, "")
    if pod.spec.node_name or not (membership.gang or (queues and is_queued(membership, namespace, queues))):
        return
    gate = {"name": QUEUE_GATE}
    if not pod.spec.scheduling_gates:
        yield {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}
    elif all(one.name != QUEUE_GATE for one in pod.spec.scheduling_gates):
        yield {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
