"""Reads a running pod's devices from whichever allocation annotation it carries, to adopt it (LEASE-6, DEV-9).

Called by reconciling and by scenarios. Understood: `gpu.scheduling/allocated` (with our amounts),
Koordinator's JSON under either prefix and with the source's misspelt `resouurces`, and HAMi's device list.
Kept true: what cannot be read is an `Unreadable` with a sentence, never an exception, and stops nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

from claims.dialects.hami_slots import SlotsMalformed, read_slots
from claims.dialects.request import CORE_WHOLE, DeviceRequest
from claims.dialects.write_back import AMOUNTS
from kube.device_types import DEVICE_TYPES, GPU, DeviceType, ledger_type
from kube.keys import ALLOCATED, HAMI_ALLOCATED, HAMI_NODE, KOORDINATOR_ALLOCATED
from kube.names import InvalidName, check_label, check_subdomain
from kube.objects import Pod
from kube.quantities import QuantityError, parse_quantity, parse_whole

DEVICES_MOST: Final = 1_000
_MINOR: Final = re.compile(r"[0-9]{1,6}")
_MINOR_MOST: Final = 999_999
_LONGEST: Final = 256 * 1024
"""Of one annotation: the API server takes so much for all of an object's."""


class AdoptedDevice(msgspec.Struct, frozen=True):
    """One device a running pod holds, named by `minor` or, where the dialect has no minors, by `uuid`.

    Whole: no amounts. Share: `core_percent`, and `memory_bytes` or `memory_ratio` or, core only, neither.
    """

    type: str
    minor: int | None = None
    uuid: str = ""
    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_ratio: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the device has this one holder."""
        return self.core_percent is None


class Adoption(msgspec.Struct, frozen=True):
    """The devices of a running pod. `source` is the annotation they were read from."""

    node: str
    devices: tuple[AdoptedDevice, ...]
    source: str


class Unreadable(msgspec.Struct, frozen=True):
    """The pod carries an allocation annotation that cannot be read, and why."""

    problem: str


def read_allocation(
    pod: Pod, *, request: DeviceRequest | None = None, device_types: tuple[DeviceType, ...] = DEVICE_TYPES
) -> Adoption | Unreadable | None:
    """The devices of a pod by its result annotations, None where it carries none.

    `request`: what the pod asks for, if that is known: gives the amounts where the annotation tells only minors, and tells a share of all
    that a device has from a whole device, which Koordinator writes alike. Without it such devices count as whole.
    """
    annotations = pod.annotations
    try:
        if KOORDINATOR_ALLOCATED in annotations:
            source = KOORDINATOR_ALLOCATED
            devices = _read_json(annotations[source], device_types, shared=_shared_types(request))
        elif AMOUNTS in annotations and ALLOCATED in annotations:
            source = AMOUNTS
            devices = _read_json(annotations[source], device_types)
        elif ALLOCATED in annotations:
            source = ALLOCATED
            devices = _read_minors(_split(annotations[ALLOCATED])[1], request)
        elif HAMI_ALLOCATED in annotations:
            source = HAMI_ALLOCATED
            devices = _read_hami(pod)
        else:
            return None
        node = _node(pod, source)
        _check_devices(devices, annotations.get(ALLOCATED))
    except _Malformed as malformed:
        return Unreadable(problem=str(malformed))
    return Adoption(node=node, devices=tuple(devices), source=source)


def parse_allocated(value: str) -> tuple[str, tuple[int, ...]] | None:
    """(node, minors) of `gpu.scheduling/allocated`, None where it is malformed."""
    try:
        return _split(value)
    except _Malformed:
        return None


class _Malformed(Exception):
    """An annotation cannot be read; the text is the problem."""


def _split(value: str) -> tuple[str, tuple[int, ...]]:
    node, _, listed = value.rpartition(":")
    minors = listed.split(",")
    try:
        check_subdomain(node, what="node")
    except InvalidName:
        minors = []
    if not minors or len(minors) > DEVICES_MOST or not all(_MINOR.fullmatch(minor) for minor in minors):
        raise _Malformed(f"{ALLOCATED} is not <node>:<minor>,<minor>")
    return node, tuple(int(minor) for minor in minors)


def _node(pod: Pod, source: str) -> str:
    """The node, which every annotation that names one must agree on."""
    node = pod.spec.node_name
    named = {
        key: value
        for key, value in (
            (ALLOCATED, _split(pod.annotations[ALLOCATED])[0] if ALLOCATED in pod.annotations else ""),
            (HAMI_NODE, pod.annotations.get(HAMI_NODE, "") if source == HAMI_ALLOCATED else ""),
        )
        if value
    }
    for key, value in named.items():
        if node and value != node:
            raise _Malformed(f"{key} names another node than the one the pod runs on")
        node = value
    if not node:
        raise _Malformed("the pod runs on no node")
    return node


def _check_devices(devices: list[AdoptedDevice], allocated: str | None) -> None:
    if not devices:
        raise _Malformed("the allocation names no device")
    if len(devices) > DEVICES_MOST:
        raise _Malformed(f"the allocation names more than {DEVICES_MOST} devices")
    if len({(device.type, device.minor, device.uuid) for device in devices}) < len(devices):
        raise _Malformed("the allocation names a device twice")
    if allocated is None:
        return
    minors = set(_split(allocated)[1])
    by_type: dict[str, set[int | None]] = {}
    for device in devices:
        by_type.setdefault(device.type, set()).add(device.minor)
    if by_type.get(GPU, next(iter(by_type.values()))) != minors:
        raise _Malformed(f"{ALLOCATED} and the devices' amounts name different devices")


def _read_minors(minors: tuple[int, ...], request: DeviceRequest | None) -> list[AdoptedDevice]:
    """Minors alone: type and amounts are those of the request's first ask (gpu first), else whole GPUs."""
    if request is None or not request.asks or request.asks[0].whole:
        device_type = GPU if request is None or not request.asks else ledger_type(request.asks[0].type)
        return [AdoptedDevice(type=device_type, minor=minor) for minor in minors]
    ask = request.asks[0]
    return [
        AdoptedDevice(
            type=ask.type,
            minor=minor,
            core_percent=ask.core_percent or 0,
            memory_bytes=ask.memory_bytes,
            memory_ratio=ask.memory_ratio,
        )
        for minor in minors
    ]


