"""Advertises a node's devices as resources in its status, under the names of all dialects, and its GPU model as a label
(DEV-5).

Called by reconciling, and after an inventory changed; `advertise_pods` when a preemption reservation begins or ends.
Invariants:
- Nodes in mode exclusive advertise all devices: MIG instances as `nvidia.com/mig-<profile>`, a GPU in MIG mode only
  while it is held. Nodes in mode device-plugin advertise GPUs under every name but the device plugin's
  `nvidia.com/gpu`: reservation pods keep the GPUs that gpuplane gives from the kubelet's other pods.
- Every node with devices advertises `gpu.scheduling/pods`, by which kube-scheduler counts pods that ask for devices:
  plenty, except while it has a preemption reservation (`nodes.models.PreemptionReservation`).
- Only resources of our own are written or removed, as an annotation lists them, and only where they differ.
- An unhealthy device is not advertised once nobody holds it; never less is advertised than running pods have, or a
  kubelet that restarts would reject some of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from django.conf import settings

from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.device_types import DEVICE_TYPES, GPU, PREFIXES
from kube.errors import NotFoundInCluster, PermanentKubeError
from kube.keys import ADVERTISED, MIG_RESOURCES, MODEL_LABEL, NATIVE_GPU, PODS_RESOURCE
from kube.quantities import QuantityError, parse_quantity
from nodes.choices import Mode, NodeState, Presence
from nodes.inventory import model_label
from nodes.models import Device, Node, PreemptionReservation
from storage.clock import RunningClock
from storage.enqueue import send_after_commit

WHOLE = 100
"""Percent of a whole device."""
PLENTY = 100_000
"""`gpu.scheduling/pods` of a node without preemption reservation: more than ever run there."""
ATTEMPTS = 5
FEW = 500
"""Most names in a query; databases bound the parameters of a statement."""
TASK = "nodes.advertise"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Content:
    """What one node advertises. `pods`: its `gpu.scheduling/pods`."""

    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Devices by type."""
    instances: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """MIG instances by resource name."""
    memory_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By type."""
    models: set[str] = field(default_factory=set)
    pods: int = 0
    all_gpus: int = 0
    """GPUs with unhealthy ones, where pods hold any of the node's; else 0."""
    by_plugin: bool = False
    """A device plugin advertises `nvidia.com/gpu`."""


def advertise(*, cluster: Cluster, machines: Iterable[kube_nodes.Node], now: datetime) -> list[str]:
    """Update these Node objects; the names of those that were written. Raises TemporaryKubeError."""
    clock = RunningClock(now)
    found = {machine.name: machine for machine in machines}
    # a node that the database does not know (after a reinstall, say) keeps what its running pods were placed by
    known = Node.objects.filter(name__in=found) if len(found) < FEW else Node.objects.all()
    rows = {name: (mode, state) for name, mode, state in known.values_list("name", "mode", "state")}
    contents = _contents({name: Mode(mode) for name, (mode, state) in rows.items() if state != NodeState.GONE}, now)
    written = []
    for name, machine in found.items():
        if name not in rows or (name not in contents and ADVERTISED not in machine.annotations):
            continue
        content = contents.get(name, Content())
        try:
            if _update(cluster, machine, content):
                written.append(name)
                if content.pods:  # a reservation may have begun or ended meanwhile
                    advertise_pods(cluster=cluster, node=name, now=clock.now, written=content.pods)
        except NotFoundInCluster:
            continue
        except PermanentKubeError as error:
            log.error("advertise.refused", node=name, error=str(error))  # noqa: TRY400 - no traceback needed
    return written


def advertise_soon(*, node: str) -> None:
    """Have a worker advertise the node after the commit; without a broker, reconciling does it."""
    if settings.GPUPLANE_KUBECONFIG:
        send_after_commit(TASK, node)


def advertise_pods(
    *, cluster: Cluster, node: str, now: datetime, timeout: float | None = None, written: int | None = None
) -> None:
    """Write the node's `gpu.scheduling/pods`; a node that is gone is ignored. Raises KubeError.

    `written`: what the caller has just written.

    Repeats until the amount is still right after the write, so that the last of several writers leaves the right one.
    """
    for _ in range(ATTEMPTS):
        amount = _lowered(now).get(node, PLENTY)
        if amount == written:
            return
        try:
            kube_nodes.advertise(cluster, name=node, amounts={PODS_RESOURCE: amount}, timeout=timeout)
        except NotFoundInCluster:
            log.info("advertise.node_gone", node=node)
            return
        written = amount


def _lowered(now: datetime) -> dict[str, int]:
    """Node with preemption reservations → the `gpu.scheduling/pods` that it advertises meanwhile."""
    rows = PreemptionReservation.objects.filter(until__gt=now).order_by("made_at", "pk")
    return dict(rows.values_list("node__name", "pods"))


