"""A node's devices as resources in its status, under every name that a dialect accepts, and as labels (DEV-5).

Called by reconciling, and soon after an inventory changed; `pods_tell` by whoever begins or ends making way. Kept true: only nodes in mode
exclusive advertise their devices, and every node with devices advertises `gpu.scheduling/pods`, by which kube-scheduler counts pods
that ask for devices: plenty, except while it makes way for a pod (`nodes.models.MakingWay`); only names of our own are written or taken away (an annotation remembers which); what stands there already is
not written again; a node that the cluster does not know is passed over. A sick device counts no more once nobody holds it: never less is
advertised than running pods have, or a kubelet that restarts would turn some of them away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from django.conf import settings

from audit.clock import database_now
from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.device_types import DEVICE_TYPES, GPU, PREFIXES, DeviceType
from kube.errors import NotFoundInCluster, PermanentKubeError
from kube.keys import ADVERTISED, MODEL_LABEL, NATIVE_GPU, PODS_RESOURCE
from kube.quantities import QuantityError, parse_quantity
from nodes.choices import Mode, NodeState, Presence
from nodes.inventory import model_label
from nodes.models import Device, MakingWay, Node
from nodes.soon import soon

WHOLE = 100
"""What one device counts where amounts are percent."""
PLENTY = 100_000
"""`gpu.scheduling/pods` of a node that makes way for nobody: more than ever run there."""
TELLING_AGAIN = 5
FEW = 500
"""So many names are given to a query; databases bound the parameters of a statement."""
TASK = "nodes.advertise"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Content:
    """Devices of one node that count, by type: how many, their memory in bytes; the models of its GPUs; how many `gpu.scheduling/pods`."""

    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    memory_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    models: set[str] = field(default_factory=set)
    pods: int = 0
    kept: int = 0
    """GPUs that are there, sick ones too, where pods hold any of the node's."""


def advertise(*, cluster: Cluster, machines: Iterable[kube_nodes.Node]) -> list[str]:
    """Bring these Node objects up to date; the names of those that were written. Raises TemporaryKubeError."""
    found = {machine.name: machine for machine in machines}
    # A node that the ledger does not know (after a reinstall, say) keeps what its running pods were placed by.
    known = Node.objects.filter(name__in=found) if len(found) < FEW else Node.objects.all()
    rows = {name: (mode, state) for name, mode, state in known.values_list("name", "mode", "state")}
    contents = _contents({name: Mode(mode) for name, (mode, state) in rows.items() if state != NodeState.GONE})
    written = []
    for name, machine in found.items():
        if name not in rows or (name not in contents and ADVERTISED not in machine.annotations):
            continue
        content = contents.get(name, Content())
        try:
            if _bring(cluster, machine, content):
                written.append(name)
                if content.pods not in {0, PLENTY}:  # it may have come to an end meanwhile
                    pods_tell(cluster=cluster, node=name, now=database_now())
        except NotFoundInCluster:
            continue  # gone meanwhile
        except PermanentKubeError as error:
            log.error("advertise.refused", node=name, error=str(error))  # noqa: TRY400 - the answer says it all
    return written


def advertise_soon(*, node: str) -> None:
    """Have a worker advertise the node after the commit. Without a cluster, or a broker, nothing happens: reconciling does it."""
    if settings.GPUPLANE_KUBECONFIG:
        soon(TASK, node)


def pods_tell(*, cluster: Cluster, node: str, now: datetime, timeout: float | None = None) -> None:
    """Write the node's `gpu.scheduling/pods` as they are to be now. Raises KubeError; a node that has gone is passed over.

    Who writes what was so a moment ago looks again, and writes again: the last word of several writers is right.
    """
    told = None
    for _ in range(TELLING_AGAIN):
        amount = _lowered(now).get(node, PLENTY)
        if amount == told:
            return
        try:
            kube_nodes.advertise(cluster, name=node, amounts={PODS_RESOURCE: amount}, timeout=timeout)
        except NotFoundInCluster:
            log.info("advertise.node_gone", node=node)
            return
        told = amount


def _lowered(now: datetime) -> dict[str, int]:
    """Nodes that make way, few if any → the `gpu.scheduling/pods` that they advertise meanwhile."""
    rows = MakingWay.objects.filter(until__gt=now).order_by("made_at", "pk")
    return dict(rows.values_list("node__name", "pods"))


