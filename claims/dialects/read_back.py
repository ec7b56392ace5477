"""Reads a running pod's devices from its allocation annotation, to adopt it (LEASE-6, DEV-9).

Supported: `gpu.scheduling/allocated` with our amounts, and the annotations of the dialects' schedulers
(`claims.dialects.registry`). Invariants: what cannot be read is returned as `Unreadable`, never raised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from claims.dialects.adopted import DEVICES_MOST, AdoptedDevice, Adoption, Malformed, Unreadable
from claims.dialects.device_json import read_devices
from claims.dialects.registry import READ_BACK
from claims.dialects.request import DeviceRequest
from claims.dialects.write_back import AMOUNTS
from kube.device_types import GPU, ledger_type
from kube.keys import ALLOCATED, ATTEMPT
from kube.names import InvalidName, check_subdomain
from kube.objects import Pod

_MINOR: Final = re.compile(r"[0-9]{1,6}")


def read_allocation(pod: Pod, *, request: DeviceRequest | None = None) -> Adoption | Unreadable | None:
    """The devices of a pod by its result annotations, None without any.

    `request`, the pod's, gives the amounts where the annotation has only minors, and distinguishes a share of all that
    a device has from a whole device, which Koordinator writes alike. Without it such devices count as whole. A Binding
    of gpuplane names all amounts but those of whole GPUs: without any its devices are whole, whatever the pod asks for
    by now, since its claim and its annotations may have changed.
    """
    source = _source(pod.annotations)
    if not source:
        return None
    try:
        devices = _devices(pod, source, request)
        node = _node(pod, source)
        _check_devices(devices, pod.annotations.get(ALLOCATED))
    except Malformed as malformed:
        return Unreadable(problem=str(malformed))
    return Adoption(node=node, devices=tuple(devices), source=source)


def parse_allocated(value: str) -> tuple[str, tuple[int, ...]] | None:
    """(node, minors) of `gpu.scheduling/allocated`, None if malformed."""
    try:
        return _split(value)
    except Malformed:
        return None


def _source(annotations: Mapping[str, str]) -> str:
    """The annotation that the devices are read from, empty without any."""
    before = [key for key, (_, one) in READ_BACK.items() if one.before_own]
    own = [AMOUNTS, ALLOCATED] if ALLOCATED in annotations else []
    after = [key for key, (_, one) in READ_BACK.items() if not one.before_own]
    return next((key for key in (*before, *own, *after) if key in annotations), "")


def _devices(pod: Pod, source: str, request: DeviceRequest | None) -> list[AdoptedDevice]:
    if source in READ_BACK:
        return READ_BACK[source][1].read(pod, request)
    if source == AMOUNTS:
        return read_devices(pod.annotations[AMOUNTS])
    return _read_minors(_split(pod.annotations[ALLOCATED])[1], None if ATTEMPT in pod.annotations else request)


def _split(value: str) -> tuple[str, tuple[int, ...]]:
    node, _, listed = value.rpartition(":")
    minors = listed.split(",")
    try:
        check_subdomain(node, what="node")
    except InvalidName:
        minors = []
    if not minors or len(minors) > DEVICES_MOST or not all(_MINOR.fullmatch(minor) for minor in minors):
        raise Malformed(f"{ALLOCATED} is not <node>:<minor>,<minor>")
    return node, tuple(int(minor) for minor in minors)


def _node(pod: Pod, source: str) -> str:
    """The node, on which all annotations must agree."""
    node = pod.spec.node_name
    node_key = READ_BACK[source][1].node_key if source in READ_BACK else ""
    allocated = _split(pod.annotations[ALLOCATED])[0] if ALLOCATED in pod.annotations else ""
    for key, value in ((ALLOCATED, allocated), (node_key, pod.annotations.get(node_key, ""))):
        if node and value and value != node:
            raise Malformed(f"{key} names another node than the one the pod runs on")
        node = value or node
    if not node:
        raise Malformed("the pod runs on no node")
    return node


def _check_devices(devices: list[AdoptedDevice], allocated: str | None) -> None:
    if not devices:
        raise Malformed("the allocation names no device")
    if len(devices) > DEVICES_MOST:
        raise Malformed(f"the allocation names more than {DEVICES_MOST} devices")
    if len({(device.type, device.minor, device.uuid) for device in devices}) < len(devices):
        raise Malformed("the allocation names a device twice")
    if allocated is None:
        return
    minors = set(_split(allocated)[1])
    by_type: dict[str, set[int | None]] = {}
    for device in devices:
        by_type.setdefault(device.type, set()).add(device.minor)
    if by_type.get(GPU, next(iter(by_type.values()))) != minors:
        raise Malformed(f"{ALLOCATED} and the devices' amounts name different devices")


def _read_minors(minors: tuple[int, ...], request: DeviceRequest | None) -> list[AdoptedDevice]:
    """Minors without amounts: type and amounts are those of the request's first ask, else whole GPUs."""
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
