"""The annotations that tell a pod its devices; the Binding carries them into the pod (DESIGN §2).

Called by bind, with the grants of the engine's decision. Kept true: the same request and grants always give the
same annotations, and `claims.dialects.read_back` reads the devices and exact amounts back from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from claims.dialects.grants import GrantView, MemoryTotal
from claims.dialects.hami_result import hami_annotations
from claims.dialects.own_keys import container_key
from claims.dialects.request import CORE_WHOLE, DeviceRequest, Dialect
from kube.device_types import DEVICE_TYPES, GPU, DeviceType
from kube.keys import ALLOCATED, KOORDINATOR_ALLOCATED, KUBERNETES_PREFIX, VISIBLE_DEVICES
from kube.quantities import format_bytes

AMOUNTS: Final = "gpu.scheduling/amounts"
"""Result annotation of pods by GpuClaim, or in KAI's or HAMi's words, that ask for anything but whole GPUs: their exact amounts, in the shape of
Koordinator's annotation, so that the ledger can be rebuilt after the claim was edited or deleted."""


class VisibleDevices(StrEnum):
    """How devices are named in CUDA_VISIBLE_DEVICES (setting GPUPLANE_VISIBLE_DEVICES)."""

    UUID = "uuid"
    INDEX = "index"


def binding_annotations(
    *,
    request: DeviceRequest,
    node: str,
    grants: Sequence[GrantView],
    visible: VisibleDevices,
    memory_total: MemoryTotal | None = None,
    device_types: tuple[DeviceType, ...] = DEVICE_TYPES,
) -> dict[str, str]:
    """Annotation → value for the Binding of a pod that got `grants` on `node`.

    `memory_total` serves only to show memory ratios of shares; without it they are left out.
    """
    ordered = sorted(grants, key=lambda grant: (grant.type != GPU, grant.type, grant.minor))
    shown = [grant for grant in ordered if grant.type == GPU] or [
        grant for grant in ordered if grant.type == ordered[0].type
    ]
    annotations = {
        ALLOCATED: f"{node}:{','.join(str(grant.minor) for grant in shown)}",
        VISIBLE_DEVICES: visible_devices(request=request, grants=ordered, visible=visible),
    }
    if request.dialect is Dialect.HAMI:
        annotations |= hami_annotations(request, node, ordered, memory_total)
        annotations |= _by_container(request, ordered, visible)
    if request.dialect in (Dialect.KOORDINATOR, Dialect.NATIVE):
        annotations[KOORDINATOR_ALLOCATED] = _device_json(ordered, request.key_prefix, memory_total, device_types)
    elif request.shares or any(grant.type != GPU or not grant.whole for grant in ordered):
        annotations[AMOUNTS] = _device_json(ordered, KUBERNETES_PREFIX, memory_total, device_types)
    return annotations


def visible_devices(*, request: DeviceRequest, grants: Iterable[GrantView], visible: VisibleDevices) -> str:
    """The env value: GPUs by ascending minor, as UUIDs wherever NVIDIA_VISIBLE_DEVICES is injected too, else as set."""
    gpus = sorted((grant for grant in grants if grant.type == GPU), key=lambda grant: grant.minor)
    if visible is VisibleDevices.UUID or request.uuids or request.dialect in RENUMBERED:
        return ",".join(gpu.uuid for gpu in gpus)
    return ",".join(str(gpu.minor) for gpu in gpus)


def _by_container(request: DeviceRequest, grants: Sequence[GrantView], visible: VisibleDevices) -> dict[str, str]:
    """Annotation → env value of each container that has devices of its own."""
    return {
        key: visible_devices(request=request, grants=[one for one in grants if one.minor in ask.given], visible=visible)
        for ask in request.asks
        if ask.given and (key := container_key(ask.container)) != VISIBLE_DEVICES
    }


RENUMBERED: Final = frozenset({Dialect.KOORDINATOR, Dialect.NATIVE, Dialect.KAI, Dialect.HAMI})
"""Dialects whose pods get NVIDIA_VISIBLE_DEVICES as well, which renumbers the devices inside."""


def _device_json(
    grants: Sequence[GrantView],
    prefix: str,
    memory_total: MemoryTotal | None,
    device_types: tuple[DeviceType, ...],
) -> str:
    """`{"gpu":[{"minor":0,"resources":{"<prefix>/gpu-core":"100",…}}]}`, quantities as strings (DEV-7, PEERS)."""
    table = {row.type: row for row in device_types}
    devices: dict[str, list[dict[str, Any]]] = {}
    for grant in grants:
        row = table.get(grant.type) or DeviceType(grant.type, units=grant.type)
        total = memory_total((grant.type, grant.minor)) if memory_total is not None else None
        resources = {f"{prefix}/{name}": amount for name, amount in _resources(row, grant, total).items()}
        devices.setdefault(grant.type, []).append({"minor": grant.minor, "resources": resources})
    return msgspec.json.encode(devices).decode()


def _resources(row: DeviceType, grant: GrantView, total: int | None) -> dict[str, str]:
    """Resource name without prefix → quantity of one device."""
    if not row.core:
        return {row.units: str(grant.core_percent)}
    resources = {row.core: str(grant.core_percent)}
    if row.memory and grant.memory_bytes is not None:
        resources[row.memory] = format_bytes(grant.memory_bytes)
    if row.ratio:
        if grant.whole:
            resources[row.ratio] = str(CORE_WHOLE)
        elif total and grant.memory_bytes is not None:
            # Core 100 with ratio 100 reads as a whole device, so a share that fills its device shows no ratio.
            ratio = grant.memory_bytes * 100 // total
            if ratio < CORE_WHOLE or grant.core_percent < CORE_WHOLE:
                resources[row.ratio] = str(ratio)
    return resources