def _contents(modes: Mapping[str, Mode]) -> dict[str, Content]:
    """What nodes with devices advertise; one in mode device-plugin says only how many pods it takes."""
    contents = {name: Content() for name in modes}
    counted = set()
    gpus: Counter[str] = Counter()
    busy = set()
    rows = Device.objects.filter(presence=Presence.PRESENT)
    if len(contents) < FEW:
        rows = rows.filter(node__name__in=contents)
    for name, kind, memory_bytes, model, healthy, core_used, memory_used in rows.values_list(
        "node__name", "type", "memory_bytes", "model", "healthy", "core_used", "memory_used"
    ):
        content = contents.get(name)
        if content is None:
            continue
        counted.add(name)
        if modes[name] != Mode.EXCLUSIVE:
            continue
        if kind == GPU and model:
            content.models.add(model)
        if healthy or core_used or memory_used:
            content.count[kind] += 1
            content.memory_bytes[kind] += memory_bytes
        if kind == GPU:
            gpus[name] += 1
            if core_used or memory_used:
                busy.add(name)
    for name in busy:
        contents[name].kept = gpus[name]
    lowered = _lowered(database_now())
    for name in counted:
        contents[name].pods = lowered.get(name, PLENTY)
    return contents


def amounts_of(
    content: Content, *, device_types: Iterable[DeviceType] = DEVICE_TYPES, gpu_split: int = 1
) -> dict[str, int]:
    """Resource name → amount: 400 of each percentage for four GPUs, memory in bytes, `nvidia.com/gpu` in devices, `gpu_split` for each."""
    amounts: dict[str, int] = {}
    for row in device_types:
        count = content.count.get(row.type, 0)
        if not count:
            continue
        for _, name in row.dimensions():
            amount = content.memory_bytes.get(row.type, 0) if name == row.memory else count * WHOLE
            amounts.update({f"{prefix}/{name}": amount for prefix in PREFIXES})
    if content.count.get(GPU):
        # several pods may count on one GPU, so with one that fell sick others are counted that run on the rest
        counted = content.count[GPU] if gpu_split == 1 else max(content.count[GPU], content.kept)
        amounts[NATIVE_GPU] = counted * gpu_split
    if content.pods:
        amounts[PODS_RESOURCE] = content.pods
    return amounts


def _bring(cluster: Cluster, machine: kube_nodes.Node, content: Content) -> bool:
    """Write what differs; whether anything did."""
    ours = {name for name in machine.annotations.get(ADVERTISED, "").split(",") if name}
    wanted = amounts_of(content, gpu_split=settings.GPUPLANE_GPU_SPLIT)
    capacity, allocatable = machine.status.capacity or {}, machine.status.allocatable or {}
    if NATIVE_GPU not in ours and not (
        _equal(capacity.get(NATIVE_GPU, "0"), 0) and _equal(allocatable.get(NATIVE_GPU, "0"), 0)
    ):
        # a device plugin runs there and says it itself; of one that is gone the kubelet keeps a 0
        wanted.pop(NATIVE_GPU, None)
    changes: dict[str, int | str | None] = {
        name: amount
        for name, amount in wanted.items()
        if not (_equal(capacity.get(name), amount) and _equal(allocatable.get(name), amount))
    }
    changes |= dict.fromkeys((name for name in ours - set(wanted) if name in capacity or name in allocatable), None)
    noted = ",".join(sorted(wanted)) or None
    label = model_label(content.models)
    noting = noted != machine.annotations.get(ADVERTISED)
    labelling = label != machine.labels.get(MODEL_LABEL) and (label is not None or bool(ours))
    if noting:
        # first: what we are about to write is ours, whatever becomes of us
        told = ",".join(sorted(ours | set(wanted)))
        kube_nodes.annotate(cluster, name=machine.name, annotations={ADVERTISED: told})
    if labelling:
        kube_nodes.label(cluster, name=machine.name, labels={MODEL_LABEL: label})
    if changes:
        kube_nodes.advertise(cluster, name=machine.name, amounts=changes)
    if noting and ours - set(wanted):
        kube_nodes.annotate(cluster, name=machine.name, annotations={ADVERTISED: noted})
    return bool(changes) or noting or labelling


def _equal(stated: str | None, amount: int) -> bool:
    try:
        return stated is not None and parse_quantity(stated) == amount
    except QuantityError:
        return False
