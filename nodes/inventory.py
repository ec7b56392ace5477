"""What a node has, as written in an inventory or a scenario (DESIGN §5), checked.

Called by `PUT nodes/<name>/inventory/`, the agents' endpoint and `allocations.scenario`. Pure: no
Django. Kept true: a `NodeShape` that exists has a DNS name, devices whose UUIDs are unique and whose
minors are unique per type, GPUs with a model and memory, and links only between its own GPUs.
Asymmetric and repeated links are allowed: the engine counts the smaller number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from access.errors import BadInput
from kube.device_types import GPU
from kube.keys import MODE_LABEL
from kube.names import LABEL_LONGEST, check_device_uuid, check_label, check_pci_address, check_subdomain
from kube.node_rules import TAINT_EFFECTS
from kube.objects import Taint
from kube.quantities import QuantityError, parse_quantity
from nodes.reading import (
    read_choice,
    read_flag,
    read_integer,
    read_list,
    read_name,
    read_object,
    read_text,
    within,
)

EXCLUSIVE: Final = "exclusive"
MODES: Final = (EXCLUSIVE, "device-plugin")
DEVICES_MOST: Final = 1_024
LINKS_MOST: Final = 200_000
LABELS_MOST: Final = 512
KEY_LONGEST: Final = 317
"""Of a label or taint: prefix, slash and name."""
TAINTS_MOST: Final = 512
MINOR_MOST: Final = 999_999
NUMA_MOST: Final = 1_023
NVLINKS_MOST: Final = 1_000
MEMORY_MOST: Final = 2**50
"""1 PiB: beyond any device, and small enough that sums over a node stay exact."""
TYPE_LONGEST: Final = 32
MODEL_LONGEST: Final = 64
PCIE_LONGEST: Final = 32

_NODE: Final = ("name", "labels", "taints", "unschedulable", "mode", "devices", "links")
_DEVICE: Final = ("minor", "type", "uuid", "model", "memory", "numa", "pcie", "busid", "healthy")
_TAINT: Final = ("key", "value", "effect")


class DeviceShape(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `memory` in bytes, 0 where the type has none; `numa` -1, `pcie` and `bus_id` (PCI address) empty where unknown."""

    minor: int
    type: str
    uuid: str
    model: str = ""
    memory: int = 0
    numa: int = -1
    pcie: str = ""
    bus_id: str = ""
    healthy: bool = True


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `links` as written: [GPU minor, GPU minor, NVLinks between them]. `taints` and `unschedulable` are for what-if alone: of a
    real node they are the cluster's, and kube-scheduler goes by them.
    """

    name: str
    labels: dict[str, str]
    mode: str
    devices: tuple[DeviceShape, ...]
    links: tuple[tuple[int, int, int], ...]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


def parse_node(value: object, *, path: str = "", name: str | None = None, strict: bool = True) -> NodeShape:
    """A node out of decoded JSON or YAML. Raises BadInput with the field's path below `path`.

    `name`: that of the address, if the node comes by one; the body may leave its own out, not differ. `strict`: an unknown key of the node or of
    a device is refused; else, for agents that may be newer than this program, passed over.
    """
    fields = read_object(value, path, _NODE, strict=strict)
    stated = fields.get("name")
    if name is not None and stated is not None and stated != name:
        field = within(path, "name")
        raise BadInput(f"{field} is not the name in the address", field=field, rule="address")
    node_name = read_name(name if stated is None else stated, within(path, "name"), check_subdomain)
    labels = _labels(fields.get("labels"), within(path, "labels"))
    devices = _devices(fields.get("devices"), within(path, "devices"), strict=strict)
    default_mode = labels.get(MODE_LABEL, EXCLUSIVE)
    return NodeShape(
        name=node_name,
        labels=labels,
        mode=read_choice(fields.get("mode") or default_mode, within(path, "mode"), choices=MODES, default=EXCLUSIVE),
        devices=devices,
        links=_links(fields.get("links"), within(path, "links"), devices),
        taints=_taints(fields.get("taints"), within(path, "taints")),
        unschedulable=read_flag(fields.get("unschedulable"), within(path, "unschedulable"), default=False),
    )


def model_label(models: Iterable[str]) -> str | None:
    """The GPU models as the value of a node's label, joined by `_`; None where there is none."""
    cleaned = (re.sub(r"[^A-Za-z0-9.-]+", "-", model).strip("-._") for model in models)
    return "_".join(sorted(filter(None, cleaned)))[:LABEL_LONGEST].strip("-._") or None


