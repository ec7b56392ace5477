"""Slots as pods: on nodes without a runner Kubernetes starts a model that names an image.

Called by `rounds.run`. The pod is made on the slot's node, past the scheduler, once the slot's memory is bound; it sees
the slot's GPUs and no others. Its readiness probe says that the slot is ready, its end that the slot has failed: its
liveness probe ends it where the runtime answers no more.
A node that dies takes its slots with it once the cluster says so, as a runner that fails does: its pods would be
deleted five minutes later.
Invariants: a pod is made only for a slot that is to run, and deleted by its UID; a slot is stopped, and its memory
free, once its pod is gone; a pod that no slot stands for is deleted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from django.conf import settings

from allocations.backends import current_backends
from allocations.choices import State as AllocationState
from allocations.models import AllocationDevice
from inference.choices import HOLDING, UNWANTED, WANTED, State
from inference.launch import Launch
from inference.models import Runner, Slot
from inference.transitions import slot_moved
from kube.client import Cluster
from kube.errors import AlreadyExists, KubeError, NotFoundInCluster, PermanentKubeError, TemporaryKubeError
from kube.keys import COMPONENT_LABEL, MANAGED_BY, MANAGER, SLOT, SLOT_LABEL
from kube.objects import Condition, Named
from kube.resources import PODS
from nodes.choices import NodeState
from nodes.models import Node
from storage.transactions import atomic_retry

PORT: Final = 8000
GRACE_SECONDS: Final = 30
GPU_TAINT: Final = "nvidia.com/gpu"
"""By convention on nodes with GPUs."""
LOOK_AGAIN: Final = timedelta(seconds=30)
"""Without a slot that is a pod, how often the cluster is looked at for pods that nobody knows."""
STARTS_LONGER: Final = 30
"""Questions of the startup probe after GPUPLANE_SLOT_START_SECONDS."""
FAILING_MOST: Final = 5
"""Temporary errors after which the rest waits for the next round."""
SELECTOR: Final = f"{COMPONENT_LABEL}={SLOT}"
_HEALTH: Final[Mapping[str, str]] = {"ollama": "/", "vllm": "/health", "llamacpp": "/health", "simulated": "/health"}

log = structlog.get_logger(__name__)


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _ContainerState(msgspec.Struct):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _Status(msgspec.Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = msgspec.field(default=None, name="containerStatuses")


class SlotPod(Named):
    """What is read of the pod."""

    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.metadata.uid

    @property
    def ready(self) -> bool:
        """Whether its readiness probe says so."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())

    @property
    def told(self) -> str:
        """What it waits for, or how it ended."""
        for one in self.status.container_statuses or ():
            if one.state.terminated is not None:
                ended = one.state.terminated
                words = f"exit code {ended.exit_code}, {ended.reason}: {ended.message}"
                return words.rstrip(": ").rstrip(", ")
            if one.state.waiting is not None and one.state.waiting.reason:
                return f"{one.state.waiting.reason}: {one.state.waiting.message}".rstrip(": ")
        return f"{self.status.reason}: {self.status.message}".strip(": ")


def pod_name_of(slot_id: str) -> str:
    """The pod's name."""
    return f"slot-{slot_id}"


def nodes_for_pods() -> dict[str, dict[str, str]]:
    """Nodes of the cluster that have no runner and take pods, with their labels; none without a cluster."""
    if current_backends().cluster is None:
        return {}
    rows = Node.objects.filter(state=NodeState.READY, problem="", unschedulable=False).exclude(cluster_uid="")
    without = rows.exclude(pk__in=Runner.objects.values("node"))
    return {name: labels for name, labels, taints in without.values_list("name", "labels", "taints") if _open(taints)}


def _open(taints: list[dict[str, str]] | None) -> bool:
    """Whether no taint but that of GPU nodes keeps pods off."""
    return all(one.get("key") == GPU_TAINT or one.get("effect") == "PreferNoSchedule" for one in taints or ())


