"""Publishes nodes' devices as Device objects (DEV-6), with what their kubelets allocated (DEV-8).

Called by a periodic task. Names, ids and labels are those of Koordinator's node agent
(`pkg/koordlet/statesinformer/impl/states_device_linux.go` of koordinator-sh/koordinator). Invariants: objects that were
edited or deleted are restored from the database; objects of another owner (Koordinator's own agent, say) are left alone
and logged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec
import structlog

from kube import device_objects as objects
from kube.client import Cluster
from kube.crds import CustomObject
from kube.device_types import DEVICE_TYPES, GPU, DeviceType, Dimension
from kube.keys import KOORDINATOR_PREFIX
from kube.names import is_label_value
from kube.owned import bring_all, delete
from kube.quantities import format_bytes
from kube.resources import DEVICES
from nodes.choices import NodeState, Presence
from nodes.models import Device, KubeletCheckpoint, Node

WHOLE = "100"
VENDOR = "nvidia"
"""Of every GPU: agents support no other."""

log = structlog.get_logger(__name__)


class Published(NamedTuple):
    """Content of one node's object. `checkpoints`: JSON, or empty."""

    node_uid: str
    spec: dict[str, Any]
    labels: dict[str, str]
    checkpoints: str


def publish(*, cluster: Cluster, placed: Collection[str]) -> list[str]:
    """Update all Device objects; the names of those written or deleted. `placed`: UIDs of pods that gpuplane placed.

    Without the definition nothing is published. Raises TemporaryKubeError.
    """
    return bring_all(
        cluster,
        DEVICES,
        wanted=lambda: device_objects_of(placed),
        bring=lambda name, found, want: _update(cluster, name, found, want),
    )


def _update(cluster: Cluster, name: str, found: CustomObject | None, want: Published | None) -> bool:
    """Create, replace or delete one object; whether anything was written."""
    if found is None:
        if want is None:
            return False
        objects.create(cluster, name=name, **want._asdict())
        return True
    if not objects.is_ours(found):
        if want is not None:
            log.warning("device_objects.kept_by_another", node=name)
        return False
    if want is None:
        delete(cluster, DEVICES, found)
        return True
    checkpoints = (found.metadata.annotations or {}).get(objects.CHECKPOINTS, "")
    if (found.spec, objects.labels_of(found), checkpoints) == (want.spec, want.labels, want.checkpoints):
        return False
    objects.replace(cluster, found=found, spec=want.spec, labels=want.labels, checkpoints=want.checkpoints)
    return True


def device_objects_of(placed: Collection[str]) -> dict[str, Published]:
    """Node → content of its object, for every node of the cluster that has devices. Three queries."""
    nodes = dict(Node.objects.exclude(state=NodeState.GONE).exclude(cluster_uid="").values_list("name", "cluster_uid"))
    devices: dict[str, list[dict[str, Any]]] = defaultdict(list)
    models: dict[str, set[str]] = defaultdict(set)
    rows = (
        Device.objects.filter(presence=Presence.PRESENT)
        .select_related("node")
        .defer("node__links", "node__disputed")
        .order_by("type", "minor")
    )
    for device in rows:
        devices[device.node.name].append(_described(device))
        if device.type == GPU and not device.parent:
            models[device.node.name].add(device.model)
    checkpoints = {
        name: _checkpoints(entries, placed)
        for name, entries in KubeletCheckpoint.objects.values_list("node__name", "entries")
    }
    return {
        name: Published(uid, {"devices": devices[name]}, _labels(models[name]), checkpoints.get(name, ""))
        for name, uid in nodes.items()
        if name in devices
    }


def _described(device: Device) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": _type_row(device.type).object_id(uuid=device.uuid, bus_id=device.bus_id),
        "type": device.type,
        "minor": device.minor,
        "health": device.healthy and not device.mig,
        "resources": resources_of(device.type, device.memory_bytes),
    }
    if device.numa >= 0 or device.pcie or device.bus_id:
        described["topology"] = {"socketID": -1, "nodeID": device.numa, "pcieID": device.pcie}
        described["topology"] |= {"busID": device.bus_id} if device.bus_id else {}
    return described


def _labels(models: Collection[str]) -> dict[str, str]:
    """Labels for a node with GPUs of these models, the model spelt as Koordinator's node agent spells it."""
    if not models:
        return {}
    labels = {objects.VENDOR: VENDOR}
    model = next(iter(models)).removeprefix("NVIDIA ").replace(" ", "-")
    return labels | {objects.MODEL: model} if len(models) == 1 and is_label_value(model) else labels


def resources_of(kind: str, memory_bytes: int) -> Mapping[str, str]:
    """Resources of one device: `{"koordinator.sh/gpu-core": "100", …}`; types without parts count 100 of their name."""
    row = _type_row(kind)
    if not row.core:
        return {f"{KOORDINATOR_PREFIX}/{row.units}": WHOLE}
    amounts = {Dimension.CORE: WHOLE, Dimension.MEMORY: format_bytes(memory_bytes), Dimension.RATIO: WHOLE}
    return {f"{KOORDINATOR_PREFIX}/{name}": amounts[what] for what, name in row.dimensions() if what in amounts}


def _type_row(kind: str) -> DeviceType:
    return next((one for one in DEVICE_TYPES if one.type == kind), DeviceType(kind, units=kind))


def _checkpoints(entries: list[list[Any]], placed: Collection[str]) -> str:
    """The annotation, without the pods that gpuplane placed."""
    entries_shown = [
        {"podUID": pod_uid, "containerName": container, "resourceName": resource, "deviceIDs": devices}
        for pod_uid, container, resource, devices in entries
        if pod_uid not in placed
    ]
    return msgspec.json.encode(entries_shown).decode() if entries_shown else ""