def _labels(value: object, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > LABELS_MOST:
        raise BadInput(f"{path} must be an object of at most {LABELS_MOST} entries", field=path, rule="type")
    return {
        read_text(key, path, longest=KEY_LONGEST): read_text(text, within(path, str(key)[:64]), longest=256)
        for key, text in value.items()
    }


def _taints(value: object, path: str) -> tuple[Taint, ...]:
    taints = []
    for index, entry in enumerate(read_list(value, path, most=TAINTS_MOST)):
        here = within(path, index)
        fields = read_object(entry, here, ())
        texts = {key: read_text(fields.get(key), within(here, key), longest=KEY_LONGEST) for key in _TAINT}
        for key in ("key", "effect"):
            if not texts[key]:
                field = within(here, key)
                raise BadInput(f"{field} is required", field=field, rule="required")
        effect = read_choice(texts["effect"], within(here, "effect"), choices=TAINT_EFFECTS, default="")
        taints.append(Taint(key=texts["key"], value=texts["value"] or None, effect=effect))
    return tuple(taints)


def _devices(value: object, path: str, *, strict: bool) -> tuple[DeviceShape, ...]:
    devices: list[DeviceShape] = []
    uuids: set[str] = set()
    places: set[tuple[str, int]] = set()
    for index, entry in enumerate(read_list(value, path, most=DEVICES_MOST)):
        here = within(path, index)
        device = _device(entry, here, strict=strict)
        if device.uuid in uuids:
            raise BadInput(f"{device.uuid} stands there twice", field=within(here, "uuid"), rule="duplicate")
        if (device.type, device.minor) in places:
            raise BadInput(
                f"there are two {device.type} devices with minor {device.minor}",
                field=within(here, "minor"),
                rule="duplicate",
            )
        uuids.add(device.uuid)
        places.add((device.type, device.minor))
        devices.append(device)
    return tuple(devices)


def _device(value: object, path: str, *, strict: bool) -> DeviceShape:
    fields = read_object(value, path, _DEVICE, strict=strict)
    kind = read_name(fields.get("type") or GPU, within(path, "type"), check_label)
    if len(kind) > TYPE_LONGEST:
        field = within(path, "type")
        raise BadInput(f"{field} must be at most {TYPE_LONGEST} characters", field=field, rule="text")
    if fields.get("minor") is None:
        raise BadInput(f"{within(path, 'minor')} is required", field=within(path, "minor"), rule="required")
    model = read_text(fields.get("model"), within(path, "model"), longest=MODEL_LONGEST)
    memory = _memory(fields, path)
    if kind == GPU:
        for key, there in (("model", model), ("memory", memory)):
            if not there:
                field = within(path, key)
                raise BadInput(f"{field} is required for a GPU", field=field, rule="required")
    numa, address = fields.get("numa"), fields.get("busid")
    if address is not None and not isinstance(address, str):
        field = within(path, "busid")
        raise BadInput(f"{field} must be text", field=field, rule="pci-address")
    return DeviceShape(
        minor=read_integer(fields["minor"], within(path, "minor"), least=0, most=MINOR_MOST),
        type=kind,
        uuid=read_name(fields.get("uuid"), within(path, "uuid"), check_device_uuid),
        model=model,
        memory=memory,
        numa=-1 if numa is None else read_integer(numa, within(path, "numa"), least=-1, most=NUMA_MOST),
        pcie=read_text(fields.get("pcie"), within(path, "pcie"), longest=PCIE_LONGEST),
        bus_id=read_name(address, within(path, "busid"), check_pci_address) if address else "",
        healthy=read_flag(fields.get("healthy"), within(path, "healthy"), default=True),
    )


def _memory(fields: Mapping[str, Any], path: str) -> int:
    value, field = fields.get("memory"), within(path, "memory")
    if value is None:
        return 0
    try:
        memory = parse_quantity(value)
    except QuantityError as error:
        raise BadInput(f"{field}: {error}", field=field, rule="quantity") from error
    if memory > MEMORY_MOST:
        raise BadInput(f"{field} is more than any device has (1Pi)", field=field, rule="range")
    return memory


def _links(value: object, path: str, devices: tuple[DeviceShape, ...]) -> tuple[tuple[int, int, int], ...]:
    gpus = {device.minor for device in devices if device.type == GPU}
    links = []
    for index, entry in enumerate(read_list(value, path, most=LINKS_MOST)):
        here = within(path, index)
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            raise BadInput(f"{here} must be [GPU minor, GPU minor, NVLinks]", field=here, rule="type")
        one, other = (read_integer(entry[at], within(here, at), least=0, most=MINOR_MOST) for at in (0, 1))
        count = read_integer(entry[2], within(here, 2), least=0, most=NVLINKS_MOST)
        if one == other:
            raise BadInput(f"{here} links a GPU to itself", field=here, rule="link")
        missing = next((minor for minor in (one, other) if minor not in gpus), None)
        if missing is not None:
            raise BadInput(f"{here} links GPU {missing}, which the node does not have", field=here, rule="link")
        links.append((one, other, count))
    return tuple(links)