class SlotPods:
    """The pods of one worker's rounds."""

    def __init__(self) -> None:
        self._looked: datetime | None = None

    def follow(self, *, now: datetime) -> None:
        """Move slots by their pods, and delete pods that are to go. A pod that is refused delays no other."""
        cluster = current_backends().cluster
        if cluster is None:
            return
        slots = list(_slots())
        if not slots and self._looked is not None and now - self._looked < LOOK_AGAIN:
            return
        self._looked = now
        try:
            listed = cluster.list(_path(), SlotPod, label_selector=SELECTOR).items
            pods = {pod.metadata.name: pod for pod in listed}
        except KubeError as error:
            log.warning("slots.pods_unread", error=str(error))
            return
        dead = _dead_nodes({slot.node for slot in slots})
        steps = [partial(_follow, cluster, slot, pods.pop(slot.pod_name, None), dead, now) for slot in slots]
        steps += [partial(_delete_stray, cluster, pod) for pod in pods.values()]
        temporary = 0
        for step in steps:
            try:
                step()
            except KubeError as error:
                log.warning("slots.pod_not_followed", error=str(error))
                temporary += isinstance(error, TemporaryKubeError)
                if temporary >= FAILING_MOST:
                    return

    def make(self, *, now: datetime) -> None:
        """Make the pods of slots whose memory was bound in this round."""
        cluster = current_backends().cluster
        if cluster is None:
            return
        bound = _slots().filter(state=State.PLANNED, pod_uid="", allocation__state=AllocationState.BOUND)
        for slot in bound:
            try:
                _make(cluster, slot, now)
            except KubeError as error:
                log.warning("slots.pod_not_made", slot=slot.pk, error=str(error))


def _slots() -> Any:
    rows = Slot.objects.filter(state__in=HOLDING).exclude(pod_name="")
    return rows.select_related("allocation").order_by("planned_at", "pk")


def _dead_nodes(names: Collection[str]) -> frozenset[str]:
    """Of these nodes, those that are not ready."""
    rows = Node.objects.filter(name__in=names, state=NodeState.NOT_READY)
    return frozenset(rows.values_list("name", flat=True))


def _follow(cluster: Cluster, slot: Slot, pod: SlotPod | None, dead: Collection[str], now: datetime) -> None:
    bound = slot.allocation is not None and slot.allocation.state == AllocationState.BOUND
    if slot.state in UNWANTED:
        if pod is None:
            _move(slot, State.STOPPED, now)
        elif not _finishes(slot, now):
            _delete(cluster, pod)
    elif not bound:
        return
    elif pod is None:
        if slot.pod_uid:
            _move(slot, State.FAILED, now, reason="its pod is gone")
        else:
            _make(cluster, slot, now)
    elif slot.pod_uid not in ("", pod.uid) or pod.metadata.deletion_timestamp:
        _move(slot, State.FAILED, now, reason="its pod is being deleted")
    elif pod.status.phase in ("Failed", "Succeeded"):
        _move(slot, State.FAILED, now, reason=f"its pod has ended: {pod.told or pod.status.phase}")
    elif slot.state == State.READY and slot.node in dead and not pod.ready:
        _move(slot, State.FAILED, now, reason=f"node {slot.node} is not ready, nor is its pod", own_failure=False)
    else:
        _forward(slot, pod, now)


def _delete_stray(cluster: Cluster, pod: SlotPod) -> None:
    if not _slots().filter(pod_name=pod.metadata.name).exists():
        _delete(cluster, pod)


def _finishes(slot: Slot, now: datetime) -> bool:
    """Whether it has requests to finish, and time for them."""
    drains = timedelta(seconds=settings.GPUPLANE_SLOT_DRAIN_SECONDS)
    return slot.state == State.DRAINING and slot.active > 0 and now - (slot.draining_at or now) < drains


def _forward(slot: Slot, pod: SlotPod, now: datetime) -> None:
    """A pod that is there, of a slot that is to run."""
    if slot.state == State.PLANNED:
        _move(slot, State.STARTING, now, pod_uid=pod.uid)
    elif slot.state == State.STARTING and pod.ready and pod.status.pod_ip:
        host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
        _move(slot, State.READY, now, address=f"{host}:{PORT}")
    elif slot.state == State.STARTING and pod.told != slot.reason:
        Slot.objects.filter(pk=slot.pk, state=State.STARTING).update(reason=pod.told[:500], changed_at=now)


