"""Parses and checks what a node has, as written in an inventory or a scenario.

Called by `PUT nodes/<name>/inventory/`, agents' frames and `allocations.scenario`. Pure: no Django. Invariants: a
`NodeShape` has a DNS name, devices with unique UUIDs and with minors unique per type, GPUs with model and memory, links
between its own GPUs only, and MIG instances of its own GPUs, which are in MIG mode. Asymmetric and repeated links are
allowed: the engine counts the smaller number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from access.errors import BadInput
from kube.device_types import GPU, is_mig
from kube.keys import MODE_LABEL
from kube.names import LABEL_LONGEST, check_device_uuid, check_label, check_pci_address, check_subdomain
from kube.node_rules import TAINT_EFFECTS
from kube.objects import Taint
from kube.quantities import QuantityError, parse_quantity
from nodes.field_parser import (
    bad_field,
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
MODEL_LONGEST: Final = 128
PROFILE_LONGEST: Final = 40
PCIE_LONGEST: Final = 32
TYPES_MOST: Final = 64

_NODE: Final = ("name", "labels", "taints", "unschedulable", "mode", "devices", "links", "types")
_DEVICE: Final = (
    "minor", "type", "uuid", "model", "memory", "numa", "pcie", "busid", "healthy", "mig", "parent", "profile",
)  # fmt: skip
_TAINT: Final = ("key", "value", "effect")
_PROFILE: Final = re.compile(r"[0-9a-z][0-9a-z.+-]*[0-9a-z]")


class DeviceShape(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `memory` in bytes, 0 for types without; `numa` -1, `pcie` and `bus_id` (PCI address) empty: unknown.

    `mig`: a GPU in MIG mode. `parent` and `profile` of a MIG instance: the UUID of its GPU, and `1g.10gb`.
    """

    minor: int
    type: str
    uuid: str
    model: str = ""
    memory: int = 0
    numa: int = -1
    pcie: str = ""
    bus_id: str = ""
    healthy: bool = True
    mig: bool = False
    parent: str = ""
    profile: str = ""


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `links`: (GPU minor, GPU minor, NVLinks between them).

    `types`: those that the source reports; None: all. `taints` and `unschedulable` are for what-if alone, since
    kube-scheduler knows those of real nodes.
    """

    name: str
    labels: dict[str, str]
    mode: str
    devices: tuple[DeviceShape, ...]
    links: tuple[tuple[int, int, int], ...]
    types: frozenset[str] | None = None
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False

    def owns(self, kind: str) -> bool:
        """Whether the source reports devices of this type."""
        return self.types is None or kind in self.types

    def of_agent(self) -> NodeShape:
        """The shape as an agent means it: without `types` it reports GPUs and the types it lists."""
        if self.types is not None:
            return self
        return msgspec.structs.replace(self, types=frozenset({GPU, *(device.type for device in self.devices)}))

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs by minor without MIG instances: the order of samples."""
        found = sorted((one.minor, one.uuid) for one in self.devices if one.type == GPU and not one.parent)
        return tuple(uuid for _, uuid in found)


def parse_node(value: object, *, path: str = "", name: str | None = None, strict: bool = True) -> NodeShape:
    """A node from decoded JSON or YAML. Raises BadInput with the field's path below `path`.

    `name`: that of the URL, from which the body's must not differ. `strict`: unknown keys of the node and its devices
    are refused; else ignored, for agents that are newer than this program.
    """
    fields = read_object(value, path, _NODE, strict=strict)
    stated = fields.get("name")
    if name is not None and stated is not None and stated != name:
        raise bad_field(within(path, "name"), "is not the name in the address", rule="address")
    node_name = read_name(name if stated is None else stated, within(path, "name"), check_subdomain)
    labels = _labels(fields.get("labels"), within(path, "labels"))
    types = _types(fields.get("types"), within(path, "types"))
    devices = _devices(fields.get("devices"), within(path, "devices"), types, strict=strict)
    default_mode = labels.get(MODE_LABEL, EXCLUSIVE)
    return NodeShape(
        name=node_name,
        labels=labels,
        mode=read_choice(fields.get("mode") or default_mode, within(path, "mode"), choices=MODES, default=EXCLUSIVE),
        devices=devices,
        links=_links(fields.get("links"), within(path, "links"), devices),
        types=types,
        taints=_taints(fields.get("taints"), within(path, "taints")),
        unschedulable=read_flag(fields.get("unschedulable"), within(path, "unschedulable"), default=False),
    )


def _types(value: object, path: str) -> frozenset[str] | None:
    if value is None:
        return None
    listed = read_list(value, path, most=TYPES_MOST)
    return frozenset(read_name(kind, within(path, index), check_label) for index, kind in enumerate(listed))


def model_label(models: Iterable[str]) -> str | None:
    """The GPU models as a label value, joined by `_`; None without any."""
    cleaned = (re.sub(r"[^A-Za-z0-9.-]+", "-", model).strip("-._") for model in models)
    return "_".join(sorted(filter(None, cleaned)))[:LABEL_LONGEST].strip("-._") or None


