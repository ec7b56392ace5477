"""The shape of a pool's nodes: devices and links, as a node of an inventory without name.

Known from the NodePool, from the inventory of a node that the pool made, or from an operator. Pure but for `of_node`.
Invariants: a shape has been checked like an inventory, and has at least one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import msgspec

from access.errors import BadInput
from allocations.engine.build import DeviceRow, NodeRow
from allocations.engine.snapshot import DEVICE_PLUGIN, EXCLUSIVE, Withheld
from kube.device_types import GPU, mig_type
from kube.karpenter import NodePool
from kube.keys import MODE_LABEL, MODEL_LABEL
from kube.quantities import QuantityError, parse_quantity
from nodes.choices import Presence
from nodes.inventory import NodeShape, parse_node
from nodes.models import Device, Node

Shape = dict[str, Any]

MODELS: Final = (
    MODEL_LABEL,
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
COUNTS: Final = ("gpu.scheduling/gpus", "nvidia.com/gpu.count", "karpenter.k8s.aws/instance-gpu-count")
MEMORIES: Final = ("gpu.scheduling/gpu-memory",)
MEBIBYTES: Final = ("nvidia.com/gpu.memory", "karpenter.k8s.aws/instance-gpu-memory")
LINKS: Final = "gpu.scheduling/links"
_KEPT: Final = ("minor", "type", "model", "memory", "numa", "pcie", "mig")
"""Fields of a device that belong to a shape, where they are known."""
GPUS_MOST: Final = 128
NVLINKS: Final = 18
"""Between any two GPUs of a node whose links are `all`: those of an NVSwitch."""
MEBI: Final = 1 << 20


def stated_shape(pool: NodePool, labels: Mapping[str, str]) -> tuple[Shape | None, str]:
    """(the shape by the NodePool's annotations or its template's labels, what is wrong with them).

    `labels`: of the template, and requirements of one value.
    """
    said = {**labels, **(pool.spec.template.metadata.annotations or {}), **pool.annotations}
    model, count = _first(said, MODELS), _first(said, COUNTS)
    memory = _first(said, MEMORIES)
    if not memory and (mebibytes := _first(said, MEBIBYTES)):
        memory = f"{mebibytes}Mi"
    if not (model and count and memory):
        known = [text for text in (model, count, memory) if text]
        missing = [name for name, value in (("model", model), ("gpus", count), ("gpu-memory", memory)) if not value]
        return None, f"gpu.scheduling/{', gpu.scheduling/'.join(missing)} not given" if known else ""
    if not count.isdecimal() or not 1 <= int(count) <= GPUS_MOST:
        return None, f"gpu.scheduling/gpus is {count!r}, not a number from 1 to {GPUS_MOST}"
    links = said.get(LINKS, "none")
    if links not in ("all", "none"):
        return None, f"{LINKS} is {links!r}, not all or none"
    try:
        size = parse_quantity(memory)
    except QuantityError as error:
        return None, f"gpu.scheduling/gpu-memory: {error}"
    gpus = range(int(count))
    shape = {
        "devices": [{"minor": minor, "model": model, "memory": size} for minor in gpus],
        "links": [[one, other, NVLINKS] for one, other in combinations(gpus, 2)] if links == "all" else [],
    }
    try:
        return checked(shape), ""
    except BadInput as error:
        return None, str(error)


def checked(value: object, *, path: str = "") -> Shape:
    """A shape as an operator gives it, in canonical form. Raises BadInput."""
    fields = dict(value) if isinstance(value, Mapping) else value
    if isinstance(fields, dict) and isinstance(fields.get("devices"), list):
        fields["devices"] = [
            {**device, "uuid": f"new-{at}"} if isinstance(device, Mapping) else device
            for at, device in enumerate(fields["devices"])
        ]
    if not isinstance(fields, dict) or not set(fields) <= {"devices", "links"}:
        raise BadInput("a shape is an object of devices and links", field=path, rule="type")
    node = parse_node({**fields, "name": "shape"}, path=path)
    if not node.devices:
        raise BadInput("a shape has at least one device", field="devices", rule="required")
    return canonical(node)


def canonical(node: NodeShape) -> Shape:
    """The shape of a node, whatever the order of its devices and links, and whatever their UUIDs."""
    devices = [
        {
            key: value
            for key, value in msgspec.to_builtins(device).items()
            if key in _KEPT and value not in ("", -1) and value is not False
        }
        for device in sorted(node.devices, key=lambda one: (one.type != GPU, one.type, one.minor))
        if not device.parent
    ]
    links = sorted([min(one, other), max(one, other), count] for one, other, count in node.links)
    return {"devices": devices, "links": links}


def of_node(node: Node) -> Shape | None:
    """The shape of a node by its inventory; None without devices."""
    rows = Device.objects.filter(node=node, presence=Presence.PRESENT, parent="").order_by("type", "minor")
    devices = []
    for row in rows:
        about = {"minor": row.minor, "type": row.type, "model": row.model, "memory": row.memory_bytes, "numa": row.numa}
        about |= {"pcie": row.pcie, "mig": row.mig, "uuid": row.uuid}
        devices.append(about)
    if not devices:
        return None
    return canonical(parse_node({"name": "shape", "devices": devices, "links": node.links}, strict=False))


def agrees(stated: Shape, seen: Shape) -> bool:
    """Whether an inventory is what a NodePool says, which says nothing of NICs, of NUMA nodes and of the links' number.

    Memory may be a sixteenth less than stated: vendors round.
    """
    one, other = _gpus(stated), _gpus(seen)
    if len(one) != len(other) or {gpu["model"] for gpu in one} != {gpu["model"] for gpu in other}:
        return False
    sizes = zip(one, other, strict=True)
    return all(mine["memory"] * 15 // 16 <= found["memory"] <= mine["memory"] * 17 // 16 for mine, found in sizes)


def model_of(shape: Shape) -> str:
    """The model of its GPUs, several joined by a plus; empty without GPUs."""
    return "+".join(sorted({gpu["model"] for gpu in _gpus(shape)}))


def gpus_of(shape: Shape) -> int:
    """How many GPUs it has."""
    return len(_gpus(shape))


def node_row(name: str, shape: Shape, labels: Mapping[str, str]) -> NodeRow:
    """An empty node of the shape for the engine. Its devices are numbered from 1."""
    devices = tuple(
        DeviceRow(
            device_id=number,
            uuid=f"{name}-{number}",
            type=mig_type(one["profile"]) if one.get("profile") else one.get("type", GPU),
            minor=one["minor"],
            model=one.get("model", ""),
            memory_bytes=one.get("memory", 0),
            numa=one.get("numa", -1),
            pcie=one.get("pcie", ""),
            healthy=not one.get("mig", False),
            kept=Withheld.MIG if one.get("mig") else Withheld.NOT,
        )
        for number, one in enumerate(shape["devices"], start=1)
    )
    mode = DEVICE_PLUGIN if labels.get(MODE_LABEL) == "device-plugin" else EXCLUSIVE
    links = tuple((one, other, count) for one, other, count in shape.get("links", ()))
    return NodeRow(name=name, mode=mode, links=links, devices=devices)


def _gpus(shape: Shape) -> list[dict[str, Any]]:
    return [one for one in shape["devices"] if one.get("type", GPU) == GPU]


def _first(said: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((said[name].strip() for name in names if said.get(name, "").strip()), "")