@atomic_retry
def _move(slot: Slot, state: State, now: datetime, **fields: Any) -> bool:
    return slot_moved(slot, state, now=now, **fields)


def _make(cluster: Cluster, slot: Slot, now: datetime) -> None:
    """Make the pod, which may be there already. Raises TemporaryKubeError; a pod that is refused fails the slot.

    One that is not to run any more gets none: the list of slots may be from long ago.
    """
    if not _is_wanted(slot):
        return
    try:
        pod = cluster.create(_path(), manifest_of(slot), SlotPod, idempotent=True)
    except AlreadyExists:
        return  # the next round sees it
    except PermanentKubeError as error:
        _move(slot, State.FAILED, now, reason=f"the API server refused its pod: {error}")
        return
    if not _move(slot, State.STARTING, now, pod_uid=pod.uid) and not _is_wanted(slot):
        _delete(cluster, pod)  # it was stopped meanwhile, and its memory may be another's by now


def _is_wanted(slot: Slot) -> bool:
    return Slot.objects.filter(pk=slot.pk, state__in=WANTED).exists()


def _delete(cluster: Cluster, pod: SlotPod) -> None:
    if pod.metadata.deletion_timestamp:
        return
    try:
        cluster.delete(_path(pod.metadata.name), uid=pod.uid, grace_seconds=GRACE_SECONDS)
    except NotFoundInCluster:
        log.debug("slots.pod_gone", pod=pod.metadata.name)


def _path(name: str | None = None) -> str:
    return PODS.path(namespace=settings.GPUPLANE_NAMESPACE, name=name)


def _percent(grant: AllocationDevice) -> int:
    """Of its GPU's memory, as vLLM takes it: the claim is that share, rounded up to a byte."""
    size = grant.device.memory_bytes if grant.device is not None else 0
    return grant.memory_bytes * 100 // size if size else 0


def manifest_of(slot: Slot) -> dict[str, Any]:
    """The pod: the model's image and arguments. Arguments refer to the variables as `$(SLOT_…)`."""
    launch = msgspec.convert(slot.launch, Launch)
    grants = AllocationDevice.objects.filter(allocation_id=slot.allocation_id or "", live=True).select_related("device")
    held = list(grants.order_by("minor"))
    shares = [_percent(grant) for grant in held]
    variables = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(grant.uuid for grant in held),
        "SLOT_MODEL": slot.model_name,
        "SLOT_SOURCE": launch.source,
        "SLOT_LORA": slot.lora,
        "SLOT_PORT": str(PORT),
        "SLOT_GPUS": str(len(held)),
        "SLOT_PARALLEL": str(launch.parallel),
        "SLOT_CONTEXT_LENGTH": str(launch.context_length),
        "SLOT_KV_TYPE": launch.kv_type,
        "SLOT_MEMORY_SHARE": f"{max(shares, default=0) / 100:.2f}",
    }
    probe = {"httpGet": {"path": _HEALTH[launch.runtime], "port": PORT}, "periodSeconds": 2, "timeoutSeconds": 5}
    # gpuplane ends a slot that is not ready in time; until then nothing is asked whether it lives
    starts = probe | {"failureThreshold": math.ceil(settings.GPUPLANE_SLOT_START_SECONDS / 2) + STARTS_LONGER}
    lives = probe | {"periodSeconds": 10, "failureThreshold": 3}
    return {
        "metadata": {
            "name": slot.pod_name,
            "namespace": settings.GPUPLANE_NAMESPACE,
            "labels": {MANAGED_BY: MANAGER, COMPONENT_LABEL: SLOT, SLOT_LABEL: slot.pk},
        },
        "spec": {
            "nodeName": slot.node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "tolerations": [{"key": GPU_TAINT, "operator": "Exists"}],
            "containers": [
                {
                    "name": "runtime",
                    "image": launch.image,
                    "args": list(launch.args),
                    "env": [{"name": name, "value": value} for name, value in variables.items()],
                    "ports": [{"containerPort": PORT}],
                    "startupProbe": starts,
                    "readinessProbe": probe,
                    "livenessProbe": lives,
                }
            ],
        },
    }
