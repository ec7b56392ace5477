"""The annotations that tell a pod its devices; the Binding carries them into the pod (DESIGN §2).

Called by bind, with the grants of the engine's decision. Kept true: the same request and grants always give the
same annotations, and `claims.dialects.read_back` reads the devices and exact amounts back from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from claims.dialects.grants import BusId, GrantView, MemoryTotal
from claims.dialects.hami_result import hami_annotations
from claims.dialects.own_keys import container_key
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect
from kube.device_types import DEVICE_TYPES, GPU, DeviceType
from kube.keys import ALLOCATED, KOORDINATOR_ALLOCATED, KUBERNETES_PREFIX, VISIBLE_DEVICES
from kube.quantities import format_bytes

AMOUNTS: Final = "gpu.scheduling/amounts"
"""Result annotation of pods by GpuClaim, or in KAI's or HAMi's words, that ask for anything but whole GPUs: their exact amounts, in the shape of
Koordinator's annotation, so that the ledger can be rebuilt after the claim was edited or deleted."""


class VisibleDevices(StrEnum):
    """How devices are named where CUDA_VISIBLE_DEVICES alone refers to the annotation (setting GPUPLANE_VISIBLE_DEVICES)."""

    UUID = "uuid"
    INDEX = "index"


def binding_annotations(
    *,
    request: DeviceRequest,
    node: str,
    grants: Sequence[GrantView],
    visible: VisibleDevices,
    memory_total: MemoryTotal | None = None,
    bus_id: BusId | None = None,
    device_types: tuple[DeviceType, ...] = DEVICE_TYPES,
) -> dict[str, str]:
    """Annotation → value for the Binding of a pod that got `grants` on `node`.

    `memory_total` serves only to show memory ratios of shares that were not asked by ratio; without it they are left out. `bus_id`: for the
    ids of Koordinator's annotation.
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
        writer = _Writer(request, request.key_prefix, memory_total, device_types)
        annotations[KOORDINATOR_ALLOCATED] = writer.koordinators(ordered, bus_id)
    elif request.shares or any(grant.type != GPU or not grant.whole for grant in ordered):
        annotations[AMOUNTS] = _Writer(request, KUBERNETES_PREFIX, memory_total, device_types).ours(ordered)
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
"""Dialects whose pods have always got NVIDIA_VISIBLE_DEVICES as well, which renumbers the devices inside. A GpuClaim's pod says itself whether
it has (`DeviceRequest.uuids`): one that an earlier version admitted has not."""


class _Writer:
    """Amounts of devices as JSON: `{"gpu":[{"minor":0,"resources":{"<prefix>/gpu-core":"100",…}}]}`, quantities as strings (DEV-7)."""

    def __init__(
        self,
        request: DeviceRequest,
        prefix: str,
        memory_total: MemoryTotal | None,
        device_types: tuple[DeviceType, ...],
    ) -> None:
        self._prefix = prefix
        self._memory_total = memory_total
        self._table = {row.type: row for row in device_types}
        counted = Counter(ask.type for ask in request.asks)
        self._asks = {ask.type: ask for ask in request.asks if counted[ask.type] == 1}

    def koordinators(self, grants: Sequence[GrantView], bus_id: BusId | None) -> str:
        """What Koordinator's scheduler writes for these devices, with the ids of Device objects."""
        devices: dict[str, list[dict[str, Any]]] = {}
        for grant in grants:
            row = self._row(grant)
            resources = self._resources(row, grant)
            if row.ratio and (ratio := self._ratio(grant)) is not None:
                resources[row.ratio] = str(ratio)
            if not grant.core_percent and len(resources) > 1:
                del resources[row.core]  # there an amount that was not asked is not written
            address = bus_id((grant.type, grant.minor)) if bus_id is not None else None
            told = {"minor": grant.minor, "resources": self._prefixed(resources)}
            told["id"] = row.object_id(uuid=grant.uuid, bus_id=address or "")
            devices.setdefault(grant.type, []).append(told)
        return msgspec.json.encode(devices).decode()

    def ours(self, grants: Sequence[GrantView]) -> str:
        """The same shape for our own annotation, which tells a share of all that a device has from a whole device: it has no ratio."""
        devices: dict[str, list[dict[str, Any]]] = {}
        for grant in grants:
            row = self._row(grant)
            resources = self._resources(row, grant)
            ratio = self._ratio(grant) if row.ratio else None
            if ratio is not None and (grant.whole or ratio < CORE_WHOLE or grant.core_percent < CORE_WHOLE):
                resources[row.ratio] = str(ratio)
            devices.setdefault(grant.type, []).append({"minor": grant.minor, "resources": self._prefixed(resources)})
        return msgspec.json.encode(devices).decode()

    def _row(self, grant: GrantView) -> DeviceType:
        return self._table.get(grant.type) or DeviceType(grant.type, units=grant.type)

    def _prefixed(self, resources: Mapping[str, str]) -> dict[str, str]:
        return {f"{self._prefix}/{name}": amount for name, amount in resources.items()}

    @staticmethod
    def _resources(row: DeviceType, grant: GrantView) -> dict[str, str]:
        """Resource name without prefix → quantity of one device, without the ratio."""
        if not row.core:
            return {row.units: str(grant.core_percent)}
        resources = {row.core: str(grant.core_percent)}
        if row.memory and grant.memory_bytes is not None:
            resources[row.memory] = format_bytes(grant.memory_bytes)
        return resources

    def _ratio(self, grant: GrantView) -> int | None:
        """Percent of the memory: what was asked, else what the bytes are, as Koordinator rounds them; None where that is not known.

        Bytes are a ratio rounded down, so a ratio that was worked out from them again could be one too low.
        """
        if grant.whole:
            return CORE_WHOLE
        if grant.memory_bytes is None:
            return None
        total = self._memory_total((grant.type, grant.minor)) if self._memory_total is not None else None
        ask: DeviceAsk | None = self._asks.get(grant.type)
        if ask is not None and ask.memory_ratio is not None:
            asked = ask.memory_ratio
            if not total or total * asked // 100 == grant.memory_bytes:
                return asked
        return int(grant.memory_bytes / total * 100) if total else None
