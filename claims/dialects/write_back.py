"""The result annotations, which the Binding sets on the pod.

Invariants: equal requests and grants give equal annotations, and `claims.dialects.read_back` reads the devices and
exact amounts back from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from claims.dialects.device_json import own_amounts
from claims.dialects.grants import BusId, GrantView, MemoryTotal, Placed
from claims.dialects.isolation import isolation_annotations
from claims.dialects.own_keys import container_key
from claims.dialects.registry import BY_NAME, RENUMBERED
from claims.dialects.request import DeviceRequest
from kube.device_types import GPU, MIG_UUID, type_order
from kube.keys import ALLOCATED, VISIBLE_DEVICES

AMOUNTS: Final = "gpu.scheduling/amounts"
"""Result annotation with the exact amounts, in Koordinator's format, of pods that request anything but whole GPUs in a
dialect whose own result lacks them: the ledger can be rebuilt after the claim was edited or deleted.
"""


class VisibleDevices(StrEnum):
    """How devices are named where only CUDA_VISIBLE_DEVICES refers to the annotation (GPUPLANE_VISIBLE_DEVICES)."""

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
) -> dict[str, str]:
    """The annotations of a pod that got `grants` on `node`.

    `memory_total`: for the memory ratios of shares that were not requested by ratio, which are omitted without it.
    `bus_id`: for the ids of Koordinator's annotation.
    """
    ordered = sorted(grants, key=lambda grant: (type_order(grant.type), grant.minor))
    shown = [grant for grant in ordered if grant.type == GPU] or [
        grant for grant in ordered if grant.type == ordered[0].type
    ]
    annotations = {
        ALLOCATED: f"{node}:{','.join(str(grant.minor) for grant in shown)}",
        VISIBLE_DEVICES: visible_devices(request=request, grants=ordered, visible=visible),
    }
    placed = Placed(request, node, ordered, memory_total, bus_id)
    dialect = BY_NAME.get(request.dialect)
    if dialect is not None and dialect.results is not None:
        annotations |= dialect.results(placed)
    if dialect is not None and dialect.by_container:
        annotations |= _by_container(request, ordered, visible)
    if request.isolation:
        annotations |= isolation_annotations(placed, by_container=dialect is not None and dialect.by_container)
    untold = dialect is None or not dialect.exact_amounts
    if untold and (request.shares or any(grant.type != GPU or not grant.whole for grant in ordered)):
        annotations[AMOUNTS] = own_amounts(placed)
    return annotations


def visible_devices(*, request: DeviceRequest, grants: Iterable[GrantView], visible: VisibleDevices) -> str:
    """The env value: GPUs by ascending minor, as UUIDs if NVIDIA_VISIBLE_DEVICES is set too, else as configured."""
    gpus = sorted((grant for grant in grants if grant.type == GPU), key=lambda grant: grant.minor)
    instances = any(gpu.uuid.startswith(MIG_UUID) for gpu in gpus)  # they have no index
    if instances or visible is VisibleDevices.UUID or request.uuids or request.dialect in RENUMBERED:
        return ",".join(gpu.uuid for gpu in gpus)
    return ",".join(str(gpu.minor) for gpu in gpus)


def _by_container(request: DeviceRequest, grants: Sequence[GrantView], visible: VisibleDevices) -> dict[str, str]:
    """The annotations of containers that have their own devices."""
    return {
        key: visible_devices(request=request, grants=[one for one in grants if one.minor in ask.given], visible=visible)
        for ask in request.asks
        if ask.given and (key := container_key(ask.container)) != VISIBLE_DEVICES
    }