def _labels(value: object, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > LABELS_MOST:
        raise bad_field(path, f"must be an object of at most {LABELS_MOST} entries", rule="type")
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
                raise bad_field(within(here, key), "is required", rule="required")
        effect = read_choice(texts["effect"], within(here, "effect"), choices=TAINT_EFFECTS, default="")
        taints.append(Taint(key=texts["key"], value=texts["value"] or None, effect=effect))
    return tuple(taints)


def _devices(value: object, path: str, types: frozenset[str] | None, *, strict: bool) -> tuple[DeviceShape, ...]:
    devices: list[DeviceShape] = []
    uuids: set[str] = set()
    places: set[tuple[str, int]] = set()
    for index, entry in enumerate(read_list(value, path, most=DEVICES_MOST)):
        here = within(path, index)
        device = _device(entry, here, strict=strict)
        if types is not None and device.type not in types:
            raise bad_field(within(here, "type"), "is none of the types that are reported", rule="types")
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
    return _with_instances(devices, path)


def _with_instances(devices: list[DeviceShape], path: str) -> tuple[DeviceShape, ...]:
    """The devices, with GPUs that have instances in MIG mode. Raises BadInput for an instance of no GPU of the node."""
    gpus = {device.uuid for device in devices if device.type == GPU and not device.parent}
    parents = set()
    for index, device in enumerate(devices):
        if device.parent and device.parent not in gpus:
            raise bad_field(f"{within(path, index)}.parent", "is no GPU of the node", rule="parent")
        parents.add(device.parent)
    return tuple(
        msgspec.structs.replace(device, mig=True) if device.uuid in parents and not device.mig else device
        for device in devices
    )


def _device(value: object, path: str, *, strict: bool) -> DeviceShape:
    fields = read_object(value, path, _DEVICE, strict=strict)
    kind = read_name(fields.get("type") or GPU, within(path, "type"), check_label)
    if len(kind) > TYPE_LONGEST:
        raise bad_field(within(path, "type"), f"must be at most {TYPE_LONGEST} characters", rule="text")
    if is_mig(kind):
        raise bad_field(within(path, "type"), "of a MIG instance is gpu, with parent and profile", rule="mig")
    if fields.get("minor") is None:
        raise bad_field(within(path, "minor"), "is required", rule="required")
    model = read_text(fields.get("model"), within(path, "model"), longest=MODEL_LONGEST)
    memory = _memory(fields, path)
    if kind == GPU:
        for key, given in (("model", model), ("memory", memory)):
            if not given:
                raise bad_field(within(path, key), "is required for a GPU", rule="required")
    numa, address = fields.get("numa"), fields.get("busid")
    if address is not None and not isinstance(address, str):
        raise bad_field(within(path, "busid"), "must be text", rule="pci-address")
    parent, profile, mig = _mig(fields, path, kind)
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
        mig=mig,
        parent=parent,
        profile=profile,
    )


def _mig(fields: Mapping[str, Any], path: str, kind: str) -> tuple[str, str, bool]:
    """(parent, profile, whether the device is in MIG mode)."""
    mig = read_flag(fields.get("mig"), within(path, "mig"), default=False)
    profile = read_text(fields.get("profile"), within(path, "profile"), longest=PROFILE_LONGEST)
    given = fields.get("parent")
    parent = "" if given in (None, "") else read_name(given, within(path, "parent"), check_device_uuid)
    if (parent or mig) and kind != GPU:
        raise bad_field(within(path, "parent" if parent else "mig"), "is for GPUs", rule="mig")
    if bool(parent) != bool(profile) or (parent and mig):
        field = within(path, "profile" if parent and not mig else "parent")
        raise BadInput(f"{path} is a MIG instance with parent and profile, or none", field=field, rule="mig")
    if profile and not _PROFILE.fullmatch(profile):
        raise bad_field(within(path, "profile"), "must be a profile such as 1g.10gb", rule="mig")
    return parent, profile, mig


def _memory(fields: Mapping[str, Any], path: str) -> int:
    value, field = fields.get("memory"), within(path, "memory")
    if value is None:
        return 0
    try:
        memory = parse_quantity(value)
    except QuantityError as error:
        raise BadInput(f"{field}: {error}", field=field, rule="quantity") from error
    if memory > MEMORY_MOST:
        raise bad_field(field, "is more than any device has (1Pi)", rule="range")
    return memory


def _plain_link(entry: object, gpus: frozenset[int]) -> tuple[int, int, int] | None:
    """The link if it needs no conversion, None otherwise: fast, since a node has tens of thousands."""
    if type(entry) is not list or len(entry) != 3:
        return None
    one, other, count = entry
    if type(one) is not int or type(other) is not int or type(count) is not int:
        return None
    fits = one != other and one in gpus and other in gpus and 0 <= count <= NVLINKS_MOST
    return (one, other, count) if fits else None


def _links(value: object, path: str, devices: tuple[DeviceShape, ...]) -> tuple[tuple[int, int, int], ...]:
    gpus = frozenset(device.minor for device in devices if device.type == GPU and not device.parent)
    links = []
    for index, entry in enumerate(read_list(value, path, most=LINKS_MOST)):
        if (plain := _plain_link(entry, gpus)) is not None:
            links.append(plain)
            continue
        here = within(path, index)
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            raise bad_field(here, "must be [GPU minor, GPU minor, NVLinks]", rule="type")
        one, other = (read_integer(entry[at], within(here, at), least=0, most=MINOR_MOST) for at in (0, 1))
        count = read_integer(entry[2], within(here, 2), least=0, most=NVLINKS_MOST)
        if one == other:
            raise bad_field(here, "links a GPU to itself", rule="link")
        missing = next((minor for minor in (one, other) if minor not in gpus), None)
        if missing is not None:
            raise bad_field(here, f"links GPU {missing}, which the node does not have", rule="link")
        links.append((one, other, count))
    return tuple(links)
