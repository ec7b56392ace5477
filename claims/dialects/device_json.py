"""Devices and amounts in Koordinator's JSON: `{"gpu":[{"minor":0,"resources":{"<prefix>/gpu-core":"100",…}}]}` (DEV-7).

Used for Koordinator's annotation and for gpuplane's own. Invariants: what is written is read back exactly; names are
read under either prefix, in Koordinator's short forms and with its misspelt `resouurces`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from claims.dialects.adopted import AdoptedDevice, Malformed
from claims.dialects.grants import GrantView, Placed
from claims.dialects.request import CORE_WHOLE
from kube.device_types import DEVICE_TYPES, DeviceType
from kube.keys import KOORDINATOR_ALLOCATED, KUBERNETES_PREFIX
from kube.names import InvalidName, check_label
from kube.quantities import QuantityError, format_bytes, parse_quantity, parse_whole

_TABLE: Final = {row.type: row for row in DEVICE_TYPES}
_MINOR_MOST: Final = 999_999
_LONGEST: Final = 256 * 1024
"""The API server's limit for all annotations of an object."""


def koordinator_annotations(placed: Placed) -> dict[str, str]:
    """Koordinator's allocation annotation, with the ids of Device objects, under the pod's own prefix."""
    devices: dict[str, list[dict[str, Any]]] = {}
    for grant in placed.grants:
        row = _row(grant.type)
        resources = _resources(row, grant)
        if row.ratio and (ratio := _ratio(placed, grant)) is not None:
            resources[row.ratio] = str(ratio)
        if not grant.core_percent and len(resources) > 1:
            del resources[row.core]  # Koordinator omits amounts that were not requested
        address = placed.bus_id((grant.type, grant.minor)) if placed.bus_id is not None else None
        entry = _entry(grant, placed.request.key_prefix, resources)
        entry["id"] = row.object_id(uuid=grant.uuid, bus_id=address or "")
        devices.setdefault(grant.type, []).append(entry)
    return {KOORDINATOR_ALLOCATED: msgspec.json.encode(devices).decode()}


def own_amounts(placed: Placed) -> str:
    """The value of gpuplane's own annotation. A share of all that a device has gets no ratio, a whole device does."""
    devices: dict[str, list[dict[str, Any]]] = {}
    for grant in placed.grants:
        row = _row(grant.type)
        resources = _resources(row, grant)
        ratio = _ratio(placed, grant) if row.ratio else None
        if ratio is not None and (grant.whole or ratio < CORE_WHOLE or grant.core_percent < CORE_WHOLE):
            resources[row.ratio] = str(ratio)
        devices.setdefault(grant.type, []).append(_entry(grant, KUBERNETES_PREFIX, resources))
    return msgspec.json.encode(devices).decode()


def read_devices(text: str, *, shared: Collection[str] = ()) -> list[AdoptedDevice]:
    """The devices of an annotation's value. `shared`: types that the pod requests shares of. Raises `Malformed`."""
    if len(text) > _LONGEST:
        raise Malformed("the device allocation is longer than annotations can be")
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Malformed("the device allocation is not JSON") from error
    if not isinstance(decoded, dict):
        raise Malformed("the device allocation is not an object of device types")
    devices: list[AdoptedDevice] = []
    for device_type, listed in decoded.items():
        if not isinstance(listed, list):
            raise Malformed("the device allocation holds a type that is not a list of devices")
        try:
            row = _row(check_label(device_type))
        except InvalidName as error:
            raise Malformed("the device allocation holds a type that is not a DNS label") from error
        devices.extend(_read_device(row, entry, shared=row.type in shared) for entry in listed)
    return devices


def _read_device(row: DeviceType, entry: Any, *, shared: bool) -> AdoptedDevice:
    minor = entry.get("minor") if isinstance(entry, dict) else None
    if isinstance(minor, bool) or not isinstance(minor, int) or not 0 <= minor <= _MINOR_MOST:
        raise Malformed("the device allocation holds a device without a minor number")
    resources = entry.get("resources", entry.get("resouurces"))
    if not resources:
        return AdoptedDevice(type=row.type, minor=minor)
    if not isinstance(resources, dict):
        raise Malformed("the device allocation holds resources that are not an object")
    amounts = dict(_read_amounts(row, resources))
    units = amounts.get("units")
    core, ratio = amounts.get("core", units or 0), amounts.get("ratio")
    memory_bytes = amounts.get("memory")
    if memory_bytes is None and ratio is None and units is not None and row.ratio:
        ratio = units
    if core > CORE_WHOLE or (ratio or 0) > CORE_WHOLE:
        raise Malformed("the device allocation gives more than 100 percent of a device")
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
    """(dimension, amount), by the names of the table under any prefix or their short forms."""
    names = {name: dimension.value for dimension, name in row.dimensions()}
    for name, dimension in tuple(names.items()):
        # Koordinator's own example has gpu-mem and gpu-mem-ratio
        names.setdefault(name.replace("-memory", "-mem"), dimension)
    for key, value in resources.items():
        dimension = names.get(key.rpartition("/")[2], "")
        if not dimension:
            continue
        try:
            yield dimension, parse_quantity(value) if dimension == "memory" else parse_whole(value)
        except QuantityError as error:
            raise Malformed(f"the device allocation holds an amount that cannot be read: {error}") from error


def _row(kind: str) -> DeviceType:
    """The row of the table, or one for a type that has only units."""
    return _TABLE.get(kind) or DeviceType(kind, units=kind)


def _entry(grant: GrantView, prefix: str, resources: Mapping[str, str]) -> dict[str, Any]:
    prefixed = {f"{prefix}/{name}": amount for name, amount in resources.items()}
    return {"minor": grant.minor, "resources": prefixed}


def _resources(row: DeviceType, grant: GrantView) -> dict[str, str]:
    """Resource name without prefix → quantity of one device, without the ratio."""
    if not row.core:
        return {row.units: str(grant.core_percent)}
    resources = {row.core: str(grant.core_percent)}
    if row.memory and grant.memory_bytes is not None:
        resources[row.memory] = format_bytes(grant.memory_bytes)
    return resources


def _ratio(placed: Placed, grant: GrantView) -> int | None:
    """Percent of the memory: the requested ratio, else that of the bytes, rounded as in Koordinator; None if unknown.

    Bytes are a ratio rounded down, so the ratio of the bytes could be one too low.
    """
    if grant.whole:
        return CORE_WHOLE
    if grant.memory_bytes is None:
        return None
    total = placed.memory_total((grant.type, grant.minor)) if placed.memory_total is not None else None
    asks = [ask for ask in placed.request.asks if ask.type == grant.type]
    if len(asks) == 1 and asks[0].memory_ratio is not None:
        requested = asks[0].memory_ratio
        if not total or total * requested // 100 == grant.memory_bytes:
            return requested
    return int(grant.memory_bytes / total * 100) if total else None