def _shared_types(request: DeviceRequest | None) -> set[str]:
    """Types of which only shares are asked."""
    asks = request.asks if request is not None else ()
    return {ask.type for ask in asks if not ask.whole} - {ask.type for ask in asks if ask.whole}


def _read_json(text: str, device_types: tuple[DeviceType, ...], *, shared: Collection[str] = ()) -> list[AdoptedDevice]:
    """Koordinator's shape: type → list of {minor, resources}. `shared`: types of which the pod asks for shares."""
    if len(text) > _LONGEST:
        raise _Malformed("the device allocation is longer than annotations can be")
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _Malformed("the device allocation is not JSON") from error
    if not isinstance(decoded, dict):
        raise _Malformed("the device allocation is not an object of device types")
    table = {row.type: row for row in device_types}
    devices: list[AdoptedDevice] = []
    for device_type, listed in decoded.items():
        if not isinstance(listed, list):
            raise _Malformed("the device allocation holds a type that is not a list of devices")
        try:
            row = table.get(device_type) or DeviceType(check_label(device_type), units=device_type)
        except InvalidName as error:
            raise _Malformed("the device allocation holds a type that is not a DNS label") from error
        devices.extend(_read_device(row, entry, shared=row.type in shared) for entry in listed)
    return devices


def _read_device(row: DeviceType, entry: Any, *, shared: bool) -> AdoptedDevice:
    minor = entry.get("minor") if isinstance(entry, dict) else None
    if isinstance(minor, bool) or not isinstance(minor, int) or not 0 <= minor <= _MINOR_MOST:
        raise _Malformed("the device allocation holds a device without a minor number")
    resources = entry.get("resources", entry.get("resouurces"))
    if not resources:
        return AdoptedDevice(type=row.type, minor=minor)
    if not isinstance(resources, dict):
        raise _Malformed("the device allocation holds resources that are not an object")
    amounts = dict(_read_amounts(row, resources))
    units = amounts.get("units")
    core, ratio = amounts.get("core", units or 0), amounts.get("ratio")
    memory_bytes = amounts.get("memory")
    if memory_bytes is None and ratio is None and units is not None and row.ratio:
        ratio = units
    if core > CORE_WHOLE or (ratio or 0) > CORE_WHOLE:
        raise _Malformed("the device allocation gives more than 100 percent of a device")
    if core == CORE_WHOLE and (ratio == CORE_WHOLE or not row.memory) and not (shared and memory_bytes):
        return AdoptedDevice(type=row.type, minor=minor)
    if memory_bytes is not None:
        ratio = None
    return AdoptedDevice(
        type=row.type,
        minor=minor,
        core_percent=core,
        memory_bytes=memory_bytes or None,
        memory_ratio=ratio or None,
    )


def _read_amounts(row: DeviceType, resources: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(dimension, amount) by the names of the table, whatever their prefix, and by the source's short names."""
    names = {name: dimension.value for dimension, name in row.dimensions()}
    for name, dimension in tuple(names.items()):
        # The source's own example says gpu-mem and gpu-mem-ratio.
        names.setdefault(name.replace("-memory", "-mem"), dimension)
    for key, value in resources.items():
        dimension = names.get(key.rpartition("/")[2], "")
        if not dimension:
            continue
        try:
            yield dimension, parse_quantity(value) if dimension == "memory" else parse_whole(value)
        except QuantityError as error:
            raise _Malformed(f"the device allocation holds an amount that cannot be read: {error}") from error


def _read_hami(pod: Pod) -> list[AdoptedDevice]:
    try:
        found = read_slots(pod, pod.annotations[HAMI_ALLOCATED])
    except SlotsMalformed as malformed:
        raise _Malformed(str(malformed)) from malformed
    return [
        AdoptedDevice(type=GPU, uuid=uuid)
        if held.whole
        else AdoptedDevice(type=GPU, uuid=uuid, core_percent=held.core_percent, memory_bytes=held.memory_bytes or None)
        for uuid, held in found.items()
    ]