def _contents(modes: Mapping[str, Mode], now: datetime) -> dict[str, Content]:
    """What nodes with devices advertise; in mode device-plugin GPUs alone."""
    contents = {name: Content(by_plugin=mode == Mode.DEVICE_PLUGIN) for name, mode in modes.items()}
    counted = set()
    gpus: Counter[str] = Counter()
    busy = set()
    rows = Device.objects.filter(presence=Presence.PRESENT)
    if len(contents) < FEW:
        rows = rows.filter(node__name__in=contents)
    columns = ("node__name", "type", "memory_bytes", "model", "healthy", "core_used", "memory_used", "mig", "profile")
    for name, kind, memory_bytes, model, healthy, core_used, memory_used, mig, profile in rows.values_list(*columns):
        content = contents.get(name)
        if content is None:
            continue
        counted.add(name)
        if content.by_plugin and (kind != GPU or profile or mig):
            continue
        held = bool(core_used or memory_used)
        if profile:
            content.instances[f"{MIG_RESOURCES}{profile.replace('+', '.')}"] += bool(healthy or held)
            continue
        if kind == GPU and model:
            content.models.add(model)
        if held or (healthy and not mig):
            content.count[kind] += 1
            content.memory_bytes[kind] += memory_bytes
        if kind == GPU:
            gpus[name] += held or not mig
            if held:
                busy.add(name)
    for name in busy:
        contents[name].all_gpus = gpus[name]
    lowered = _lowered(now)
    for name in counted:
        contents[name].pods = lowered.get(name, PLENTY)
    return contents


def amounts_of(content: Content, *, gpu_split: int = 1) -> dict[str, int]:
    """Resource name → amount: percentages (400 for four GPUs), memory in bytes, `gpu_split` `nvidia.com/gpu` a GPU."""
    amounts: dict[str, int] = {}
    for row in DEVICE_TYPES:
        count = content.count.get(row.type, 0)
        if not count:
            continue
        for _, name in row.dimensions():
            amount = content.memory_bytes.get(row.type, 0) if name == row.memory else count * WHOLE
            amounts.update({f"{prefix}/{name}": amount for prefix in PREFIXES})
    if content.count.get(GPU) and not content.by_plugin:
        # several pods may share a GPU, so those on healthy GPUs would exceed a count without the unhealthy ones
        counted = content.count[GPU] if gpu_split == 1 else max(content.count[GPU], content.all_gpus)
        amounts[NATIVE_GPU] = counted * gpu_split
    amounts |= content.instances
    if content.pods:
        amounts[PODS_RESOURCE] = content.pods
    return amounts


def _update(cluster: Cluster, machine: kube_nodes.Node, content: Content) -> bool:
    """Write what differs; whether anything did."""
    ours = {name for name in machine.annotations.get(ADVERTISED, "").split(",") if name}
    wanted = amounts_of(content, gpu_split=settings.GPUPLANE_GPU_SPLIT)
    capacity, allocatable = machine.status.capacity or {}, machine.status.allocatable or {}
    for name in [NATIVE_GPU, *content.instances]:
        if name not in ours and not (_equal(capacity.get(name, "0"), 0) and _equal(allocatable.get(name, "0"), 0)):
            # a device plugin advertises it; of one that was removed the kubelet keeps a 0
            wanted.pop(name, None)
    changes: dict[str, int | str | None] = {
        name: amount
        for name, amount in wanted.items()
        if not (_equal(capacity.get(name), amount) and _equal(allocatable.get(name), amount))
    }
    changes |= dict.fromkeys((name for name in ours - set(wanted) if name in capacity or name in allocatable), None)
    listed = ",".join(sorted(wanted)) or None
    label = model_label(content.models)
    listing = listed != machine.annotations.get(ADVERTISED)
    labelling = label != machine.labels.get(MODEL_LABEL) and (label is not None or bool(ours))
    if listing:
        # before the resources: they are ours even if this process dies in between
        both = ",".join(sorted(ours | set(wanted)))
        kube_nodes.annotate(cluster, name=machine.name, annotations={ADVERTISED: both})
    if labelling:
        kube_nodes.label(cluster, name=machine.name, labels={MODEL_LABEL: label})
    if changes:
        kube_nodes.advertise(cluster, name=machine.name, amounts=changes)
    if listing and ours - set(wanted):
        kube_nodes.annotate(cluster, name=machine.name, annotations={ADVERTISED: listed})
    return bool(changes) or listing or labelling


def _equal(stated: str | None, amount: int) -> bool:
    try:
        return stated is not None and parse_quantity(stated) == amount
    except QuantityError:
        return False
